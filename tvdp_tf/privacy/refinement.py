r"""Changing the number of rounds under way, within the same budget.

The paper's Section "Online Adjustment of DP Perturbation Noise Amplitude" and
Theorem 2 (eq_DP noise re). Its proof charges the rounds already released at the
new noise although they used the old one, and for theta < 1 bounds the rest by
too little. The exact rule spends what is left of the budget, no more, no less:

  sigma'^2 = sum_{n=m+1..M'} theta^(1-n) / (B - sum_{n<=m} 1/sigma_n^2)

with B the sum of 1/variance allowed in total. It uses the noise that past
rounds really had, holds for every theta > 0, any number of refinements, and M'
above or below M. The number of rounds may depend on past outputs: a hard cap on
the sum of 1/variance is a valid privacy filter for Gaussian releases, so the
adaptive run has the guarantee of the planned one. What triggers it must not
look at protected data again: a public test set, or released models.
"""

import fractions
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import _rounding, _series


def new_maximum_rounds(alpha_d: Any, rounds: int) -> int:
  """M' = ceil(alpha_d * M), in exact arithmetic.

  In binary64 0.55 * 100 is above 55 and its ceiling 56. `alpha_d` is read as
  the decimal number that it is written as.

  >>> new_maximum_rounds(0.55, 100), new_maximum_rounds('9/10', 27)
  (55, 25)

  Args:
    alpha_d: In (0, 1]: a float, a string, a Decimal or a Fraction.
    rounds: The *current* maximum number of rounds M. With the original one a
      second refinement would change nothing.

  Returns:
    The new maximum, at least 1 and at most `rounds`.

  Raises:
    ValueError: If an argument is out of range.
  """
  rounds = _validate.integer('rounds', rounds)
  try:
    exact = fractions.Fraction(str(alpha_d))
  except (ValueError, ZeroDivisionError):
    exact = fractions.Fraction(0)
  if not 0 < exact <= 1 or isinstance(alpha_d, bool):
    raise ValueError(f'alpha_d must be a number in (0, 1], got {alpha_d!r}')
  return math.ceil(exact * rounds)


def refine_stddev(
  theta: float,
  past_stddevs: Iterable[float] | np.ndarray,
  new_rounds: int,
  budget: float,
) -> float:
  """Sigma' that makes the rounds still to come spend what is left.

  Round n = m+1..M' then gets the noise of
  `GeometricSchedule(theta, new_rounds, sigma').stddev(n)`: the exponent keeps
  counting from round 1. Calling it again after more rounds, with the noise they
  really had, is exact again.

  >>> budget = 30.0  # thirty rounds of unit noise
  >>> round(refine_stddev(1.0, [1.0] * 10, 24, budget) ** 2, 12)
  0.7

  Args:
    theta: Ratio of the variances of successive rounds, > 0.
    past_stddevs: Noise standard deviations of rounds 1..m as released, [m]; may
      be empty, and any series.
    new_rounds: New maximum number of rounds M', > m.
    budget: B, the sum over all rounds of 1/variance that is allowed:
      1 / (sensitivity * gaussian_noise_multiplier(epsilon, delta))^2, or
      `precision()` of the schedule that was calibrated.

  Returns:
    sigma', the standard deviation that round 1 would have had, rounded up by a
    few units in the last place so that rounding does not overspend.

  Raises:
    ValueError: If M' <= m, that is, no round is left and training stops here;
      if the budget is spent; or if an argument is out of range.
  """
  theta = _validate.positive('theta', theta)
  new_rounds = _validate.integer('new_rounds', new_rounds)
  budget = _validate.positive('budget', budget)
  past = [
    _validate.positive(f'past_stddevs of round {n}', stddev)
    for n, stddev in enumerate(past_stddevs, start=1)
  ]
  done = len(past)
  if new_rounds <= done:
    raise ValueError(
      f'new_rounds must exceed the {done} rounds already released, got'
      f' {new_rounds}: no release is left, training stops'
    )
  spent = math.fsum((1 / stddev) / stddev for stddev in past)
  left = math.nextafter(budget - _rounding.round_up(spent), 0)
  if not left > 0:
    raise ValueError(
      f'budget must exceed the {spent:.17g} already spent by {done} rounds, got'
      f' {budget!r}: no release is left, training stops'
    )
  # sum_{n=m+1..M'} theta^(1-n) = theta^(-m) R(theta, M' - m)
  log_future = _series.log_precision_sum(theta, new_rounds - done)
  log_future -= done * math.log(theta)
  stddev = _rounding.representable(
    "the refined noise standard deviation sigma'",
    0.5 * (log_future - math.log(left)),
  )
  # exp and log of an exponent of size e lose e units in the last place.
  return _rounding.round_up(stddev, 16 + 2 * int(abs(log_future)))
