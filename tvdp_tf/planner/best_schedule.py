r"""The schedule with the least noise in the last model, for one budget.

Near its optimum, training is a linear recursion, and the noise of round m
enters the released model with a weight a_m, the optimizer's impulse response.
Consider all Gaussian mechanisms, including correlated ones, that are mu-GDP for
a record in every release. The variance that they leave in the model is at least

  (sum_m |a_m|)^2 Delta^2 / mu^2,

and independent noise with v_m proportional to 1 / |a_m| attains this bound
(docs/SCHEDULE.md has the proof). With plain descent a_m is A^((M-m)/2), and the
best schedule is the geometric one with theta = sqrt(A); with momentum, a decay
or an average it is not geometric.
"""

import dataclasses

import numpy as np
from scipy import optimize

from tvdp_tf import privacy
from tvdp_tf.learning import server_optimizer

# Weights that are smaller than this, relative to the largest, would get
# arbitrarily large noise.
_LEAST = 1e-6
# Up to this, a gain is too small to be noticed.
_LITTLE = 1.02


def impulse_response(
  optimizer: server_optimizer.ServerOptimizer, contraction: float, rounds: int
) -> np.ndarray:
  """The weight of each round's noise in the released model, float64 [rounds].

  The mean update is D_m = -(1 - a) w_{m-1} + noise along a direction in which a
  plain round shrinks the distance to the optimum by a = sqrt(A), and so the gap
  of the loss by A.

  Args:
    optimizer: The server's optimizer.
    contraction: A in (0, 1).
    rounds: M.
  """
  pull = 1 - contraction**0.5
  weights = optimizer.average ** np.arange(rounds - 1, -1, -1.0)
  weights /= weights.sum()
  # Each column is the recursion after a unit of noise in one round.
  velocity, model = np.zeros(rounds), np.zeros(rounds)
  released = np.zeros(rounds)
  for m in range(rounds):
    update = -pull * model
    update[m] += 1
    velocity = optimizer.momentum * velocity + update
    model = model + optimizer.step(m) * (update + optimizer.momentum * velocity)
    released += weights[m] * model
  return released


def variance(response: np.ndarray, variances: np.ndarray) -> float:
  """Variance of the noise in the released model, times mu^2 / Delta^2.

  Args:
    response: a_m.
    variances: v_m, in any unit, because the budget sets their scale.
  """
  return float(response**2 @ variances) * float(np.sum(1 / variances))


@dataclasses.dataclass(frozen=True)
class Advice:
  """The noise that several schedules leave in the released model.

  Variances are relative to that of the best schedule.

  Attributes:
    constant: Variance with the same noise in every round.
    theta: Theta of the best geometric schedule.
    geometric: Variance with the best geometric schedule.
    asked: Variance with the schedule that was asked for.
    schedule: The best schedule: a standard deviation for each round, relative
      to that of the first round.
  """

  constant: float
  theta: float
  geometric: float
  asked: float
  schedule: tuple[float, ...]

  @property
  def pays(self) -> bool:
    """Whether the best schedule is noticeably better than constant noise."""
    return self.constant > _LITTLE


def advise(response: np.ndarray, asked: privacy.NoiseShape) -> Advice:
  """Compares schedules at one budget, before any training.

  Args:
    response: a_m, from `impulse_response`.
    asked: The shape of the noise that was asked for.
  """
  rounds = len(response)
  sizes = np.abs(response)
  best = 1 / np.maximum(sizes, _LEAST * sizes.max())
  least = variance(response, best)

  def of_theta(log_theta):
    logs = np.arange(rounds) * log_theta
    return variance(response, np.exp(logs - logs.mean()))

  found = optimize.minimize_scalar(
    of_theta, bounds=(-2.0, 0.5), method='bounded', options={'xatol': 1e-6}
  )
  logs = asked.log_variances(rounds)
  return Advice(
    constant=variance(response, np.ones(rounds)) / least,
    theta=float(np.exp(found.x)),
    geometric=float(found.fun) / least,
    asked=variance(response, np.exp(logs - logs.mean())) / least,
    schedule=tuple(np.sqrt(best / best[0]).tolist()),
  )
