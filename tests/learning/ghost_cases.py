"""What tests of ghost clipping share: its list, its sums beside a loop's."""

from unittest import mock

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import clipping, functional, ghost_clipping, ghost_list

CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def supported_whatever_its_ops(model):
  """Whether the list takes a Keras model, were all ops of it on the list."""
  wrapped = functional.FunctionalModel(model)
  with mock.patch.object(ghost_list, 'OPS', ghost_list.OPS | wrapped.ops):
    return ghost_list.supports(wrapped, CROSS_ENTROPY)


class Sums:
  """The clipped sums of a model: flat arrays, float64."""

  def __init__(self, model):
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


def drawn_weights(model, rng):
  return [
    rng.standard_normal(w.shape).astype(np.float32) for w in model.get_weights()
  ]
