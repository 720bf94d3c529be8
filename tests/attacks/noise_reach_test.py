import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.attacks import broken
from tvdp_tf.attacks import noise_reach
from tvdp_tf.learning import noise
from tvdp_tf.privacy import gaussian


class NoiseReachTest(parameterized.TestCase):
  @parameterized.parameters((28, 1e-5), (33, 1e-3), (10, 1e-13), (8, 1e-15))
  def test_noise_that_ends_too_early_is_found(self, epsilon, delta):
    multiplier = gaussian.gaussian_noise_multiplier(epsilon, delta)
    found = noise_reach.reach([multiplier], delta, broken.standard_normal)
    self.assertAlmostEqual(found.largest, np.sqrt(2 * 53 * np.log(2)), places=6)
    self.assertTrue(found.refuted)
    found = noise_reach.reach([multiplier], delta)
    self.assertFalse(found.refuted)
    self.assertLess(found.delta, 1e-3 * delta)

  def test_early_end_does_not_matter_to_much_noise(self):
    found = noise_reach.reach([2.0], 1e-5, broken.standard_normal)
    self.assertFalse(found.refuted)

  def test_reaches_as_far_as_it_says(self):
    self.assertAlmostEqual(
      noise_reach.largest_normal(), noise.LARGEST_NORMAL, places=6
    )

  def test_more_releases_give_away_more(self):
    one, two = (
      noise_reach.reach([0.2] * count, 1e-5, broken.standard_normal).delta
      for count in (1, 2)
    )
    self.assertAlmostEqual(two, 2 * one)

  def test_it_is_a_probability(self):
    z, releases = 0.097, 10
    one = noise_reach.reach([z], 0.3).delta
    found = noise_reach.reach([z] * releases, 0.3)
    self.assertAlmostEqual(found.delta, 1 - (1 - one) ** releases)
    self.assertGreater(releases * one, 0.3)
    self.assertFalse(found.refuted)
    found = noise_reach.reach([1e-3] * releases, 0.3)
    self.assertEqual(found.delta, 1.0)

  def test_the_generator_is_left_as_it_was(self):
    key = tf.constant([1, 2], tf.int64)
    before = noise.standard_normal(key, 5).numpy()
    noise_reach.largest_normal()
    np.testing.assert_array_equal(noise.standard_normal(key, 5), before)

  def test_a_generator_that_cannot_be_looked_at(self):
    found = noise_reach.reach(
      [0.1], 1e-5, lambda key, size: tf.random.normal([size])
    )
    self.assertEqual(found.largest, np.inf)
    self.assertEqual(found.to_json_dict()['largest_noise_in_stddevs'], 'inf')


if __name__ == '__main__':
  absltest.main()
