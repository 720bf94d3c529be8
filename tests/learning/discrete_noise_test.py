"""Discrete noise where it is used: `noise.perturb` and local steps."""

import fractions

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import noise_checks
from tvdp_tf import privacy
from tvdp_tf.learning import (
  clipping,
  discrete_gaussian,
  noise,
  private_training,
)
from tvdp_tf.privacy import noise_distance

KEY = tf.constant([5, (2 << 32) | 1], tf.int64)
STEPS = discrete_gaussian.GRID_STDDEV


def perturb(tensors, stddev, key=KEY, release=0):
  return noise.perturb(
    tensors, stddev, key, release, distribution='discrete_gaussian'
  )


class PerturbTest(parameterized.TestCase):
  @parameterized.parameters(1e-8, 0.3, 50.0)
  def test_adds_noise_of_the_stddev_to_every_tensor(self, stddev):
    tensors = [tf.ones([40, 50], tf.float64), tf.zeros([3000], tf.float64)]
    perturbed = perturb(tensors, stddev)
    added = np.concatenate(
      [
        np.ravel(after - before)
        for after, before in zip(perturbed, tensors, strict=True)
      ]
    )
    self.assertTrue(noise_checks.has_stddev(added, stddev))
    self.assertTrue(noise_checks.rejects_neighbours(added, stddev))

  def test_releases_only_multiples_of_the_step(self):
    stddev = 0.75
    step = fractions.Fraction(stddev) / STEPS
    (released,) = perturb([tf.constant([0.1, 1 / 3, -7.7], tf.float64)], stddev)
    for value in released.numpy().tolist():
      self.assertEqual((fractions.Fraction(value) / step).denominator, 1)

  def test_equals_rounded_values_plus_the_sampler(self):
    values = np.array([0.1, -2.5, 1e6, 3e-12])
    (released,) = perturb([tf.constant(values)], 0.5, release=3)
    drawn = discrete_gaussian.discrete_gaussian(KEY, 4, 3).numpy()
    expected = (np.round(values * STEPS / 0.5) + drawn) * (0.5 / STEPS)
    np.testing.assert_array_equal(released, expected)

  def test_several_tensors_are_one_draw(self):
    # Of several dtypes, and steps of the grid, whose every bit counts.
    values = [
      tf.constant([[0.1, -2.5], [1e3, 3e-4]], tf.float32),
      tf.constant([7.7], tf.float64),
      tf.constant([2**60 + 1, -(2**60) - 3], tf.int64),
      tf.zeros([0], tf.float64),
      tf.constant(1e6, tf.float64),
    ]
    stddev = 0.3
    released = perturb(values, stddev)
    grid = stddev / STEPS
    drawn = discrete_gaussian.discrete_gaussian(KEY, 8).numpy()
    parts = np.split(drawn, [4, 5, 7, 7])
    for one, value, part in zip(released, values, parts, strict=True):
      steps = value.numpy()
      if value.dtype != tf.int64:
        steps = np.round(steps.astype(np.float64) / grid).astype(np.int64)
      expected = (steps + part.reshape(value.shape)).astype(np.float64) * grid
      is_float32 = value.dtype == tf.float32
      self.assertEqual(one.dtype, tf.float32 if is_float32 else tf.float64)
      np.testing.assert_array_equal(
        one, expected.astype(np.float32) if is_float32 else expected
      )

  def test_releases_and_keys_are_independent(self):
    zeros = [tf.zeros([4000], tf.float64)]
    draws = [
      perturb(zeros, 1.0, KEY, 0)[0],
      perturb(zeros, 1.0, KEY, 1)[0],
      perturb(zeros, 1.0, KEY + 1, 0)[0],
    ]
    for i in range(3):
      for j in range(i):
        correlation = np.corrcoef(draws[i], draws[j])[0, 1]
        self.assertLess(abs(correlation), 5 / np.sqrt(4000))

  def test_values_beyond_the_integers_do_not_wrap(self):
    (released,) = perturb([tf.constant([1e300, -1e300], tf.float64)], 1e-3)
    self.assertGreater(released[0], 1e3)
    self.assertLess(released[1], -1e3)


class TruncatedTest(parameterized.TestCase):
  def test_is_never_longer_and_hardly_shorter(self):
    rng = np.random.default_rng(0)
    for stddev in (0.3, 7.0, 1e5):
      values = rng.normal(size=2000) * rng.choice([1e-6, 1.0, 1e3], 2000)
      integers = noise.truncated(tf.constant(values), stddev).numpy()
      step = fractions.Fraction(stddev) / STEPS
      for value, integer in zip(
        values.tolist(), integers.tolist(), strict=True
      ):
        self.assertLessEqual(
          abs(integer) * step, abs(fractions.Fraction(value))
        )
        self.assertGreaterEqual(
          abs(integer) * step + step,
          abs(fractions.Fraction(value)) * (1 - fractions.Fraction(1, 2**50)),
        )

  def test_zero_stays_zero_and_signs_stay(self):
    values = tf.constant([0.0, 1.0, -1.0], tf.float64)
    integers = noise.truncated(values, 1.0).numpy()
    np.testing.assert_array_equal(np.sign(integers), [0, 1, -1])


class GridTest(parameterized.TestCase):
  def test_rounding_moves_neighbours_apart_by_no_more_than_stated(self):
    rng = np.random.default_rng(1)
    stddev, size = 2.0**31, 5000  # A step is 1.
    far = 0.0
    for _ in range(20):
      one = rng.uniform(-5, 5, size)
      other = one + rng.uniform(-1, 1, size) * 1e-3
      rounded = [
        np.round(values) for values in (one, other)
      ]  # As `perturb` does, see above.
      apart = float(np.linalg.norm(rounded[0] - rounded[1]))
      moved = float(np.linalg.norm(one - other))
      multiplier = stddev / moved
      bound = moved * (1 + noise_distance.rounding_of_grid(size, multiplier))
      self.assertLessEqual(apart, bound)
      far = max(far, apart / moved)
    self.assertGreater(far, 1)  # It does lengthen.

  def local_steps(self, stddev, adjacency='replace-one'):
    def clipped_sum(weights, features, labels, present, clip):
      del weights, features, labels
      # What is clipped to: each example has just this norm.
      count = tf.reduce_sum(tf.cast(present, tf.float64))
      return [tf.cast(tf.reshape(clip * count, [1]), tf.float64)]

    return private_training.private_local_steps(
      clipped_sum,
      [tf.zeros([1], tf.float64)],
      np.zeros([10, 1], np.float32),
      np.zeros([10], np.int32),
      num_steps=1,
      learning_rate=1.0,
      example_l2_norm_clip=1.0,
      noise_stddev=tf.constant(stddev, tf.float64),
      noise_key=KEY,
      noise_distribution='discrete_gaussian',
      adjacency=adjacency,
    )

  @parameterized.parameters(('replace-one', 0.2), ('zero-out', 0.1))
  def test_the_clip_makes_room_for_the_rounding(self, adjacency, moved):
    # The mean is the clip itself, up to noise that is known.
    stddev = moved * 2.0**28  # Noise multiplier 2^28, of one value.
    (weights,) = self.local_steps(stddev, adjacency)
    drawn = float(discrete_gaussian.discrete_gaussian(KEY, 1, 0)[0])
    grid = stddev / STEPS
    clip = -float(weights[0]) - drawn * grid
    rounding = privacy.gradient_rule(1.0, 10, adjacency).rounding
    expected = (1 - 2.0**28 / STEPS) / (1 + rounding)
    self.assertAlmostEqual(clip, expected, delta=grid)
    self.assertLess(expected, 0.9)

  def test_too_much_noise_for_the_grid_is_an_error(self):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'too large'):
      self.local_steps(0.2 * 2.0**31)


class SumsTest(parameterized.TestCase):
  def test_microbatches_are_added_in_float64(self):
    # In float32 a sum of 2^24 swallows every further one.
    def clipped_sum(weights, features, labels, present, clip):
      del weights, labels, clip
      return [tf.reduce_sum(tf.where(present, features[:, 0], 0.0))[None]]

    features = np.ones([1000, 1], np.float32)
    features[0] = 2.0**24
    (mean,) = clipping.clipped_mean_gradient(
      clipped_sum,
      [tf.zeros([1])],
      features,
      np.zeros([1000], np.int32),
      example_l2_norm_clip=1.0,
      microbatch_size=1,
    )
    self.assertEqual(float(mean[0]) * 1000, 2.0**24 + 999)


if __name__ == '__main__':
  absltest.main()
