"""Shares of noise on a secure sum: what the server gets, and what hides it."""

import contextlib
import math

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest, parameterized
from scipy import stats

from tvdp_tf import federated, privacy, runtimes
from tvdp_tf.federated import distributed_noise, secure_sums
from tvdp_tf.learning import discrete_gaussian, noise

_SIZE = 3000
_TYPE = tff.to_type(
  federated.KeyedUpdate(
    (tff.TensorType(np.float64, [_SIZE]), tff.TensorType(np.float64, [])),
    tff.TensorType(np.int64, [2]),
  )
)
_WEIGHT = tff.to_type(np.float32)
# How many uploads there are.
_SUM_OF_ONES = (
  r'(\w+)=federated_value_at_clients\(1\.0\),\w+=federated_sum\(\1\)'
)
_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


def factory(**changes):
  arguments = {
    'schedule': privacy.GeometricSchedule(4.0, 2, 1.5),
    'sensitivity': 0.5,
    'honest_clients': 4,
    'modulus': 2**50,
    **changes,
  }
  return distributed_noise.DistributedGaussianFactory(**arguments)


def keyed(value, client):
  key = noise.seeded_noise_key(7, 1, client)
  return federated.KeyedUpdate((value[:-1], value[-1]), key)


def flat(result):
  return np.concatenate([np.ravel(part) for part in result])


class FactoryTest(parameterized.TestCase):
  def test_the_sum_with_every_share(self):
    """Bit for bit: integers, and the noise of each client's key."""
    values = np.random.default_rng(0).normal(size=[5, _SIZE + 1])
    process = secure_sums.simulated(factory(scale=-3.0).create(_TYPE, _WEIGHT))
    state = process.initialize()
    for m in (1, 2):
      output = process.next(
        state,
        [keyed(value, k) for k, value in enumerate(values)],
        [2.0] * 5,
      )
      share = 1.5 * 2.0 ** (m - 1) * 0.5 / math.sqrt(4)
      self.assertAlmostEqual(
        output.measurements['noise_multiplier'], 1.5 * 2.0 ** (m - 1)
      )
      step = share / 2.0**31
      total = sum(
        np.rint(value / step).astype(np.int64)
        + discrete_gaussian.discrete_gaussian(
          noise.seeded_noise_key(7, 1, k), _SIZE + 1, 0
        ).numpy()
        for k, value in enumerate(values)
      )
      np.testing.assert_allclose(
        flat(output.result), -3.0 * total * step / 10, rtol=1e-6
      )
      state = output.state

  def test_is_a_secure_sum_and_nothing_else(self):
    process = factory().create(_TYPE, _WEIGHT)
    with self.assertRaisesRegex(Exception, 'Cannot embed'):
      process.next(process.initialize(), [keyed(np.zeros(_SIZE + 1), 0)], [1.0])
    # All that leaves a client, but for its public weight.
    text = process.next.to_building_block().compact_representation()
    self.assertIn('federated_secure_modular_sum', text)
    self.assertEqual(text.count('federated_sum('), 2)
    self.assertRegex(text, _SUM_OF_ONES)
    for other in ('federated_collect', 'federated_aggregate', 'federated_mean'):
      self.assertNotIn(other, text)

  def test_with_a_divisor_no_weight_leaves_a_client(self):
    """How much a user has is the user's secret."""
    process = factory(divisor=2.0).create(_TYPE, _WEIGHT)
    text = process.next.to_building_block().compact_representation()
    self.assertIn('federated_secure_modular_sum', text)
    self.assertEqual(text.count('federated_sum('), 1)
    self.assertRegex(text, _SUM_OF_ONES)
    for other in (
      *('federated_collect', 'federated_aggregate'),
      'federated_mean',
    ):
      self.assertNotIn(other, text)

  @parameterized.parameters((1, 0.75), (2, 1.5 / math.sqrt(2)), (4, 1.5))
  def test_the_noise_on_record_is_that_of_the_shares(self, uploads, expected):
    process = secure_sums.simulated(factory(divisor=1.0).create(_TYPE, _WEIGHT))
    output = process.next(
      process.initialize(),
      [keyed(np.zeros(_SIZE + 1), k) for k in range(uploads)],
      [1.0] * uploads,
    )
    found = output.measurements['noise_multiplier']
    self.assertAlmostEqual(found, expected)
    # Chi-square, of noise over the sensitivity; false alarm 1e-9.
    squares = np.sum((flat(output.result) / (0.5 * found)) ** 2)
    self.assertBetween(squares, *stats.chi2.interval(1 - 1e-9, _SIZE + 1))

  def test_variance_is_that_of_all_shares(self):
    """Chi-square; false alarm 1e-9."""
    process = secure_sums.simulated(factory(divisor=1.0).create(_TYPE, _WEIGHT))
    output = process.next(
      process.initialize(),
      [keyed(np.zeros(_SIZE + 1), k) for k in range(6)],
      [1.0] * 6,
    )
    expected = (1.5 * 0.5) ** 2 / 4 * 6
    statistic = np.sum(flat(output.result) ** 2) / expected
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], _SIZE + 1)
    self.assertBetween(statistic, low, high)
    # Of three quarters of the variance:
    self.assertGreater(stats.chi2.cdf(low / 0.75, _SIZE + 1), 0.99)

  def test_a_fixed_divisor(self):
    process = secure_sums.simulated(
      factory(divisor=8.0, truncates=True).create(_TYPE, _WEIGHT)
    )
    value = np.full(_SIZE + 1, 1e4)
    output = process.next(process.initialize(), [keyed(value, 0)], [3.0])
    self.assertAlmostEqual(np.mean(flat(output.result)), 1e4 / 8, delta=0.1)

  @parameterized.parameters((True, 0.0), (False, 1.0))
  def test_cuts_off_or_rounds(self, truncates, expected):
    """Of 0.9 steps nothing is left, or one step."""
    process = secure_sums.simulated(
      factory(truncates=truncates, divisor=1.0).create(_TYPE, _WEIGHT)
    )
    step = 1.5 * 0.5 / math.sqrt(4) / 2.0**31
    results = [
      flat(
        process.next(
          process.initialize(), [keyed(np.full(_SIZE + 1, value), 0)], [1.0]
        ).result
      )
      # Where the noise is 0 or small, float32 holds every step.
      for value in (0.0, 0.9 * step)
    ]
    drawn = discrete_gaussian.discrete_gaussian(
      noise.seeded_noise_key(7, 1, 0), _SIZE + 1, 0
    ).numpy()
    small = np.abs(drawn) < 2**22
    self.assertTrue(small.any())
    moved = (results[1] - results[0])[small] / step
    np.testing.assert_allclose(moved, expected, atol=1e-3)

  def test_wraps_around_what_does_not_fit(self):
    """No more than the modulus is ever in the clear."""
    small = secure_sums.simulated(
      factory(modulus=2**40, divisor=1.0).create(_TYPE, _WEIGHT)
    )
    value = np.full(_SIZE + 1, 1e9)
    output = small.next(small.initialize(), [keyed(value, 0)], [1.0])
    step = 1.5 * 0.5 / math.sqrt(4) / 2.0**31
    self.assertLessEqual(np.abs(flat(output.result)).max(), 2**39 * step)

  @parameterized.parameters(
    ({'schedule': 1.0}, TypeError, 'schedule must be'),
    ({'honest_clients': 0}, ValueError, 'honest_clients must be'),
    ({'sensitivity': 0.0}, ValueError, 'sensitivity must be'),
    ({'modulus': 2**62}, ValueError, 'modulus must be'),
  )
  def test_refuses(self, changes, error, message):
    with self.assertRaisesRegex(error, message):
      factory(**changes)

  def test_refuses_values_without_a_key(self):
    with self.assertRaisesRegex(TypeError, 'must be a KeyedUpdate'):
      factory().create(tff.to_type(np.float32), _WEIGHT)


class NeighboursTest(parameterized.TestCase):
  def test_truncated_integers_are_no_longer_than_the_clip(self):
    rng = np.random.default_rng(1)
    for _ in range(50):
      value = rng.normal(size=400)
      value *= 0.7 / np.linalg.norm(value)
      stddev = 10.0 ** rng.uniform(-3, 6)
      steps = noise.truncated(value, stddev).numpy().astype(float)
      self.assertLessEqual(np.linalg.norm(steps), 0.7 / (stddev / 2.0**31))

  def test_a_sum_of_shares_is_as_one_draw(self):
    """The bound of Kairouz, Liu and Steinke (2021), on a coarse grid."""
    reach = np.arange(-60, 61)

    def discrete(variance):
      weights = np.exp(-(reach**2) / (2 * variance))
      return weights / weights.sum()

    for variance, shares in ((0.5, 2), (0.5, 5), (1.0, 10)):
      total = np.ones(1)
      for _ in range(shares):
        total = np.convolve(total, discrete(variance))
      middle = len(total) // 2
      total = total[middle - 60 : middle + 61]
      one = discrete(variance * shares)
      kept = one > 1e-12
      divergence = np.abs(np.log(total[kept] / one[kept])).max()
      bound = 10 * sum(
        math.exp(-2 * math.pi**2 * variance * k / (k + 1))
        for k in range(1, shares)
      )
      self.assertLess(divergence, bound)
      self.assertGreater(divergence, 0)
    # At the standard deviation that is used it is no number at all.
    self.assertEqual(math.exp(-(math.pi**2) * 2.0**62), 0.0)


if __name__ == '__main__':
  absltest.main()
