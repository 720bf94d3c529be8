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
  ghost_convolutions,
  keras_version,
)

LAYERS = tf.keras.layers
IMAGE, SEQUENCE = (9, 8, 2), (11, 3)


def image(convolution, *layers):
  return ghost_cases.sequential(
    IMAGE, convolution, *layers, LAYERS.Flatten(), LAYERS.Dense(3)
  )


def sequence(convolution, *layers):
  return ghost_cases.sequential(
    SEQUENCE, convolution, *layers, LAYERS.Flatten(), LAYERS.Dense(3)
  )


# By the shape of the kernel, in which few and many filters or channels differ.
MODELS: dict[str, Callable[[], tf.keras.Model]] = {
  'few': lambda: image(LAYERS.Conv2D(3, 3, activation='tanh')),
  'filters': lambda: ghost_cases.sequential(
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
  'dilated': lambda: image(LAYERS.Conv2D(3, (2, 3), dilation_rate=(3, 2))),
  'dilated_padded': lambda: image(
    LAYERS.Conv2D(32, (3, 2), dilation_rate=2, padding='same')
  ),
  'causal': lambda: sequence(
    LAYERS.Conv1D(4, 3, padding='causal', activation='tanh'),
    LAYERS.Conv1D(33, 2, padding='causal', dilation_rate=4),
  ),
  'causal_strides': lambda: sequence(
    LAYERS.Conv1D(4, 4, padding='causal', strides=3)
  ),
  'depthwise': lambda: image(
    LAYERS.DepthwiseConv2D((3, 2), depth_multiplier=3, activation='tanh'),
    LAYERS.DepthwiseConv2D(2, strides=2, padding='same', use_bias=False),
  ),
  'depthwise_dilated': lambda: image(
    LAYERS.DepthwiseConv2D(2, dilation_rate=3, padding='same')
  ),
  'depthwise_sequence': lambda: sequence(
    LAYERS.DepthwiseConv1D(3, strides=2, depth_multiplier=2)
  ),
  'separable': lambda: image(
    LAYERS.SeparableConv2D(5, 3, padding='same', activation='tanh'),
    LAYERS.SeparableConv2D(4, 2, strides=2, depth_multiplier=2, use_bias=False),
  ),
  'separable_dilated': lambda: image(
    LAYERS.SeparableConv2D(4, (2, 3), dilation_rate=2)
  ),
  'separable_sequence': lambda: sequence(
    LAYERS.SeparableConv1D(5, 3, padding='causal', activation='tanh'),
    LAYERS.SeparableConv1D(4, 3, padding='causal', dilation_rate=2),
    LAYERS.SeparableConv1D(4, 2, strides=2, padding='same'),
  ),
  'sequence_once': lambda: sequence(LAYERS.Conv1D(2, SEQUENCE[0])),
}


def transposed(is_transposed):
  kind = LAYERS.Conv1DTranspose if is_transposed else LAYERS.Conv1D
  return sequence(kind(4, 2))


def of_groups(groups):
  convolution = LAYERS.Conv1D(4, 2, groups=groups)
  return ghost_cases.sequential((5, 2), convolution, LAYERS.Flatten())


def of_rank(rank):
  shape = (2, 5, 3)[3 - rank + 1 :]
  return ghost_cases.sequential(shape, LAYERS.Conv1D(4, 2), LAYERS.Flatten())


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostConvolutionTest(ghost_cases.ModelTestCase):
  @parameterized.parameters(*MODELS)
  def test_is_the_sum_over_the_examples(self, name):
    self.check_sum(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters(
    *('few', 'filters', 'channels', 'sequence_padded', 'dilated_padded'),
  )
  def test_both_ways_are_the_same(self, name):
    """By the rows of the kernel, and by its places."""
    model = MODELS[name]()
    arguments = self.arguments(model, 0.05)
    of_both = []
    for many in (10**6, 1):
      with mock.patch.object(ghost_convolutions.Convolution, 'MANY', many):
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

  @parameterized.parameters(
    *('few', 'padded_strides', 'channels', 'sequence', 'depthwise'),
    'separable',
  )
  def test_a_single_gradient_is_within_the_clip(self, name):
    self.check_single(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters(
    *('filters', 'channels', 'sequence_padded', 'causal', 'depthwise'),
    'separable_sequence',
  )
  def test_an_example_is_nothing_to_the_others(self, name):
    self.check_apart(ghost_cases.sums_of(MODELS[name]))

  @parameterized.named_parameters(
    ('groups', of_groups, 2, 1),
    ('rank', of_rank, 4, 3),
    ('transposed', transposed, True, False),
  )
  def test_takes_a_model_only_without(self, build, bad, good):
    self.check_only_without(build(bad), build(good))


if __name__ == '__main__':
  absltest.main()
