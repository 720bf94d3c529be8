import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.learning import server_optimizer
from tvdp_tf.planner import best_schedule

_PLAIN = server_optimizer.ServerOptimizer()
_BUSY = server_optimizer.ServerOptimizer(0.8, 0.7, 0.4, 12)


def simulated(optimizer, contraction, noise):
  """The released model of one recursion with this noise, step by step."""
  a = math.sqrt(contraction)
  model = velocity = 0.0
  models = []
  for m, drawn in enumerate(noise):
    update = -(1 - a) * model + drawn
    velocity = optimizer.momentum * velocity + update
    model += optimizer.step(m) * (update + optimizer.momentum * velocity)
    models.append(model)
  weights = [
    optimizer.average ** (len(noise) - 1 - j) for j in range(len(noise))
  ]
  return float(np.average(models, weights=weights))


class ImpulseResponseTest(parameterized.TestCase):
  def test_of_plain_descent(self):
    response = best_schedule.impulse_response(_PLAIN, 0.81, 5)
    np.testing.assert_allclose(response, 0.9 ** np.arange(4, -1, -1.0))

  def test_without_contraction_it_is_the_optimizers_own(self):
    np.testing.assert_allclose(
      best_schedule.impulse_response(_BUSY, 1 - 1e-15, 12),
      [simulated(_BUSY, 1.0, one_round) for one_round in np.eye(12)],
      rtol=1e-6,
    )

  @parameterized.parameters(_PLAIN, _BUSY)
  def test_is_linear_in_the_noise_of_every_round(self, optimizer):
    noise = np.random.default_rng(0).normal(size=12)
    response = best_schedule.impulse_response(optimizer, 0.7, 12)
    self.assertAlmostEqual(response @ noise, simulated(optimizer, 0.7, noise))


class OptimalityTest(parameterized.TestCase):
  def mu_squared(self, covariance):
    """Of a mechanism x + N(0, covariance): a record may move every x_m by 1."""
    inverse = np.linalg.inv(covariance)
    signs = itertools.product([-1.0, 1.0], repeat=len(covariance))
    return max(float(np.array(s) @ inverse @ np.array(s)) for s in signs)

  @parameterized.parameters(_PLAIN, _BUSY)
  def test_no_gaussian_mechanism_is_better(self, optimizer):
    """Correlated over the rounds in any way, at the same mu."""
    rng = np.random.default_rng(1)
    response = best_schedule.impulse_response(optimizer, 0.5, 7)
    least = np.sum(np.abs(response)) ** 2
    closest = math.inf
    for i in range(200):
      root = rng.normal(size=[7, 7]) * 10 ** rng.uniform(-1, 1, [7, 1])
      covariance = root @ root.T + 1e-3 * np.eye(7)
      if i % 2:  # Near the best one.
        covariance = np.diag(1 / np.abs(response)) + 0.01 * covariance
      spread = response @ covariance @ response * self.mu_squared(covariance)
      self.assertGreaterEqual(spread, least * (1 - 1e-9))
      closest = min(closest, spread / least)
    self.assertLess(closest, 1.1)
    best = np.diag(1 / np.abs(response))
    spread = response @ best @ response * self.mu_squared(best)
    self.assertAlmostEqual(spread / least, 1)

  def test_plain_descent_wants_theta_of_root_a(self):
    response = best_schedule.impulse_response(_PLAIN, 0.6, 20)
    advice = best_schedule.advise(response, privacy.GeometricShape(0.6**0.5))
    self.assertAlmostEqual(advice.theta, math.sqrt(0.6), places=4)
    self.assertAlmostEqual(advice.asked, 1, places=9)
    self.assertAlmostEqual(advice.geometric, 1, places=6)
    self.assertGreater(advice.constant, 1.5)
    self.assertTrue(advice.pays)
    np.testing.assert_allclose(
      advice.schedule, 0.6 ** (np.arange(20) / 4), rtol=1e-9
    )

  def test_constant_noise_is_a_factor_that_is_known(self):
    """M sum a^2 / (sum |a|)^2, as the table of docs/SCHEDULE.md has it."""
    for a, shown in zip(
      (0.99, 0.966, 0.9, 0.8, 0.61),
      (1.01, 1.09, 1.72, 3.34, 7.27),
      strict=True,
    ):
      response = best_schedule.impulse_response(_PLAIN, a * a, 30)
      advice = best_schedule.advise(response, privacy.GeometricShape(1.0))
      self.assertAlmostEqual(advice.constant, shown, delta=0.006)
    response = best_schedule.impulse_response(_PLAIN, 0.61**2, 30)
    advice = best_schedule.advise(response, privacy.GeometricShape(1.0))
    expected = 30 * np.sum(response**2) / np.sum(response) ** 2
    self.assertAlmostEqual(advice.constant, expected, places=5)
    self.assertAlmostEqual(advice.asked, expected, places=5)

  def test_nothing_to_gain_far_from_the_optimum(self):
    response = best_schedule.impulse_response(_PLAIN, 0.999, 20)
    self.assertFalse(
      best_schedule.advise(response, privacy.GeometricShape(1.0)).pays
    )

  def test_the_noise_of_a_simulation_is_as_predicted(self):
    """5,000 recursions: the variance is within five of its sigmas, .02."""
    rng = np.random.default_rng(2)
    response = best_schedule.impulse_response(_BUSY, 0.7, 12)
    advice = best_schedule.advise(response, privacy.GeometricShape(1.0))
    stddevs = np.array(advice.schedule)
    ends = [
      simulated(_BUSY, 0.7, stddevs * rng.normal(size=12)) for _ in range(5000)
    ]
    self.assertAlmostEqual(
      np.var(ends) / (response**2 @ stddevs**2), 1, delta=0.1
    )


if __name__ == '__main__':
  absltest.main()
