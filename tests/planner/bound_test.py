import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import noise as planning_noise
from tvdp_tf.planner import settings as planning_settings

Settings = planning_settings.PlanSettings
GRADIENT = Settings(mechanism='gradient')


def _schedule(settings):
  return planning_noise.calibrated_schedule(settings, settings.calibration)


class BoundTest(parameterized.TestCase):
  def _objective(self, settings):
    return planning_bound.objective(settings, _schedule(settings))

  @parameterized.parameters(
    (1.05, 12.477714, 12), (1.0, 14.267483, 14), (0.95, 16.182773, 16)
  )
  def test_rounds_of_the_corrected_objective(self, theta, real, rounds):
    objective = self._objective(Settings(theta=theta))
    found = objective.best_rounds(theta)
    self.assertAlmostEqual(found[0], real, delta=1e-6)
    self.assertEqual(found[1], rounds)

  @parameterized.product(theta=(0.85, 0.9, 1.0, 1.1), rounds=(1, 17, 30))
  def test_terms_are_those_of_theorem_3_corrected(self, theta, rounds):
    objective = self._objective(Settings(theta=0.95, rounds=7))
    expected = privacy.convergence_terms(
      privacy.ConvergenceSetting(
        contraction=0.85,
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
    point = objective.point(theta, rounds)
    np.testing.assert_allclose(point.decay, expected.decay, rtol=1e-12)
    np.testing.assert_allclose(point.noise, expected.noise, rtol=1e-10)

  @parameterized.product(
    settings=(Settings(), Settings(calibration='exact'), GRADIENT),
    theta=(0.9, 1.0, 1.1),
    rounds=(8, 20, 34),
  )
  def test_all_plans_spend_the_same_budget(self, settings, theta, rounds):
    point = self._objective(settings).point(theta, rounds)
    other = dataclasses.replace(settings, theta=theta, rounds=rounds)
    np.testing.assert_allclose(
      point.sigma, _schedule(other).initial_stddev, rtol=1e-9
    )

  def test_noise_of_gradient_reaches_the_parameters(self):
    settings = dataclasses.replace(
      GRADIENT, theta=0.9, rounds=13, learning_rate=0.2, smoothness=3.0
    )
    stddevs = _schedule(settings).stddevs()
    weights = 0.85 ** np.arange(12, -1, -1)
    # Five steps of 0.2, the mean of 10 clients, 25450 parameters.
    variance = 5 * 0.2**2 * stddevs**2 / 10 * 25450
    point = self._objective(settings).point(0.9, 13)
    np.testing.assert_allclose(point.noise, 3.0 / 2 * weights @ variance)

  def test_closed_form_of_the_optimal_plan(self):
    objective = planning_bound.Objective(
      0.9, 2.0, budget=50.0, noise_weight=1.0
    )
    real, point = objective.optimal()
    self.assertAlmostEqual(real, 4.437, places=3)
    self.assertEqual(point.rounds, 4)
    self.assertAlmostEqual(point.bound, 1.586370, places=6)
    self.assertAlmostEqual(point.theta, math.sqrt(0.9), places=15)
    self.assertAlmostEqual(objective.point(1.0, 4).bound, 1.587320, places=6)
    self.assertAlmostEqual(objective.point(1.05, 4).bound, 1.589908, places=6)

  @parameterized.parameters(
    {'contraction': 0.85}, {'contraction': 0.97}, {'contraction': 0.5}
  )
  def test_no_plan_of_whole_blocks_beats_the_optimal_one(self, contraction):
    objective = self._objective(
      dataclasses.replace(GRADIENT, contraction=contraction)
    )
    _, best = objective.optimal()
    self.assertBetween(best.theta, math.sqrt(contraction), 1)
    for theta in np.geomspace(0.7 * contraction, 1.1, 40):
      bounds = [
        objective.point(float(theta), 10 * b).bound for b in range(1, 30)
      ]
      self.assertGreaterEqual(min(bounds), best.bound * (1 - 1e-9))
      _, rounds = objective.best_rounds(float(theta))
      self.assertEqual(rounds, 10 * (1 + int(np.argmin(bounds))))

  def test_thetas_that_are_equal_up_to_rounding_are_one(self):
    self.assertEqual(
      planning_bound.compared_thetas(0.95, math.sqrt(0.95**2)),
      (0.9, 0.95, 1.0, 1.05, 1.1),
    )

  def test_weight_that_underflows(self):
    with self.assertRaisesRegex(ValueError, '^smoothness must leave'):
      self._objective(dataclasses.replace(GRADIENT, learning_rate=1e-200))


if __name__ == '__main__':
  absltest.main()
