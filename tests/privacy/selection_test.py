import functools
import math
import secrets
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize

from tvdp_tf import privacy
from tvdp_tf.privacy import accounting, selection


def _theorem_2(rdp, mean, gamma, shape, delta):
  """Papernot and Steinke, theorem 2, and the usual conversion; at any order.

  Args:
    rdp: Function of the order.
    mean: E[K].
    gamma: Of the truncated negative binomial distribution.
    shape: eta.
    delta: The target.
  """

  def first(log_order):
    order = 1 + math.exp(log_order)
    return (1 + shape) * (
      (1 - 1 / order) * rdp(order) - math.log(gamma) / order
    )

  def rest(log_order):
    order = 1 + math.exp(log_order)
    total = rdp(order) + math.log(mean) / (order - 1)
    return (
      total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    )

  return sum(
    optimize.minimize_scalar(f, bounds=(-4, 7), method='bounded').fun
    for f in (first, rest)
  )


class EpsilonTest(parameterized.TestCase):
  @parameterized.parameters(
    # Geometric: gamma = 1 / mean. Logarithmic: of gamma = 0.1.
    (5.0, 1.0, 0.2),
    (100.0, 1.0, 0.01),
    (9 / math.log(10), 0.0, 0.1),
    # eta = 2, gamma = 0.1: mean = 2 * 0.9 / (0.1 * 0.99).
    (1.8 / 0.099, 2.0, 0.1),
  )
  def test_is_the_papers_formula(self, mean, shape, gamma):
    for z, rounds in ((4.0, 10), (30.0, 40), (1.5, 3)):
      expected = _theorem_2(
        lambda order, rho=rounds / 2 / z / z: order * rho,
        *(mean, gamma, shape, 1e-5),
      )
      epsilon = selection.best_of_runs_epsilon([z] * rounds, 1e-5, mean, shape)
      # At fixed orders it is above the best one, by little.
      self.assertBetween(epsilon, expected * (1 - 1e-6), expected * 1.02)

  @parameterized.product(
    shape=(0.0, 0.5, 1.0, 4.0, math.inf), sampling=('none', 'poisson')
  )
  def test_more_runs_cost_more_and_less_than_all_of_them(self, shape, sampling):
    z = np.full(8, 2.0 if sampling == 'poisson' else 6.0)
    arguments = {'sampling': sampling, 'sampling_rate': 0.1}
    one, hundred = (
      accounting.delivered_epsilon(np.tile(z, runs), 1e-5, 'rdp', **arguments)
      for runs in (1, 100)
    )
    epsilons = [
      selection.best_of_runs_epsilon(z, 1e-5, mean, shape, **arguments)
      for mean in (1.1, 2, 10, 100)
    ]
    self.assertEqual(epsilons, sorted(epsilons))
    self.assertLess(one, epsilons[0])
    self.assertLess(epsilons[-1], hundred)
    if shape <= 1:
      self.assertLess(epsilons[-1], 5 * one)

  @parameterized.parameters('none', 'poisson')
  def test_more_noise_costs_less(self, sampling):
    def epsilon(z, delta=1e-5):
      return selection.best_of_runs_epsilon(
        [z, 1.1 * z], delta, 5, sampling=sampling, sampling_rate=0.2
      )

    epsilons = [epsilon(z) for z in (1.0, 1.01, 2.0, 8.0)]
    self.assertEqual(epsilons, sorted(epsilons, reverse=True))
    self.assertGreater(epsilon(2.0, 1e-7), epsilon(2.0, 1e-5))

  def test_sampling_is_a_gain(self):
    z = [2.0] * 5
    rates = [
      selection.best_of_runs_epsilon(z, 1e-5, 5, 1.0, 'poisson', rate)
      for rate in (0.01, 0.1, 0.5, 1.0)
    ]
    self.assertEqual(rates, sorted(rates))
    self.assertEqual(rates[-1], selection.best_of_runs_epsilon(z, 1e-5, 5, 1.0))

  def test_order_of_rounds_does_not_matter_and_no_release_costs_nothing(self):
    epsilon = selection.best_of_runs_epsilon([3.0, 2.0, 3.0], 1e-5, 5)
    for z in ([3.0, 3.0, 2.0], [math.inf, 2.0, 3.0, math.inf, 3.0]):
      self.assertEqual(selection.best_of_runs_epsilon(z, 1e-5, 5), epsilon)


class CalibrationTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.5, 'none', 1.0, 5.0), (4.0, 'poisson', 1.0, 20.0), (8.0, 'none', 0.0, 3)
  )
  def test_delivers_the_target(self, epsilon, sampling, shape, mean):
    schedule = selection.calibrate_best_of_runs(
      *(epsilon, 1e-5, 0.9, 6, mean, shape, 0.5, sampling, 0.1)
    )
    self.assertEqual(
      (schedule.shape, schedule.rounds), (privacy.GeometricShape(0.9), 6)
    )
    multipliers = schedule.noise_multipliers(0.5)
    delivered = selection.best_of_runs_epsilon(
      multipliers, 1e-5, mean, shape, sampling, 0.1
    )
    self.assertBetween(delivered, 0.99 * epsilon, epsilon)
    one = accounting.delivered_epsilon(multipliers, 1e-5, 'rdp', sampling, 0.1)
    self.assertLess(one, delivered)


class NumberTest(parameterized.TestCase):
  def draws(self, mean, shape, count=20_000):
    """As by evenly spread entropy: the distribution itself, but for 1/count."""
    step = 2**53 // count
    bits = iter(range(step // 2, 2**53, step))
    gamma = functools.cache(selection._gamma)  # The same for every draw.
    with (
      mock.patch.object(secrets, 'randbits', lambda _: next(bits)),
      mock.patch.object(selection, '_gamma', gamma),
    ):
      numbers = [
        selection.draw_number_of_runs(mean, shape) for _ in range(count)
      ]
    return np.bincount(numbers) / count

  @parameterized.parameters(2.0, 5.0)
  def test_geometric(self, mean):
    found = self.draws(mean, 1.0)
    k = np.arange(1, len(found))
    self.assertEqual(found[0], 0)
    np.testing.assert_allclose(
      found[1:], (1 - 1 / mean) ** (k - 1) / mean, atol=1e-4
    )

  def test_logarithmic(self):
    found = self.draws(9 / math.log(10), 0.0)  # gamma = 0.1
    k = np.arange(1, len(found))
    np.testing.assert_allclose(found[1:], 0.9**k / k / math.log(10), atol=1e-4)

  def test_negative_binomial(self):
    found = self.draws(1.8 / 0.099, 2.0)  # gamma = 0.1
    k = np.arange(1, len(found))
    # Product of (l + 2) / (l + 1) for l < k is k + 1.
    np.testing.assert_allclose(found[1:], 0.9**k * (k + 1) / 99, atol=1e-4)

  def test_poisson(self):
    found = self.draws(3.0, math.inf)
    k = np.arange(len(found))
    factorials = np.cumprod(np.maximum(k, 1.0))
    np.testing.assert_allclose(
      found, np.exp(-3.0) * 3.0**k / factorials, atol=1e-4
    )

  @parameterized.product(
    mean=(1.01, 2.0, 50.0), shape=(0.0, 0.3, 1.0, 7.0, math.inf)
  )
  def test_mean(self, mean, shape):
    found = self.draws(mean, shape)
    average = np.arange(len(found)) @ found
    np.testing.assert_allclose(average, mean, rtol=5e-3)

  def test_no_entropy_makes_it_endless(self):
    for shape in (0.0, 1.0, math.inf):
      with mock.patch.object(secrets, 'randbits', return_value=2**53 - 1):
        number = selection.draw_number_of_runs(20.0, shape)
      self.assertBetween(number, 40, 5000)

  def test_entropy_is_the_systems(self):
    numbers = [selection.draw_number_of_runs(1000.0) for _ in range(20)]
    self.assertGreater(len(set(numbers)), 10)

  def test_poisson_with_a_mean_beyond_binary64(self):
    with self.assertRaisesRegex(ValueError, 'mean must be at most 700 with'):
      selection.draw_number_of_runs(701.0, math.inf)

  @parameterized.parameters((1000.0, 1e6), (750.0, 1e9), (5000.0, 5000.0))
  def test_shape_beyond_binary64(self, mean, shape):
    with self.assertRaisesRegex(
      ValueError, f'^shape must be smaller with mean {mean}, got'
    ):
      selection.draw_number_of_runs(mean, shape)

  def test_mean_at_a_large_shape(self):
    found = self.draws(600.0, 1e4, count=2000)
    average = np.arange(len(found)) @ found
    np.testing.assert_allclose(average, 600.0, rtol=5e-3)
    self.assertLess(found.max(), 0.05)  # It is no constant.


if __name__ == '__main__':
  absltest.main()
