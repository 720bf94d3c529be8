"""Ghost clipping of convolutions, of images and of sequences."""

import unittest
from collections.abc import Callable
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import (
  functional,
  ghost_clipping,
  keras_version,
)

LAYERS = tf.keras.layers
IMAGE, SEQUENCE = (9, 8, 2), (11, 3)


def sequential(shape, *layers):
  return tf.keras.Sequential([LAYERS.InputLayer(shape), *layers])


def image(convolution, *layers):
  return sequential(
    IMAGE, convolution, *layers, LAYERS.Flatten(), LAYERS.Dense(3)
  )


def sequence(convolution, *layers):
  return sequential(
    SEQUENCE, convolution, *layers, LAYERS.Flatten(), LAYERS.Dense(3)
  )


# By the shape of the kernel, in which few and many filters or channels differ.
MODELS: dict[str, Callable[[], tf.keras.Model]] = {
  'few': lambda: image(LAYERS.Conv2D(3, 3, activation='tanh')),
  'filters': lambda: sequential(
    IMAGE,
    LAYERS.Rescaling(1 / 4, offset=-1),
    LAYERS.Conv2D(33, 3, activation='tanh'),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
  ),
  'strides': lambda: image(
    LAYERS.Conv2D(32, (2, 3), strides=(3, 2), use_bias=False)
  ),
  'padded': lambda: image(LAYERS.Conv2D(32, (3, 2), padding='same')),
  'padded_strides': lambda: image(
    LAYERS.Conv2D(32, (4, 3), strides=(2, 3), padding='same')
  ),
  'channels': lambda: image(
    LAYERS.Conv2D(32, 1, activation='relu'),
    LAYERS.Conv2D(2, (2, 1), strides=(1, 2), padding='same'),
  ),
  'sequence': lambda: sequence(LAYERS.Conv1D(4, 3, activation='tanh')),
  'sequence_filters': lambda: sequence(
    LAYERS.Conv1D(32, 4, strides=3, use_bias=False)
  ),
  'sequence_padded': lambda: sequence(
    LAYERS.Conv1D(5, 4, strides=2, padding='same', activation='relu'),
    LAYERS.ZeroPadding1D(1),
    LAYERS.MaxPool1D(2),
    LAYERS.Conv1D(33, 2, padding='same'),
    LAYERS.AveragePooling1D(2, padding='same'),
    LAYERS.SpatialDropout1D(0.0),
  ),
  'sequence_of_a_large_kernel': lambda: sequence(
    LAYERS.Conv1D(32, 60, padding='same', activation='tanh')
  ),
  'sequence_once': lambda: sequence(LAYERS.Conv1D(2, SEQUENCE[0])),
}


def sequence_of(**options):
  return sequence(LAYERS.Conv1D(4, 2, **options))


def of_groups(groups):
  convolution = LAYERS.Conv1D(4, 2, groups=groups)
  return sequential((5, 2), convolution, LAYERS.Flatten())


def of_rank(rank):
  shape = (2, 5, 3)[3 - rank + 1 :]
  return sequential(shape, LAYERS.Conv1D(4, 2), LAYERS.Flatten())


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostConvolutionTest(parameterized.TestCase):
  def arguments(self, model, clip, count=30):
    rng = np.random.default_rng(0)
    return (
      rng.standard_normal([count, *model.input_shape[1:]]),
      rng.integers(3, size=count),
      ghost_cases.drawn_weights(model, rng),
      clip,
    )

  @parameterized.product(name=tuple(MODELS), clip=(1e6, 0.05))
  def test_is_the_sum_over_the_examples(self, name, clip):
    model = MODELS[name]()
    arguments = (*self.arguments(model, clip), np.arange(30) % 5 > 0)
    sums = ghost_cases.Sums(model)
    ghost, looped = sums.ghost(*arguments), sums.looped(*arguments)
    self.assertGreater(np.linalg.norm(looped), 3 * min(clip, 0.1))
    scale = np.abs(looped).max()
    np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-5 * scale)

  @parameterized.parameters('few', 'filters', 'channels', 'sequence_padded')
  def test_both_ways_are_the_same(self, name):
    """By the rows of the kernel, and by its places."""
    model = MODELS[name]()
    arguments = self.arguments(model, 0.05)
    of_both = []
    for many in (10**6, 1):
      with mock.patch.object(ghost_clipping, '_MANY', many):
        of_both.append(ghost_cases.Sums(model).ghost(*arguments))
    rows, places = of_both
    np.testing.assert_allclose(rows, places, rtol=1e-4, atol=1e-6)

  def test_a_large_kernel_takes_few_products(self):
    model = MODELS['sequence_of_a_large_kernel']()
    clipped_sum = ghost_clipping.ghost_clipped_sum(
      functional.FunctionalModel(model), ghost_cases.CROSS_ENTROPY
    )
    assert isinstance(clipped_sum, ghost_clipping.GhostClippedSum)
    ops = [op.type for op in clipped_sum._sum.graph.get_operations()]
    self.assertBetween(ops.count('BatchMatMulV2'), 1, 5)

  @parameterized.parameters('few', 'padded_strides', 'channels', 'sequence')
  def test_a_single_gradient_is_within_the_clip(self, name):
    model = MODELS[name]()
    sums = ghost_cases.Sums(model)
    features, labels, weights, _ = self.arguments(model, 1.0, 8)
    for i in range(8):
      present = np.arange(8) == i
      of_example = sums.looped(features, labels, weights, 1e6, present)
      length = float(np.linalg.norm(of_example))
      for clip in (1e-6, 1e-3, 0.1):
        ghost = sums.ghost(features, labels, weights, clip, present)
        found = np.linalg.norm(ghost)
        self.assertBetween(found, 0.9995 * min(clip, 0.999 * length), clip)

  @parameterized.parameters('filters', 'channels', 'sequence_padded')
  def test_an_example_is_nothing_to_the_others(self, name):
    """To the bit, whether it is huge or not finite."""
    model = MODELS[name]()
    features, labels, weights, clip = self.arguments(model, 0.05)
    sums = ghost_cases.Sums(model)
    present = np.arange(30) != 7
    expected = sums.ghost(features, labels, weights, clip, present)
    for value in (1e30, np.inf, np.nan):
      features[7] = value
      ghost = sums.ghost(features, labels, weights, clip, present)
      np.testing.assert_array_equal(ghost, expected)
      moved = sums.ghost(features, labels, weights, clip) - expected
      self.assertLessEqual(np.linalg.norm(moved), 1.001 * clip)

  @parameterized.named_parameters(
    ('groups', of_groups, 2, 1),
    ('rank', of_rank, 4, 3),
    ('causal', lambda p: sequence_of(padding=p), 'causal', 'same'),
    ('dilated', lambda d: sequence_of(dilation_rate=d), 2, 1),
    (
      'dilated_image',
      lambda d: image(LAYERS.Conv2D(4, 2, dilation_rate=d)),
      (1, 2),
      (1, 1),
    ),
  )
  def test_takes_a_model_only_without(self, build, bad, good):
    supported = [
      ghost_cases.supported_whatever_its_ops(build(value))
      for value in (bad, good)
    ]
    self.assertEqual(supported, [False, True])


if __name__ == '__main__':
  absltest.main()
