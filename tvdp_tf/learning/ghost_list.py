"""The list of layers, ops and losses that ghost clipping may work on.

This is a list of allowed names, not a search for faulty ones: a layer, an op,
an activation or a loss that nobody has reviewed may mix the examples of a
batch, so that one of them moves the gradients of all. The list is for Keras 2:
under Keras 3 nothing is on it.
"""

import types
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import (
  functional,
  ghost_functions,
  ghost_kind,
  ghost_layers,
  keras_version,
  models,
)

is_one_of = ghost_kind.is_one_of
_layers = tf.keras.layers
_activations = tf.keras.activations

_INTEGERS = (tf.int32, tf.int64)
_INPUT_TYPES = (tf.float32, *_INTEGERS)
# Activations that process each row of a batch independently of the others.
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
  # TensorFlow's functions, which Keras finds by these names.
  *map(_activations.get, ('leaky_relu', 'relu6', 'log_softmax')),
)
_ACTIVATION_LAYERS = _layers.ReLU, _layers.LeakyReLU, _layers.ELU
# Layers that only move values of their inputs, bit for bit, in any graph.
MOVING_LAYERS = frozenset(
  (
    *(_layers.InputLayer, _layers.Flatten, _layers.Reshape, _layers.Permute),
    _layers.Cropping2D,
  )
)
_WEIGHTLESS_LAYERS = (
  *MOVING_LAYERS,
  *(_layers.Cropping1D, _layers.RepeatVector),
  *(_layers.UpSampling1D, _layers.UpSampling2D),
  *(*_ACTIVATION_LAYERS, _layers.Activation),
  _layers.Rescaling,
  *(_layers.MaxPool2D, _layers.AveragePooling2D, _layers.ZeroPadding2D),
  *(_layers.MaxPool1D, _layers.AveragePooling1D, _layers.ZeroPadding1D),
  *(_layers.GlobalMaxPool2D, _layers.GlobalAveragePooling2D),
  *(_layers.GlobalMaxPool1D, _layers.GlobalAveragePooling1D),
  *(_layers.Dropout, _layers.SpatialDropout1D, _layers.SpatialDropout2D),
  *(_layers.AlphaDropout, _layers.GaussianDropout, _layers.GaussianNoise),
  _layers.Masking,
  *(_layers.Add, _layers.Subtract, _layers.Multiply, _layers.Average),
  *(_layers.Maximum, _layers.Minimum, _layers.Concatenate),
)
# Other losses compare an output [n, k] with labels [n] by broadcasting, which
# for n = k mixes the labels of all examples.
_LOSSES = (
  tf.keras.losses.SparseCategoricalCrossentropy,
  models.CrossEntropyLoss,
  models.HingeLoss,
  models.LogisticLoss,
)
_CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy().fn
# The ops in the graph of such a model.
OPS = frozenset(
  (
    *('AddV2', 'Any', 'AvgPool', 'BiasAdd', 'Cast', 'ConcatV2', 'Const'),
    *('Conv2D', 'Elu', 'Erf', 'Exp', 'ExpandDims', 'GatherV2', 'Greater'),
    *('GreaterEqual', 'Identity', 'IdentityN', 'LeakyRelu', 'LogSoftmax'),
    *('MatMul', 'Max', 'Maximum', 'MaxPool', 'Mean', 'Minimum', 'Mul', 'Neg'),
    *('NotEqual', 'Pack', 'Pad', 'Placeholder', 'Prod'),
    *('RandomStandardNormal', 'RandomUniform', 'RealDiv', 'Relu', 'Relu6'),
    *('Reshape', 'ResizeNearestNeighbor', 'SelectV2', 'Selu', 'Shape'),
    *('Sigmoid', 'Softmax', 'Softplus', 'Softsign', 'Split', 'Sqrt'),
    *('Squeeze', 'StridedSlice', 'Sub', 'Sum', 'Tanh', 'Tile', 'Transpose'),
  )
)


def _takes_its_type(layer: tf.keras.layers.Layer) -> bool:
  """Whether embeddings look up integers, and other layers compute in float32.

  By default, Keras makes a model's input float32. An embedding may take such an
  input, too, but not floats that the model computes.
  """
  if type(layer) in MOVING_LAYERS or ghost_functions.takes_any_type(layer):
    return True
  taken: tuple[tf.DType, ...] = (tf.float32,)
  if type(layer) is _layers.Embedding:
    before = layer.inbound_nodes[0].inbound_layers
    is_first = type(before) is _layers.InputLayer
    taken = _INPUT_TYPES if is_first else _INTEGERS
  return all(one.dtype in taken for one in tf.nest.flatten(layer.input))


def _is_known_activation(activation: Any) -> bool:
  """Whether a layer's activation, a function or a layer, is known."""
  return is_one_of(activation, _ACTIVATIONS) or (
    is_one_of(type(activation), _ACTIVATION_LAYERS)
    and _is_known_part(activation)
  )


def _is_known_part(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer, or a part of one, has known functions and types."""
  return (
    (
      layer.dtype_policy.name == 'float32'
      or (type(layer) is _layers.InputLayer and layer.dtype in _INTEGERS)
    )
    and _is_known_activation(getattr(layer, 'activation', None))
    and _is_known_activation(getattr(layer, 'recurrent_activation', None))
    and _is_kerass_own(type(layer))
  )


def _is_softmax_of_rows(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is a softmax along an axis of rows.

  Not with a mask [n, steps], which Keras may put beside other examples.
  """
  return (
    type(layer) is _layers.Softmax
    and getattr(layer.input, '_keras_mask', None) is None
    and isinstance(layer.axis, int)
    and layer.axis % len(layer.input_shape) > 0
  )


def _normalizes_by_constants(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer normalizes by constants, the same for every row."""
  return type(layer) is _layers.Normalization and layer.mean.shape[0] == 1


def _is_called_plainly(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is called with its inputs and harmless arguments only."""
  (node,) = layer.inbound_nodes
  named = {*node.call_kwargs} - {'training'}
  return not named and all(
    map(ghost_functions.is_symbolic, tf.nest.flatten(node.call_args))
  )


def _is_attention(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is attention among the steps of an example.

  Inputs and masks must have the rank of [n, steps, k]: Keras would align other
  masks with other examples.
  """
  if type(layer) is not _layers.MultiHeadAttention:
    return False
  (node,) = layer.inbound_nodes
  inputs = tf.nest.flatten(layer.input)
  return (
    layer._attention_axes == (1,)
    and all(len(one.shape) == 3 for one in inputs)
    and {*node.call_kwargs} <= {'value', 'key', 'training', 'use_causal_mask'}
    and all(map(ghost_functions.is_symbolic, tf.nest.flatten(node.call_args)))
  )


def _masks_unrolled_steps(layer: tf.keras.layers.Layer) -> bool:
  """Whether an unrolled layer has a mask, which changes its steps in Keras."""
  return getattr(layer.input, '_keras_mask', None) is not None and any(
    getattr(part, 'unroll', False) for part in ghost_layers.parts(layer)
  )


def _is_known(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is one whose rows are known to be independent."""
  if len(layer.inbound_nodes) != 1:
    return False
  (node,) = layer.inbound_nodes
  tensors = tf.nest.flatten((node.input_tensors, node.outputs))
  if any(one.shape.rank is None for one in tensors):
    return False
  parts = ghost_layers.parts(layer)
  kind = type(layer)
  is_function = ghost_functions.is_known(layer)
  if layer.weights:
    # Further inputs of a recurrent layer are its initial states.
    is_of_one = len(tf.nest.flatten(layer.input)) == 1
    known = (
      _is_attention(layer)
      or (
        is_of_one
        and _is_called_plainly(layer)
        and not _masks_unrolled_steps(layer)
      )
    ) and all(map(ghost_layers.kind_of, parts))
  else:
    known = is_function or (
      _is_called_plainly(layer)
      and (
        is_one_of(kind, _WEIGHTLESS_LAYERS)
        or ghost_layers.Normalization.takes(layer)
        or _is_softmax_of_rows(layer)
        or _normalizes_by_constants(layer)
      )
    )
  outputs = tf.nest.flatten(layer.output)
  shapes = [one.shape for one in outputs]
  if not is_function:
    # Without other axes, some layers would work along the batch axis.
    shapes += [one.shape for one in tf.nest.flatten(layer.input)]
    known = (
      known and len(outputs) == 1 and all(shape.rank > 1 for shape in shapes)
    )
  return (
    known
    and all(map(_is_known_part, {layer, *parts}))
    and _takes_its_type(layer)
    and all(None not in shape[1:] for shape in shapes)
    and not (
      kind is _layers.Concatenate and layer.axis % len(outputs[0].shape) == 0
    )
    # Arrays could hold a different number for each row of a batch.
    and not (
      kind is _layers.Rescaling
      and not {type(layer.scale), type(layer.offset)} <= {int, float}
    )
  )


def _is_kerass_own(kind: type) -> bool:
  """Whether Keras or this package defines all functions of a class."""
  return all(
    function.__module__.partition('.')[0] in ('keras', 'tensorflow', 'tvdp_tf')
    for base in kind.__mro__
    for function in vars(base).values()
    if isinstance(function, types.FunctionType)
  )


def weighted_layers(model: tf.keras.Model) -> list[ghost_kind.GhostLayer]:
  """Returns the layers that have weights, in the order of the weights."""
  place = {w.ref(): i for i, w in enumerate(model.trainable_weights)}
  layers = [
    part
    for layer in model.layers
    for part in ghost_layers.parts(layer)
    if part.trainable_weights
  ]
  layers.sort(key=lambda layer: place[layer.trainable_weights[0].ref()])
  kinds = map(ghost_layers.kind_of, layers)
  return [kind(one) for kind, one in zip(kinds, layers, strict=True) if kind]


def _is_kerass_model(value: object) -> bool:
  of_layers = ghost_kind.without_a_public_name(
    'engine.functional', 'Functional'
  )
  return is_one_of(type(value), (of_layers, tf.keras.Sequential))


def _is_known_model(model: tf.keras.Model) -> bool:
  """Whether Keras 2 itself runs the model, layer by layer."""
  if keras_version.IS_KERAS_3:
    return False
  return (
    _is_kerass_model(model)
    and model._is_graph_network  # A Sequential may not be built yet.
    and len(model.output_shape) == 2
    and _is_kerass_own(type(model))
  )


def _is_known_loss(loss: tf.keras.losses.Loss) -> bool:
  reductions = tf.keras.losses.Reduction
  return (
    is_one_of(type(loss), _LOSSES)
    and loss.reduction in (reductions.AUTO, reductions.SUM_OVER_BATCH_SIZE)
    and getattr(loss, '_fn_kwargs', {}).get('ignore_class') is None
    # The object overrides nothing of its class.
    and not any(hasattr(type(loss), name) for name in vars(loss))
    and getattr(loss, 'fn', _CROSS_ENTROPY) is _CROSS_ENTROPY
    and _is_kerass_own(type(loss))
  )


def _called_layer_by_layer(model: tf.keras.Model, inputs: Any) -> list[Any]:
  """Computes a model's outputs with new layers, and without inner models.

  Raises:
    ValueError: If an inner model is called with more than its inputs.
  """
  pairs = zip(model.inputs, tf.nest.flatten(inputs), strict=True)
  known = {id(old): new for old, new in pairs}

  def replaced(structure):
    return tf.nest.map_structure(lambda one: known.get(id(one), one), structure)

  for depth in sorted(model._nodes_by_depth, reverse=True):
    for node in model._nodes_by_depth[depth]:
      layer = node.layer
      if node.is_input:
        continue
      args, named = replaced((node.call_args, node.call_kwargs))
      if _is_kerass_model(layer):
        if any(value is not None for value in named.values()):
          raise ValueError(f'model must call {layer.name} with its inputs only')
        outputs = _called_layer_by_layer(layer, args)
      else:
        outputs = type(layer).from_config(layer.get_config())(*args, **named)
      before, after = map(tf.nest.flatten, (node.outputs, outputs))
      known.update(zip(map(id, before), after, strict=True))
  return [known[id(one)] for one in model.outputs]


def _without_inner_models(model: tf.keras.Model) -> tf.keras.Model:
  """Replaces inner models, if there are any, by their layers."""
  if not any(map(_is_kerass_model, model.layers)):
    return model
  (like,) = model.inputs
  inputs = tf.keras.Input(like.shape[1:], like.shape[0], dtype=like.dtype)
  return tf.keras.Model(inputs, _called_layer_by_layer(model, inputs)[0])


def _copied(model: functional.FunctionalModel) -> functional.FunctionalModel:
  """Rebuilds a model from its configuration, without inner models.

  The copy runs only the code of Keras's classes, even if functions were
  replaced in the objects of the original.

  Raises:
    ValueError: If the model cannot be copied, or the copy is not the same.
  """
  original = model.keras_model
  try:
    with functional.unfused():
      copied = _without_inner_models(
        type(original).from_config(original.get_config())
      )
  except Exception as error:  # Any error: it may be the model's own code.
    raise ValueError(f'model must have a configuration, got {error}') from error
  result = functional.FunctionalModel(copied)
  if [w.shape for w in copied.weights] != [w.shape for w in original.weights]:
    raise ValueError('model must be that of its configuration')
  shape = [3, *(size or 1 for size in model.features_spec.shape[1:])]
  dtype, rng = model.features_spec.dtype, np.random.default_rng(0)
  features: np.ndarray = rng.standard_normal(shape)
  if rows := [
    one.input_dim for one in copied.layers if type(one) is _layers.Embedding
  ]:
    features = rng.integers(max(rows), size=shape)
  # All distinct, unlike initial weights, to detect a different order.
  weights = [
    w + 0.1 * rng.standard_normal(w.shape).astype(w.dtype)
    for w in model.initial_weights
  ]
  given, own = (
    one(weights, features.astype(dtype.as_numpy_dtype)).numpy()
    for one in (model, result)
  )
  if not np.array_equal(given, own, equal_nan=True):
    raise ValueError('model must be that of its configuration')
  return result


def supported_copy(
  model: functional.FunctionalModel, loss: tf.keras.losses.Loss
) -> functional.FunctionalModel | None:
  """Copies a model that is made only of what is listed here, or returns None.

  Training uses the copy, so that it cannot contain what the list cannot see,
  such as a layer's function that was replaced in the object.

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

  This is a list of allowed names, not a search for faulty ones: a layer, an op,
  an activation or a loss that nobody has reviewed may mix the examples of a
  batch, so that one of them moves the gradients of all. Each layer must be used
  once, in float32, outside of inner models, and on inputs of a rank whose
  gradients are known here.
  """
  keras_model = model.keras_model
  if not _is_known_model(keras_model):
    return False
  layers = keras_model.layers
  if not all(map(_is_known, layers)):
    return False
  weighted = weighted_layers(keras_model)
  covered = [w.ref() for one in weighted for w in one.layer.weights]
  parts = [part for layer in layers for part in ghost_layers.parts(layer)]
  kinds = filter(None, map(ghost_layers.kind_of, parts))
  allowed = OPS.union(ghost_functions.OPS, *(kind.ops for kind in kinds))
  return (
    covered == [w.ref() for w in keras_model.trainable_weights]
    and model.features_spec.dtype in _INPUT_TYPES
    and model.ops <= allowed
    and _is_known_loss(loss)
  )
