"""Ghost clipping of convolutions over images and sequences.

A convolution is a dense layer on patches: each place of its kernel is
multiplied by a part of the input, which this module slices out of it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from tvdp_tf.learning import ghost_kind

_layers = tf.keras.layers


def _of_image(sizes: Sequence[int]) -> tuple[int, int]:
  """Returns a convolution's (height, width); a sequence has height 1."""
  height, width = (1, *sizes)[-2:]
  return height, width


def _as_image(tensor: tf.Tensor) -> tf.Tensor:
  """Reshapes a sequence to an image of height 1."""
  return tensor[:, tf.newaxis] if tensor.shape.rank == 3 else tensor


class _Window(NamedTuple):
  """Maps the places of a convolution's kernel to its padded input.

  Attributes:
    inputs: Padded images.
    last: Place in the input of the last output, plus 1.
    strides: Steps between the outputs' places.
    dilation: Steps between the kernel's places.
  """

  inputs: tf.Tensor
  last: tf.Tensor
  strides: tuple[int, int]
  dilation: tuple[int, int]

  @classmethod
  def of(
    cls, layer: tf.keras.layers.Layer, inputs: tf.Tensor, shape: tf.Tensor
  ) -> '_Window':
    """Returns a layer's window, given its input and its output's shape [2]."""
    inputs = _as_image(inputs)
    strides, dilation = map(_of_image, (layer.strides, layer.dilation_rate))
    last = (shape - 1) * strides + 1
    if layer.padding != 'valid':
      height, width = _of_image(layer.kernel_size)
      reach = (height - 1) * dilation[0], (width - 1) * dilation[1]
      missing = tf.maximum(last + reach - tf.shape(inputs)[1:3], 0)
      before = missing // 2
      if layer.padding == 'causal':
        before = tf.constant(reach)
        missing = before
      around = tf.stack([before, missing - before], axis=1)
      inputs = tf.pad(inputs, tf.concat([[[0, 0]], around, [[0, 0]]], axis=0))
    return cls(inputs, last, strides, dilation)

  def at(self, row: int, column: int) -> tf.Tensor:
    """Returns a kernel place's multiplicands, [rows, height, width, k]."""
    (down, right), (below, beside) = self.strides, self.dilation
    top, left = row * below, column * beside
    return self.inputs[
      :, top : top + self.last[0] : down, left : left + self.last[1] : right
    ]


def _is_windowed(
  layer: tf.keras.layers.Layer, ranks: Mapping[type, int]
) -> bool:
  """Whether a layer is a convolution whose `_Window` is known.

  Args:
    layer: Any layer.
    ranks: Layer type -> rank of its inputs, including the batch.
  """
  return (
    ghost_kind.is_one_of(type(layer), ranks)
    and len(layer.input_shape) == ranks[type(layer)]
    and layer.data_format == 'channels_last'
    and layer.padding in ('valid', 'same', 'causal')
  )


class Convolution(ghost_kind.BeforeActivation):
  """Keras's convolutions of images and of sequences.

  Uses one product per kernel row. For LeNet's shapes on a CPU, this is several
  times faster than patches, and nearly twice as fast as one product per kernel
  place. With more filters or channels, it uses one product per place: these
  are large enough then, and copying rows would take more arithmetic.
  """

  ops = frozenset(('BatchToSpaceND', 'SpaceToBatchND'))
  # Layer type -> rank of its inputs, including the batch.
  _RANKS: ClassVar = {_layers.Conv1D: 3, _layers.Conv2D: 4}
  # With fewer filters and shorter rows, products per place are too small.
  MANY = 32
  # A kernel of 7 x 7: each place adds several ops to the graph.
  MOST_PLACES = 49

  @classmethod
  def takes(cls, layer):
    return _is_windowed(layer, cls._RANKS) and layer.groups == 1

  def _kernel_gradients(self, inputs, delta, num_views):
    shape = tf.shape(_as_image(delta))[1:3]
    window = _Window.of(self.layer, inputs, shape)
    delta = ghost_kind.flat_places(delta, num_views)
    places = delta.shape[1]
    height, width = _of_image(self.layer.kernel_size)
    channels = inputs.shape[-1]
    columns = width * channels
    is_wide = self.layer.filters >= self.MANY or columns >= self.MANY
    if is_wide and height * width <= self.MOST_PLACES:
      products = [
        tf.matmul(
          tf.reshape(window.at(i, j), [-1, places, channels]),
          delta,
          transpose_a=True,
        )
        for i in range(height)
        for j in range(width)
      ]
      return tf.concat(products, axis=1)
    down, right = window.strides
    below, beside = window.dilation
    # The input of a kernel row; a convolution copies it faster than slices do.
    seen = tf.nn.conv2d(
      window.inputs,
      tf.reshape(tf.eye(columns), [1, width, channels, columns]),
      [1, right],
      'VALID',
      dilations=[1, beside],
    )
    rows = []
    for top in range(0, height * below, below):
      row = seen[:, top : top + window.last[0] : down]
      row = tf.reshape(row, [-1, places, columns])
      rows.append(tf.matmul(delta, row, transpose_a=True))
    return tf.transpose(tf.concat(rows, axis=2), [0, 2, 1])


def _depthwise_gradients(
  layer: tf.keras.layers.Layer,
  inputs: tf.Tensor,
  delta: tf.Tensor,
  num_views: int,
) -> tf.Tensor:
  """Gradients of per-channel kernels: [n, k * k, channels, multiplier]."""
  delta = _as_image(delta)
  window = _Window.of(layer, inputs, tf.shape(delta)[1:3])
  channels, multiplier = inputs.shape[-1], layer.depth_multiplier
  places = delta.shape[1:-1]
  delta = tf.reshape(delta, [-1, *places, channels, multiplier])
  flat = [-1, num_views * places.num_elements(), channels, multiplier]
  height, width = _of_image(layer.kernel_size)
  found = [
    tf.reduce_sum(
      tf.reshape(window.at(i, j)[..., tf.newaxis] * delta, flat), axis=1
    )
    for i in range(height)
    for j in range(width)
  ]
  return tf.stack(found, axis=1)


class Depthwise(ghost_kind.BeforeActivation):
  """Keras's depthwise convolutions, of each channel separately."""

  ops = frozenset(('BatchToSpaceND', 'DepthwiseConv2dNative', 'SpaceToBatchND'))
  _RANKS: ClassVar = {_layers.DepthwiseConv1D: 3, _layers.DepthwiseConv2D: 4}

  @classmethod
  def takes(cls, layer):
    return _is_windowed(layer, cls._RANKS)

  def _kernel_gradients(self, inputs, delta, num_views):
    return _depthwise_gradients(self.layer, inputs, delta, num_views)


class Separable(ghost_kind.GhostLayer):
  """Keras's separable convolutions: depthwise, then pointwise."""

  ops = Depthwise.ops
  _RANKS: ClassVar = {_layers.SeparableConv1D: 3, _layers.SeparableConv2D: 4}

  @classmethod
  def takes(cls, layer):
    return _is_windowed(layer, cls._RANKS)

  def replacements(self, seen, watch):
    layer = self.layer

    def kernel(tensor):
      return tensor[tf.newaxis] if tensor.shape.rank == 3 else tensor

    def call(inputs):
      is_sequence = inputs.shape.rank == 3
      dilation = _of_image(layer.dilation_rate)
      padded, padding = inputs, layer.padding
      if padding == 'causal':
        reach = (layer.kernel_size[0] - 1) * dilation[1]
        padded, padding = tf.pad(inputs, [[0, 0], [reach, 0], [0, 0]]), 'valid'
      # TensorFlow requires equal strides, for a sequence as well.
      stride = layer.strides[-1]
      deep = tf.nn.depthwise_conv2d(
        _as_image(padded),
        kernel(layer.depthwise_kernel),
        strides=[1, stride, stride, 1],
        padding=padding.upper(),
        dilations=dilation,
      )
      watch(deep)
      flat = tf.nn.conv2d(deep, kernel(layer.pointwise_kernel), 1, 'VALID')
      if layer.use_bias:
        flat = tf.nn.bias_add(flat, layer.bias)
      watch(flat)
      seen.kept.extend([inputs, deep])
      seen.watched.extend([deep, flat])
      return layer.activation(tf.squeeze(flat, [1]) if is_sequence else flat)

    return {'call': call}

  def gradients(self, seen, deltas, num_views):
    (inputs, deep), (of_deep, of_flat) = seen.kept, deltas
    found = [
      _depthwise_gradients(self.layer, inputs, of_deep, num_views),
      ghost_kind.products(deep, of_flat, num_views),
    ]
    if self.layer.use_bias:
      found.append(ghost_kind.sums(of_flat, num_views))
    return found


KINDS = Convolution, Depthwise, Separable
