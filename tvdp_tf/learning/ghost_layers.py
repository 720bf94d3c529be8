"""The kinds of layers that ghost clipping supports.

For dense layers on rows, an example's gradient (an outer product) is never
computed, and neither are the rows of an embedding's gradient that the example
does not look up. All other kinds hold the gradients of all examples of a
microbatch. A kind is a class in `_KINDS`; `parts` knows layers that are made of
other layers.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator

import tensorflow as tf

from tvdp_tf.learning import (
  functional,
  ghost_convolutions,
  ghost_kind,
  ghost_recurrent,
)

_layers = tf.keras.layers


class DensePlaces(ghost_kind.BeforeActivation):
  """Keras's dense layer, applied to every place of a sequence or image."""

  @classmethod
  def takes(cls, layer):
    return type(layer) is _layers.Dense and len(layer.input_shape) > 2

  def _kernel_gradients(self, inputs, delta, num_views):
    return ghost_kind.products(inputs, delta, num_views)


class Dense(DensePlaces):
  """Keras's dense layer, applied to rows: gradients are outer products."""

  holds_gradients = False

  @classmethod
  def takes(cls, layer):
    return type(layer) is _layers.Dense and len(layer.input_shape) == 2


class Einsum(ghost_kind.BeforeActivation):
  """Keras's `EinsumDense` layer, which attention is made of."""

  ops = frozenset(('Einsum', 'Fill', 'LogicalAnd', 'MatrixBandPart'))
  _EQUATION = re.compile(r'([a-z]+),([a-z]+)->([a-z]+)')

  @classmethod
  def takes(cls, layer):
    if type(layer) is not _layers.EinsumDense:
      return False
    match = cls._EQUATION.fullmatch(layer.equation)
    if match is None:
      return False
    inputs, kernel, outputs = match.groups()
    batch = inputs[0]
    return (
      outputs[0] == batch
      and batch not in kernel
      and all(len(set(one)) == len(one) for one in match.groups())
      and set(inputs) <= {*kernel, *outputs}
      and set(kernel) <= {*inputs, *outputs}
      and (layer.bias_axes is None or batch not in layer.bias_axes)
    )

  def _terms(self) -> tuple[str, str, str]:
    """The einsum subscripts of the input, the kernel and the output."""
    inputs, kernel, outputs = re.split(',|->', self.layer.equation)
    return inputs, kernel, outputs

  def _kernel_gradients(self, inputs, delta, num_views):
    of_inputs, kernel, outputs = self._terms()
    equation = f'{of_inputs},{outputs}->{of_inputs[0]}{kernel}'
    return ghost_kind.over_views(tf.einsum(equation, inputs, delta), num_views)

  def bias_gradients(self, delta, num_views):
    of_bias = self.layer.bias_axes
    if of_bias is None:
      return []
    _, _, outputs = self._terms()
    rest = [axis for axis, at in enumerate(outputs) if at not in of_bias]
    found = tf.reduce_sum(delta, axis=rest[1:])  # The first is the batch axis.
    return [ghost_kind.over_views(found, num_views)]


class Embedding(ghost_kind.GhostLayer):
  """Keras's embedding; a gradient has only the rows that are looked up."""

  @classmethod
  def takes(cls, layer):
    return type(layer) is _layers.Embedding

  def replacements(self, seen, watch):
    def call(indices, *, original=self.layer.call):
      indices = functional.index_in_range(self.layer, indices)
      value = original(indices)
      watch(value)
      seen.kept.append(indices)
      seen.watched.append(value)
      return value

    return {'call': call}

  def indices(self, seen: ghost_kind.Seen, num_views: int) -> tf.Tensor:
    """Returns the indices that are looked up, int32 [n, places]."""
    (indices,) = seen.kept
    places = num_views * indices.shape[1:].num_elements()
    return tf.reshape(indices, [-1, places])

  def gradients(self, seen, deltas, num_views):
    """Computes the gradients of the rows that are looked up, [n, places, k].

    If an example looks up a row several times, the first of these places gets
    the sum of its deltas; the others get zeros. So no two places stand for the
    same row, and the result has the norm of the gradient.
    """
    indices = self.indices(seen, num_views)
    delta = ghost_kind.flat_places(deltas[0], num_views)
    examples, places = tf.shape(indices)[0], indices.shape[1]
    # Number the rows of each example separately.
    example = tf.range(examples, dtype=tf.int64)[:, tf.newaxis]
    rows = example * 2**31 + tf.cast(indices, tf.int64)
    distinct, of_place = tf.unique(tf.reshape(rows, [-1]))
    first = tf.math.unsorted_segment_min(
      tf.range(examples * places), of_place, tf.size(distinct)
    )
    # On a CPU, each sum adds its addends in order, whatever is in other
    # examples.
    sums = tf.math.unsorted_segment_sum(
      tf.reshape(delta, [-1, delta.shape[-1]]),
      tf.gather(first, of_place),
      examples * places,
    )
    return [tf.reshape(sums, [-1, places, delta.shape[-1]])]


class Normalization(ghost_kind.GhostLayer):
  """Keras's normalization of single examples, over layers or groups."""

  ops = frozenset(
    (
      *('DivNoNan', 'FloorDiv', 'OnesLike', 'Rsqrt', 'SquaredDifference'),
      *('StopGradient', 'ZerosLike'),
    )
  )
  holds_gradients = False  # No longer than its input.
  _TYPES = _layers.LayerNormalization, _layers.GroupNormalization

  @classmethod
  def takes(cls, layer):
    return (
      ghost_kind.is_one_of(type(layer), cls._TYPES)
      and min(cls._axes(layer)) > 0
      # With groups, Keras broadcasts a mask [n, steps] to [n, steps, channels]
      # along its last axes, so one example's mask reaches others.
      and not (
        type(layer) is _layers.GroupNormalization
        and getattr(layer.input, '_keras_mask', None) is not None
      )
    )

  @staticmethod
  def _axes(layer) -> list[int]:
    rank = len(layer.input_shape)
    return sorted(axis % rank for axis in tf.nest.flatten(layer.axis))

  def replacements(self, seen, watch):
    layer = self.layer
    axes = self._axes(layer)
    shape = [
      size if axis in axes else 1 for axis, size in enumerate(layer.input_shape)
    ]
    # Runs Keras's function without scale and offset, and applies them after it:
    # a product with a scale of zero does not reveal the other factor.
    plain = {'gamma': None, 'beta': None, 'scale': False, 'center': False}

    def call(value, *, original=layer.call):
      gamma, beta = layer.gamma, layer.beta
      with functional.replaced(layer, plain):
        value = normalized = original(value)
      if layer.scale:
        value *= tf.reshape(gamma, shape)
      if layer.center:
        value += tf.reshape(beta, shape)
      watch(value)
      seen.kept.append(normalized)
      seen.watched.append(value)
      return value

    return {'call': call}

  def gradients(self, seen, deltas, num_views):
    (normalized,), (delta,) = seen.kept, deltas
    axes = self._axes(self.layer)
    rest = [axis for axis in range(1, delta.shape.rank) if axis not in axes]

    def summed(tensor):
      kept = tf.reduce_sum(tensor, axis=rest) if rest else tensor
      return ghost_kind.over_views(kept, num_views)

    found = []
    if self.layer.scale:
      found.append(summed(delta * normalized))
    if self.layer.center:
      found.append(summed(delta))
    return found


class ParametricReLU(ghost_kind.GhostLayer):
  """Keras's `PReLU`: of negative inputs, the learned share."""

  @classmethod
  def takes(cls, layer):
    return type(layer) is _layers.PReLU

  def replacements(self, seen, watch):
    def call(value, *, original=self.layer.call):
      result = original(value)
      watch(result)
      seen.kept.append(value)
      seen.watched.append(result)
      return result

    return {'call': call}

  def gradients(self, seen, deltas, num_views):
    (value,), (delta,) = seen.kept, deltas
    shape = self.layer.alpha.shape
    shared = [axis + 1 for axis, size in enumerate(shape) if size == 1]
    found = delta * -tf.nn.relu(-value)
    if shared:
      found = tf.reduce_sum(found, axis=shared, keepdims=True)
    return [ghost_kind.over_views(found, num_views)]


_KINDS: tuple[type[ghost_kind.GhostLayer], ...] = (
  *(Dense, DensePlaces, Einsum, Embedding, Normalization, ParametricReLU),
  *(*ghost_recurrent.KINDS, *ghost_convolutions.KINDS),
)


def kind_of(layer: tf.keras.layers.Layer) -> type[ghost_kind.GhostLayer] | None:
  """Returns the kind that takes a layer, or None."""
  return next((kind for kind in _KINDS if kind.takes(layer)), None)


def parts(layer: tf.keras.layers.Layer) -> list[tf.keras.layers.Layer]:
  """Returns the layers that hold a layer's weights, often the layer itself."""
  if type(layer) is _layers.Bidirectional:
    return [layer.forward_layer, layer.backward_layer]
  if type(layer) is _layers.MultiHeadAttention:
    return [
      *(layer._query_dense, layer._key_dense, layer._value_dense),
      layer._output_dense,
    ]
  return [layer]


@contextlib.contextmanager
def watched(
  layers: Iterable[ghost_kind.GhostLayer], tape: tf.GradientTape
) -> Iterator[list[ghost_kind.Seen]]:
  """Lets layers record what they see in its context, in this order."""
  with contextlib.ExitStack() as stack:
    found = []
    for one in layers:
      seen = ghost_kind.Seen([], [])
      found.append(seen)
      stack.enter_context(
        functional.replaced(one.layer, one.replacements(seen, tape.watch))
      )
    yield found
