r"""The epsilon that a sequence of Gaussian releases delivers.

One function covers four accountants and three kinds of sampling:

                none              visible              poisson
  exact         equivalent        binomial mixture,    (none known)
                single Gaussian   equal noise only
  rdp           a x / 2           ln(1-q+q e^y)        exact moments
  pld           single Gaussian   (1-q){0} + q Gauss   both directions
  moments       the paper's bound x = q sum 1/z^2, eps = x/2 + sqrt(2x ln(1/d))

`none` is the worst client, whose releases are exactly those listed. `visible`
is the paper's server: it sees who uploads. Sampling is then random but not
secret, and the sampling rate q only multiplies delta. `poisson` requires a
sample that stays secret, an observer who sees only the aggregate, and noise
multipliers relative to everything that one *user*, added or removed,
contributes; the paper's threat model has none of these. Every accountant is an
upper bound except `moments` with q < 1, whose moment bound (eq-bound, linear in
q) is false.

Unsampled Gaussian releases with any noise are equivalent to one release with
1/z^2 = sum of 1/z_m^2; the paper's R(theta, M) is that sum for its schedule.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space, _pld, _rdp, gaussian, paper

ACCOUNTANTS = ('exact', 'rdp', 'pld', 'moments')
SAMPLINGS = ('none', 'poisson', 'visible')


def is_sound(
  accountant: str, sampling: str = 'none', sampling_rate: float = 1.0
) -> bool:
  """Whether the accountant's epsilon is never below the truth.

  >>> is_sound('exact'), is_sound('moments')
  (True, True)
  >>> is_sound('moments', 'visible', sampling_rate=0.1)
  False

  Args:
    accountant: One of `ACCOUNTANTS`.
    sampling: One of `SAMPLINGS`.
    sampling_rate: q in (0, 1].

  Returns:
    False for `moments` with q < 1, and for `exact` with Poisson sampling and
    q < 1, where there is no such accountant.

  Raises:
    ValueError: If an argument is out of range.
  """
  _validate.one_of('accountant', accountant, ACCOUNTANTS)
  _validate.one_of('sampling', sampling, SAMPLINGS)
  sampling_rate = _validate.rate('sampling_rate', sampling_rate)
  if sampling_rate == 1:
    return True
  if accountant == 'moments':
    return False
  return not (accountant == 'exact' and sampling == 'poisson')


def checked_multipliers(
  noise_multipliers: Iterable[float] | np.ndarray,
) -> np.ndarray:
  """The finite noise multipliers, ascending, float64 [at most rounds].

  Raises:
    ValueError: If one is NaN or <= 0, or they are not a sequence of numbers.
  """
  allowed = 'a sequence of numbers > 0 (inf: no release)'
  values: Any = noise_multipliers
  if not isinstance(values, np.ndarray):
    values = list(values) if np.iterable(values) else values
  try:
    if isinstance(noise_multipliers, _validate.TEXT):
      raise TypeError('the codes of its characters are no multipliers')
    array = np.asarray(values, np.float64)
  except (TypeError, ValueError):
    raise ValueError(
      f'noise_multipliers must be {allowed}, got {noise_multipliers!r}'
    ) from None
  if array.ndim != 1:
    raise ValueError(
      f'noise_multipliers must be {allowed}, got shape {array.shape}'
    )
  wrong = np.flatnonzero(~(array > 0))
  if wrong.size:
    raise ValueError(
      f'noise_multipliers must be {allowed}, got {array[wrong[0]]} in round'
      f' {wrong[0] + 1}'
    )
  return np.sort(array[np.isfinite(array)])


def equivalent_mu(noise_multipliers: np.ndarray) -> float:
  """sqrt(sum of 1/z^2), rounded up, for finite z in ascending order.

  Any number of unsampled Gaussian releases is equivalent to one with noise
  multiplier 1/mu.
  """
  if not len(noise_multipliers):
    return 0.0
  smallest = float(noise_multipliers[0])
  ratios = smallest / noise_multipliers
  total = math.fsum(ratios * ratios)
  if 1 / smallest == math.inf:
    return math.inf
  return _log_space.round_up(math.sqrt(total) / smallest)


def _square(mu: float) -> float:
  return math.inf if mu > 1e154 else _log_space.round_up(mu * mu)


def _unsampled(multipliers: np.ndarray, delta: float, accountant: str) -> float:
  mu = equivalent_mu(multipliers)
  if accountant == 'rdp':
    return _rdp.unsampled_epsilon(_square(mu), delta)
  if accountant == 'pld':
    return _pld.unsampled_epsilon(mu, delta)
  return gaussian.epsilon_of_mu(mu, delta)


def _exact_sampled(
  values: np.ndarray, counts: np.ndarray, delta: float, sampling: str, q: float
) -> float:
  if sampling == 'poisson':
    raise ValueError(
      "accountant must be rdp or pld with sampling 'poisson', got 'exact'"
    )
  if len(values) > 1:
    raise ValueError(
      "accountant must be rdp or pld with sampling 'visible' and unequal noise"
      f" multipliers, got 'exact' with {len(values)} different ones"
    )
  return gaussian.visible_epsilon(float(values[0]), int(counts[0]), q, delta)


def delivered_epsilon(
  noise_multipliers: Iterable[float] | np.ndarray,
  delta: float,
  accountant: str,
  sampling: str = 'none',
  sampling_rate: float = 1.0,
) -> float:
  """The epsilon that Gaussian releases deliver at `delta`.

  >>> round(delivered_epsilon([2.0, 1.0, 0.5], 1e-5, 'exact'), 4)
  11.8353
  >>> delivered_epsilon([], 1e-5, 'rdp')
  0.0

  On two cores, `exact`, `rdp` and `moments` without sampling take milliseconds
  for 10,000 rounds. `rdp` with sampling takes about a second for 1,000 rounds
  of distinct noise. `pld` with sampling takes 0.01 to 0.3 s for each distinct
  noise multiplier.

  Args:
    noise_multipliers: The noise standard deviation divided by the sensitivity
      for every round, > 0, in any order; inf if nothing is released.
    delta: In (0, 1).
    accountant: One of `ACCOUNTANTS`: exact, rdp, pld, moments.
    sampling: One of `SAMPLINGS`: none (each release happens), visible (each
      happens with probability q, and the adversary sees which), poisson (the
      same, secretly: user-level sensitivity and aggregate-only view).
    sampling_rate: q in (0, 1]. With sampling `none` it is used only in
      `moments`, the paper's bound, which is linear in it.

  Returns:
    An upper bound on the smallest epsilon >= 0, rounded up; inf if the
    accountant finds none. For the pairs that `is_sound` refuses, the result is
    instead what the paper claims, and may be far below the truth.

  Raises:
    ValueError: If an argument is out of range, or `exact` is requested where
      there is no exact accountant.
  """
  multipliers = checked_multipliers(noise_multipliers)
  delta = _validate.open_unit('delta', delta)
  _validate.one_of('accountant', accountant, ACCOUNTANTS)
  _validate.one_of('sampling', sampling, SAMPLINGS)
  q = _validate.rate('sampling_rate', sampling_rate)
  if not len(multipliers):
    return 0.0
  if accountant == 'moments':
    moment = q * _square(equivalent_mu(multipliers))
    return _log_space.round_up(paper.moment_bound_epsilon(moment, delta))
  if accountant != 'exact':
    if multipliers[0] < _rdp.SMALLEST_MULTIPLIER:
      return math.inf
    multipliers = np.minimum(multipliers, _rdp.LARGEST_MULTIPLIER)
    q = max(q, _rdp.SMALLEST_RATE)
  if sampling == 'none' or q == 1:
    return _unsampled(multipliers, delta, accountant)
  values, counts = np.unique(multipliers, return_counts=True)
  if accountant == 'exact':
    return _exact_sampled(values, counts, delta, sampling, q)
  module: Any = _rdp if accountant == 'rdp' else _pld
  return module.sampled_epsilon(sampling, values, counts, q, delta)


def renyi_orders(
  noise_multipliers: Sequence[float], delta: float, sampling_rate: float
) -> list[float]:
  """The Renyi orders that dp_accounting needs for Poisson-sampled rounds.

  They are its orders around the best one. With all of its orders, dp_accounting
  takes a fifth of a second for each round.

  Args:
    noise_multipliers: Noise multipliers > 0 of the rounds, [M], M >= 1.
    delta: In (0, 1).
    sampling_rate: q in (0, 1).
  """
  return _rdp.orders_near_best(
    np.array(noise_multipliers, np.float64), sampling_rate, delta
  )
