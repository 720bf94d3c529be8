"""What ghost clipping may work on: layers, ops and losses, each by its name.

A list, and not a search for what is wrong: a layer, an op, an activation or a
loss that nobody has looked at may mix the examples of a batch, so that one of
them moves the gradients of all. It is of Keras 2: under Keras 3 nothing is on
it.
"""

import types

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import functional, keras_version, models

_layers = tf.keras.layers
_activations = tf.keras.activations

_INTEGERS = (tf.int32, tf.int64)
_INPUT_TYPES = (tf.float32, *_INTEGERS)
# What the rows of a batch go through each by itself, whatever is in the others.
_ACTIVATIONS = (
  None,
  _activations.elu,
  _activations.exponential,
  _activations.gelu,
  _activations.hard_sigmoid,
  _activations.linear,
  _activations.mish,
  _activations.relu,
  _activations.selu,
  _activations.sigmoid,
  _activations.softmax,
  _activations.softplus,
  _activations.softsign,
  _activations.swish,
  _activations.tanh,
)
# Whose outputs are values of their inputs, to the bit, in whatever graph.
MOVING_LAYERS = frozenset(
  (
    *(_layers.InputLayer, _layers.Flatten, _layers.Reshape, _layers.Permute),
    _layers.Cropping2D,
  )
)
# By the ranks of their inputs, with the batch.
_CONVOLUTIONS = {_layers.Conv1D: 3, _layers.Conv2D: 4}
_WEIGHTLESS_LAYERS = (
  *MOVING_LAYERS,
  _layers.UpSampling2D,
  *(_layers.ReLU, _layers.LeakyReLU, _layers.ELU, _layers.Activation),
  _layers.Rescaling,
  *(_layers.MaxPool2D, _layers.AveragePooling2D, _layers.ZeroPadding2D),
  *(_layers.MaxPool1D, _layers.AveragePooling1D, _layers.ZeroPadding1D),
  *(_layers.GlobalMaxPool2D, _layers.GlobalAveragePooling2D),
  *(_layers.GlobalMaxPool1D, _layers.GlobalAveragePooling1D),
  *(_layers.Dropout, _layers.SpatialDropout1D, _layers.SpatialDropout2D),
  _layers.GaussianNoise,
  *(_layers.Add, _layers.Subtract, _layers.Multiply, _layers.Average),
  *(_layers.Maximum, _layers.Minimum, _layers.Concatenate),
)
# Others compare an output [n, k] with labels [n] by broadcasting: where n = k,
# the labels of all examples with each.
_LOSSES = (
  tf.keras.losses.SparseCategoricalCrossentropy,
  models.CrossEntropyLoss,
  models.HingeLoss,
  models.LogisticLoss,
)
_CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy().fn
# What the graph of such a model is made of.
OPS = frozenset(
  (
    *('AddV2', 'AvgPool', 'BiasAdd', 'Cast', 'ConcatV2', 'Const', 'Conv2D'),
    *('Elu', 'Erf', 'Exp', 'ExpandDims', 'GatherV2', 'GreaterEqual'),
    *('Identity', 'IdentityN', 'LeakyRelu', 'MatMul', 'Max', 'MaxPool'),
    *('Maximum', 'Mean', 'Minimum', 'Mul', 'Pack', 'Pad', 'Placeholder'),
    *('RandomStandardNormal', 'RandomUniform', 'RealDiv', 'Relu', 'Relu6'),
    *('Reshape', 'ResizeNearestNeighbor', 'SelectV2', 'Selu', 'Shape'),
    *('Sigmoid', 'Softmax', 'Softplus', 'Softsign', 'Squeeze', 'StridedSlice'),
    *('Sub', 'Tanh', 'Transpose'),
  )
)


def is_dense(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is Keras's dense one, on rows."""
  return type(layer) is _layers.Dense and len(layer.input_shape) == 2


def _is_convolution(layer: tf.keras.layers.Layer) -> bool:
  return (
    _CONVOLUTIONS.get(type(layer)) == len(layer.input_shape)
    and layer.data_format == 'channels_last'
    and layer.groups == 1
    and set(layer.dilation_rate) == {1}
    and layer.padding in ('valid', 'same')
  )


def is_embedding(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is Keras's embedding, without a mask."""
  return type(layer) is _layers.Embedding and not layer.mask_zero


def _takes_its_type(layer: tf.keras.layers.Layer) -> bool:
  """Whether embeddings look up integers, and others compute in float32.

  Keras makes a model's input float32 unless told otherwise: an embedding may
  have such an input, too, but no floats that the model computes.
  """
  if type(layer) in MOVING_LAYERS:
    return True
  taken = (tf.float32,)
  if is_embedding(layer):
    before = layer.inbound_nodes[0].inbound_layers
    is_first = type(before) is _layers.InputLayer
    taken = _INPUT_TYPES if is_first else _INTEGERS
  return all(one.dtype in taken for one in tf.nest.flatten(layer.input))


def _is_known(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is one whose rows are known to be independent."""
  if layer.weights:
    known = is_dense(layer) or _is_convolution(layer) or is_embedding(layer)
  else:
    known = type(layer) in _WEIGHTLESS_LAYERS
  shape = layer.output_shape
  if isinstance(shape, list):
    shape = shape[0]  # Of an input layer.
  return (
    known
    and (
      layer.dtype_policy.name == 'float32'
      or (type(layer) is _layers.InputLayer and layer.dtype in _INTEGERS)
    )
    and len(layer.inbound_nodes) == 1
    and _takes_its_type(layer)
    and None not in shape[1:]
    and getattr(layer, 'activation', None) in _ACTIVATIONS
    and not (
      type(layer) is _layers.Concatenate and layer.axis % len(shape) == 0
    )
    # Arrays could have a number for each row of a batch.
    and not (
      type(layer) is _layers.Rescaling
      and not {type(layer.scale), type(layer.offset)} <= {int, float}
    )
    and _is_kerass_own(type(layer))
  )


def _is_kerass_own(kind: type) -> bool:
  """Whether all functions of a class are Keras's, or of this package."""
  return all(
    function.__module__.partition('.')[0] in ('keras', 'tensorflow', 'tvdp_tf')
    for base in kind.__mro__
    for function in vars(base).values()
    if isinstance(function, types.FunctionType)
  )


def weighted_layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
  """The layers that have weights, in order of the weights."""
  place = {w.ref(): i for i, w in enumerate(model.trainable_weights)}
  return sorted(
    (layer for layer in model.layers if layer.trainable_weights),
    key=lambda layer: place[layer.trainable_weights[0].ref()],
  )


def _is_known_model(model: tf.keras.Model) -> bool:
  """Whether Keras 2 itself runs the model, layer by layer."""
  kind = type(model)
  return (
    not keras_version.IS_KERAS_3
    and kind.__module__.startswith('keras.src.engine.')
    and kind.__name__ in ('Functional', 'Sequential')
    and model._is_graph_network  # A Sequential may not be built yet.
    and len(model.output_shape) == 2
    and _is_kerass_own(kind)
  )


def _is_known_loss(loss: tf.keras.losses.Loss) -> bool:
  reductions = tf.keras.losses.Reduction
  return (
    type(loss) in _LOSSES
    and loss.reduction in (reductions.AUTO, reductions.SUM_OVER_BATCH_SIZE)
    and getattr(loss, '_fn_kwargs', {}).get('ignore_class') is None
    # Nothing of the class is replaced in the object.
    and not any(hasattr(type(loss), name) for name in vars(loss))
    and getattr(loss, 'fn', _CROSS_ENTROPY) is _CROSS_ENTROPY
    and _is_kerass_own(type(loss))
  )


def _copied(model: functional.FunctionalModel) -> functional.FunctionalModel:
  """The model anew, from its configuration.

  It runs the code of Keras's classes alone, whatever was replaced in the
  objects of the original.

  Raises:
    ValueError: If it cannot be copied, or is not the same model.
  """
  original = model.keras_model
  try:
    copied = type(original).from_config(original.get_config())
  except Exception as error:  # Of any kind: it may be the model's own code.
    raise ValueError(f'model must have a configuration, got {error}') from error
  result = functional.FunctionalModel(copied)
  if [w.shape for w in copied.weights] != [w.shape for w in original.weights]:
    raise ValueError('model must be that of its configuration')
  shape = [3, *(size or 1 for size in model.features_spec.shape[1:])]
  dtype, rng = model.features_spec.dtype, np.random.default_rng(0)
  features: np.ndarray = rng.standard_normal(shape)
  if rows := [one.input_dim for one in copied.layers if is_embedding(one)]:
    features = rng.integers(max(rows), size=shape)
  given, own = (
    one(model.initial_weights, features.astype(dtype.as_numpy_dtype)).numpy()
    for one in (model, result)
  )
  if not np.array_equal(given, own, equal_nan=True):
    raise ValueError('model must be that of its configuration')
  return result


def supported_copy(
  model: functional.FunctionalModel, loss: tf.keras.losses.Loss
) -> functional.FunctionalModel | None:
  """A copy of a model that is made only of what is listed here, or None.

  It is the copy that is trained on, so that what cannot be seen in the list
  cannot be in the model either: a layer's function, replaced in the object.

  Args:
    model: The model.
    loss: Its loss.
  """
  if not _is_known_model(model.keras_model) or (
    model.features_spec.dtype not in _INPUT_TYPES
  ):
    return None
  try:
    copied = _copied(model)
  except ValueError:
    return None
  return copied if _is_listed(copied, loss) else None


def supports(
  model: functional.FunctionalModel, loss: tf.keras.losses.Loss
) -> bool:
  """Whether there is a `supported_copy`."""
  return supported_copy(model, loss) is not None


def _is_listed(
  model: functional.FunctionalModel, loss: tf.keras.losses.Loss
) -> bool:
  """Whether a model and its loss are made only of what is listed here.

  A list, and not a search for what is wrong: a layer, an op, an activation or a
  loss that nobody has looked at may mix the examples of a batch, so that one of
  them moves the gradients of all. Layers are used once, on inputs of the ranks
  whose gradients are known here, in float32, in no model within the model.
  """
  keras_model = model.keras_model
  if not _is_known_model(keras_model):
    return False
  layers = keras_model.layers
  covered = [
    w.ref() for one in weighted_layers(keras_model) for w in one.weights
  ]
  return (
    covered == [w.ref() for w in keras_model.trainable_weights]
    and all(map(_is_known, layers))
    and model.features_spec.dtype in _INPUT_TYPES
    and model.ops <= OPS
    and _is_known_loss(loss)
  )
