import itertools
import math
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy

USERS, DIMENSION = 6, 3
SMOOTHNESS, PL_CONSTANT = 1.0, 0.4
ETA, ROUNDS, STDDEV = 0.1, 12, 0.05
RUNS = 2000


class _Simulation:
  """f_k(w) = (w - c_k)' H (w - c_k) / 2, so that all constants are known."""

  def __init__(self, theta, cohort, steps):
    rng = np.random.default_rng(17)
    self.curvature = np.linspace(PL_CONSTANT, SMOOTHNESS, DIMENSION)
    centres = rng.normal(size=(USERS, DIMENSION))
    optimum = centres.mean(axis=0)
    start = optimum + 1.0
    stddevs = privacy.GeometricSchedule(theta, ROUNDS, STDDEV).stddevs()
    model = np.tile(start, (RUNS, 1))
    self.initial_gap = float(self.gap(start - optimum))
    largest = np.linalg.norm(self.curvature * (start - optimum))
    for stddev in stddevs:
      order = rng.permuted(np.tile(np.arange(USERS), (RUNS, 1)), axis=1)
      local = np.repeat(model[:, np.newaxis], cohort, axis=1)
      for _ in range(steps):
        local -= ETA * self.curvature * (local - centres[order[:, :cohort]])
      local += rng.normal(scale=stddev, size=local.shape)
      model = local.mean(axis=1)
      norms = np.linalg.norm(self.curvature * (model - optimum), axis=1)
      largest = max(largest, norms.max())
    gaps = self.gap(model - optimum)
    self.final_gap = float(gaps.mean())
    self.standard_error = float(gaps.std() / math.sqrt(RUNS))
    # Of F where the models have been, so also between them.
    self.lipschitz = float(largest)
    divergences = self.curvature * (centres - optimum)
    self.divergences = np.linalg.norm(divergences, axis=1).tolist()

  def gap(self, offset):
    return 0.5 * np.sum(self.curvature * offset**2, axis=-1)


def bound(simulation, theta, cohort, steps):
  return privacy.sound_bound(
    initial_gap=simulation.initial_gap,
    rounds=ROUNDS,
    theta=theta,
    initial_stddev=STDDEV,
    pl_constant=PL_CONSTANT,
    eta=ETA,
    smoothness=SMOOTHNESS,
    users=USERS,
    users_per_round=cohort,
    local_steps=steps,
    gradient_divergences=simulation.divergences,
    lipschitz=simulation.lipschitz,
    dimension=DIMENSION,
  )


class SimulationTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((0.9, 1.0, 1.1), ((1, 1), (2, 3), (4, 5), (6, 8)))
  )
  def test_is_not_exceeded(self, theta, cohort_steps):
    cohort, steps = cohort_steps
    simulation = _Simulation(theta, cohort, steps)
    promised = bound(simulation, theta, cohort, steps)
    self.assertLess(
      simulation.final_gap + 5 * simulation.standard_error, promised
    )
    # Noise alone, the last of all terms, is a part of what happens.
    self.assertGreater(
      simulation.final_gap,
      0.5 * PL_CONSTANT * STDDEV**2 * theta ** (ROUNDS - 1) / USERS,
    )

  def test_is_attained_by_equal_users_and_one_step(self):
    """f = L ||w||^2 / 2: contraction and noise are exact."""
    theta, cohort, gap = 1.05, 3, 2.0
    expected = gap
    for m in range(1, ROUNDS + 1):
      variance = STDDEV**2 * theta ** (m - 1)
      expected = (1 - ETA) ** 2 * expected + DIMENSION * variance / (2 * cohort)
    # rho = L: 1 - rho eta (2 - eta L) = (1 - eta)^2.
    promised = privacy.sound_bound(
      *(gap, ROUNDS, theta, STDDEV, 1.0, ETA, 1.0, USERS, cohort, 1),
      *([0.0] * USERS, 1.0, DIMENSION),
    )
    self.assertAlmostEqual(promised / expected, 1, places=13)


class FormulaTest(parameterized.TestCase):
  def _bound(self, **changes):
    arguments: dict[str, Any] = {
      'initial_gap': 1.0,
      'rounds': 10,
      'theta': 0.9,
      'initial_stddev': 0.2,
      'pl_constant': 0.5,
      'eta': 0.1,
      'smoothness': 2.0,
      'users': 4,
      'users_per_round': 2,
      'local_steps': 3,
      'gradient_divergences': [0.1, 0.2, 0.3, 0.2],
      'lipschitz': 1.0,
      'dimension': 3,
    }
    return privacy.sound_bound(**{**arguments, **changes})

  def test_all_users_have_no_selection_term(self):
    everyone = self._bound(users_per_round=4)
    # Then only the mean of the divergences counts.
    same = self._bound(users_per_round=4, gradient_divergences=[0.2] * 4)
    self.assertAlmostEqual(everyone, same, places=14)
    self.assertGreater(
      self._bound(), self._bound(gradient_divergences=[0.2] * 4)
    )

  def test_grows_with_noise_dimension_and_drift(self):
    base = self._bound()
    for name, value in (
      ('initial_stddev', 0.3),
      ('dimension', 4),
      ('lipschitz', 2.0),
      ('users_per_round', 1),
      ('initial_gap', 2.0),
      ('theta', 1.0),
    ):
      self.assertGreater(self._bound(**{name: value}), base)

  def test_many_steps_are_infinite_or_without_contraction(self):
    many = {'local_steps': 10**4, 'eta': 0.5}
    self.assertEqual(self._bound(**many), math.inf)
    bound = self._bound(**many, smoothness=1e-9, pl_constant=1e-9)
    self.assertTrue(math.isfinite(bound))

  def test_overflow_is_infinite(self):
    self.assertEqual(self._bound(theta=2.0, rounds=3000), math.inf)

  @parameterized.parameters(
    ({'eta': 0.51}, 'eta must be at most 1/smoothness'),
    ({'pl_constant': 100.0}, 'pl_constant must be such that'),
    ({'gradient_divergences': [0.1]}, 'gradient_divergences must be 4 numbers'),
    ({'users_per_round': 5}, 'users_per_round must be an integer from 1 to 4'),
  )
  def test_conditions(self, changes, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      self._bound(**changes)


if __name__ == '__main__':
  absltest.main()
