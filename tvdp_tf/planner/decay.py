r"""The robust fit of a geometric fall, loss(m) = L_inf + Theta A^m.

Least squares with the soft L1 loss of `scipy.optimize.least_squares`,

  cost = s^2 sum_m (sqrt(1 + (residual_m / s)^2) - 1)

whose scale s follows the median absolute residual, so that a few odd rounds
count little. For a given A the model is linear in the rest, and the cost
convex: a search over A alone finds the valley.
"""

import dataclasses
import math

import numpy as np
from scipy import optimize

PARAMETERS = 3
# Losses are binary32: nothing finer can be told from rounding.
ROUNDING = 2.0**-24

# Huber's constant: 95 % efficient where residuals are normal.
_TUNING = 1.345
_MAD_TO_STDDEV = 1.4826
_SCALE_PASSES = 20
_REWEIGHTINGS = 200

# -1 / ln A, the rounds in which the gap falls to 1/e: the search goes on to
# where the curve is that of a limit.
_SHORTEST = 0.05
_LONGEST_PER_ROUND = 1e4
_SEARCH_POINTS = 120


def contraction_at(log_time: float) -> float:
  """A, by the logarithm of the rounds in which the gap falls to 1/e."""
  return math.exp(-math.exp(-log_time))


def cost(residuals: np.ndarray, scale: float) -> np.ndarray:
  """The cost of residuals, over the last axis; half their squares at inf."""
  if scale == math.inf:
    return (residuals**2).sum(axis=-1) / 2
  z = (residuals / scale) ** 2
  # sqrt(1 + z) - 1 without cancellation.
  return scale**2 * (z / (1 + np.sqrt(1 + z))).sum(axis=-1)


class Curve:
  """A loss curve, scaled to a range of 1, and its model as a + b x(A).

  x falls from 1 at the first point to 0 at the last whatever A is, so that a
  and b are well determined where A is not. As A goes to 0, all of the fall
  comes before the second point; as it goes to 1, x becomes a straight line.

  Attributes:
    y: The scaled losses, float64 [points].
    unit: The range of the losses.
    offset: The lowest loss.
    least_scale: What rounding may do to y.
    log_times: Grid to search A on, cf. `contraction_at`; its ends are as good
      as the limits.
  """

  def __init__(self, rounds: np.ndarray, losses: np.ndarray):
    """Takes int64 [points], ascending, and float64 [points], not all equal."""
    self._first = int(rounds[0])
    self._steps = (rounds - rounds[0]).astype(np.float64)
    self._span = float(self._steps[-1])
    self.offset, self.unit = float(losses.min()), float(np.ptp(losses))
    self.y = (losses - self.offset) / self.unit
    self.least_scale = ROUNDING * float(np.abs(losses).max()) / self.unit
    self.log_times = np.linspace(
      math.log(_SHORTEST),
      math.log(_LONGEST_PER_ROUND * self._span),
      _SEARCH_POINTS,
    )

  def _x(self, log_times: np.ndarray) -> np.ndarray:
    """Float64 [log_times, points]."""
    log_a = -np.exp(-log_times)[:, np.newaxis]
    left = np.expm1((self._span - self._steps) * log_a)
    return np.exp(self._steps * log_a) * left / np.expm1(self._span * log_a)

  def linear_fits(
    self, log_times: np.ndarray, scale: float, tolerance: float = 1e-13
  ) -> tuple[np.ndarray, np.ndarray]:
    """The best (a, b) for each A.

    Args:
      log_times: What stands for A, float64 [n].
      scale: s; inf for plain least squares.
      tolerance: When the reweighting stops.

    Returns:
      (a, b) [n, 2], costs [n].
    """
    x = self._x(log_times)
    weights = np.ones_like(x)
    solution = np.full((len(x), 2), np.inf)
    for _ in range(_REWEIGHTINGS):
      total = weights.sum(axis=1)
      mean_x = (weights * x).sum(axis=1) / total
      mean_y = (weights * self.y).sum(axis=1) / total
      centred = weights * (x - mean_x[:, np.newaxis])
      slope = (centred * self.y).sum(axis=1) / (centred * x).sum(axis=1)
      found = np.stack([mean_y - slope * mean_x, slope], axis=1)
      residuals = found[:, :1] + found[:, 1:] * x - self.y
      change = np.abs(found - solution).max()
      solution = found
      if scale == math.inf or change < tolerance:
        break
      weights = 1 / np.hypot(1, residuals / scale)
    return solution, cost(residuals, scale)

  def residuals(self, parameters: np.ndarray) -> np.ndarray:
    """Of (log time, a, b): the model minus y, float64 [points]."""
    return parameters[1] + parameters[2] * self._x(parameters[:1])[0] - self.y

  def natural(self, log_time: float, a: float, b: float) -> tuple[float, float]:
    """(Theta, L_inf) in the unit of the losses; Theta inf if it overflows."""
    log_a = -math.exp(-log_time)
    gap = b / -math.expm1(self._span * log_a)
    with np.errstate(over='ignore'):
      initial_gap = float(gap * np.exp(-self._first * log_a))
    return initial_gap * self.unit, self.offset + self.unit * (a + b - gap)


@dataclasses.dataclass(frozen=True)
class Fit:
  """The best fit of a curve.

  Attributes:
    curve: The curve.
    parameters: (log time, a, b), float64 [3].
    scale: s.
    stddev: Robust standard deviation of the residuals of y.
  """

  curve: Curve
  parameters: np.ndarray
  scale: float
  stddev: float

  @property
  def residuals(self) -> np.ndarray:
    """The model minus y, float64 [points]."""
    return self.curve.residuals(self.parameters)

  @property
  def cost(self) -> float:
    """At the minimum."""
    return float(cost(self.residuals, self.scale))

  @property
  def autocorrelation(self) -> float:
    """Of successive residuals, odd ones limited."""
    psi = self._psi()
    square = float(psi @ psi)
    return float(psi[1:] @ psi[:-1]) / square if square > 0 else 0.0

  @property
  def cost_unit(self) -> float:
    """What twice a cost above the minimum is a chi-squared variable times.

    That is E psi^2 / E psi' with psi the derivative of the cost, times
    (1 + r) / (1 - r) for residuals of autocorrelation r > 0.
    """
    points = len(self.curve.y)
    psi = self._psi()
    slope = np.mean(np.hypot(1, self.residuals / self.scale) ** -3.0)
    variance = float(psi @ psi / (points - PARAMETERS) / slope)
    # At worst all points are worth one.
    r = min(max(self.autocorrelation, 0.0), 1 - 2 / points)
    return max(variance, self.curve.least_scale**2) * (1 + r) / (1 - r)

  def _psi(self) -> np.ndarray:
    residuals = self.residuals
    return residuals / np.hypot(1, residuals / self.scale)


def _start(curve: Curve, scale: float) -> np.ndarray:
  """The best parameters on the grid, within its ends."""
  inner = curve.log_times[1:-1]
  linear, costs = curve.linear_fits(inner, scale, tolerance=1e-4)
  best = int(np.argmin(costs))
  return np.array([inner[best], *linear[best]])


def _scale_free_stddev(residuals: np.ndarray) -> float:
  points = len(residuals)
  shrinkage = math.sqrt(points / (points - PARAMETERS))
  return _MAD_TO_STDDEV * shrinkage * float(np.median(np.abs(residuals)))


def fit(curve: Curve) -> Fit:
  """Fits A, a and b to a curve of more points than there are parameters."""
  free = [-math.inf, math.inf]
  bounds = np.array([curve.log_times[[0, -1]], free, free]).T
  start, scale = _start(curve, math.inf), math.inf
  for _ in range(_SCALE_PASSES):
    plain = scale == math.inf
    parameters = optimize.least_squares(
      curve.residuals,
      start,
      jac='3-point',
      bounds=bounds,
      x_scale='jac',
      loss='linear' if plain else 'soft_l1',
      f_scale=1.0 if plain else scale,
      **dict.fromkeys(('ftol', 'xtol', 'gtol'), 1e-15),
    ).x
    stddev = max(
      _scale_free_stddev(curve.residuals(parameters)), curve.least_scale
    )
    if math.isclose(scale, _TUNING * stddev, rel_tol=1e-6):
      break
    scale = _TUNING * stddev
    # A better valley may show once odd rounds count less.
    start = _start(curve, scale) if plain else parameters
  return Fit(curve, parameters, scale, stddev)
