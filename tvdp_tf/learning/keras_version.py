"""Support for Keras 2 with TensorFlow 2.14, and for newer versions of both.

The properties of single layers are proven only for Keras 2. Under Keras 3 a
model is treated as a traced function and computed one example at a time
(docs/KERAS3.md).
"""

from collections.abc import Sequence

import tensorflow as tf

IS_KERAS_3 = hasattr(tf.keras, 'StatelessScope')


def require_tensorflow() -> None:
  """Checks that Keras uses the TensorFlow backend.

  Raises:
    ValueError: If Keras 3 is configured to use another backend.
  """
  if IS_KERAS_3 and tf.keras.backend.backend() != 'tensorflow':
    raise ValueError(
      "Keras must compute with TensorFlow, in whose graphs a model's state is"
      f' seen, got KERAS_BACKEND={tf.keras.backend.backend()}'
    )


def all_layers(model: tf.keras.Model) -> Sequence[tf.keras.layers.Layer]:
  """Returns all layers of a model, including nested ones."""
  if not IS_KERAS_3:
    try:
      return model.submodules
    except Exception:  # Layers that cache masks, as with recurrent_dropout.
      return list(model._flatten_layers(include_self=False))
  # `layers` lacks the cells of an RNN and wrapped layers.
  return list(model._flatten_layers(include_self=False))
