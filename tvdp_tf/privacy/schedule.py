"""The geometric noise schedule: variance(m) = theta^(m-1) * initial variance.

The paper's Section "Proposed Time-varying Perturbation Noise Variance"
(Theta(m) = vartheta^(m-1) sigma^2, m = 1..M). The *variance* is multiplied by
`theta` from round to round, so the standard deviation is multiplied by
sqrt(theta).

A round's noise is a function of the round alone, never a product accumulated
over the rounds, so that a run that is resumed adds the noise it was planned to
add.
"""

import dataclasses
import math
import sys

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import _rounding, _series


@dataclasses.dataclass(frozen=True)
class GeometricSchedule:
  """Standard deviations of the noise of rounds 1 to `rounds`.

  >>> schedule = GeometricSchedule(theta=4.0, rounds=3, initial_stddev=0.5)
  >>> schedule.stddevs()
  array([0.5, 1. , 2. ])
  >>> schedule.variance(3)
  4.0
  >>> round(schedule.precision(), 12)
  5.25

  Attributes:
    theta: Ratio of the variances of successive rounds, > 0 (the paper's
      vartheta). Below 1 the noise decreases.
    rounds: Number of rounds M, an integer >= 1.
    initial_stddev: Standard deviation of round 1, in the unit of the vector
      that is perturbed.

  Raises:
    ValueError: If a parameter is out of range, or if the variance of any round
      is not a normal binary64 number: one that underflows would be no noise.
  """

  theta: float
  rounds: int
  initial_stddev: float

  def __post_init__(self):
    theta = _validate.positive('theta', self.theta)
    rounds = _validate.integer('rounds', self.rounds)
    stddev = _validate.positive('initial_stddev', self.initial_stddev)
    object.__setattr__(self, 'theta', theta)
    object.__setattr__(self, 'rounds', rounds)
    object.__setattr__(self, 'initial_stddev', stddev)
    # The series is monotone: its ends bound it.
    for m in (1, rounds):
      log_variance = 2 * math.log(stddev) + (m - 1) * math.log(theta)
      _rounding.representable(f'the noise variance of round {m}', log_variance)
    if not math.isfinite(self.precision()):
      raise ValueError(
        'initial_stddev must be so large that the sum of 1/variance is finite,'
        f' got {stddev!r} for theta={theta!r}, rounds={rounds}'
      )

  def _stddevs(self, m: np.ndarray) -> np.ndarray:
    # In two halves: theta^((m-1)/2) alone may overflow where the result does
    # not, its square root never does.
    half = np.exp((m - 1) * (math.log(self.theta) / 4))
    return (self.initial_stddev * half) * half

  def stddev(self, m: int) -> float:
    """The standard deviation of round `m`, 1 <= m <= rounds."""
    m = _validate.integer('m', m, 1, self.rounds)
    return float(self._stddevs(np.array([m], np.float64))[0])

  def variance(self, m: int) -> float:
    """The variance of round `m`, theta^(m-1) * initial_stddev^2."""
    return self.stddev(m) ** 2

  def stddevs(self) -> np.ndarray:
    """The standard deviations of all rounds, float64 [rounds]."""
    return self._stddevs(np.arange(1, self.rounds + 1, dtype=np.float64))

  def precision(self) -> float:
    """Sum over the rounds of 1/variance, from its closed form.

    Divided by the squared sensitivity this is 1/z^2 of the one Gaussian release
    that discloses as much as all the rounds together.
    """
    return _rounding.exp_or_inf(
      _series.log_precision_sum(self.theta, self.rounds)
      - 2 * math.log(self.initial_stddev)
    )

  def noise_multipliers(self, sensitivity: float) -> np.ndarray:
    """Stddev / sensitivity of all rounds, float64 [rounds].

    Args:
      sensitivity: L2 sensitivity of what is released in a round, in the unit of
        `initial_stddev`.

    Returns:
      The noise multipliers z_m, the form that every accountant takes.

    Raises:
      ValueError: If a quotient is not a normal binary64 number.
    """
    sensitivity = _validate.positive('sensitivity', sensitivity)
    with np.errstate(over='ignore', under='ignore'):
      multipliers = self.stddevs() / sensitivity
    smallest, largest = multipliers.min(), multipliers.max()
    if smallest < sys.float_info.min or math.isinf(largest):
      raise ValueError(
        'sensitivity must leave every noise multiplier representable, got'
        f' {sensitivity!r} for standard deviations from'
        f' {self.stddevs().min():.3g} to {self.stddevs().max():.3g}'
      )
    return multipliers
