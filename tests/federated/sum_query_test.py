"""The query's own arithmetic, eagerly."""

import collections

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import noise_checks
from tvdp_tf import federated, privacy

CLIP = 0.7
SCHEDULE = privacy.GeometricSchedule(theta=0.5, rounds=2, initial_stddev=3.0)


def make_query(seed=None):
  return federated.GeometricGaussianSumQuery(CLIP, SCHEDULE, seed)


def clipped(record):
  query = make_query()
  params = query.derive_sample_params(query.initial_global_state())
  return query.preprocess_record(params, record)


def norm(record):
  parts = [np.ravel(np.asarray(p, np.float64)) for p in record]
  return np.linalg.norm(np.concatenate(parts))


class ClippingTest(parameterized.TestCase):
  @parameterized.parameters(1e-3, 0.5, 0.7, 0.700001, 1.0, 1e3, 1e10, 1e25)
  def test_never_past_the_clip(self, length):
    rng = np.random.default_rng(0)
    for size in (1, 7, 30000):
      direction = rng.normal(size=size)
      direction *= length / np.linalg.norm(direction)
      record = [
        tf.constant(direction[: size // 2], tf.float32),
        tf.constant(direction[size // 2 :], tf.float32),
      ]
      result = clipped(record)
      self.assertLessEqual(norm(result), CLIP)
      self.assertGreaterEqual(norm(result), min(length, CLIP) * (1 - 1e-5))
      if length < CLIP * (1 - 1e-5):  # It is left as it is.
        for one, other in zip(result, record, strict=True):
          np.testing.assert_array_equal(one, other)

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_what_is_not_finite_is_zero(self, value):
    record = collections.OrderedDict(
      b=tf.constant([1.0, value]), a=tf.constant(2.0, tf.float64)
    )
    result = clipped(record)
    self.assertEqual(list(result), ['b', 'a'])
    np.testing.assert_array_equal(result['b'], [0, 0])
    self.assertEqual(result['a'], 0)
    self.assertEqual(result['a'].dtype, tf.float64)


class NoiseTest(parameterized.TestCase):
  def test_rounds_follow_the_schedule_and_end(self):
    query = make_query()
    state = query.initial_global_state()
    zero = [tf.zeros([4000])]
    for m in (1, 2):
      (noise,), state, event = query.get_noised_result(zero, state)
      stddev = SCHEDULE.stddev(m)
      self.assertTrue(noise_checks.has_stddev(noise, stddev * CLIP))
      self.assertTrue(noise_checks.rejects_neighbours(noise, stddev * CLIP))
      self.assertAlmostEqual(float(event.noise_multiplier), stddev)
      self.assertEqual(query.derive_metrics(state)['round'], m)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'no further'):
      query.get_noised_result(zero, state)

  def test_a_seed_reproduces(self):
    zero = [tf.zeros([10])]
    draws = []
    for seed in (1, 1, 2, None, None):
      query = make_query(seed)
      (draw,), _, _ = query.get_noised_result(
        zero, query.initial_global_state()
      )
      draws.append(draw.numpy().tolist())
    self.assertEqual(draws[0], draws[1])
    self.assertLen({tuple(draw) for draw in draws}, 4)


class ArgumentsTest(parameterized.TestCase):
  @parameterized.parameters(0.0, -1.0, np.inf, np.nan)
  def test_refuses_clips(self, clip):
    with self.assertRaisesRegex(ValueError, 'l2_norm_clip must be'):
      federated.GeometricGaussianSumQuery(clip, SCHEDULE)

  def test_refuses_others(self):
    with self.assertRaisesRegex(TypeError, 'schedule must be'):
      federated.GeometricGaussianSumQuery(1.0, 3.0)  # type: ignore[arg-type]
    with self.assertRaisesRegex(ValueError, 'seed must be'):
      make_query(-1)


if __name__ == '__main__':
  absltest.main()
