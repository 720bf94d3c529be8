"""Which Keras and TensorFlow there are: 2 and 2.14, or newer ones.

What is proven of a model's layers one by one is proven of Keras 2's. Under
Keras 3 a model is a function that is traced and looked at, and no more: it is
worked on one example at a time (docs/KERAS3.md).
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port  # No public name.

from tvdp_tf import _environment

IS_KERAS_3 = hasattr(tf.keras, 'StatelessScope')


def require_sound_arithmetic() -> None:
  """Sees to it that an example's gradient is computed from that example.

  In TensorFlow 2.21, batched matrix products by oneDNN read and write outside
  of their tensors: https://github.com/tensorflow/tensorflow/issues/117700.
  What one example leaves in memory would be in the gradients of others.

  Raises:
    ValueError: If Keras 3 was told to use another library than TensorFlow, or
      a newer TensorFlow than 2.14 to use oneDNN.
  """
  if IS_KERAS_3 and tf.keras.backend.backend() != 'tensorflow':
    raise ValueError(
      "Keras must compute with TensorFlow, in whose graphs a model's state is"
      f' seen, got KERAS_BACKEND={tf.keras.backend.backend()}'
    )
  version = _environment.release(tf.__version__)
  if (
    version > _environment.LAST_WITH_ONEDNN and _pywrap_util_port.IsMklEnabled()
  ):
    raise ValueError(
      'TF_ENABLE_ONEDNN_OPTS must be 0 before TensorFlow is imported, for the'
      f' matrix products of TensorFlow {tf.__version__} by oneDNN read what is'
      " other examples', got oneDNN"
    )


def all_layers(model: tf.keras.Model) -> Sequence[tf.keras.layers.Layer]:
  """All layers in a model, in layers and models in it, and so on."""
  if not IS_KERAS_3:
    return model.submodules
  # `layers` has no cell of an RNN, nor what a wrapper wraps.
  return list(model._flatten_layers(include_self=False))
