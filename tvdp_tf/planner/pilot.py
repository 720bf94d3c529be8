r"""A pilot run without noise, from which A and Theta are measured.

A pilot hides nothing: it must have run on public data. Only its `metrics.csv`
is needed; `config.json` beside it, if there is one, says how it was run.

The bound of Theorem 3 (corrected) without its noise term says that the gap
shrinks by A in each round. Exactly this is fitted to a pilot's loss curve:

  loss(m) = L_inf + (L_0 - L_inf) A^m,  Theta = L_0 - L_inf

where round 0 is extrapolated, by `scipy.optimize.least_squares` with its soft
L1 loss. Its scale follows the median absolute residual, so a few outlying
rounds count little.

The cost is profiled over A, from its limit 0 (all of the fall before the second
point) to its limit 1 (a straight line). The interval of A consists of the
values whose profile is not rejected by a test of cost differences (Ronchetti's
tau test, with Student's t). If it reaches a limit, A is not identifiable. It is
widened for autocorrelated residuals, by (1 + r) / (1 - r) in the variance with
r their autocorrelation: a curve that is not quite geometric leaves such
residuals.

The standard error of A is the interval's half width over Student's quantile.
Those of Theta and L_inf are proportional to it as in the linearized problem.
The usual formula gives too little, because few rounds determine A.
"""

import csv
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize, stats

from tvdp_tf import _validate
from tvdp_tf.output import files
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.training import run_folder

LEAST_ROUNDS = 5
MOST_ROUNDS = 100_000
_PARAMETERS = 3
_LEVEL = 0.95
# A curve that only wobbles must not pass for one that falls.
_FALL_LEVEL = 0.99
_LARGEST_LOSS = 1e100
_LARGEST_ROUND = 10**9
# Losses are binary32: finer differences may be rounding.
_ROUNDING = 2.0**-24
# Huber's constant: 95 % efficient if residuals are normal.
_TUNING = 1.345
_MAD_TO_STDDEV = 1.4826
_SCALE_PASSES = 20

# Range of -1 / ln A, the number of rounds in which the gap falls to 1/e. At its
# ends, the curve is that of a limit.
_SHORTEST = 0.05
_LONGEST_PER_ROUND = 1e4
_SEARCH_POINTS = 30
_STARTS = 3

_LIMITS = (
  (
    '0: they fall within one round (use a smaller learning rate or fewer local'
    ' steps)'
  ),
  '1: they fall in a straight line (use more rounds)',
)


@dataclasses.dataclass(frozen=True)
class ContractionEstimate:
  """What a loss curve says about A and Theta.

  Attributes:
    rounds: Number of points of the curve.
    contraction: A, in (0, 1).
    contraction_stderr: Standard error of A.
    contraction_interval: 95 % interval of A, not symmetric, within (0, 1).
    initial_gap: Theta = L_0 - L_inf, extrapolated to round 0.
    initial_gap_stderr: Standard error of Theta.
    initial_gap_at_interval: The fitted Theta for A at either end.
    final_loss: L_inf.
    final_loss_stderr: Standard error of L_inf.
    remaining: Share of the gap that is left after the last point, A^m. The
      closer to 1, the more L_inf and Theta are extrapolated.
    r_squared: Share of the curve's variance that the fit explains.
    residual_stddev: Robust standard deviation of the residuals.
    autocorrelation: Autocorrelation of successive residuals.
  """

  rounds: int
  contraction: float
  contraction_stderr: float
  contraction_interval: tuple[float, float]
  initial_gap: float
  initial_gap_stderr: float
  initial_gap_at_interval: tuple[float, float]
  final_loss: float
  final_loss_stderr: float
  remaining: float
  r_squared: float
  residual_stddev: float
  autocorrelation: float

  def loss(self, rounds: np.ndarray) -> np.ndarray:
    """The fitted loss after each of the given numbers of rounds, float64."""
    decay = self.contraction ** np.asarray(rounds, np.float64)
    return self.final_loss + self.initial_gap * decay


class _Curve:
  """A loss curve, scaled to a range of 1, and its model as a + b x(A).

  x falls from 1 at the first point to 0 at the last, whatever A is, so a and b
  are well determined even if A is not. As A goes to 0, all of the fall comes
  before the second point; as it goes to 1, x becomes a straight line.

  Attributes:
    y: The scaled losses, float64 [points].
    unit: The range of the losses.
    offset: The lowest loss.
    least_scale: The largest rounding error of y.
    log_times: Grid to search A on, ln(-1 / ln A); its ends practically are the
      limits.
  """

  def __init__(self, rounds: np.ndarray, losses: np.ndarray):
    """Takes int64 [points], ascending, and float64 [points], not all equal."""
    self._first = int(rounds[0])
    self._steps = (rounds - rounds[0]).astype(np.float64)
    self._span = float(self._steps[-1])
    self.offset, self.unit = float(losses.min()), float(np.ptp(losses))
    self.y = (losses - self.offset) / self.unit
    self.least_scale = _ROUNDING * float(np.abs(losses).max()) / self.unit
    self.log_times = np.linspace(
      math.log(_SHORTEST),
      math.log(_LONGEST_PER_ROUND * self._span),
      _SEARCH_POINTS,
    )

  def x(self, log_time: float) -> np.ndarray:
    """Returns x at an A, float64 [points]."""
    log_a = -math.exp(-log_time)
    left = np.expm1((self._span - self._steps) * log_a)
    return np.exp(self._steps * log_a) * left / np.expm1(self._span * log_a)

  def residuals(self, parameters: np.ndarray) -> np.ndarray:
    """The model at (log time, a, b) minus y, float64 [points]."""
    log_time, a, b = parameters.tolist()
    return a + b * self.x(log_time) - self.y

  def plain_fit(self, log_time: float) -> tuple[np.ndarray, float]:
    """Least squares at an A: returns ((log time, a, b), sum of squares)."""
    columns = np.stack([np.ones_like(self.y), self.x(log_time)], axis=1)
    linear, *_ = np.linalg.lstsq(columns, self.y, rcond=None)
    square = float(np.sum((columns @ linear - self.y) ** 2))
    return np.array([log_time, *linear]), square

  def natural(self, log_time: float, a: float, b: float) -> tuple[float, float]:
    """Returns (Theta, L_inf) in the unit of the losses; Theta may be inf."""
    log_a = -math.exp(-log_time)
    gap = b / -math.expm1(self._span * log_a)
    with np.errstate(over='ignore'):
      initial_gap = float(gap * np.exp(-self._first * log_a))
    return initial_gap * self.unit, self.offset + self.unit * (a + b - gap)


def _contraction_at(log_time: float) -> float:
  return math.exp(-math.exp(-log_time))


@dataclasses.dataclass(frozen=True)
class _Fit:
  """The best fit of a curve; costs are in units of scale^2.

  Attributes:
    curve: The curve.
    parameters: (log time, a, b), float64 [3].
    cost: Cost at the minimum.
    scale: Scale of the soft L1 loss.
    stddev: Robust standard deviation of the residuals of y.
  """

  curve: _Curve
  parameters: np.ndarray
  cost: float
  scale: float
  stddev: float

  @property
  def residuals(self) -> np.ndarray:
    """The model minus y, float64 [points]."""
    return self.curve.residuals(self.parameters)

  def at(self, log_time: float) -> tuple[np.ndarray, float]:
    """The parameters and the cost of the best fit at an A."""
    columns = np.stack(
      [np.ones_like(self.curve.y), self.curve.x(log_time)], axis=1
    )
    start, _ = self.curve.plain_fit(log_time)
    found = _least_squares(
      lambda linear: (columns @ linear - self.curve.y) / self.scale,
      start[1:],
      jac=lambda _: columns / self.scale,
    )
    return np.array([log_time, *found.x]), float(found.cost)

  @property
  def autocorrelation(self) -> float:
    """The correlation of successive residuals, with outliers limited."""
    psi = self._psi()
    square = float(psi @ psi)
    return float(psi[1:] @ psi[:-1]) / square if square > 0 else 0.0

  @property
  def cost_unit(self) -> float:
    """Twice the cost above its minimum is this times a chi-squared variable.

    It is E psi^2 / E psi' with psi the derivative of the cost, times
    (1 + r) / (1 - r) for residuals of autocorrelation r > 0.
    """
    points = len(self.curve.y)
    psi = self._psi()
    slope = np.mean(np.hypot(1, self.residuals / self.scale) ** -3.0)
    variance = float(psi @ psi / (points - _PARAMETERS) / slope)
    least = (self.curve.least_scale / self.scale) ** 2
    # At worst, all points count as one.
    r = min(max(self.autocorrelation, 0.0), 1 - 2 / points)
    return max(variance, least) * (1 + r) / (1 - r)

  def _psi(self) -> np.ndarray:
    residuals = self.residuals / self.scale
    return residuals / np.hypot(1, residuals)


def _least_squares(residuals, start, loss='soft_l1', **kwargs) -> Any:
  return optimize.least_squares(
    residuals,
    start,
    loss=loss,
    x_scale='jac',
    **dict.fromkeys(('ftol', 'xtol', 'gtol'), 1e-14),
    **kwargs,
  )


def _fit(curve: _Curve) -> _Fit:
  """Fits A, a and b to a curve of more points than there are parameters."""
  points = len(curve.y)
  shrinkage = math.sqrt(points / (points - _PARAMETERS))
  inner = curve.log_times[1:-1]
  plain = [curve.plain_fit(t) for t in inner.tolist()]
  best = min(plain, key=lambda fit: fit[1])[0]
  # Another minimum may be the best once outlying rounds count less.
  starts = [best, *(fit for fit, _ in plain[:: len(plain) // _STARTS])]
  free = [-math.inf, math.inf]
  bounds = np.array([curve.log_times[[0, -1]], free, free]).T
  scale, loss = 1.0, 'linear'
  for _ in range(_SCALE_PASSES):
    found = min(
      (
        _least_squares(
          lambda p, unit=scale: curve.residuals(p) / unit,
          start,
          loss,
          jac='3-point',
          bounds=bounds,
        )
        for start in starts
      ),
      key=lambda fit: fit.cost,
    )
    sizes = np.abs(curve.residuals(found.x))
    stddev = _MAD_TO_STDDEV * shrinkage * float(np.median(sizes))
    stddev = max(stddev, curve.least_scale)
    if loss == 'soft_l1':
      if math.isclose(scale, _TUNING * stddev, rel_tol=1e-6):
        break
      starts = [found.x]
    scale, loss = _TUNING * stddev, 'soft_l1'
  return _Fit(curve, found.x, float(found.cost), scale, stddev)


def _student(points: int) -> float:
  return float(stats.t.ppf((1 + _LEVEL) / 2, points - _PARAMETERS))


def _check_fall(fit: _Fit) -> None:
  """Refuses a curve that a constant fits just as well."""
  curve = fit.curve
  constant = _least_squares(
    lambda level: (level - curve.y) / fit.scale, [float(np.median(curve.y))]
  )
  points, more = len(curve.y), _PARAMETERS - 1
  limit = stats.f.ppf(_FALL_LEVEL, more, points - _PARAMETERS)
  gained = constant.cost - fit.cost
  if fit.parameters[2] <= 0 or gained <= more / 2 * limit * fit.cost_unit:
    first, last = curve.offset + curve.unit * curve.y[[0, -1]]
    raise ValueError(
      f'losses must fall by more than they scatter, got {first:.6g} in the'
      f' first round and {last:.6g} in the last'
    )


def _interval(fit: _Fit) -> tuple[float, float]:
  """The first and the last log time that the curve does not reject."""
  threshold = _student(len(fit.curve.y)) ** 2 * fit.cost_unit / 2

  def excess(log_time: float) -> float:
    return fit.at(log_time)[1] - fit.cost - threshold

  grid = fit.curve.log_times.tolist()
  rejected = [excess(t) > 0 for t in grid]
  for end, limit in zip((0, -1), _LIMITS, strict=True):
    if not rejected[end]:
      raise ValueError(f'losses must distinguish the contraction from {limit}')
  inside = [t for t, out in zip(grid, rejected, strict=True) if not out]
  inside.append(float(fit.parameters[0]))
  nearest = min(inside), max(inside)
  outside = (
    max(t for t in grid if t < nearest[0]),
    min(t for t in grid if t > nearest[1]),
  )
  low, high = (
    optimize.brentq(excess, *ends, xtol=1e-14)
    for ends in zip(nearest, outside, strict=True)
  )
  return low, high


def _standard_errors(
  rounds: np.ndarray, contraction: float, gap: float, half_width: float
) -> np.ndarray:
  """Standard errors of (A, Theta, L_inf), linearized, from A's interval."""
  m = rounds.astype(np.float64)
  powers = contraction**m
  jacobian = np.stack(
    [gap * m * powers / contraction, powers, np.ones_like(m)], axis=1
  )
  # Scale the columns to one length: A and Theta differ by orders of magnitude.
  lengths = np.sqrt((jacobian**2).sum(axis=0))
  relative = np.sqrt((np.linalg.pinv(jacobian / lengths) ** 2).sum(axis=1))
  relative /= lengths
  return relative / relative[0] * half_width / _student(len(m))


def _checked(rounds, losses) -> tuple[np.ndarray, np.ndarray]:
  """Checks and returns rounds, int64 [points], and losses, float64 [points]."""
  if len(rounds) != len(losses):
    raise ValueError(
      f'losses must be one per round, got {len(losses)} for {len(rounds)}'
      ' rounds'
    )
  if len(rounds) < LEAST_ROUNDS:
    raise ValueError(
      f'rounds must have at least {LEAST_ROUNDS} entries, got {len(rounds)}'
    )
  if len(rounds) > MOST_ROUNDS:
    raise ValueError(
      f'rounds must have at most {MOST_ROUNDS} entries, got {len(rounds)}'
    )
  least = 1
  for number in rounds:
    least = _validate.integer('rounds', number, least, _LARGEST_ROUND) + 1
  y = np.asarray(losses, np.float64)
  wrong = y[~(np.abs(y) < _LARGEST_LOSS)]
  if len(wrong):
    raise ValueError(f'losses must be finite numbers, got {float(wrong[0])!r}')
  if np.ptp(y) <= 4 * _ROUNDING * np.abs(y).max():
    raise ValueError(f'losses must fall, got {float(y[0])!r} in every round')
  return np.asarray(rounds, np.int64), y


def estimate_contraction(
  rounds: Sequence[int] | np.ndarray, losses: Sequence[float] | np.ndarray
) -> ContractionEstimate:
  """Fits the model to a loss curve.

  Args:
    rounds: Numbers of the rounds, from 1, ascending, [points].
    losses: Loss after each of them, finite, [points].

  Returns:
    The estimate.

  Raises:
    ValueError: If there are fewer than 5 points or too many, the losses do not
      fall, or A cannot be distinguished from 0 or from 1.
  """
  m, y = _checked(rounds, losses)
  curve = _Curve(m, y)
  fit = _fit(curve)
  _check_fall(fit)
  ends = _interval(fit)
  gaps = [curve.natural(*fit.at(end)[0].tolist())[0] for end in ends]
  contraction = _contraction_at(fit.parameters[0])
  gap, final_loss = curve.natural(*fit.parameters.tolist())
  if not max(gap, *gaps) < _LARGEST_LOSS:
    raise ValueError(
      'losses must leave the gap at round 0 representable, got'
      f' {float(y[0])!r} in round {m[0]}'
    )
  low, high = map(_contraction_at, ends)
  errors = _standard_errors(m, contraction, gap, (high - low) / 2).tolist()
  unexplained = np.sum(fit.residuals**2) / np.sum(
    (curve.y - curve.y.mean()) ** 2
  )
  return ContractionEstimate(
    rounds=len(m),
    contraction=contraction,
    contraction_stderr=errors[0],
    contraction_interval=(low, high),
    initial_gap=gap,
    initial_gap_stderr=errors[1],
    initial_gap_at_interval=(gaps[0], gaps[1]),
    final_loss=final_loss,
    final_loss_stderr=errors[2],
    remaining=contraction ** int(m[-1]),
    r_squared=1 - float(unexplained),
    residual_stddev=fit.stddev * curve.unit,
    autocorrelation=fit.autocorrelation,
  )


_ROUND, _NOISE, _LOSS = _COLUMNS = ('round', 'noise_stddev', 'test_loss')
# The settings of both a plan and a run that A depends on.
_DECISIVE = (
  *('users', 'users_per_round', 'local_steps', 'learning_rate'),
  'l2_norm_clip',
)


@dataclasses.dataclass(frozen=True)
class Pilot:
  """A pilot run and its estimate.

  Attributes:
    path: Its `metrics.csv`.
    rounds: Numbers of its rounds.
    losses: The test loss after each.
    estimate: A and Theta.
    settings: How it was run; None if unknown.
  """

  path: str
  rounds: tuple[int, ...]
  losses: tuple[float, ...]
  estimate: ContractionEstimate
  settings: Mapping[str, Any] | None

  def differences(
    self, settings: planning_settings.PlanSettings
  ) -> dict[str, tuple[Any, Any]]:
    """Settings that A depends on and that differ: name -> (pilot, plan)."""
    known = self.settings or {}
    pairs = {
      name: (known[name], getattr(settings, name))
      for name in _DECISIVE
      if name in known
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

  def to_json_dict(self) -> dict[str, object]:
    """The measurement, for `plan.json`."""
    return {
      'source': self.path,
      **dataclasses.asdict(self.estimate),
      'pilot_settings': self.settings and dict(self.settings),
    }


def _number(row: Mapping[str, str], name: str, line: int) -> float:
  try:
    return float(row[name])
  except ValueError:
    raise ValueError(
      f'line {line}: {name} is {_validate.quoted(row[name])}, not a number'
    ) from None


def _round(row: Mapping[str, str], line: int, last: int) -> int:
  try:
    number = int(row[_ROUND])
  except ValueError:
    number = 0
  if number <= last:
    raise ValueError(
      f'line {line}: {_ROUND} is {_validate.quoted(row[_ROUND])}, not an'
      f' integer above {last}'
    )
  return number


def _parse(reader: csv.DictReader) -> tuple[list[int], list[float]]:
  """Returns (rounds, losses)."""
  names = list(reader.fieldnames or ())
  missing = [name for name in _COLUMNS if names.count(name) != 1]
  if missing:
    raise ValueError(
      f'line 1: {", ".join(missing)} must each be the name of one column'
    )
  rounds: list[int] = []
  losses: list[float] = []
  for row in reader:
    line = reader.line_num
    if None in row or None in row.values():
      raise ValueError(f'line {line}: there must be {len(names)} fields')
    rounds.append(_round(row, line, rounds[-1] if rounds else 0))
    stddev = _number(row, _NOISE, line)
    if stddev != 0:
      raise ValueError(
        f'{_NOISE} must be 0 in a pilot, got {stddev!r} in round {rounds[-1]}'
      )
    losses.append(_number(row, _LOSS, line))
  return rounds, losses


def _is_plain(value: Any) -> bool:
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, int | str)


def _settings(path: pathlib.Path) -> Mapping[str, Any] | None:
  """The settings of the run of a `metrics.csv`, as far as they are usable."""
  config = files.read_json(path.with_name(run_folder.CONFIG))
  settings = config.get('settings')
  if not isinstance(settings, dict):
    return None
  return {name: value for name, value in settings.items() if _is_plain(value)}


def read(path: str) -> Pilot:
  """Reads a pilot and measures A and Theta.

  Args:
    path: The folder of a run, or a `metrics.csv`.

  Returns:
    The pilot.

  Raises:
    ValueError: If the file cannot be read or does not hold the metrics of a
      run, if the run had noise, or if its losses do not determine A. The
      message is one line.
  """
  file_path = pathlib.Path(path)
  if file_path.is_dir():
    file_path = file_path / run_folder.METRICS
  try:
    with open(file_path, newline='', encoding='utf-8-sig') as file:
      rounds, losses = _parse(csv.DictReader(file, strict=True))
    estimate = estimate_contraction(rounds, losses)
  except OSError as error:
    raise _refusal(path, error.strerror or str(error)) from error
  except UnicodeDecodeError as error:
    raise _refusal(path, 'it is not text in UTF-8') from error
  except (csv.Error, ValueError) as error:
    raise _refusal(path, str(error)) from error
  return Pilot(
    path=str(file_path),
    rounds=tuple(rounds),
    losses=tuple(losses),
    estimate=estimate,
    settings=_settings(file_path),
  )


def _refusal(path: str, reason: str) -> ValueError:
  return ValueError(
    'estimate_contraction must be the folder or metrics.csv of a run without'
    f' noise, got {path!r}: {reason}'
  )
