"""Noise schedules: the standard deviation of the noise of every round.

The geometric schedule is the paper's (Section "Proposed Time-varying
Perturbation Noise Variance"): variance(m) = theta^(m-1) * initial variance,
m = 1..M. The *variance* is multiplied by `theta` from round to round, so the
standard deviation is multiplied by sqrt(theta). Any other schedule is listed.

A `NoiseShape` is a schedule without its scale, which calibration sets.

A round's noise depends on the round alone. It is never a product accumulated
over the rounds, so a resumed run adds the noise that was planned.
"""

import abc
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space

# A schedule is too uneven to be useful if it spends this share of the budget in
# less than this share of its rounds.
_MOST_OF_BUDGET = 0.9
_FEW_ROUNDS = 0.25


class NoiseSchedule(abc.ABC):
  """Standard deviations of the noise of rounds 1 to `rounds`.

  Attributes:
    rounds: Number of rounds M, an integer >= 1.
    initial_stddev: Standard deviation of round 1, in the unit of the vector
      that is perturbed.
  """

  rounds: int
  initial_stddev: float

  @property
  @abc.abstractmethod
  def shape(self) -> 'NoiseShape':
    """The schedule without its scale."""

  @abc.abstractmethod
  def stddevs(self) -> np.ndarray:
    """The standard deviations of all rounds, float64 [rounds]."""

  @abc.abstractmethod
  def stddev(self, m: int) -> float:
    """The standard deviation of round `m`, 1 <= m <= rounds."""

  def variance(self, m: int) -> float:
    """The variance of round `m`."""
    return self.stddev(m) ** 2

  def precision(self) -> float:
    """Sum over the rounds of 1/variance.

    Divided by the squared sensitivity, it is mu^2 of the Gaussian mechanism
    that discloses as much as all rounds together (mu-Gaussian DP), and twice
    the rho of zero-concentrated DP.
    """
    return _log_space.exp_or_inf(
      self.shape.log_precision_sum(self.rounds)
      - 2 * math.log(self.initial_stddev)
    )

  def noise_multipliers(self, sensitivity: float) -> np.ndarray:
    """Standard deviation / sensitivity of all rounds, float64 [rounds].

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

  def warning(self) -> str:
    """One line if a few rounds spend nearly all of the budget; otherwise empty.

    What the other rounds learn is lost in their noise.
    """
    stddevs = self.stddevs()
    shares = np.sort((stddevs.min() / stddevs) ** 2)[::-1]
    spent = np.cumsum(shares) / shares.sum()
    needed = int(np.searchsorted(spent, _MOST_OF_BUDGET)) + 1
    if needed >= _FEW_ROUNDS * self.rounds:
      return ''
    return (
      f'{needed} of {self.rounds} rounds spend {_MOST_OF_BUDGET:.0%} of the'
      ' budget, and the noise of a round is up to'
      f' {stddevs.max() / stddevs.min():.3g} times that of another: the final'
      ' model may be no better than guessing. Use fewer rounds or more even'
      ' noise (theta closer to 1)'
    )

  @abc.abstractmethod
  def to_json_dict(self) -> dict[str, Any]:
    """The fields, ready for `json.dumps`."""

  def _check(self) -> None:
    if not math.isfinite(self.precision()):
      raise ValueError(
        'initial_stddev must be so large that the sum of 1/variance is finite,'
        f' got {self.initial_stddev!r} for {self.shape}, rounds={self.rounds}'
      )


@dataclasses.dataclass(frozen=True)
class GeometricSchedule(NoiseSchedule):
  """The paper's schedule: variance(m) = theta^(m-1) * initial_stddev^2.

  >>> schedule = GeometricSchedule(theta=4.0, rounds=3, initial_stddev=0.5)
  >>> schedule.stddevs()
  array([0.5, 1. , 2. ])
  >>> schedule.variance(3)
  4.0
  >>> round(schedule.precision(), 12)
  5.25

  Attributes:
    theta: Ratio of the variances of successive rounds, > 0 (the paper's
      vartheta). If it is below 1, the noise decreases.
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
    # The series is monotone, so its ends bound it.
    for m in (1, rounds):
      log_variance = 2 * math.log(stddev) + (m - 1) * math.log(theta)
      _log_space.representable(f'the noise variance of round {m}', log_variance)
    self._check()

  @property
  def shape(self) -> 'GeometricShape':
    """The shape with the same theta."""
    return GeometricShape(self.theta)

  def to_json_dict(self) -> dict[str, Any]:
    """The fields, ready for `json.dumps`."""
    return dataclasses.asdict(self)

  def _stddevs(self, m: np.ndarray) -> np.ndarray:
    # Multiply in two steps: theta^((m-1)/2) may overflow even if the result
    # does not, but its square root never does.
    half = np.exp((m - 1) * (math.log(self.theta) / 4))
    return (self.initial_stddev * half) * half

  def stddev(self, m: int) -> float:
    """The standard deviation of round `m`, 1 <= m <= rounds."""
    m = _validate.integer('m', m, 1, self.rounds)
    return float(self._stddevs(np.array([m], np.float64))[0])

  def stddevs(self) -> np.ndarray:
    """The standard deviations of all rounds, float64 [rounds]."""
    return self._stddevs(np.arange(1, self.rounds + 1, dtype=np.float64))


@dataclasses.dataclass(frozen=True)
class ListedSchedule(NoiseSchedule):
  """A schedule of any standard deviations, one for each round.

  >>> schedule = ListedSchedule((2.0, 1.0, 0.5))
  >>> schedule.rounds, schedule.stddev(3), schedule.precision()
  (3, 0.5, 5.25)

  Attributes:
    noise_stddevs: Standard deviation of every round, in the unit of the vector
      that is perturbed.

  Raises:
    ValueError: If there is none, or the variance of a round is not a normal
      binary64 number.
  """

  noise_stddevs: tuple[float, ...]

  def __post_init__(self):
    stddevs = tuple(
      _validate.positive('noise_stddevs', value) for value in self.noise_stddevs
    )
    if not stddevs:
      raise ValueError(
        'noise_stddevs must have a number for each round, got ()'
      )
    object.__setattr__(self, 'noise_stddevs', stddevs)
    for m, stddev in enumerate(stddevs, start=1):
      _log_space.representable(
        f'the noise variance of round {m}', 2 * math.log(stddev)
      )
    self._check()

  @property
  def rounds(self) -> int:  # type: ignore[override]
    """M, the length of the list."""
    return len(self.noise_stddevs)

  @property
  def initial_stddev(self) -> float:  # type: ignore[override]
    """Standard deviation of the noise in round 1."""
    return self.noise_stddevs[0]

  @property
  def shape(self) -> 'ListedShape':
    """The list without its unit."""
    return ListedShape(self.noise_stddevs)

  def to_json_dict(self) -> dict[str, Any]:
    """The list, ready for `json.dumps`."""
    return {'noise_stddevs': list(self.noise_stddevs)}

  def stddevs(self) -> np.ndarray:
    """The list, float64 [rounds]."""
    return np.array(self.noise_stddevs, np.float64)

  def stddev(self, m: int) -> float:
    """The standard deviation of round `m`, 1 <= m <= rounds."""
    return self.noise_stddevs[_validate.integer('m', m, 1, self.rounds) - 1]


class NoiseShape(abc.ABC):
  """How the noise changes over the rounds, whatever its scale.

  Attributes:
    setting: The name of the setting that defines it, for messages.
  """

  setting: str = 'schedule'

  @abc.abstractmethod
  def log_variances(self, rounds: int) -> np.ndarray:
    """Ln(v_m / v_1) of rounds 1 to `rounds`, float64 [rounds].

    Raises:
      ValueError: If it does not define the noise of that many rounds.
    """

  @abc.abstractmethod
  def schedule(self, rounds: int, initial_stddev: float) -> NoiseSchedule:
    """Returns the schedule with this number of rounds and initial stddev.

    Raises:
      ValueError: As `log_variances`, or if a variance is not representable.
    """

  def log_precision_sum(self, rounds: int) -> float:
    """Ln of the sum over the rounds of v_1 / v_m."""
    exponents = -self.log_variances(rounds)
    largest = float(exponents.max())
    return largest + math.log(math.fsum(np.exp(exponents - largest)))


@dataclasses.dataclass(frozen=True)
class GeometricShape(NoiseShape):
  """The geometric shape: v_m = theta^(m-1) v_1.

  Attributes:
    theta: Ratio of the variances of successive rounds, > 0.
  """

  theta: float
  setting = 'theta'

  def __post_init__(self):
    object.__setattr__(self, 'theta', _validate.positive('theta', self.theta))

  def __str__(self):
    return f'theta={self.theta!r}'

  def log_variances(self, rounds: int) -> np.ndarray:
    """Returns (m-1) ln theta for each round."""
    return np.arange(rounds) * np.log(self.theta)

  def schedule(self, rounds: int, initial_stddev: float) -> GeometricSchedule:
    """Returns a `GeometricSchedule`."""
    return GeometricSchedule(self.theta, rounds, initial_stddev)

  def log_precision_sum(self, rounds: int) -> float:
    """Ln of the sum over the rounds of v_1 / v_m, in closed form."""
    return _log_space.log_precision_sum(self.theta, rounds)


@dataclasses.dataclass(frozen=True)
class ListedShape(NoiseShape):
  """A standard deviation for each round, in any unit.

  A schedule of fewer rounds uses the first ones.

  Attributes:
    relative_stddevs: Finite numbers > 0.
  """

  relative_stddevs: tuple[float, ...]

  def __post_init__(self):
    values = tuple(
      _validate.positive('schedule', value) for value in self.relative_stddevs
    )
    if not values:
      raise ValueError('schedule must have a number for each round, got ()')
    object.__setattr__(self, 'relative_stddevs', values)

  def __str__(self):
    return f'schedule of {len(self.relative_stddevs)} rounds'

  def log_variances(self, rounds: int) -> np.ndarray:
    """Returns 2 ln(s_m / s_1) for each round."""
    known = len(self.relative_stddevs)
    if rounds > known:
      raise ValueError(
        f'schedule must have a number for each of the {rounds} rounds, got'
        f' {known}'
      )
    logs = np.log(np.array(self.relative_stddevs[:rounds], np.float64))
    return 2 * (logs - logs[0])

  def schedule(self, rounds: int, initial_stddev: float) -> ListedSchedule:
    """Returns a `ListedSchedule`."""
    initial_stddev = _validate.positive('initial_stddev', initial_stddev)
    with np.errstate(over='ignore', under='ignore'):
      stddevs = initial_stddev * np.exp(self.log_variances(rounds) / 2)
    if not ((stddevs > 0) & np.isfinite(stddevs)).all():
      raise ValueError(
        'schedule must leave the noise of all rounds representable, got noise'
        f' from {stddevs.min():.3g} to {stddevs.max():.3g}'
      )
    return ListedSchedule(tuple(stddevs.tolist()))


def _stddev_of(function: Callable[[int, int], float], m: int, rounds: int):
  """Returns the result of the caller's function for round m.

  Raises:
    ValueError: If the function fails.
  """
  try:
    return function(m, rounds)
  except Exception as error:
    raise ValueError(
      'schedule must return a standard deviation for each round, got an error'
      f' for round {m}: {_validate.failure(error)}'
    ) from error


def listed_shape(
  stddevs: Sequence[float] | Callable[[int, int], float], rounds: int
) -> ListedShape:
  """Makes a custom noise shape.

  >>> cosine = lambda m, rounds: 1.5 + math.cos(math.pi * m / rounds)
  >>> listed_shape(cosine, 2).relative_stddevs
  (1.5, 0.5)

  Args:
    stddevs: A standard deviation for each round, in any unit, because
      calibration sets the scale; or a function (m, rounds) that returns it for
      the round m = 1..rounds.
    rounds: Number of rounds M.

  Returns:
    The shape.

  Raises:
    ValueError: If there is not one finite number > 0 for each round.
  """
  rounds = _validate.integer('rounds', rounds)
  if callable(stddevs):
    try:
      inspect.signature(stddevs).bind(1, rounds)
    except TypeError as error:
      raise ValueError(
        'schedule must be a function of a round and the number of rounds, (m,'
        f' rounds), got {_validate.quoted(stddevs)}: {error}'
      ) from error
    except ValueError:  # It has no signature to check.
      pass
    stddevs = [_stddev_of(stddevs, m, rounds) for m in range(1, rounds + 1)]
  if isinstance(stddevs, str) or not isinstance(
    stddevs, (Sequence, np.ndarray)
  ):
    raise ValueError(
      'schedule must be a number for each round, or a function of the round,'
      f' got {_validate.quoted(stddevs)}'
    )
  shape = ListedShape(tuple(stddevs))
  if len(shape.relative_stddevs) != rounds:
    raise ValueError(
      f'schedule must have a number for each of the {rounds} rounds, got'
      f' {len(shape.relative_stddevs)}'
    )
  return shape


def as_shape(theta: float | NoiseShape) -> NoiseShape:
  """Returns a shape; a number is the theta of a geometric one."""
  return theta if isinstance(theta, NoiseShape) else GeometricShape(theta)
