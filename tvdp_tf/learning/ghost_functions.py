"""TensorFlow functions between a model's layers that ghost clipping supports.

Keras turns each function that a functional model calls into a layer, such as
`h[:, -1]` or `tf.reduce_mean(h, axis=1)`. Each function here has a rule for its
arguments which ensures that a row of its outputs depends only on the same row
of its inputs. The first axis of every tensor is the batch axis: for the inputs
and, by these rules, for the outputs.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import ghost_kind

# Parameter name (or place) -> the argument that a function is called with.
_Arguments = Mapping[Any, Any]

# A whole axis (`:`) in Keras's configurations.
_WHOLE = {'start': None, 'stop': None, 'step': None}


def is_symbolic(value: object) -> bool:
  """Whether a value is a symbolic tensor of a model under construction."""
  try:
    return tf.keras.backend.is_keras_tensor(value)
  except ValueError:  # Not a tensor at all.
    return False


def _is_number(value: Any) -> bool:
  kinds = (int, float, np.generic, np.ndarray, tf.Tensor)
  return isinstance(value, kinds) and np.ndim(value) == 0


def _are_integers(values: Any) -> bool:
  return all(isinstance(value, (int, np.integer)) for value in values)


def _are_of_one_rank(values: Any) -> bool:
  return (
    all(map(is_symbolic, values))
    and len({value.shape.rank for value in values}) == 1
  )


def _of_each_value(given: _Arguments) -> bool:
  """For tensors of equal ranks, where broadcasting does not mix rows."""
  return _are_of_one_rank([v for v in given.values() if not _is_number(v)])


def _of_lists(given: _Arguments) -> bool:
  """For functions of each value of a list of tensors."""
  return _are_of_one_rank(given['inputs'])


def _is_within_rows(axes: Any, rank: int) -> bool:
  axes = axes if isinstance(axes, (list, tuple)) else [axes]
  return _are_integers(axes) and all(axis % rank > 0 for axis in axes)


def _along(more: int = 0) -> Callable[[_Arguments], bool]:
  """The rule for a function that works along explicitly named axes of rows.

  Args:
    more: How many more axes the outputs have than the inputs.
  """

  def rule(given: _Arguments) -> bool:
    first, *rest = given.values()
    tensors = first if isinstance(first, (list, tuple)) else [first]
    return (
      _are_of_one_rank(tensors)
      and not any(map(is_symbolic, tf.nest.flatten(rest)))
      and _is_within_rows(given['axis'], tensors[0].shape.rank + more)
    )

  return rule


def _along_the_last(more: int = 0) -> Callable[[_Arguments], bool]:
  """Like `_along`, but the default is the last axis."""
  along = _along(more)

  def rule(given: _Arguments) -> bool:
    return along({**given, 'axis': -1} if given['axis'] is None else given)

  return rule


def _cast(given: _Arguments) -> bool:
  return is_symbolic(given['x']) and not is_symbolic(given['dtype'])


def _reshape(given: _Arguments) -> bool:
  tensor, shape = given['tensor'], given['shape']
  return (
    is_symbolic(tensor)
    and isinstance(shape, (list, tuple))
    and _are_integers(shape)
    and shape[0] == -1
    and min(shape[1:], default=0) > 0
    and math.prod(shape[1:]) == tensor.shape[1:].num_elements()
  )


def _transpose(given: _Arguments) -> bool:
  order = given['perm']
  return (
    is_symbolic(given['a'])
    and isinstance(order, (list, tuple))
    and _are_integers(order)
    and order[0] == 0
  )


def _product(given: _Arguments) -> bool:
  """For products of each row's matrices."""
  left, right, *options = given.values()
  return (
    _are_of_one_rank([left, right])
    and left.shape.rank > 2
    and all(option in (None, False, True) for option in options)
  )


def _slice(given: _Arguments) -> bool:
  """For slices that keep all rows and index within them by constants."""
  tensor, places, *_ = given.values()
  if not (is_symbolic(tensor) and isinstance(places, tuple)):
    return False
  first, *rest = places
  numbers = [
    number
    for place in rest
    for number in (place.values() if isinstance(place, dict) else [place])
    if number is not None and number is not Ellipsis
  ]
  if not _are_integers(numbers):
    return False
  if first is Ellipsis:  # It stands for all remaining axes.
    return sum(place is not None for place in rest) < tensor.shape.rank
  return isinstance(first, dict) and first == _WHOLE


_OF_EACH_VALUE = (
  *('__operators__.add', 'math.add', 'math.subtract', 'math.multiply'),
  *('math.divide', 'math.truediv', 'math.maximum', 'math.minimum'),
  *('math.pow', 'math.squared_difference', 'clip_by_value'),
  *('math.negative', 'math.abs', 'math.square', 'math.sqrt', 'math.exp'),
  *('math.log', 'math.log1p', 'math.sin', 'math.cos', 'identity'),
  *('math.sigmoid', 'math.tanh', 'math.softplus', 'nn.relu', 'nn.relu6'),
  *('nn.elu', 'nn.gelu', 'nn.selu', 'nn.leaky_relu', 'nn.silu'),
)
_COMPARING = (
  *('math.greater', 'math.greater_equal', 'math.less', 'math.less_equal'),
  *('math.equal', 'math.not_equal'),
)
# Keras's name of a function -> its rule.
_RULES: Mapping[str, Callable[[_Arguments], bool]] = {
  **dict.fromkeys(_OF_EACH_VALUE, _of_each_value),
  **dict.fromkeys(_COMPARING, _of_each_value),
  'where': _of_each_value,
  'math.add_n': _of_lists,
  'cast': _cast,
  'math.reduce_mean': _along(),
  'math.reduce_sum': _along(),
  'math.reduce_max': _along(),
  'math.reduce_min': _along(),
  'math.l2_normalize': _along(),
  'nn.softmax': _along_the_last(),
  'nn.log_softmax': _along_the_last(),
  'concat': _along(),
  'stack': _along(more=1),
  'split': _along(),
  'unstack': _along(),
  'expand_dims': _along(more=1),
  'compat.v1.squeeze': _along(),
  'one_hot': _along_the_last(more=1),
  'reshape': _reshape,
  'compat.v1.transpose': _transpose,
  'linalg.matmul': _product,
  '__operators__.getitem': _slice,
}
# They do no arithmetic, so they accept any type.
_OF_ANY_TYPE = frozenset(
  (
    *_COMPARING,
    *('where', 'cast', 'concat', 'stack', 'split', 'unstack', 'expand_dims'),
    *('compat.v1.squeeze', 'one_hot', 'reshape', 'compat.v1.transpose'),
    *('__operators__.getitem', 'identity'),
  )
)
# Ops in the graphs of these functions.
OPS = frozenset(
  (
    *('Abs', 'AddN', 'BatchMatMulV2', 'Cos', 'Equal', 'Less'),
    *('LessEqual', 'Log', 'Log1p', 'Min', 'OneHot', 'Pow', 'Range', 'Rsqrt'),
    *('Sin', 'SplitV', 'Square', 'SquaredDifference', 'Unpack'),
  )
)


def _is_kerass(layer: tf.keras.layers.Layer) -> bool:
  kinds = (
    ghost_kind.without_a_public_name('layers.core.tf_op_layer', name)
    for name in ('TFOpLambda', 'SlicingOpLambda')
  )
  return ghost_kind.is_one_of(type(layer), kinds)


def takes_any_type(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer is one of these functions and does no arithmetic."""
  return _is_kerass(layer) and layer.symbol in _OF_ANY_TYPE


def is_known(layer: tf.keras.layers.Layer) -> bool:
  """Whether a layer, called once, is a function here that meets its rule."""
  if not _is_kerass(layer) or layer.symbol not in _RULES:
    return False
  (node,) = layer.inbound_nodes
  if layer.symbol == '__operators__.getitem':
    given: dict[Any, Any] = dict(
      enumerate((*node.call_args, *node.call_kwargs.values()))
    )
  else:
    bound = inspect.signature(layer.function).bind(
      *node.call_args, **node.call_kwargs
    )
    bound.apply_defaults()
    given = dict(bound.arguments)
    given.pop('name', None)
  return _RULES[layer.symbol](given)
