r"""What a plan costs: the corrected convergence bound over theta and rounds.

  bound(theta, M) = A^M Theta + c0 sum_m A^(M-m) v_m,  v_m = theta^(m-1) sigma^2

The budget B = sum of 1/v_m over the rounds that the worst user pays for is that
of the chosen calibration, whatever theta and M are, so that every plan that is
compared buys the same privacy. c0 = L d / (2 K) is what a unit of v_m adds to
the bound through the mean of K clients, times eta^2 tau where the noise is on
the gradients of tau steps, which are taken to be non-expansive.

If every round is paid for, this is the objective of the paper's Corollary 2,
corrected, and its best theta is sqrt(A). If a user pays for one round in a
block of n = U/K, a block is as one round of the same problem with A^n, theta^n
and the factor S(theta, A, n) max(1, theta^(1-n)) on c0. That factor falls up to
theta = 1, so that the best theta lies in [sqrt(A), 1].
"""

import dataclasses
import math
import sys
from collections.abc import Sequence

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.planner import noise as planning_noise
from tvdp_tf.planner import settings as planning_settings

_THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)

# Powers and coefficients beyond these decide nothing: a block leaves nothing of
# the gap, or one block is best.
_MOST_LOG = 100.0
_SEARCH_POINTS = 41
_SEARCHES = 3
_CURVE_POINTS = 150
_LONGEST_CURVE = 5000


@dataclasses.dataclass(frozen=True)
class BoundPoint:
  """The bound of one plan.

  Attributes:
    theta: Ratio of the noise variances of successive rounds.
    rounds: M.
    bound: Of F(w(M)) - F*.
    decay: A^M Theta.
    noise: The rest of the bound.
    sigma: Noise standard deviation of round 1 that keeps to the budget.
  """

  theta: float
  rounds: int
  bound: float
  decay: float
  noise: float
  sigma: float


@dataclasses.dataclass(frozen=True)
class ThetaPlan:
  """What one theta costs.

  Attributes:
    asked: The bound at the number of rounds that was asked for.
    best: The bound at the best number of rounds, whole blocks.
    best_real: M*, the best number of rounds among the real numbers.
  """

  asked: BoundPoint
  best: BoundPoint
  best_real: float


@dataclasses.dataclass(frozen=True)
class Alternative:
  """What were best if A and Theta were others, at the same budget.

  Attributes:
    contraction: A.
    initial_gap: Theta.
    best: The best plan there.
    bound: There, of the plan that is best here.
  """

  contraction: float
  initial_gap: float
  best: BoundPoint
  bound: float


@dataclasses.dataclass(frozen=True)
class Objective:
  """The bound as a function of theta and rounds.

  Attributes:
    contraction: A.
    initial_gap: Theta.
    budget: B, the sum of 1/variance that the worst user pays.
    noise_weight: c0.
    block_rounds: Rounds in a block, of which the worst user pays for one.
  """

  contraction: float
  initial_gap: float
  budget: float
  noise_weight: float
  block_rounds: int = 1

  def _log_noise_sum(self, theta: float, rounds: int) -> float:
    """Ln of sum_m A^(M-m) theta^(m-1)."""
    m = np.arange(1, rounds + 1)
    exponents = (rounds - m) * math.log(self.contraction)
    return planning_noise.log_sum_exp(exponents + (m - 1) * math.log(theta))

  def point(self, theta: float, rounds: int) -> BoundPoint:
    """The bound of a plan; terms that overflow are inf."""
    taken = planning_noise.worst_rounds(theta, rounds, self.block_rounds)
    log_variance = planning_noise.log_precision(theta, taken) - math.log(
      self.budget
    )
    decay = math.exp(rounds * math.log(self.contraction)) * self.initial_gap
    with np.errstate(over='ignore'):
      noise = float(
        np.exp(
          math.log(self.noise_weight)
          + log_variance
          + self._log_noise_sum(theta, rounds)
        )
      )
      sigma = float(np.exp(log_variance / 2))
    return BoundPoint(theta, rounds, decay + noise, decay, noise, sigma)

  def best_rounds(self, theta: float) -> tuple[float, int]:
    """M* of a theta, real and as the best number of whole blocks, in rounds."""
    n, log_theta = self.block_rounds, math.log(theta)
    log_coefficient = (
      math.log(self.noise_weight)
      - math.log(self.budget)
      + self._log_noise_sum(theta, n)
      + max(0.0, (1 - n) * log_theta)
    )

    def limited(log_value: float) -> float:
      return math.exp(min(max(log_value, -_MOST_LOG), _MOST_LOG))

    # Only the product of the rest matters: it is put into the sensitivity.
    setting = privacy.ConvergenceSetting(
      contraction=limited(n * math.log(self.contraction)),
      initial_gap=self.initial_gap,
      theta=limited(n * log_theta),
      smoothness=1.0,
      sensitivity=limited(log_coefficient / 2),
      epsilon=1.0,
      delta=math.exp(-1.0),
      dimension=1,
      sum_squared_weights=1.0,
    )
    best = privacy.optimal_rounds(setting)
    return n * best.real, n * self._limited_blocks(best.rounds)

  def _limited_blocks(self, blocks: int) -> int:
    """As many as can be planned: the bound only falls up to its minimum."""
    most = max(1, planning_settings.MOST_ROUNDS // self.block_rounds)
    return min(blocks, most)

  def theta_plan(self, theta: float, rounds: int) -> ThetaPlan:
    """What a theta costs at `rounds` and at its best number of rounds."""
    real, best = self.best_rounds(theta)
    return ThetaPlan(self.point(theta, rounds), self.point(theta, best), real)

  def best_theta(self) -> float:
    """The theta of the best plan."""
    lowest = privacy.optimal_theta(self.contraction)
    if self.block_rounds == 1:
      return lowest
    low, high = math.log(lowest), 0.0
    for _ in range(_SEARCHES):
      logs = np.linspace(low, high, _SEARCH_POINTS)
      bounds = [
        self.point(theta, self.best_rounds(theta)[1]).bound
        for theta in map(float, np.exp(logs))
      ]
      at = int(np.argmin(bounds))
      low, high = logs[max(at - 1, 0)], logs[min(at + 1, len(logs) - 1)]
      best = float(np.exp(logs[at]))
    return best

  def optimal(self) -> tuple[float, BoundPoint]:
    """The best plan of all: M* among the real numbers, and the plan.

    If every round is paid for it is `privacy.optimal_plan`, in closed form.
    """
    if self.block_rounds > 1:
      theta = self.best_theta()
      real, rounds = self.best_rounds(theta)
      return real, self.point(theta, rounds)
    plan = privacy.optimal_plan(
      self.contraction, self.initial_gap, self.budget, self.noise_weight
    )
    return plan.real, self.point(plan.theta, self._limited_blocks(plan.rounds))

  def alternative(
    self, plan: BoundPoint, contraction: float, initial_gap: float
  ) -> Alternative:
    """What is best, and what `plan` comes to, at another A and Theta."""
    other = dataclasses.replace(
      self, contraction=contraction, initial_gap=initial_gap
    )
    _, best = other.optimal()
    bound = other.point(plan.theta, plan.rounds).bound
    return Alternative(contraction, initial_gap, best, bound)


def objective(
  settings: planning_settings.PlanSettings, schedule: privacy.NoiseSchedule
) -> Objective:
  """The bound at the privacy budget of a schedule.

  Args:
    settings: The plan's inputs.
    schedule: The noise that the plan's calibration gives.

  Returns:
    The objective.

  Raises:
    ValueError: If a unit of variance has no representable weight.
  """
  taken = planning_noise.worst_rounds(
    settings.theta, settings.rounds, settings.block_rounds
  )
  weight = (
    settings.smoothness * settings.dimension / (2 * settings.users_per_round)
  )
  if settings.mechanism == 'gradient':
    rate = settings.learning_rate
    weight *= rate * rate * settings.local_steps
  if not sys.float_info.min <= weight < math.inf:
    raise ValueError(
      'smoothness must leave the weight of the noise in the bound a normal'
      f' number, got {settings.smoothness!r}'
    )
  return Objective(
    contraction=settings.contraction,
    initial_gap=settings.initial_gap,
    budget=float(np.sum(schedule.stddevs()[taken - 1] ** -2.0)),
    noise_weight=weight,
    block_rounds=settings.block_rounds,
  )


def compared_thetas(theta: float, best: float) -> tuple[float, ...]:
  """A small grid with the theta that was asked for and the best one."""
  chosen = [theta]
  for other in (best, *_THETAS):
    if not any(math.isclose(other, known) for known in chosen):
      chosen.append(other)
  return tuple(sorted(chosen))


def curve_rounds(plans: Sequence[ThetaPlan], block_rounds: int) -> list[int]:
  """Numbers of rounds, whole blocks, to draw the bound at."""
  asked = plans[0].asked.rounds
  most = max(plan.best.rounds for plan in plans)
  last = math.ceil(max(asked, 2 * most, 4 * block_rounds) / block_rounds)
  last = min(last, max(1, _LONGEST_CURVE // block_rounds))
  if last <= _CURVE_POINTS:
    blocks = np.arange(1, last + 1)
  else:
    blocks = np.unique(np.rint(np.geomspace(1, last, _CURVE_POINTS)))
  chosen = {int(b) * block_rounds for b in blocks}
  chosen |= {plan.best.rounds for plan in plans}
  return sorted(m for m in chosen if m <= last * block_rounds)
