import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized
from scipy import sparse

from tvdp_tf import privacy
from tvdp_tf.privacy import calibration

RELEASES = 5


def plan(clients=8, rounds=20, seed=0):
  planned = np.random.default_rng(seed).random((clients, rounds)) < 0.4
  planned[0] = False
  planned[1] = True
  return planned


def spending(planned, theta, initial):
  """Sum of releases / z^2 over every client's rounds."""
  stddevs = theta ** (np.arange(planned.shape[1]) / 2)
  return RELEASES * (planned / (initial[:, np.newaxis] * stddevs) ** 2).sum(1)


class InitialNoiseTest(parameterized.TestCase):
  @parameterized.parameters(0.5, 0.9, 1.0, 1.1, 2.0)
  def test_each_client_spends_its_budget(self, theta):
    planned = plan()
    initial = calibration.initial_noise_multipliers(
      planned, theta, RELEASES, 0.7
    )
    self.assertEqual(initial[0], math.inf)
    spent = spending(planned[1:], theta, initial[1:]) / 0.7
    self.assertTrue(np.all(spent <= 1))
    self.assertTrue(np.all(spent > 1 - 1e-9))

  @parameterized.parameters(*itertools.product((0.9, 1.0, 1.1), (1, 7, 19)))
  def test_what_is_left_is_spent_on_the_rounds_to_come(self, theta, done):
    planned, budget = plan(), 0.7
    first = calibration.initial_noise_multipliers(
      planned, theta, RELEASES, budget
    )
    past, future = planned.copy(), planned.copy()
    past[:, done:] = False
    future[:, :done] = False
    spent = spending(past, theta, first)
    changed = calibration.initial_noise_multipliers(
      planned, theta, RELEASES, budget, spent, done
    )
    total = spent + spending(future, theta, changed)
    active = future.any(axis=1)
    self.assertTrue(np.all(total[active] <= budget))
    self.assertTrue(np.all(total[active] > budget * (1 - 1e-9)))
    # Nothing has changed, so neither has the noise.
    np.testing.assert_allclose(changed[active], first[active], rtol=1e-7)

  @parameterized.parameters(0, 7)
  def test_sparse_plans_mean_the_same(self, done):
    planned = plan()
    dense, spread = (
      calibration.initial_noise_multipliers(
        made(planned), 0.9, RELEASES, 0.7, 0.1, done
      )
      for made in (np.array, sparse.csr_array)
    )
    np.testing.assert_array_equal(dense, spread)
    # Client by client, from the equation.
    variances = 0.9 ** np.arange(planned.shape[1])
    for taken, initial in zip(planned[:, done:], dense, strict=True):
      total = np.sum(1 / variances[done:][taken])
      self.assertAlmostEqual(
        initial, math.sqrt(RELEASES * total / 0.6) or math.inf, delta=1e-8
      )

  def test_no_budget_or_no_round_left_means_no_release(self):
    planned = np.array([[True, True], [True, False]])
    initial = calibration.initial_noise_multipliers(
      planned, 1.0, 1, 2.0, np.array([2.0, 1.0]), 1
    )
    np.testing.assert_array_equal(initial, [math.inf, math.inf])

  def test_unrepresentable_noise_is_refused(self):
    with self.assertRaisesRegex(ValueError, '^theta must leave the noise'):
      calibration.initial_noise_multipliers(
        np.ones((1, 3000), bool), 0.5, 1, 1.0
      )

  @parameterized.parameters(
    ('theta', 0.0, 'theta must be a finite number > 0'),
    ('releases_per_round', 0, 'releases_per_round must be an integer >= 1'),
    ('budget', math.nan, 'budget must be a finite number > 0'),
    ('completed', 21, 'completed must be an integer from 0 to 20'),
  )
  def test_bad_arguments(self, name, value, message):
    arguments = {
      'planned': plan(),
      'theta': 0.9,
      'releases_per_round': RELEASES,
      'budget': 1.0,
      name: value,
    }
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      calibration.initial_noise_multipliers(**arguments)


class EquivalentNoiseTest(parameterized.TestCase):
  @parameterized.parameters('exact', 'rdp', 'pld')
  def test_one_release_delivers_the_target(self, accountant):
    z = calibration.equivalent_noise_multiplier(2.0, 1e-5, accountant)
    delivered = privacy.delivered_epsilon([z], 1e-5, accountant)
    self.assertBetween(delivered, 1.98, 2.0)

  def test_plan_delivers_the_target(self):
    budget = calibration.equivalent_noise_multiplier(2.0, 1e-5) ** -2
    planned = plan()
    initial = calibration.initial_noise_multipliers(
      planned, 0.9, RELEASES, budget
    )
    series = 0.9 ** (np.arange(planned.shape[1]) / 2)
    for rounds, first in zip(planned[1:], initial[1:], strict=True):
      noise = np.repeat((first * series)[rounds], RELEASES)
      delivered = privacy.delivered_epsilon(noise, 1e-5, 'exact')
      self.assertBetween(delivered, 2.0 * (1 - 1e-8), 2.0)


if __name__ == '__main__':
  absltest.main()
