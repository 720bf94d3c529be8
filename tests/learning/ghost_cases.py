"""What tests of ghost clipping share: its list, its sums beside a loop's."""

import functools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tvdp_tf.learning import clipping, functional, ghost_clipping, ghost_list

CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def supported_whatever_its_ops(model):
  """Whether the list takes a Keras model, were all ops of it on the list."""
  wrapped = functional.FunctionalModel(model)
  with mock.patch.object(ghost_list, 'OPS', ghost_list.OPS | wrapped.ops):
    return ghost_list.supports(wrapped, CROSS_ENTROPY)


class Sums:
  """The clipped sums of a Keras model: flat arrays, float64."""

  def __init__(self, model):
    self.model = model
    self._model = functional.FunctionalModel(model)
    self._ghost = ghost_clipping.ghost_clipped_sum(self._model, CROSS_ENTROPY)
    self._looped = tf.function(
      clipping.looped_clipped_sum(
        lambda weights, x, y: CROSS_ENTROPY(y, self._model(weights, x, True))
      ),
      autograph=False,
    )

  def ghost(self, features, labels, weights, clip, present=None):
    return self._flat(self._ghost, features, labels, weights, clip, present)

  def looped(self, features, labels, weights, clip, present=None):
    """One example at a time."""
    return self._flat(self._looped, features, labels, weights, clip, present)

  def _flat(self, clipped_sum, features, labels, weights, clip, present):
    if present is None:
      present = np.ones([len(labels)], bool)
    sums = clipped_sum(
      list(map(tf.constant, weights)),
      tf.constant(features, self._model.features_spec.dtype),
      tf.constant(labels, tf.int32),
      tf.constant(present),
      tf.constant(clip, tf.float64),
    )
    return np.concatenate([np.ravel(part).astype(np.float64) for part in sums])


# Traced for all tests of a class that want it: a second or more.
@functools.cache
def sums_of(build, *arguments):
  """The sums of the model that `build` makes of the arguments."""
  return Sums(build(*arguments))


def drawn_weights(model, rng):
  return [
    rng.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()
  ]


def sequential(shape, *layers, dtype=None):
  first = tf.keras.layers.InputLayer(shape, dtype=dtype)
  return tf.keras.Sequential([first, *layers])


VOCABULARY = 7


class ModelTestCase(parameterized.TestCase):
  """What holds for the sums of every model."""

  @classmethod
  def tearDownClass(cls):
    super().tearDownClass()
    sums_of.cache_clear()

  def arguments(self, model, clip):
    """Features, labels, weights and the clip; labels are below 3."""
    rng = np.random.default_rng(0)
    shape = [30, *model.input_shape[1:]]
    is_of_words = model.inputs[0].dtype.is_integer
    return (
      rng.integers(VOCABULARY, size=shape)
      if is_of_words
      else rng.standard_normal(shape),
      rng.integers(3, size=30),
      drawn_weights(model, rng),
      clip,
    )

  def check_sum(self, sums):
    """It is that over the single examples, whether it clips or not."""
    for clip in (1e6, 0.05):
      arguments = (*self.arguments(sums.model, clip), np.arange(30) % 5 > 0)
      ghost, looped = sums.ghost(*arguments), sums.looped(*arguments)
      self.assertGreater(np.linalg.norm(looped), 2 * min(clip, 0.1))
      scale = np.abs(looped).max()
      np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-5 * scale)

  def check_only_without(self, bad, good):
    """The list takes the one model, and not the other, whatever its ops."""
    supported = list(map(supported_whatever_its_ops, (bad, good)))
    self.assertEqual(supported, [False, True])

  def check_single(self, sums):
    """The gradient of one example is as long as the clip, and no longer."""
    features, labels, weights, _ = self.arguments(sums.model, 1.0)
    for i in range(8):
      present = np.arange(30) == i
      of_example = sums.looped(features, labels, weights, 1e6, present)
      length = float(np.linalg.norm(of_example))
      for clip in (1e-6, 1e-3, 0.1):
        ghost = sums.ghost(features, labels, weights, clip, present)
        found = np.linalg.norm(ghost)
        self.assertBetween(found, 0.9995 * min(clip, 0.999 * length), clip)

  def check_apart(self, sums, values=(1e30, np.inf, np.nan)):
    """An example is nothing to the others, to the bit, whatever it is."""
    features, labels, weights, clip = self.arguments(sums.model, 0.05)
    present = np.arange(30) != 7
    expected = sums.ghost(features, labels, weights, clip, present)
    for value in values:
      features[7] = value
      ghost = sums.ghost(features, labels, weights, clip, present)
      np.testing.assert_array_equal(ghost, expected)
      moved = sums.ghost(features, labels, weights, clip) - expected
      self.assertLessEqual(np.linalg.norm(moved), 1.001 * clip)
