"""Clipping and noise as they were, each with the fault that an audit must find.

Kept so that an audit can be shown the faults: nothing else uses them.
"""

import contextlib

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import functional

_CLIP_FACTOR = 1 - 1e-5


def _scales(norms, present, clip):
  used = tf.logical_and(present, tf.math.is_finite(norms))
  limit = tf.cast(clip, norms.dtype)
  factors = limit * tf.cast(_CLIP_FACTOR, norms.dtype)
  factors /= tf.maximum(norms, limit)
  return used, tf.where(used, factors, tf.zeros_like(norms))


def vectorized_clipped_sum(loss_fn):
  """One example at a time, with norms in the type of the gradients."""

  def clipped_sum(weights, features, labels, present, clip):
    def example_gradient(example):
      example_features, example_label = example
      with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = loss_fn(
          weights, example_features[tf.newaxis], example_label[tf.newaxis]
        )
      return tape.gradient(
        loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )

    gradients = [
      tf.reshape(gradient, [-1, weight.shape.num_elements()])
      for gradient, weight in zip(
        tf.vectorized_map(example_gradient, (features, labels), warn=False),
        weights,
        strict=True,
      )
    ]
    norms = tf.sqrt(
      tf.add_n([tf.reduce_sum(tf.square(g), axis=1) for g in gradients])
    )
    used, factors = _scales(norms, present, clip)
    return [
      tf.reshape(
        tf.linalg.matvec(
          tf.where(used[:, tf.newaxis], gradient, tf.zeros_like(gradient)),
          factors,
          transpose_a=True,
        ),
        weight.shape,
      )
      for gradient, weight in zip(gradients, weights, strict=True)
    ]

  return clipped_sum


def clipped_mean_gradient(
  clipped_sum,
  weights,
  features,
  labels,
  *,
  example_l2_norm_clip,
  microbatch_size=64,
):
  """Microbatches added up in the type of the weights."""
  num_examples = tf.shape(labels)[0]
  num_microbatches = (num_examples + microbatch_size - 1) // microbatch_size
  padding = num_microbatches * microbatch_size - num_examples

  def pad(tensor):
    rest = [[0, 0]] * (len(tensor.shape) - 1)
    return tf.pad(tensor, [[0, padding], *rest])

  features, labels = pad(features), pad(labels)

  def add_microbatch(index, totals):
    start = index * microbatch_size
    sums = clipped_sum(
      weights,
      features[start : start + microbatch_size],
      labels[start : start + microbatch_size],
      start + tf.range(microbatch_size) < num_examples,
      example_l2_norm_clip,
    )
    return index + 1, [
      total + addend for total, addend in zip(totals, sums, strict=True)
    ]

  _, totals = tf.while_loop(
    lambda index, _: index < num_microbatches,
    add_microbatch,
    (tf.constant(0), [tf.zeros(w.shape, w.dtype) for w in weights]),
  )
  return [total / tf.cast(num_examples, total.dtype) for total in list(totals)]


def _is_dense(layer):
  return type(layer) is tf.keras.layers.Dense and len(layer.input_shape) == 2


def _weighted_layers(model):
  leaves = [
    module
    for module in model.submodules
    if isinstance(module, tf.keras.layers.Layer)
    and module.trainable_weights
    and not any(
      isinstance(inner, tf.keras.layers.Layer) for inner in module.submodules
    )
  ]
  place = {w.ref(): i for i, w in enumerate(model.trainable_weights)}
  return sorted(leaves, key=lambda leaf: place[leaf.trainable_weights[0].ref()])


@contextlib.contextmanager
def _tapped(layers, taps, inputs):
  for layer, tap in zip(layers, taps, strict=True):

    def call(value, *, layer=layer, original=layer.call):
      inputs.append((layer, value))
      return original(value)

    def activation(value, *, tap=tap, original=layer.activation):
      return original(value + tap)

    vars(layer).update(
      call=call, activation=activation, _plain=layer.activation
    )
  try:
    yield
  finally:
    for layer in layers:
      attributes = vars(layer)
      attributes['activation'] = attributes.pop('_plain')
      del attributes['call']


class _TappedModel:
  def __init__(self, model):
    keras_model = model.keras_model
    self.layers = _weighted_layers(keras_model)
    self._tap_shapes = [layer.output_shape[1:] for layer in self.layers]

    @tf.function(autograph=False)
    def call(weights, features, taps):
      inputs: list = []
      with (
        functional.weights_replaced(keras_model, weights),
        _tapped(self.layers, taps, inputs),
      ):
        outputs = keras_model(features, training=True)
      by_layer = {id(layer): value for layer, value in inputs}
      return outputs, [by_layer[id(layer)] for layer in self.layers]

    self._call = call.get_concrete_function(
      [tf.TensorSpec(w.shape, w.dtype) for w in keras_model.weights],
      model.features_spec,
      [tf.TensorSpec([None, *shape]) for shape in self._tap_shapes],
    )

  def zero_taps(self, num_examples):
    return [tf.zeros([num_examples, *shape]) for shape in self._tap_shapes]

  def __call__(self, weights, features, taps):
    return self._call(list(weights), features, taps)


def _squared(tensor):
  axes = list(range(1, len(tensor.shape)))
  return tf.reduce_sum(tf.square(tensor), axis=axes)


def _kernel_gradients(layer, inputs, delta):
  """Of a 1x1 convolution without strides."""
  examples, channels = tf.shape(inputs)[0], inputs.shape[-1]
  return tf.matmul(
    tf.reshape(inputs, [examples, -1, channels]),
    tf.reshape(delta, [examples, -1, layer.filters]),
    transpose_a=True,
  )


def ghost_clipped_sum(model, loss):
  """Any model: whatever mixes examples, 5-D convolutions, float32 norms."""
  tapped = _TappedModel(model)

  def clipped_sum(weights, features, labels, present, clip):
    num_examples = tf.shape(labels)[0]
    taps = tapped.zero_taps(num_examples)
    with tf.GradientTape() as tape:
      tape.watch(taps)
      outputs, inputs = tapped(weights, features, taps)
      total = loss(labels, outputs) * tf.cast(num_examples, tf.float32)
    deltas = tape.gradient(
      total, taps, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    squares = []
    kernels: list = []
    for layer, value, delta in zip(tapped.layers, inputs, deltas, strict=True):
      if _is_dense(layer):
        kernels.append(None)
        squares.append(_squared(value) * _squared(delta))
        bias_delta = delta
      else:
        kernels.append(_kernel_gradients(layer, value, delta))
        squares.append(_squared(kernels[-1]))
        bias_delta = tf.reduce_sum(delta, axis=[1, 2])
      if layer.use_bias:
        # Of a 5-D input an axis is left: its values are squared one by one.
        squares.append(_squared(bias_delta))
    used, scales = _scales(tf.sqrt(tf.add_n(squares)), present, clip)

    def kept(tensor):
      shape = [-1] + [1] * (len(tensor.shape) - 1)
      return tf.where(tf.reshape(used, shape), tensor, 0)

    sums = []
    for layer, value, delta, kernel in zip(
      tapped.layers, inputs, deltas, kernels, strict=True
    ):
      shape = [-1] + [1] * (len(delta.shape) - 1)
      scaled = kept(delta) * tf.reshape(scales, shape)
      if kernel is None:
        sums.append(tf.matmul(kept(value), scaled, transpose_a=True))
      else:
        total_kernel = tf.tensordot(scales, kept(kernel), 1)
        sums.append(tf.reshape(total_kernel, layer.kernel.shape))
      if layer.use_bias:
        axes = list(range(len(delta.shape) - 1))
        sums.append(tf.reduce_sum(scaled, axis=axes))
    return sums

  return clipped_sum


def standard_normal(noise_key, size, release=0):
  """Box and Muller's transform of 53 bits: it ends at 8.57."""
  del release
  bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=[2, (size + 1) // 2],
    key=tf.bitcast(noise_key, tf.uint64)[:1],
    counter=tf.zeros([2], tf.uint64),
    alg=1,
    dtype=tf.uint64,
  )
  shifted = tf.bitcast(tf.bitwise.right_shift(bits, np.uint64(11)), tf.int64)
  uniforms = tf.cast(shifted, tf.float64) * 2.0**-53
  radius = tf.sqrt(-2.0 * tf.math.log(1.0 - uniforms[0]))
  angle = 2 * np.pi * uniforms[1]
  drawn = radius * tf.stack([tf.cos(angle), tf.sin(angle)])
  return tf.reshape(drawn, [-1])[:size]
