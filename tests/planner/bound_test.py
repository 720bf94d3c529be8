import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

from tests.planner import plan_cases
from tvdp_tf import privacy
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import simulation
from tvdp_tf.training import population as population_lib


def _objective(**values):
  settings = plan_cases.settings(**values)
  population = population_lib.expected(settings)
  return planning_bound.Objective(
    settings.contraction,
    values.get('initial_gap', 2.3),
    planning_bound.noise_weight(settings.smoothness, population.num_parameters),
    planning_bound.Noise(settings, population),
    settings.block_rounds,
  )


class BoundTest(parameterized.TestCase):
  @parameterized.product(
    theta=(0.85, 0.9, 1.0, 1.1), rounds=(1, 17, 30), contraction=(0.85, 0.97)
  )
  def test_terms_are_those_of_theorem_3_corrected(
    self, theta, rounds, contraction
  ):
    expected = privacy.convergence_terms(
      privacy.ConvergenceSetting(
        contraction=contraction,
        initial_gap=2.3,
        theta=theta,
        smoothness=1.0,
        sensitivity=1 / 60,
        epsilon=10.0,
        delta=1e-3,
        sampling_rate=0.1,
        dimension=25450,
        sum_squared_weights=0.1,
      ),
      rounds,
    )
    objective = _objective(calibration='printed', contraction=contraction)
    point = objective.point(theta, rounds)
    np.testing.assert_allclose(point.decay, expected.decay, rtol=1e-12)
    np.testing.assert_allclose(point.noise, expected.noise, rtol=1e-10)

  def test_noise_is_that_of_the_mechanism(self):
    values = {'mechanism': 'gradient', 'learning_rate': 0.2, 'smoothness': 3.0}
    point = _objective(**values).point(0.9, 13)
    settings = plan_cases.settings(**values, theta=0.9, rounds=13)
    sim = simulation.run(settings, population_lib.expected(settings))
    stddevs = [r.noise_multipliers / 300 for r in sim.mechanism.history]
    # Five steps of 0.2, the mean of 10 clients, 25450 parameters.
    variances = [5 * 0.2**2 * np.mean(s**2) / 10 * 25450 for s in stddevs]
    weights = 0.85 ** np.arange(12, -1, -1)
    np.testing.assert_allclose(point.noise, 3.0 / 2 * weights @ variances)

  @parameterized.parameters(
    (0.85, 2.3, 30.0), (0.9, 2.0, 20.0), (0.97, 20.0, 50.0), (0.5, 1.0, 100.0)
  )
  def test_search_finds_the_closed_form(self, contraction, gap, epsilon):
    objective = _objective(
      calibration='exact',
      contraction=contraction,
      initial_gap=gap,
      epsilon=epsilon,
    )
    budget = float(np.sum(objective.noise.stddevs(0.9, 10) ** -2.0))
    expected = privacy.optimal_plan(
      contraction, gap, budget, objective.noise_weight
    )
    self.assertGreater(expected.rounds, 1)
    # Wherever it starts from.
    for start in (None, 0.999):
      found = objective.optimal(start)
      self.assertEqual(found.rounds, expected.rounds)
      self.assertAlmostEqual(found.bound / expected.bound, 1, places=6)
      self.assertAlmostEqual(found.theta, math.sqrt(contraction), delta=2e-3)
      self.assertAlmostEqual(
        found.sigma / expected.initial_stddev, 1, delta=2e-2
      )

  @parameterized.parameters(
    ('gradient', 'balanced', 0.85),
    ('gradient', 'uniform', 0.85),
    ('gradient', 'balanced', 0.6),
    ('central', 'balanced', 0.85),
  )
  def test_hardly_a_plan_beats_that_of_the_search(
    self, mechanism, participation, contraction
  ):
    objective = _objective(
      mechanism=mechanism,
      participation=participation,
      contraction=contraction,
      initial_gap=2e3 if mechanism == 'central' else 2.3,
      epsilon=30.0,
      learning_rate=0.1,
      users=20,
      users_per_round=4,
    )
    best = objective.optimal()
    block = objective.block_rounds
    self.assertEqual(best.rounds % block, 0)
    for theta in np.geomspace(contraction, 1.05, 8):
      for rounds in range(block, 61, 5):
        bound = objective.point(float(theta), rounds).bound
        self.assertGreaterEqual(bound, best.bound * 0.98)

  def test_secret_samples_are_searched_coarsely(self):
    objective = dataclasses.replace(
      _objective(mechanism='central', users=20, users_per_round=4),
      coarse=True,
    )
    best = objective.optimal()
    self.assertLess(len(objective.noise.plans()), 25)
    for other in (objective.point(0.9, 3), objective.point(1.0, 10)):
      self.assertLess(best.bound, other.bound)

  def test_noise_that_is_no_number_is_the_worst(self):
    point = _objective().point(1e-30, 1000)
    self.assertEqual((point.bound, point.noise), (math.inf, math.inf))

  def test_whether_theta_matters(self):
    self.assertTrue(_objective().theta_matters(0.95))
    self.assertTrue(_objective(mechanism='gradient').theta_matters(0.95))
    self.assertFalse(_objective(mechanism='laplace').theta_matters(0.95))

  def test_thetas_that_are_equal_up_to_rounding_are_one(self):
    self.assertEqual(
      planning_bound.compared_thetas(0.95, math.sqrt(0.95**2)),
      (0.9, 0.95, 1.0, 1.05, 1.1),
    )

  def test_weight_that_underflows(self):
    with self.assertRaisesRegex(ValueError, '^smoothness must leave'):
      planning_bound.noise_weight(1e-320, 1)


if __name__ == '__main__':
  absltest.main()
