r"""The privacy cost of publishing only the best of a random number of runs.

Training several times and publishing the best model discloses more than one run
does, because the choice depends on the data. The additional loss is bounded if
the number of runs K is random, drawn from a fixed distribution, and neither K
nor any other run is published (Papernot and Steinke, 2021, arXiv 2110.03620).
For K geometric with mean m, and runs with Renyi divergence rdp(a) at order a,

  RDP(a) <= rdp(a) + 2 (1 - 1/a') rdp(a') + 2 ln(m) / a' + ln(m) / (a - 1)

at any order a'. This is about the cost of three runs, whatever the mean. K is
drawn from a negative binomial distribution, truncated to K >= 1, with that
mean. Its `shape` is 1 for the geometric distribution and 0 for the logarithmic
one, which costs less and has a larger spread. With shape inf, K has a Poisson
distribution, which may give no run at all. Accounting is by dp_accounting's
`RepeatAndSelectDpEvent`.

The selection may use anything that is computed from a run's own releases and
public data, such as the accuracy on a public test set. Settings may differ from
run to run, if each run draws its own at random and the noise is never less.
"""

import functools
import math
import secrets
import sys
from collections.abc import Iterable

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import accounting, calibration
from tvdp_tf.privacy import schedule as schedule_lib

SAMPLINGS = ('none', 'poisson')
# Covers the rounding of dp_accounting's sums.
_SAFETY = 1 + 1e-9
# At integer orders its moments are sums; other orders take ten times as long.
_ORDERS = np.array([*range(2, 65), 80, 96, 128, 192, 256], np.float64)
_LARGEST_MEAN = 1e6


def _checked(mean: float, shape: float) -> tuple[float, float]:
  """Checks and returns the parameters of the distribution.

  Raises:
    ValueError: If one is out of range.
  """
  mean = _validate.positive('mean', mean)
  if not 1 < mean <= _LARGEST_MEAN:
    raise ValueError(
      f'mean must be above 1 and at most {_LARGEST_MEAN:g}, got {mean!r}'
    )
  if isinstance(shape, float) and shape == math.inf:
    return mean, math.inf
  return mean, _validate.non_negative('shape', shape)


def best_of_runs_epsilon(
  noise_multipliers: Iterable[float] | np.ndarray,
  delta: float,
  mean: float,
  shape: float = 1.0,
  sampling: str = 'none',
  sampling_rate: float = 1.0,
) -> float:
  """The epsilon of publishing the best of a random number of equal runs.

  >>> one = accounting.delivered_epsilon([4.0] * 10, 1e-5, 'rdp')
  >>> best = best_of_runs_epsilon([4.0] * 10, 1e-5, mean=10)
  >>> one < best < 4 * one
  True

  With sampling, dp_accounting takes 0.05 s for each distinct noise multiplier.

  Args:
    noise_multipliers: Noise standard deviation over sensitivity of every round
      of one run, > 0, in any order; inf if nothing is released.
    delta: In (0, 1).
    mean: Mean number of runs, above 1; the number itself is random.
    shape: Shape of its distribution, >= 0; inf for a Poisson distribution.
    sampling: 'none' or 'poisson', as for `accounting.delivered_epsilon`.
    sampling_rate: q in (0, 1]; not used with sampling 'none'.

  Returns:
    An upper bound on epsilon, rounded up; inf if there is none.

  Raises:
    ValueError: If an argument is out of range.
  """
  multipliers = accounting.checked_multipliers(noise_multipliers)
  delta = _validate.open_unit('delta', delta)
  mean, shape = _checked(mean, shape)
  _validate.one_of('sampling', sampling, SAMPLINGS)
  rate = _validate.rate('sampling_rate', sampling_rate)
  from dp_accounting import dp_event, rdp  # noqa: PLC0415

  def event(multiplier: float) -> dp_event.DpEvent:
    gaussian = dp_event.GaussianDpEvent(multiplier)
    if sampling == 'none':
      return gaussian
    return dp_event.PoissonSampledDpEvent(rate, gaussian)

  values, counts = np.unique(multipliers, return_counts=True)
  run = dp_event.ComposedDpEvent(
    [
      dp_event.SelfComposedDpEvent(event(value), int(count))
      for value, count in zip(values.tolist(), counts, strict=True)
    ]
  )
  accountant = rdp.RdpAccountant(_ORDERS)
  with np.errstate(over='ignore'):
    accountant.compose(dp_event.RepeatAndSelectDpEvent(run, mean, shape))
  epsilon = float(accountant.get_epsilon(delta)) * _SAFETY
  return math.inf if math.isnan(epsilon) else epsilon


def calibrate_best_of_runs(
  epsilon: float,
  delta: float,
  theta: float | schedule_lib.NoiseShape,
  rounds: int,
  mean: float,
  shape: float = 1.0,
  sensitivity: float = 1.0,
  sampling: str = 'none',
  sampling_rate: float = 1.0,
) -> schedule_lib.NoiseSchedule:
  """The schedule of each run if the best is published: 99 to 100 % of target.

  >>> schedule = calibrate_best_of_runs(2.0, 1e-5, theta=0.9, rounds=8, mean=5)
  >>> z = schedule.noise_multipliers(1.0)
  >>> 0.99 * 2.0 <= best_of_runs_epsilon(z, 1e-5, mean=5) <= 2.0
  True

  Args:
    epsilon: Target for what is published, > 0.
    delta: In (0, 1).
    theta: Ratio of the variances of successive rounds, > 0; or a shape.
    rounds: Number of rounds of one run that a client takes part in (sampling
      'none'), or may take part in.
    mean: As for `best_of_runs_epsilon`.
    shape: As for `best_of_runs_epsilon`.
    sensitivity: L2 sensitivity of one release.
    sampling: As for `best_of_runs_epsilon`.
    sampling_rate: As for `best_of_runs_epsilon`.

  Raises:
    ValueError: If an argument is out of range, or the accountant cannot reach
      the target.
  """
  mean, shape = _checked(mean, shape)
  _validate.one_of('sampling', sampling, SAMPLINGS)
  sampling_rate = _validate.rate('sampling_rate', sampling_rate)
  return calibration.calibrate_by(
    functools.partial(
      best_of_runs_epsilon,
      delta=delta,
      mean=mean,
      shape=shape,
      sampling=sampling,
      sampling_rate=sampling_rate,
    ),
    epsilon,
    delta,
    theta,
    rounds,
    sensitivity,
  )


def draw_number_of_runs(mean: float, shape: float = 1.0) -> int:
  """Draws the secret number of runs from the operating system's entropy.

  Args:
    mean: As for `best_of_runs_epsilon`.
    shape: As for `best_of_runs_epsilon`.

  Returns:
    At least 1; at least 0 with shape inf. Its distribution is the one that is
    accounted for, except for a probability of 1e-12.

  Raises:
    ValueError: If an argument is out of range.
  """
  mean, shape = _checked(mean, shape)
  uniform = (secrets.randbits(53) + 0.5) * 2.0**-53
  number, probability = 1, 0.0
  if shape == math.inf:
    number, probability = 0, math.exp(-mean)
    if mean > 700:
      raise ValueError(f'mean must be at most 700 with shape inf, got {mean!r}')
  else:
    gamma = _gamma(mean, shape)
    probability = (1 - gamma) * _slope(gamma, shape)
    if not probability > sys.float_info.min:
      raise ValueError(
        f'shape must be smaller with mean {mean!r}, got {shape!r}: the'
        ' probability of 1 run is too small to represent'
      )
  below = probability
  # Stop at tiny probabilities: rounding may keep the sum below `uniform`.
  while below < uniform and (number < mean or probability > 1e-18):
    if shape == math.inf:
      probability *= mean / (number + 1)
    else:
      probability *= (1 - gamma) * (number + shape) / (number + 1)
    number += 1
    below += probability
  return number


def _slope(gamma: float, shape: float) -> float:
  """The slope shape / (gamma^-shape - 1); -1 / ln(gamma) at shape 0."""
  if shape == 0:
    return -1 / math.log(gamma)
  exponent = -shape * math.log(gamma)
  return shape / math.expm1(exponent) if exponent < 700 else 0.0


def _mean(gamma: float, shape: float) -> float:
  """The mean of the truncated negative binomial distribution."""
  if shape == 0:
    return (1 - gamma) / gamma / -math.log(gamma)
  return shape * (1 - gamma) / gamma / -math.expm1(shape * math.log(gamma))


def _gamma(mean: float, shape: float) -> float:
  """The gamma in (0, 1) of that mean or slightly less, which reveals less."""
  if shape == 1:
    return 1 / mean
  low, high = -math.log(mean) * 2 - 50, 0.0  # Logarithms of gamma.
  while high - low > 1e-13 * max(1.0, abs(low)):
    middle = (low + high) / 2
    if _mean(math.exp(middle), shape) > mean:
      low = middle
    else:
      high = middle
  return math.exp(high)
