"""The arithmetic of clipping, against exact sums."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import clipping
from tvdp_tf.privacy import sensitivity


def exact_squares(tensor):
  flat = np.reshape(np.asarray(tensor, np.longdouble), [len(tensor), -1])
  return np.sum(flat * flat, axis=1)


class SquaredNormsTest(parameterized.TestCase):
  @parameterized.product(
    size=(1e-38, 1e-30, 1e-19, 1.0, 1e10, 1e37), width=(1, 784, 5000)
  )
  def test_is_never_less_and_hardly_more(self, size, width):
    rng = np.random.default_rng(0)
    tensor = (rng.normal(size=[20, width]) * size).astype(np.float32)
    actual = clipping.squared_norms(tf.constant(tensor)).numpy()
    expected = exact_squares(tensor)
    self.assertTrue((actual >= expected).all())
    # Of short tensors in float32, unless that overflows.
    relative, absolute = 1.01 * (width + 4) * 2.0**-23, width * 1e-37
    if width == 5000 or size == 1e37:
      relative, absolute = 1e-9, width * 1e-75
    self.assertTrue((actual <= expected * (1 + relative) + absolute).all())

  def test_an_example_does_not_depend_on_the_others(self):
    # Some overflow in float32, are not finite, vanish: of the others not a bit
    # may change, or one example would move the clipped gradients of all.
    rng = np.random.default_rng(0)
    plain = rng.normal(size=[9, 784]).astype(np.float32)
    alone = clipping.squared_norms(tf.constant(plain)).numpy()
    for other in (1e30, np.inf, np.nan, 1e-30, 0.0):
      mixed = plain.copy()
      mixed[::2] = other
      actual = clipping.squared_norms(tf.constant(mixed)).numpy()
      np.testing.assert_array_equal(actual[1::2], alone[1::2])
      stacked = clipping.stacked_squared_norms(
        [tf.constant(plain), tf.constant(mixed)]
      ).numpy()
      np.testing.assert_array_equal(stacked, [alone, actual])

  def test_sums_in_bad_order_are_covered(self):
    # One large square, then thousands of small ones that float32 swallows.
    tensor = np.full([1, 4096], 2.0**-13, np.float32)
    tensor[0, 0] = 1.0
    actual = clipping.squared_norms(tf.constant(tensor)).numpy()
    self.assertGreaterEqual(actual[0], exact_squares(tensor)[0])

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_what_is_not_finite_is_seen(self, value):
    for width in (3, 5000):
      tensor = np.ones([2, width], np.float32)
      tensor[1, 1] = value
      actual = clipping.squared_norms(tf.constant(tensor)).numpy()
      np.testing.assert_array_equal(np.isfinite(actual), [True, False])

  def test_stacked_are_the_same_and_dtypes_may_differ(self):
    rng = np.random.default_rng(0)
    tensors = [
      tf.constant(rng.normal(size=shape), dtype)
      for shape, dtype in (
        ((4, 7), tf.float32),
        ((4, 3, 5), tf.float64),
        ((4, 6000), tf.float32),
      )
    ]
    stacked = clipping.stacked_squared_norms(tensors)
    self.assertEqual(stacked.shape, [3, 4])
    for row, tensor in zip(stacked, tensors, strict=True):
      np.testing.assert_array_equal(row, clipping.squared_norms(tensor))
      np.testing.assert_allclose(row, exact_squares(tensor), rtol=2e-6)


class ScalesTest(parameterized.TestCase):
  def test_a_scaled_vector_is_within_the_clip(self):
    norms = np.array([0.0, 1e-30, 0.5, 1.0, 1.0 + 1e-9, 3.0, 1e30])
    for clip in (1e-10, 1.0, 1e10):
      used, factors = clipping.scales(
        tf.constant(norms**2 * clip**2),
        tf.ones(len(norms), tf.bool),
        tf.constant(clip, tf.float64),
      )
      self.assertTrue(np.all(used))
      lengths = norms * clip * factors.numpy().astype(np.float64)
      self.assertTrue((lengths <= clip).all())
      expected = np.minimum(norms * clip, clip)
      np.testing.assert_allclose(lengths, expected, rtol=1e-6)

  def test_a_factor_that_is_subnormal_is_zero(self):
    # Some devices keep such numbers, this one may not: a larger one stands in.
    self.assertEqual(clipping._LEAST_FACTOR, np.finfo(np.float32).tiny)
    with mock.patch.object(clipping, '_LEAST_FACTOR', 0.5):
      used, factors = clipping.scales(
        tf.constant([1.0, 4.1, 3.9], tf.float64),
        tf.constant([True] * 3),
        tf.constant(1.0, tf.float64),
      )
    np.testing.assert_array_equal(used, [True] * 3)
    np.testing.assert_allclose(factors, [1, 0, 3.9**-0.5], rtol=1e-6)

  def test_who_is_absent_or_not_finite_does_not_count(self):
    used, factors = clipping.scales(
      tf.constant([1.0, 1.0, np.inf, np.nan], tf.float64),
      tf.constant([True, False, True, True]),
      tf.constant(1.0, tf.float64),
    )
    np.testing.assert_array_equal(used, [True, False, False, False])
    np.testing.assert_array_equal(factors[1:], [0, 0, 0])


class RoundingTest(parameterized.TestCase):
  @parameterized.parameters(16, 64, 128)
  def test_covers_what_float32_loses_in_a_group(self, size):
    # Two sums of so many microbatches of `size` vectors of norm 1 that differ
    # in one of them: what rounding adds to their difference, at worst, against
    # what is set aside.
    unit, microbatches = 2.0**-24, sensitivity.MOST_MICROBATCHES
    within = 2 * size * (size + 3) * unit / 2
    between = 2 * microbatches * unit * (microbatches * size) / 2
    rounding = sensitivity.relative_rounding(size * microbatches, size)
    self.assertLessEqual(within + between, rounding)
    self.assertLess(rounding, 2 * (within + between))

  def test_covers_what_float64_loses_between_them(self):
    for examples in (10**3, 10**6, 10**8):
      microbatches = examples / 64
      worst = 2 * microbatches * 2.0**-53 * examples / 2
      within = sensitivity.relative_rounding(1)
      total = sensitivity.relative_rounding(examples)
      self.assertGreaterEqual(total - within, worst)

  def test_rules_say_so(self):
    rule = sensitivity.gradient_rule(1.0, 600)
    self.assertEqual(rule.rounding, sensitivity.relative_rounding(600))
    self.assertBetween(rule.rounding, 1e-3, 2e-3)
    self.assertEqual(sensitivity.paper_rule(1.0, 600).rounding, 0)
    self.assertGreater(sensitivity.update_rule(1.0).rounding, 0)

  @parameterized.parameters(0.0, 1e-11, 1e11, np.inf, np.nan)
  def test_clips_have_a_least_and_a_largest_value(self, clip):
    with self.assertRaisesRegex(ValueError, 'C must be'):
      sensitivity.check_clip('C', clip)
    self.assertEqual(sensitivity.check_clip('C', 1e-10), 1e-10)


class RowsTest(parameterized.TestCase):
  def numbers(self, rows, columns):
    # Sums of such integers are exact in float32.
    rng = np.random.default_rng([rows, columns])
    return rng.integers(-9, 10, [rows, columns]).astype(np.float32)

  @parameterized.parameters(0, 64, 192)
  def test_any_rest(self, whole):
    for rest in range(64):
      count = whole + rest
      left, right = self.numbers(count, 5), self.numbers(count, 3)
      rows = clipping.RowSums(tf.constant(count))
      np.testing.assert_array_equal(
        rows.product(tf.constant(left), tf.constant(right)), left.T @ right
      )
      np.testing.assert_array_equal(rows.sum(tf.constant(left)), left.sum(0))

  @parameterized.parameters(40, 64, 664, 1024)
  def test_no_more_than_a_microbatch_is_added_up_in_float32(self, count):
    left, right = self.numbers(count, 5), self.numbers(count, 3)
    rows = clipping.RowSums(tf.constant(count))
    size = sensitivity.MICROBATCH_SIZE
    with (
      mock.patch.object(tf, 'matmul', wraps=tf.matmul) as products,
      mock.patch.object(tf, 'reduce_sum', wraps=tf.reduce_sum) as sums,
    ):
      rows.product(tf.constant(left), tf.constant(right))
      rows.sum(tf.constant(left))
    self.assertNotEmpty(products.call_args_list)
    for call in products.call_args_list:
      for factor in call.args:
        self.assertLessEqual(factor.shape[-2], size)
    # Then come their sums.
    self.assertNotEmpty(sums.call_args_list)
    for call in sums.call_args_list:
      added = call.args[0].shape[call.kwargs['axis']]
      self.assertLessEqual(added, size)


class GroupsTest(parameterized.TestCase):
  @parameterized.product(examples=(3, 4, 8, 9, 16, 17), microbatches=(0, 2))
  def test_how_many_are_added_up_in_float32(self, examples, microbatches):
    """Four at a time, or two times four where they are prepared."""

    def squared_count(weights, features, labels, present, clip):
      del weights, features, labels, clip
      return [tf.square(tf.reduce_sum(tf.cast(present, tf.float64)))[None]]

    class Prepared(clipping.PreparedSum):
      def prepare(self, features):
        return features

      def __call__(
        self, weights, features, labels, present, clip, prepared=None
      ):
        np.testing.assert_array_equal(prepared, features)
        return squared_count(weights, features, labels, present, clip)

    self.enter_context(mock.patch.object(clipping, 'MICROBATCH_SIZE', 4))
    clipped_sum = squared_count
    if microbatches:
      clipped_sum = Prepared()
      clipped_sum.microbatches = microbatches
    prepared = clipping.examples(
      clipped_sum,
      np.arange(examples, dtype=np.float32)[:, np.newaxis],
      np.zeros([examples], np.int32),
    )
    total = clipping.flat_gradient_sum(
      clipped_sum,
      [tf.zeros([1])],
      prepared,
      example_l2_norm_clip=1.0,
      microbatch_size=4,
    )
    size = 4 * (microbatches or 1)
    self.assertEqual(
      total.numpy().tolist(),
      [examples // size * size**2 + (examples % size) ** 2],
    )

  @parameterized.parameters(1, 8, 128)
  def test_a_prepared_sum_has_microbatches_of_its_own(self, size):
    class Prepared(clipping.PreparedSum):
      def prepare(self, features):
        return features

      def __call__(self, *arguments):
        raise AssertionError('must not be asked')

    features, labels = np.zeros([3, 1], np.float32), np.zeros([3], np.int32)
    with self.assertRaisesRegex(
      ValueError, f'microbatch_size must be 64.*{size}'
    ):
      clipping.clipped_mean_gradient(
        Prepared(),
        [tf.zeros([1])],
        features,
        labels,
        example_l2_norm_clip=1.0,
        microbatch_size=size,
      )


class OneByOneTest(parameterized.TestCase):
  @parameterized.parameters(np.nan, np.inf, 1e30)
  def test_what_is_not_finite_or_absent_adds_nothing(self, value):
    clipped_sum = clipping.summed_one_by_one(
      lambda weights: lambda example: [example[0] * weights[0]]
    )
    features = np.ones([4, 3], np.float32)
    features[1] = value
    present = np.array([True, True, False, True])
    (found,) = clipped_sum(
      [tf.constant([1.0, 1e10, 0.0])],
      tf.constant(features),
      tf.zeros([4], tf.int32),
      tf.constant(present),
      tf.constant(0.5, tf.float64),
    )
    # Of each of the two that are left: the clip, along the second weight.
    np.testing.assert_allclose(found, [0, 1, 0], rtol=1e-5, atol=1e-9)


class MeanTest(parameterized.TestCase):
  def test_the_mean_of_one_clipped_vector_is_as_long_as_is_said(self):
    for examples, size in ((1, 64), (7, 4), (64, 64), (65, 64)):

      def clipped_sum(weights, features, labels, present, clip):
        del weights, features, labels
        count = tf.reduce_sum(tf.cast(present, tf.float64))
        return [tf.reshape(clip * count, [1])]

      (mean,) = clipping.clipped_mean_gradient(
        clipped_sum,
        [tf.zeros([1])],
        np.zeros([examples, 1], np.float32),
        np.zeros([examples], np.int32),
        example_l2_norm_clip=3.0,
        microbatch_size=size,
      )
      rounding = sensitivity.relative_rounding(examples, size)
      self.assertAlmostEqual(float(mean[0]), 3 / (1 + rounding), places=12)
      self.assertEqual(mean.dtype, tf.float64)


if __name__ == '__main__':
  absltest.main()
