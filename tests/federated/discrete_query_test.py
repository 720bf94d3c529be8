"""Discrete noise in the query for TFF's aggregators."""

import fractions

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import noise_checks
from tvdp_tf import federated, privacy
from tvdp_tf.learning import discrete_gaussian

STEPS = discrete_gaussian.GRID_STDDEV


class QueryTest(parameterized.TestCase):
  def query(self, **kwargs):
    schedule = privacy.GeometricSchedule(0.5, 2, 3.0)
    return federated.GeometricGaussianSumQuery(
      0.7, schedule, noise_distribution='discrete_gaussian', **kwargs
    )

  def test_records_are_integers_within_the_clip(self):
    query = self.query()
    params = query.derive_sample_params(query.initial_global_state())
    step = 3.0 * 0.7 / STEPS
    rng = np.random.default_rng(0)
    for length in (1e-3, 0.7, 5.0, 1e20):
      direction = rng.normal(size=1000)
      record = tf.constant(
        direction * length / np.linalg.norm(direction), tf.float32
      )
      (integers,) = query.preprocess_record(params, [record])
      self.assertEqual(integers.dtype, tf.int64)
      norm = np.linalg.norm(integers.numpy().astype(np.float64)) * step
      self.assertLessEqual(norm, 0.7)
      self.assertGreaterEqual(norm, min(length, 0.7) * (1 - 1e-4))
    for value in (np.nan, np.inf):
      (integers,) = query.preprocess_record(params, [tf.constant([value, 1.0])])
      np.testing.assert_array_equal(integers, [0, 0])

  def test_the_noise_is_of_the_round_and_on_the_grid(self):
    query = self.query(seed=3)
    state = query.initial_global_state()
    for m, multiplier in ((1, 3.0), (2, 3.0 * np.sqrt(0.5))):
      sums = [tf.fill([4000], tf.constant(7, tf.int64))]
      (noised,), state, event = query.get_noised_result(sums, state)
      self.assertEqual(noised.dtype, tf.float32)
      self.assertTrue(noise_checks.has_stddev(noised, multiplier * 0.7))
      self.assertTrue(noise_checks.rejects_neighbours(noised, multiplier * 0.7))
      self.assertAlmostEqual(float(event.noise_multiplier), multiplier)
      self.assertEqual(query.derive_metrics(state)['round'], m)

  def test_neighbouring_sums_have_the_same_support(self):
    # In floating point they have not: that is what the attack looks at.
    query = self.query(seed=3, dtype=tf.float64)
    state = query.initial_global_state()
    step = fractions.Fraction(3.0 * 0.7) / STEPS
    for value in (0, 1, 12345):
      total = [tf.fill([100], tf.constant(value, tf.int64))]
      (noised,), _, _ = query.get_noised_result(total, state)
      for released in noised.numpy().tolist():
        ratio = fractions.Fraction(released) / step
        self.assertLess(abs(ratio - round(ratio)), 1e-6)


if __name__ == '__main__':
  absltest.main()
