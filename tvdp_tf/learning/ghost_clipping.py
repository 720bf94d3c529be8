"""Sums of clipped per-example gradients without the gradients themselves.

For a dense layer y = a W + b, the gradient of example i is the outer product of
its input a_i and of delta_i, the gradient of its loss with respect to y_i. So
its squared norm is (|a_i|^2 + 1) |delta_i|^2, and the sum of scaled gradients
is the matrix product of the inputs and the scaled deltas: one backward pass
over the whole batch serves norms and sum (Goodfellow, 2015; Lee and Kifer,
2021; Bu et al., 2023). A convolution is a dense layer on patches whose
gradients, one an example, are held for a microbatch. Of an embedding an
example's gradient is in the rows that it looks up, each held once. With several
views of an example the model runs on all of them, and `view_gradients` makes
two outer products of a dense layer's.

Several times faster than `clipping.vectorized_clipped_sum`, for models that are
made of the layers, ops and losses of `ghost_list`. All else is worked on one
example at a time.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tvdp_tf.learning import (
  clipping,
  functional,
  ghost_list,
  view_gradients,
  views,
)
from tvdp_tf.privacy import sensitivity


@contextlib.contextmanager
def _watched(
  layers: Sequence[tf.keras.layers.Layer],
  tape: tf.GradientTape,
  seen: dict[int, tuple[tf.Tensor, tf.Tensor]],
) -> Iterator[None]:
  """Watches what layers give before their activations, and keeps their inputs.

  Args:
    layers: Layers of Keras's own, each called once.
    tape: Records what follows.
    seen: By the identity of a layer: its input and its output before the
      activation, as they are computed. Of an embedding, the indices of the rows
      that it looks up.
  """
  for layer in layers:

    def look_up(indices, *, layer=layer, original=layer.call):
      indices = functional.index_in_range(layer, indices)
      value = original(indices)
      tape.watch(value)
      seen[id(layer)] = (indices, value)
      return value

    if ghost_list.is_embedding(layer):
      vars(layer)['call'] = look_up
      continue

    def call(value, *, layer=layer, original=layer.call):
      seen[id(layer)] = (value, value)
      return original(value)

    def activation(value, *, layer=layer, original=layer.activation):
      tape.watch(value)
      seen[id(layer)] = (seen[id(layer)][0], value)
      return original(value)

    vars(layer).update(
      call=call, activation=activation, _plain=layer.activation
    )
  try:
    yield
  finally:
    for layer in layers:
      attributes = vars(layer)
      if not ghost_list.is_embedding(layer):
        attributes['activation'] = attributes.pop('_plain')
      del attributes['call']


class _WatchedModel:
  """The inputs of a model's layers, and the gradients of their outputs."""

  def __init__(
    self,
    model: functional.FunctionalModel,
    loss: tf.keras.losses.Loss,
    training: bool,
    views_name: str,
  ):
    self.layers = ghost_list.weighted_layers(model.keras_model)
    self._model = model.keras_model
    self._loss = loss
    self._training = training
    self._views = views_name

  def __call__(
    self, weights: Sequence[tf.Tensor], features: tf.Tensor, labels: tf.Tensor
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """For each layer, [n * views, ...]: its input, and delta.

    delta_i is the gradient of the loss of row i's example, a mean over its
    views, with respect to what the layer gives before its activation.
    """
    features, labels = view_gradients.rows(self._views, features, labels)
    seen: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
    with (
      tf.GradientTape(watch_accessed_variables=False) as tape,
      functional.weights_replaced(self._model, list(weights)),
      _watched(self.layers, tape, seen),
      functional.unseeded(),
    ):
      outputs = self._model(features, training=self._training)
      # Row by row: a mean over them, and its gradient, would be a dozen ops.
      losses = self._loss.call(labels, outputs)
      if (num_views := views.VIEWS[self._views]) > 1:
        losses /= num_views
    inputs, outputs = zip(
      *(seen[id(layer)] for layer in self.layers), strict=True
    )
    deltas = tape.gradient(
      losses, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    for delta, output in zip(deltas, outputs, strict=True):
      delta.set_shape(output.shape)  # Not every gradient knows it.
    return list(inputs), list(deltas)


def _of_images(sizes: Sequence[int]) -> tuple[int, int]:
  """A convolution's sizes in height and width; a sequence has height 1."""
  height, width = (1, *sizes)[-2:]
  return height, width


def _padded(
  layer: tf.keras.layers.Conv1D | tf.keras.layers.Conv2D,
  inputs: tf.Tensor,
  outputs_shape: tf.Tensor,
) -> tf.Tensor:
  """The inputs, with the zeros that padding 'same' adds around them."""
  if layer.padding == 'valid':
    return inputs
  strides, kernel_size = map(_of_images, (layer.strides, layer.kernel_size))
  covered = (outputs_shape - 1) * strides + kernel_size
  missing = tf.maximum(covered - tf.shape(inputs)[1:3], 0)
  around = tf.stack([missing // 2, missing - missing // 2], axis=1)
  return tf.pad(inputs, tf.concat([[[0, 0]], around, [[0, 0]]], axis=0))


# Fewer filters, on rows of fewer numbers, take products that are too small.
_MANY = 32
# Of a kernel of 7 x 7: each place is some ops of the graph.
_MOST_PLACES = 49


def _kernel_gradients(
  layer: tf.keras.layers.Conv1D | tf.keras.layers.Conv2D,
  inputs: tf.Tensor,
  shape: tf.Tensor,
  delta: tf.Tensor,
) -> tf.Tensor:
  """Each example's gradient of a convolution's kernel, [n, k * k * in, out].

  Of inputs [n * views, ...] that give images, or sequences, of a shape, whose
  places, those of all views together, are the rows of delta: [n, places, out].

  A product for each row of the kernel: for LeNet's shapes several times faster
  on a CPU than with patches, and nearly twice than for each place of it. With
  more filters or channels it is a product for each place: these are large
  enough then, and what copies rows would do more arithmetic than they.
  """
  if inputs.shape.rank == 3:  # A sequence is an image of height 1.
    inputs, shape = inputs[:, tf.newaxis], tf.concat([[1], shape], axis=0)
  examples, channels = tf.shape(delta)[0], inputs.shape[-1]
  inputs = _padded(layer, inputs, shape)
  down, right = _of_images(layer.strides)
  height, width = _of_images(layer.kernel_size)
  last = (shape - 1) * (down, right) + 1
  columns = width * channels
  is_wide = layer.filters >= _MANY or columns >= _MANY
  if is_wide and height * width <= _MOST_PLACES:
    places = []
    for i in range(height):
      for j in range(width):
        seen = inputs[:, i : i + last[0] : down, j : j + last[1] : right]
        seen = tf.reshape(seen, [examples, -1, channels])
        places.append(tf.matmul(seen, delta, transpose_a=True))
    return tf.concat(places, axis=1)
  # What a row of the kernel sees: copied by a convolution, faster than slices.
  seen = tf.nn.conv2d(
    inputs,
    tf.reshape(tf.eye(columns), [1, width, channels, columns]),
    [1, right],
    'VALID',
  )
  rows = []
  for i in range(height):
    row = tf.reshape(seen[:, i : i + last[0] : down], [examples, -1, columns])
    rows.append(tf.matmul(delta, row, transpose_a=True))
  return tf.transpose(tf.concat(rows, axis=2), [0, 2, 1])


def _gathered(indices: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
  """Each example's gradient of an embedding, by the rows that it looks up.

  A row that an example looks up several times gets the sum of its deltas, at
  the first of its places; the other places get zeros. So no two places stand
  for one row, and the gradient has the norm of what is returned.

  Args:
    indices: int32 [n, places].
    delta: float32 [n, places, k].

  Returns:
    float32 [n, places, k].
  """
  examples, places = tf.shape(indices)[0], indices.shape[1]
  # An example's rows are not another's.
  example = tf.range(examples, dtype=tf.int64)[:, tf.newaxis]
  rows = example * 2**31 + tf.cast(indices, tf.int64)
  distinct, of_place = tf.unique(tf.reshape(rows, [-1]))
  first = tf.math.unsorted_segment_min(
    tf.range(examples * places), of_place, tf.size(distinct)
  )
  # On a CPU each sum takes its addends in their order, whatever is in other
  # examples.
  sums = tf.math.unsorted_segment_sum(
    tf.reshape(delta, [-1, delta.shape[-1]]),
    tf.gather(first, of_place),
    examples * places,
  )
  return tf.reshape(sums, [-1, places, delta.shape[-1]])


class GhostClippedSum(clipping.PreparedSum):
  """The sum of a `ghost_list.supported_copy`."""

  def __init__(
    self,
    model: functional.FunctionalModel,
    loss: tf.keras.losses.Loss,
    training: bool,
    views_name: str,
  ):
    self._watched = _WatchedModel(model, loss, training, views_name)
    self._views = views.VIEWS[views_name]
    layers = self._watched.layers
    if all(map(ghost_list.is_dense, layers)):
      # No gradients of single examples are held; there is a row for each view.
      self.microbatches = sensitivity.MOST_MICROBATCHES // self._views
    # What only moves features. What computes may give other bits in `_sum`.
    self._upstream: dict[int, tf.keras.Model] = {}
    for place, layer in enumerate(layers if self._views == 1 else []):
      upstream = tf.keras.Model(model.keras_model.inputs, layer.input)
      kinds = set(map(type, upstream.layers))
      if ghost_list.is_dense(layer) and kinds <= ghost_list.MOVING_LAYERS:
        self._upstream[place] = upstream
    # Not part of its caller's graph: in a loop's body TensorFlow does not find
    # the pairs of ops (a pooling and its gradient) that it has fast forms of.
    self._sum = tf.function(
      self._traced_sum,
      autograph=False,
      experimental_attributes={'_noinline': True},
    ).get_concrete_function(
      [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights],
      model.features_spec,
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([None], tf.bool),
      tf.TensorSpec([], tf.float64),
      tf.TensorSpec([None, len(self._upstream)], tf.float64),
    )

  def prepare(self, features: tf.Tensor) -> tf.Tensor:
    """Squared norms of inputs of layers, float64 [n, layers]."""
    squares = [
      clipping.squared_norms(upstream(features))
      for upstream in self._upstream.values()
    ]
    empty = tf.zeros([tf.shape(features)[0], 0], tf.float64)
    return tf.stack(squares, axis=1) if squares else empty

  def _squares(
    self,
    inputs: Sequence[tf.Tensor],
    deltas: Sequence[tf.Tensor],
    explicit: Sequence[Sequence[tf.Tensor]],
    prepared: tf.Tensor,
  ) -> tf.Tensor:
    """Squared norms of the gradients, or a bit more: float64 [n].

    Args:
      inputs: Of each layer, [n, ...]; with views as of
        `view_gradients.orthogonal_terms`.
      deltas: As of `_WatchedModel`, or the same.
      explicit: Of each layer, gradients of its weights, [n, ...]; as far as the
        input and delta do not stand for them.
      prepared: Of `prepare`.
    """
    known = {
      place: prepared[:, column] for column, place in enumerate(self._upstream)
    }
    layers = self._watched.layers
    wanted: list[tf.Tensor] = []
    for place, (value, delta, parts) in enumerate(
      zip(inputs, deltas, explicit, strict=True)
    ):
      wanted += parts
      if not ghost_list.is_dense(layers[place]):
        continue
      if self._views > 1:
        wanted += tf.unstack(value, axis=1) + tf.unstack(delta, axis=1)
        continue
      wanted.append(delta)
      if place not in known:
        wanted.append(value)
    norms = iter(tf.unstack(clipping.stacked_squared_norms(wanted)))
    squares: list[tf.Tensor] = []
    for place, (layer, value, parts) in enumerate(
      zip(layers, inputs, explicit, strict=True)
    ):
      squares += [next(norms) for _ in parts]
      if not ghost_list.is_dense(layer):
        continue
      if self._views > 1:
        of_terms = [next(norms) for _ in range(2 * self._views)]
        squares.append(view_gradients.squared_norms_of_sums(value, of_terms))
        continue
      of_delta = next(norms)
      of_input = known[place] if place in known else next(norms)
      squares.append(of_delta * (of_input + 1.0 * layer.use_bias))
    return tf.add_n(squares)

  def __call__(self, weights, features, labels, present, clip, prepared=None):
    """Sums the clipped gradients; see `clipping.ClippedSum`."""
    if prepared is None:
      prepared = self.prepare(features)
    labels = tf.cast(labels, tf.int32)  # Of classes.
    return self._sum(list(weights), features, labels, present, clip, prepared)

  def _traced_sum(
    self,
    weights: Sequence[tf.Tensor],
    features: tf.Tensor,
    labels: tf.Tensor,
    present: tf.Tensor,
    clip: tf.Tensor,
    prepared: tf.Tensor,
  ) -> list[tf.Tensor]:
    inputs, deltas = self._watched(weights, features, labels)
    layers = self._watched.layers
    # What is added up is what the norms are of, to the bit: of a convolution,
    # each example's gradients.
    explicit: list[list[tf.Tensor]] = []
    for place, layer in enumerate(layers):
      parts: list[tf.Tensor] = []
      explicit.append(parts)
      if ghost_list.is_dense(layer) and self._views == 1:
        continue
      value, delta = inputs[place], deltas[place]
      # Views and places of an example.
      places = tf.reshape(delta, [tf.shape(features)[0], -1, delta.shape[-1]])
      if ghost_list.is_embedding(layer):
        looked_up = self._views * value.shape[1:].num_elements()
        inputs[place] = tf.reshape(value, [-1, looked_up])
        parts.append(_gathered(inputs[place], places))
        continue
      if ghost_list.is_dense(layer):
        inputs[place], deltas[place] = view_gradients.orthogonal_terms(
          tf.reshape(value, [-1, self._views, value.shape[-1]]),
          tf.reshape(delta, [-1, self._views, delta.shape[-1]]),
        )
      else:
        shape = tf.shape(delta)[1:-1]
        parts.append(_kernel_gradients(layer, value, shape, places))
      if layer.use_bias:
        parts.append(tf.reduce_sum(places, axis=1))
    squares = self._squares(inputs, deltas, explicit, prepared)
    used, scales = clipping.scales(squares, present, clip)
    all_finite = tf.reduce_all(tf.math.is_finite(squares))

    def shaped(of_examples, tensor):
      return tf.reshape(of_examples, [-1] + [1] * (len(tensor.shape) - 1))

    def kept(*tensors):
      # Times zero, what is not finite is not zero.
      return tf.cond(
        all_finite,
        lambda: tensors,
        lambda: tuple(
          tf.where(shaped(used, tensor), tensor, 0) for tensor in tensors
        ),
      )

    def flat_rows(tensor):
      return tf.reshape(tensor, [-1, tensor.shape[-1]])

    sums = []
    for layer, value, delta, parts in zip(
      layers, inputs, deltas, explicit, strict=True
    ):
      of_layer = []
      if ghost_list.is_embedding(layer):
        (looked_up,) = kept(*parts)
        # Of each example at most one addend of a row is not zero.
        of_layer.append(
          tf.math.unsorted_segment_sum(
            flat_rows(looked_up * shaped(scales, looked_up)),
            tf.reshape(value, [-1]),
            layer.input_dim,
          )
        )
      elif ghost_list.is_dense(layer):
        left, right = kept(value, delta)
        scaled = flat_rows(right * shaped(scales, delta))
        rows = clipping.RowSums(tf.shape(scaled)[0])
        of_layer.append(rows.product(flat_rows(left), scaled))
        if layer.use_bias and not parts:
          of_layer.append(rows.sum(scaled))
      if parts and not ghost_list.is_embedding(layer):
        rows = clipping.RowSums(tf.shape(scales)[0])
        of_layer += [
          rows.product(
            scales[:, tf.newaxis],
            tf.reshape(part, [-1, part.shape[1:].num_elements()]),
          )
          for part in kept(*parts)
        ]
      sums += [
        tf.reshape(total, weight.shape)
        for total, weight in zip(of_layer, layer.trainable_weights, strict=True)
      ]
    return sums


def ghost_clipped_sum(
  model: functional.FunctionalModel,
  loss: tf.keras.losses.Loss,
  training: bool = True,
  views_name: str = views.NONE,
) -> clipping.ClippedSum:
  """The sum of clipped gradients of a model that `ghost_list` supports.

  Args:
    model: The model.
    loss: Keras loss of (labels [n], outputs [n, ...]), averaged over n.
    training: Keras's `training` argument.
    views_name: A key of `views.VIEWS`.

  Returns:
    A `clipping.PreparedSum`.

  Raises:
    ValueError: If the model or the loss is not supported.
  """
  copied = ghost_list.supported_copy(model, loss)
  if copied is None:
    raise ValueError(
      'model must be made of the layers that ghost clipping knows, got '
      f'{model.keras_model.name}'
    )
  return GhostClippedSum(copied, loss, training, views_name)
