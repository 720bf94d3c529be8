r"""The cost of a plan: the convergence bound over theta and rounds.

  bound(theta, M) = A^M Theta + (L d / 2) sum_m A^(M-m) s_m^2

where s_m is the standard deviation of the noise in each parameter of the mean
of round m. It comes from the mechanism, which is calibrated to the target again
for every theta and M. So it is right for any mechanism and participation, and
all compared plans have the same privacy. If the client that pays most pays for
every round, this is the objective of the paper's Corollary 2, corrected, and
its best theta is sqrt(A): `privacy.optimal_plan`.

The search alternates between M and theta until neither changes. With balanced
participation, M is a multiple of U/K, and a user pays for one round in a block.
"""

import dataclasses
import math
import sys
from collections.abc import Callable

import numpy as np
import tqdm
from scipy import optimize

from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import simulation
from tvdp_tf.training import population as population_lib

_THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)
# Once the gap has shrunk to this share, more rounds are not tried. Nor are more
# rounds than can be compared in about a minute.
_LEAST_DECAY = 1e-9
_MOST_ROUNDS = 2000
_PASSES = 4


@dataclasses.dataclass(frozen=True)
class BoundPoint:
  """The bound of one plan.

  Attributes:
    theta: Ratio of the noise variances of successive rounds.
    rounds: M.
    bound: The bound on F(w(M)) - F*.
    decay: A^M Theta.
    noise: The rest of the bound.
    sigma: Standard deviation of the noise in the mean of round 1.
    last_sigma: Standard deviation of the noise in the mean of round M.
  """

  theta: float
  rounds: int
  bound: float
  decay: float
  noise: float
  sigma: float
  last_sigma: float


@dataclasses.dataclass(frozen=True)
class ThetaPlan:
  """The cost of one theta.

  Attributes:
    asked: The bound at the number of rounds that was asked for.
    best: The bound at the best number of rounds.
  """

  asked: BoundPoint
  best: BoundPoint


@dataclasses.dataclass(frozen=True)
class Alternative:
  """The best plan for another A and Theta.

  Attributes:
    contraction: The other A.
    initial_gap: The other Theta.
    best: The best plan for them.
    bound: The bound, for them, of the plan that is best for the actual ones.
  """

  contraction: float
  initial_gap: float
  best: BoundPoint
  bound: float


class Noise:
  """The noise of every round of the plans that were compared so far."""

  def __init__(
    self,
    settings: planning_settings.PlanSettings,
    population: population_lib.Population,
    progress: bool = False,
  ):
    """Starts without plans.

    Args:
      settings: Settings of the run; theta and rounds vary.
      population: The users of the run.
      progress: Whether to count the plans on a terminal if it takes longer.
    """
    self._settings = settings
    self._population = population
    self._known: dict[tuple[float, int], np.ndarray] = {}
    self._bar = tqdm.tqdm(
      desc='plans compared',
      delay=2,
      leave=False,
      disable=not (progress and sys.stderr and sys.stderr.isatty()),
    )

  def add(self, sim: simulation.Simulation) -> None:
    """Adds the noise of a simulation of these settings."""
    settings = sim.mechanism.settings
    self._known[settings.theta, settings.rounds] = sim.mean_noise_stddevs

  def stddevs(self, theta: float, rounds: int) -> np.ndarray:
    """Noise in the mean of every round, float64 [rounds]; inf if impossible."""
    key = (theta, rounds)
    if key not in self._known:
      # A custom schedule is compared with geometric ones.
      settings = dataclasses.replace(
        self._settings, theta=theta, rounds=rounds, schedule=()
      )
      try:
        found = simulation.run(settings, self._population).mean_noise_stddevs
      except ValueError:
        found = np.full(rounds, math.inf)
      self._known[key] = found
      self._bar.update()
    return self._known[key]

  def plans(self) -> list[tuple[float, int]]:
    """The (theta, rounds) of the compared plans, sorted."""
    return sorted(self._known)

  def close(self) -> None:
    """Removes the progress bar."""
    self._bar.close()


@dataclasses.dataclass(frozen=True)
class Objective:
  """The bound as a function of theta and rounds.

  Attributes:
    contraction: A.
    initial_gap: Theta.
    noise_weight: L d / 2.
    noise: The noise of every plan.
    block_rounds: Number of rounds that M is a multiple of.
    coarse: Whether to try few plans. With secret samples, or privacy loss
      distributions, calibration is itself a search, so each plan takes ten
      times as long.
  """

  contraction: float
  initial_gap: float
  noise_weight: float
  noise: Noise
  block_rounds: int = 1
  coarse: bool = False

  def point(self, theta: float, rounds: int) -> BoundPoint:
    """The bound of a plan; terms that overflow are inf."""
    stddevs = self.noise.stddevs(theta, rounds)
    left = self.contraction ** np.arange(rounds - 1, -1, -1.0)
    decay = self.contraction**rounds * self.initial_gap
    with np.errstate(over='ignore', invalid='ignore'):
      added = self.noise_weight * float(left @ stddevs**2)
    # Infinite noise may meet a power that underflows.
    added = math.inf if math.isnan(added) else added
    return BoundPoint(
      *(theta, rounds, decay + added, decay, added),
      *(float(stddevs[0]), float(stddevs[-1])),
    )

  @property
  def _most_blocks(self) -> int:
    rounds = math.log(_LEAST_DECAY) / math.log(self.contraction)
    return max(1, math.ceil(min(rounds, _MOST_ROUNDS) / self.block_rounds))

  def best_rounds(self, theta: float, near: int | None = None) -> BoundPoint:
    """The bound at the best number of rounds.

    Args:
      theta: Ratio of the noise variances of successive rounds.
      near: Another theta's best number of rounds, to start from.
    """
    block, most = self.block_rounds, self._most_blocks
    low, high = 1, most
    if near is not None:
      low = max(1, near // block // 3)
      high = min(most, max(3 * near // block, low + 2))

    def at(blocks: int) -> float:
      return self.point(theta, blocks * block).bound

    grid = sorted({round(b) for b in np.geomspace(low, high, 6)})
    index = 0
    for number in range(1, len(grid)):
      if at(grid[number]) < at(grid[index]):
        index = number
      elif self.coarse:
        break  # Longer runs take longer to calibrate.
    low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    if not self.coarse and high - low > 2:
      found = _least(lambda x: at(round(math.exp(x))), low, high, 0.02)
      best = min([*grid, round(found)], key=at)
    else:
      best = grid[index]
    # Finish with single steps among the integers.
    while not self.coarse:
      better = min(max(1, best - 1), best, min(most, best + 1), key=at)
      if at(better) >= at(best):
        break
      best = better
    return self.point(theta, best * block)

  def best_theta(self, rounds: int) -> float:
    """The theta in [A, 1] with the smallest bound after that many rounds."""
    return _least(
      lambda x: self.point(math.exp(x), rounds).bound,
      *(self.contraction, 1.0),
      -math.log(self.contraction) * (0.1 if self.coarse else 1e-3),
    )

  def optimal(self, start: float | None = None) -> BoundPoint:
    """The best plan over theta and rounds.

    Args:
      start: The theta to start from; sqrt(A) by default.
    """
    best = self.best_rounds(start or math.sqrt(self.contraction))
    for _ in range(1 if self.coarse else _PASSES):
      theta = self.best_theta(best.rounds)
      found = self.best_rounds(theta, best.rounds)
      if found.bound >= best.bound * (1 - 1e-9):
        break
      settled = found.rounds == best.rounds
      best = found
      if settled:
        break
    return best

  def theta_matters(self, theta: float) -> bool:
    """Whether another theta changes the noise of two blocks of rounds."""
    other = math.sqrt(self.contraction)
    if math.isclose(other, theta):
      other = 1.0
    one, another = (
      self.noise.stddevs(value, 2 * self.block_rounds)
      for value in (theta, other)
    )
    return not np.array_equal(one, another)

  def alternative(
    self, plan: BoundPoint, contraction: float, initial_gap: float
  ) -> Alternative:
    """The best plan, and the bound of `plan`, for another A and Theta."""
    other = dataclasses.replace(
      self, contraction=contraction, initial_gap=initial_gap
    )
    return Alternative(
      contraction,
      initial_gap,
      other.optimal(),
      other.point(plan.theta, plan.rounds).bound,
    )


def _least(
  function: Callable[[float], float], low: float, high: float, tolerance: float
) -> float:
  """The x in [low, high] that minimizes a function of ln(x)."""

  def finite(x: float) -> float:
    return min(function(x), sys.float_info.max)

  found = optimize.minimize_scalar(
    finite,
    bounds=(math.log(low), math.log(high)),
    method='bounded',
    options={'xatol': tolerance},
  )
  return math.exp(found.x)


def noise_weight(smoothness: float, dimension: int) -> float:
  """Returns L d / 2, which a unit variance in each parameter adds to the bound.

  Raises:
    ValueError: If it is not a normal number.
  """
  weight = smoothness * dimension / 2
  if not sys.float_info.min <= weight < math.inf:
    raise ValueError(
      'smoothness must leave the weight of the noise in the bound a normal'
      f' number, got {smoothness!r}'
    )
  return weight


def compared_thetas(
  theta: float, best: float, coarse: bool = False
) -> tuple[float, ...]:
  """A small grid that includes the theta asked for and the best one."""
  chosen = [theta]
  for other in (best, *((1.0,) if coarse else _THETAS)):
    if not any(math.isclose(other, known) for known in chosen):
      chosen.append(other)
  return tuple(sorted(chosen))
