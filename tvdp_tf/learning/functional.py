"""Keras models as pure functions of their weights.

A federated computation passes weights around as values, while a Keras model
keeps them in variables. Here, the model is traced once with tensors in place of
its variables. The result belongs to no model, session or mode of TensorFlow: it
can be called eagerly or in any graph, differentiated and vectorized. (TFF's
`functional_model_from_keras` clones the model in a TF1 graph instead, which
switches Keras's classes to their TF1 versions and breaks the caller's models.)
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2  # No public name.
from tensorflow.python.framework import op_def_registry  # No public name.

from tvdp_tf import _validate
from tvdp_tf.learning import failing_ops, keras_version, onednn


@contextlib.contextmanager
def weights_replaced(
  model: tf.keras.Model, tensors: Sequence[tf.Tensor]
) -> Iterator[None]:
  """Replaces the trainable variables of all layers by tensors."""
  if keras_version.IS_KERAS_3:
    pairs = zip(model.trainable_weights, tensors, strict=True)
    with tf.keras.StatelessScope(list(pairs)):
      yield
    return
  by_variable = {
    variable.ref(): tensor
    for variable, tensor in zip(model.trainable_weights, tensors, strict=True)
  }
  replaced = []
  for module in [model, *keras_version.all_layers(model)]:
    # Through `vars`: assigning to a layer's attribute would track the value.
    attributes = vars(module)
    for name, value in list(attributes.items()):
      if isinstance(value, tf.Variable) and value.ref() in by_variable:
        replaced.append((attributes, name, value))
        attributes[name] = by_variable[value.ref()]
  try:
    yield
  finally:
    for attributes, name, value in replaced:
      attributes[name] = value


@contextlib.contextmanager
def replaced(
  layer: tf.keras.layers.Layer, attributes: Mapping[str, Any]
) -> Iterator[None]:
  """Replaces attributes of a layer.

  It works through `vars`: assigning to an attribute would track the value.
  """
  own = vars(layer)
  before = {name: own[name] for name in attributes if name in own}
  own.update(attributes)
  try:
    yield
  finally:
    for name in attributes:
      del own[name]
    own.update(before)


_EMBEDDING = tf.keras.layers.Embedding


def index_in_range(
  layer: tf.keras.layers.Embedding, indices: tf.Tensor
) -> tf.Tensor:
  """Clips indices to the range of an embedding, int32."""
  return tf.clip_by_value(tf.cast(indices, tf.int32), 0, layer.input_dim - 1)


@contextlib.contextmanager
def any_index(model: tf.keras.Model) -> Iterator[None]:
  """Makes embeddings use the nearest index if one is out of range.

  It must not be an error: an op that fails on an example's values would reveal
  them to everybody. A class that overrides `call` may take other inputs than
  indices, so it is left unchanged.
  """
  with contextlib.ExitStack() as stack:
    for layer in keras_version.all_layers(model):
      is_known = getattr(type(layer), 'call', None) is _EMBEDDING.call
      if not (is_known and isinstance(layer, _EMBEDDING)):
        continue

      def call(indices, *, layer=layer, original=layer.call):
        return original(index_in_range(layer, indices))

      stack.enter_context(replaced(layer, {'call': call}))
    yield


class _Off:
  """An attribute that is always False, whatever a layer sets it to."""

  def __init__(self, name: str):
    self._name = name

  def __get__(self, layer: Any, kind: type) -> bool:
    return False

  def __set__(self, layer: Any, value: Any) -> None:
    vars(layer)[self._name] = value


# Attributes by which Keras 2 chooses fused kernels.
_FUSING = (
  (tf.keras.layers.LayerNormalization, '_fused'),
  (tf.keras.layers.LSTM, '_could_use_gpu_kernel'),
  (tf.keras.layers.GRU, '_could_use_gpu_kernel'),
)
_FUSING_LOCK = threading.Lock()
_OPEN: list[object] = []  # One item for each open context.


@contextlib.contextmanager
def unfused() -> Iterator[None]:
  """Keeps Keras's layers from using fused kernels in its context.

  Keras 2 normalizes each example of a layer normalization as if it were a
  channel of one fused batch normalization, an op that is refused
  (`onednn.RACING_OPS`). It traces recurrent layers a second time for GPUs, with
  both gradients, so that building and saving a model takes several times as
  long. Without fused kernels, the layers compute the same results, and their
  own attributes are unchanged.
  """
  if keras_version.IS_KERAS_3:
    yield
    return
  with _FUSING_LOCK:
    for kind, name in () if _OPEN else _FUSING:
      setattr(kind, name, _Off(name))
    _OPEN.append(object())
  try:
    yield
  finally:
    with _FUSING_LOCK:
      _OPEN.pop()
      for kind, name in () if _OPEN else _FUSING:
        delattr(kind, name)


_NORMALIZATION = tf.keras.layers.Normalization


@contextlib.contextmanager
def constants_inside(model: tf.keras.Model) -> Iterator[None]:
  """Replaces tensors that a model was built with by arrays.

  Keras keeps the number in `1 - x` as a tensor outside of any graph, and also
  the mean and variance that were passed to a normalization (an adapted one has
  weights). As arrays, they become part of the traced graph.
  """
  layers = keras_version.all_layers(model)
  nodes = [
    node
    for layer in layers
    for node in ([] if keras_version.IS_KERAS_3 else layer._inbound_nodes)
  ]
  before = [node._flat_arguments for node in nodes]
  for node in nodes:
    node._flat_arguments = [
      value.numpy()
      if isinstance(value, tf.Tensor) and hasattr(value, 'numpy')
      else value
      for value in node._flat_arguments
    ]
  try:
    with contextlib.ExitStack() as stack:
      for layer in layers:
        if isinstance(layer, _NORMALIZATION) and layer.input_mean is not None:
          given = {'mean': layer.mean, 'variance': layer.variance}
          arrays = {name: np.asarray(one) for name, one in given.items()}
          stack.enter_context(replaced(layer, arrays))
      yield
  finally:
    for node, arguments in zip(nodes, before, strict=True):
      node._flat_arguments = arguments


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
  """Keeps `tf.random.set_seed` out of the graph that is traced.

  All clients of a round share the generator of an op. With a seed, its numbers
  are known, and one client's numbers depend on how many another client draws.
  """
  graph = tf.compat.v1.get_default_graph()
  seed, graph.seed = graph.seed, None
  try:
    yield
  finally:
    graph.seed = seed


# Stateful ops whose only state is that of the random generator.
_RANDOM_OPS = frozenset(
  (
    *('CudnnRNN', 'CudnnRNNBackprop', 'CudnnRNNBackpropV2'),
    *('CudnnRNNBackpropV3', 'CudnnRNNV2', 'CudnnRNNV3'),
    *('Multinomial', 'ParameterizedTruncatedNormal', 'RandomGamma'),
    *('RandomPoissonV2', 'RandomShuffle', 'RandomStandardNormal'),
    *('RandomUniform', 'RandomUniformInt', 'TruncatedNormal'),
  )
)
# Ops that run functions; these functions are checked themselves.
_CALLING_OPS = frozenset(
  (
    *('Case', 'For', 'If', 'PartitionedCall', 'StatefulPartitionedCall'),
    *('StatelessIf', 'StatelessWhile', 'StatelessCase', 'While'),
  )
)
# Ops that read, show or depend on more than their inputs, although TensorFlow
# does not call them stateful; or fail on some values, which everybody can see.
_OTHER_OPS = frozenset(
  (
    *('CheckNumerics', 'CheckNumericsV2', 'MatchingFiles'),
    *('PyFuncStateless', 'ReadFile', 'WholeFileReaderV2'),
  )
)
_FULL_TYPES = ('float32', 'float64', None)


def _is_taken(compute_dtype: str | None) -> bool:
  # Integers have no gradient; clipping is not proven for shorter floats.
  return (
    compute_dtype in _FULL_TYPES or not tf.as_dtype(compute_dtype).is_floating
  )


_HALF_TYPES = frozenset(
  number
  for name, number in types_pb2.DataType.items()
  if name.startswith(('DT_HALF', 'DT_BFLOAT', 'DT_FLOAT8', 'DT_FLOAT4'))
)


def _names(types: set[int]) -> str:
  return ', '.join(sorted(tf.as_dtype(number).name for number in types))


def _nodes(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
  functions = graph_def.library.function
  return [*graph_def.node, *(node for f in functions for node in f.node_def)]


def keeping_state(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
  """Finds the nodes that keep, show or read more than their inputs.

  Or that fail on some values. Generators of random numbers are not among them.
  """
  # A function may be called like an op.
  names = {f.signature.name for f in graph_def.library.function}
  found = []
  for node in _nodes(graph_def):
    if node.op not in _RANDOM_OPS | _CALLING_OPS | names:
      definition = op_def_registry.get(node.op)
      if definition is None or definition.is_stateful:
        found.append(node)
        continue
    if node.op in _OTHER_OPS:
      found.append(node)
  return found


def checked_ops(name: str, graph_def: tf.compat.v1.GraphDef) -> frozenset[str]:
  """Checks the ops of a graph and its functions, and returns their types.

  Args:
    name: What the graph computes, for the error message.
    graph_def: The graph.

  Raises:
    ValueError: If an op has a seed, or a state through which one example could
      affect another; computes with less precision than float32; can fail on the
      values of an example; or has a kernel that mixes concurrent calls.
  """
  for node in keeping_state(graph_def):
    raise ValueError(
      f'{name} must be a function of its weights and of one example alone,'
      f' got the op {node.op} ({node.name}), which stores, prints or reads'
      ' something else, or fails on some values'
    )
  nodes = _nodes(graph_def)
  for node in nodes:
    if node.attr['seed'].i or node.attr['seed2'].i:
      raise ValueError(
        f'{name} must draw random numbers without a seed, because the data of'
        f' one client would change those of the others, got the op {node.op}'
        f' ({node.name}) with a seed: leave out seed=..., or set that of'
        ' tf.random.set_seed to None'
      )
    if node.op in onednn.RACING_OPS:
      raise ValueError(
        f'{name} must normalize with tf.nn.moments and'
        f' tf.nn.batch_normalization, got the op {node.op} ({node.name}),'
        ' whose oneDNN kernel mixes concurrent computations'
      )
    for attribute in node.attr.values():
      types = {attribute.type, *attribute.list.type}
      if types & _HALF_TYPES:
        raise ValueError(
          f'{name} must compute in float32 or float64, got the op {node.op}'
          f' ({node.name}) in {_names(types & _HALF_TYPES)}: clipping is not'
          ' proven for this type'
        )
  return frozenset(node.op for node in nodes)


def check_captures(name: str, graph: tf.Graph) -> None:
  """Refuses tensors that a model or loss has created outside of its calls."""
  for tensor, inner in graph.captures:
    if inner.dtype not in (tf.resource, tf.variant):
      raise ValueError(
        f'{name} must hold its constants as NumPy arrays, got a tensor of the'
        f' shape {tuple(tensor.shape)} made outside of its call: use'
        ' tensor.numpy()'
      )


def _check_types(model: tf.keras.Model) -> None:
  """Refuses layers and weights of types other than float32 and float64."""
  for layer in keras_version.all_layers(model):
    policy = getattr(layer, 'dtype_policy', None)
    if policy is not None and not _is_taken(policy.compute_dtype):
      raise ValueError(
        'model must compute in float32 or float64, for which clipping is '
        f'proven, got {policy.name} in layer {layer.name}'
      )
    if policy is not None and getattr(policy, 'quantization_mode', None):
      raise ValueError(
        f'model must not be quantized, got {policy.name} in {layer.name}'
      )
  for weight in model.trainable_weights:
    # Norms are for real numbers; casts of complex ones would drop a part.
    if tf.as_dtype(weight.dtype) not in (tf.float32, tf.float64):
      raise ValueError(
        'model must have weights in float32 or float64, for which clipping is'
        f' proven, got {weight.name} in {tf.as_dtype(weight.dtype).name}'
      )


class FunctionalModel:
  """A Keras model as a function (weights, features, training) -> outputs.

  Attributes:
    keras_model: The model that was wrapped.
    initial_weights: The model's weights when it was wrapped, numpy arrays in
      the order of `trainable_weights`.
    features_spec: Spec of a batch of features, [None, ...].
    ops: The types of the ops in the training graph.
    is_random: Whether the model draws random numbers in training.
  """

  def __init__(self, model: tf.keras.Model):
    """Wraps a model without changing it.

    Args:
      model: A built Keras model with one input, one output, and only trainable
        weights, which are direct attributes of its layers.

    Raises:
      ValueError: If the model has non-trainable weights, its own losses,
        weights that cannot be reached, or ops that `checked_ops` refuses; or if
        it cannot be traced.
    """
    keras_version.require_tensorflow()
    onednn.require_sound()
    if model.non_trainable_weights:
      names = ', '.join(w.name for w in model.non_trainable_weights[:3])
      raise ValueError(
        'model must have no non-trainable weights (batch normalization shares'
        ' statistics that no noise hides; frozen layers belong in the data, as'
        f' features), got {names}'
      )
    _check_types(model)
    if not model.trainable_weights:
      raise ValueError('model must have trainable weights, got none')
    if model.losses:
      raise ValueError(
        'model must have no losses of its own (such as weight regularization): '
        f'leave them out, got {len(model.losses)}'
      )
    if constrained := [
      weight.name
      for weight in model.trainable_weights
      if getattr(weight, 'constraint', None) is not None
    ]:
      raise ValueError(
        'model must have no constraints of its weights, which training would'
        f' not keep, got {", ".join(constrained[:3])}'
      )
    try:
      inputs, outputs = len(model.inputs), len(model.outputs)
    except (AttributeError, TypeError) as error:
      raise ValueError(
        'model must be built from keras.Input, so that its shapes are known:'
        ' use tf.keras.Model(inputs, model(inputs))'
      ) from error
    if (inputs, outputs) != (1, 1):
      raise ValueError(
        f'model must have one input and one output, got {inputs} and {outputs}'
      )
    self.keras_model = model
    self.initial_weights = [w.numpy() for w in model.trainable_weights]
    self.features_spec = tf.TensorSpec(model.input_shape, model.inputs[0].dtype)

    weights_spec = [tf.TensorSpec(w.shape, w.dtype) for w in model.weights]

    def trace(training):
      @tf.function(autograph=False)
      def call(weights, features):
        with (
          weights_replaced(model, weights),
          any_index(model),
          unfused(),
          constants_inside(model),
          unseeded(),
        ):
          return model(features, training=training)

      try:
        return call.get_concrete_function(weights_spec, self.features_spec)
      except Exception as error:  # Any error: it is the model's own code.
        raise ValueError(
          'model must be traceable with tensors instead of its weights, got'
          f' {_validate.failure(error)}'
        ) from error

    self._calls = {training: trace(training) for training in (False, True)}
    check_captures('model', self._calls[True].graph)
    if captured := self._calls[True].graph.captures:
      if keras_version.IS_KERAS_3:
        raise ValueError(
          'model must use no state but its weights: under Keras 3, layers that'
          ' draw random numbers (dropout, noise) keep the state of their'
          ' generator and are refused'
        )
      handles = {id(outside) for outside, _ in captured}
      held = [w.name for w in model.weights if id(w.handle) in handles]
      if held:
        raise ValueError(
          'model must keep each weight in an attribute of its layer, got '
          f'{", ".join(held)} elsewhere'
        )
      raise ValueError(
        'model must use no state but its weights, such as the generator of'
        ' RandomFlip or similar layers: use the setting views, or compute'
        ' features before training'
      )
    for call in self._calls.values():
      self.ops = checked_ops('model', call.graph.as_graph_def())
      features = call.graph.inputs[len(self.initial_weights)]
      failing_ops.check('model', call.graph, [features])
    drawing = {op for op in _RANDOM_OPS if not op.startswith('Cudnn')}
    self.is_random = bool(self.ops & drawing)

  def __call__(
    self,
    weights: Sequence[tf.Tensor | np.ndarray],
    features: tf.Tensor | np.ndarray,
    training: bool = False,
  ) -> tf.Tensor:
    """Applies the model.

    Args:
      weights: Tensors or arrays, in the order of `initial_weights`.
      features: [n, ...].
      training: Keras's `training` argument.

    Returns:
      The outputs, [n, ...].
    """
    call = self._calls[bool(training)]
    weights = [
      tf.convert_to_tensor(w, initial.dtype)
      for w, initial in zip(weights, self.initial_weights, strict=True)
    ]
    return call(weights, tf.convert_to_tensor(features))
