r"""The contraction of a round without noise, from the loss of a pilot run.

The bound of Theorem 3 (corrected) without its noise term says that the gap
shrinks by A a round; a pilot's loss curve is fitted with just that:

  loss(m) = L_inf + (L_0 - L_inf) A^m,  Theta = L_0 - L_inf

where round 0 is extrapolated; `decay` has the fit.

The robust cost is profiled over A, from its limit 0 (all of the fall before the
second point) to its limit 1 (a straight line). The interval of A are the values
whose profile is not rejected by a test of cost differences (Ronchetti's tau
test, with Student's t); where it reaches a limit, A is not identifiable. It is
widened for residuals that follow one another, by (1 + r) / (1 - r) in the
variance with r their autocorrelation: a curve that is not quite geometric
leaves such residuals.

The standard error of A is the interval's half width over Student's quantile,
and those of Theta and L_inf are to it as in the linearised problem. The usual
formula comes out too low, because few rounds decide on A.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from tvdp_tf import _validate
from tvdp_tf.planner import decay as planning_decay

LEAST_ROUNDS = 5
# For the memory of the search over A.
MOST_ROUNDS = 100_000
_LEVEL = 0.95
# A curve that only wobbles must not pass for one that falls.
_FALL_LEVEL = 0.99
_LARGEST_LOSS = 1e100
_LARGEST_ROUND = 10**9

_LIMITS = (
  '0: they fall within one round (a smaller learning rate, fewer local steps)',
  '1: they fall in a straight line (more rounds)',
)


@dataclasses.dataclass(frozen=True)
class ContractionEstimate:
  """What a loss curve says.

  Attributes:
    rounds: Number of points of the curve.
    contraction: A, in (0, 1).
    contraction_stderr: Its standard error.
    contraction_interval: 95 % interval of A, not symmetric, within (0, 1).
    initial_gap: Theta = L_0 - L_inf, extrapolated to round 0.
    initial_gap_stderr: Its standard error.
    initial_gap_at_interval: The fitted Theta if A is at either end.
    final_loss: L_inf.
    final_loss_stderr: Its standard error.
    remaining: Share of the gap that is left after the last point, A^m; the
      nearer to 1, the more L_inf and Theta are extrapolated.
    r_squared: Share of the curve's variance that the fit explains.
    residual_stddev: Robust standard deviation of the residuals.
    autocorrelation: Of successive residuals.
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


def _student(points: int) -> float:
  return float(
    stats.t.ppf((1 + _LEVEL) / 2, points - planning_decay.PARAMETERS)
  )


def _check_fall(fit: planning_decay.Fit) -> None:
  """Refuses a curve of which a constant says as much."""
  curve = fit.curve
  constant = optimize.minimize_scalar(
    lambda level: float(planning_decay.cost(curve.y - level, fit.scale)),
    bounds=(0, 1),
    method='bounded',
  )
  points, more = len(curve.y), planning_decay.PARAMETERS - 1
  limit = stats.f.ppf(_FALL_LEVEL, more, points - planning_decay.PARAMETERS)
  gained = constant.fun - fit.cost
  if fit.parameters[2] <= 0 or gained <= more / 2 * limit * fit.cost_unit:
    first, last = curve.offset + curve.unit * curve.y[[0, -1]]
    raise ValueError(
      f'losses must fall, and by more than they scatter, got {first:.6g} at'
      f' first and {last:.6g} at last'
    )


def _interval(fit: planning_decay.Fit) -> tuple[float, float]:
  """The first and the last log time that the curve does not reject."""
  curve, least = fit.curve, fit.cost
  threshold = _student(len(curve.y)) ** 2 * fit.cost_unit / 2

  def excess(*log_times: float) -> np.ndarray:
    _, costs = curve.linear_fits(np.array(log_times), fit.scale)
    return costs - least - threshold

  grid = curve.log_times.tolist()
  rejected = excess(*grid) > 0
  for end, limit in zip((0, -1), _LIMITS, strict=True):
    if not rejected[end]:
      raise ValueError(f'losses must tell the contraction from {limit}')
  inside = [t for t, out in zip(grid, rejected, strict=True) if not out]
  inside.append(float(fit.parameters[0]))
  nearest = min(inside), max(inside)
  outside = (
    max(t for t in grid if t < nearest[0]),
    min(t for t in grid if t > nearest[1]),
  )
  low, high = (
    optimize.brentq(lambda t: float(excess(t)[0]), *ends, xtol=1e-14)
    for ends in zip(nearest, outside, strict=True)
  )
  return low, high


def _standard_errors(
  rounds: np.ndarray, contraction: float, gap: float, half_width: float
) -> np.ndarray:
  """Of (A, Theta, L_inf): linearised, and scaled to the interval of A."""
  m = rounds.astype(np.float64)
  powers = contraction**m
  jacobian = np.stack(
    [gap * m * powers / contraction, powers, np.ones_like(m)], axis=1
  )
  # Columns of one length: A and Theta differ by orders of magnitude.
  lengths = np.sqrt((jacobian**2).sum(axis=0))
  relative = np.sqrt((np.linalg.pinv(jacobian / lengths) ** 2).sum(axis=1))
  relative /= lengths
  return relative / relative[0] * half_width / _student(len(m))


def _checked(rounds, losses) -> tuple[np.ndarray, np.ndarray]:
  """(int64 [points], float64 [points]), fit to be fitted."""
  if len(rounds) != len(losses):
    raise ValueError(
      f'losses must be one a round, got {len(losses)} of {len(rounds)}'
    )
  if len(rounds) < LEAST_ROUNDS:
    raise ValueError(
      f'rounds must be {LEAST_ROUNDS} or more, got {len(rounds)}'
    )
  if len(rounds) > MOST_ROUNDS:
    raise ValueError(f'rounds must be {MOST_ROUNDS} at most, got {len(rounds)}')
  least = 1
  for number in rounds:
    least = _validate.integer('rounds', number, least, _LARGEST_ROUND) + 1
  y = np.asarray(losses, np.float64)
  wrong = y[~(np.abs(y) < _LARGEST_LOSS)]
  if len(wrong):
    raise ValueError(f'losses must be finite numbers, got {float(wrong[0])!r}')
  if np.ptp(y) <= 4 * planning_decay.ROUNDING * np.abs(y).max():
    raise ValueError(f'losses must fall, got {float(y[0])!r} in every round')
  return np.asarray(rounds, np.int64), y


def estimate(
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
      fall, or A cannot be told from 0 or from 1.
  """
  m, y = _checked(rounds, losses)
  curve = planning_decay.Curve(m, y)
  fit = planning_decay.fit(curve)
  _check_fall(fit)
  ends = _interval(fit)
  linear, _ = curve.linear_fits(np.array(ends), fit.scale)
  gaps = [curve.natural(*end)[0] for end in np.c_[ends, linear].tolist()]
  contraction = planning_decay.contraction_at(fit.parameters[0])
  gap, final_loss = curve.natural(*fit.parameters.tolist())
  if not max(gap, *gaps) < _LARGEST_LOSS:
    raise ValueError(
      'losses must leave the gap at round 0 representable, got'
      f' {float(y[0])!r} in round {m[0]}'
    )
  low, high = map(planning_decay.contraction_at, ends)
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
