"""The versions of Keras and TensorFlow: 2 and 2.14, or newer ones.

The properties of single layers are proven only for Keras 2. Under Keras 3 a
model is treated as a traced function and computed one example at a time
(docs/KERAS3.md).
"""

from collections.abc import Sequence

import tensorflow as tf

IS_KERAS_3 = hasattr(tf.keras, 'StatelessScope')


def require_tensorflow() -> None:
  """Sees to it that Keras computes with TensorFlow.

  Raises:
    ValueError: If Keras 3 was told to use another library.
  """
  if IS_KERAS_3 and tf.keras.backend.backend() != 'tensorflow':
    raise ValueError(
      "Keras must compute with TensorFlow, in whose graphs a model's state is"
      f' seen, got KERAS_BACKEND={tf.keras.backend.backend()}'
    )


def all_layers(model: tf.keras.Model) -> Sequence[tf.keras.layers.Layer]:
  """All layers in a model, in layers and models in it, and so on."""
  if not IS_KERAS_3:
    try:
      return model.submodules
    except Exception:  # Not what caches masks, as with recurrent_dropout.
      return list(model._flatten_layers(include_self=False))
  # `layers` has no cell of an RNN, nor what a wrapper wraps.
  return list(model._flatten_layers(include_self=False))
