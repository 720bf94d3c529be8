"""Sums clipped per-example gradients without computing each gradient.

For a dense layer y = a W + b, the gradient of example i is the outer product of
its input a_i and of delta_i, the gradient of its loss with respect to y_i. So
its squared norm is (|a_i|^2 + 1) |delta_i|^2, and the sum of scaled gradients
is the matrix product of the inputs and the scaled deltas. One backward pass
over the whole batch gives both the norms and the sum (Goodfellow, 2015; Lee and
Kifer, 2021; Bu et al., 2023). For other layers (`ghost_layers`), the
per-example gradients are computed from the same backward pass and held for one
microbatch. With several views of an example, the model runs on all of them, and
`view_gradients` writes a dense layer's gradient as two outer products.

This is several times faster than `clipping.vectorized_clipped_sum`, for models
made only of the layers, ops and losses of `ghost_list`. All other models are
computed one example at a time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tvdp_tf.learning import (
  clipping,
  functional,
  ghost_kind,
  ghost_layers,
  ghost_list,
  view_gradients,
  views,
)
from tvdp_tf.privacy import sensitivity


class _Gradients(NamedTuple):
  """The per-example gradients of a layer's weights.

  Attributes:
    factors: [n, ..., k] and [n, ..., m], or None. Their outer products, or the
      sums of these, are the gradients of the first weight. The second factor is
      the gradient of the bias, if `parts` does not have it.
    parts: Gradients of the other weights, or of all, [n, ...] each.
  """

  factors: tuple[tf.Tensor, tf.Tensor] | None
  parts: list[tf.Tensor]


class _WatchedModel:
  """Computes the gradients of a model's layers, and what they are made of."""

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
  ) -> tuple[list[ghost_kind.Seen], list[_Gradients]]:
    """Returns what each layer has seen, and the per-example gradients.

    An example's loss is the mean over its views.
    """
    features, labels = view_gradients.rows(self._views, features, labels)
    with (
      tf.GradientTape(watch_accessed_variables=False) as tape,
      functional.weights_replaced(self._model, list(weights)),
      functional.unfused(),
      functional.constants_inside(self._model),
      ghost_layers.watched(self.layers, tape) as seen,
      functional.unseeded(),
    ):
      outputs = self._model(features, training=self._training)
      # Per row: a mean over rows, and its gradient, would take a dozen ops.
      losses = self._loss.call(labels, outputs)
      if (num_views := views.VIEWS[self._views]) > 1:
        losses /= num_views
    watched = [one.watched for one in seen]
    deltas = tape.gradient(
      losses, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    of_both = map(tf.nest.flatten, (deltas, watched))
    for delta, output in zip(*of_both, strict=True):
      delta.set_shape(output.shape)  # Not every gradient has one.
    found = zip(self.layers, seen, deltas, strict=True)
    return seen, [self._gradients(*of_layer) for of_layer in found]

  def _gradients(
    self,
    layer: ghost_kind.GhostLayer,
    seen: ghost_kind.Seen,
    deltas: Sequence[tf.Tensor],
  ) -> _Gradients:
    num_views = views.VIEWS[self._views]
    if not isinstance(layer, ghost_layers.Dense):
      return _Gradients(None, layer.gradients(seen, deltas, num_views))
    (value,), (delta,) = seen.kept, deltas
    if num_views == 1:
      return _Gradients((value, delta), [])
    factors = view_gradients.orthogonal_terms(
      tf.reshape(value, [-1, num_views, value.shape[-1]]),
      tf.reshape(delta, [-1, num_views, delta.shape[-1]]),
    )
    return _Gradients(factors, layer.bias_gradients(delta, num_views))


class GhostClippedSum(clipping.PreparedSum):
  """The sum for a model from `ghost_list.supported_copy`."""

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
    if not any(layer.holds_gradients for layer in layers):
      # There is a row for each view.
      self.microbatches = sensitivity.MOST_MICROBATCHES // self._views
    # Models that only move features. Any arithmetic might give other bits here
    # than in `_sum`.
    self._upstream: dict[int, tf.keras.Model] = {}
    for place, layer in enumerate(layers if self._views == 1 else []):
      if not isinstance(layer, ghost_layers.Dense):
        continue
      upstream = tf.keras.Model(model.keras_model.inputs, layer.layer.input)
      kinds = set(map(type, upstream.layers))
      if kinds <= ghost_list.MOVING_LAYERS:
        self._upstream[place] = upstream
    # Not inlined: in a loop's body, TensorFlow does not find the pairs of ops
    # (pooling and its gradient) for which it has fast versions.
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
    """Computes squared norms of inputs of layers, float64 [n, layers]."""
    squares = [
      clipping.squared_norms(upstream(features))
      for upstream in self._upstream.values()
    ]
    empty = tf.zeros([tf.shape(features)[0], 0], tf.float64)
    return tf.stack(squares, axis=1) if squares else empty

  def _squares(
    self, gradients: Sequence[_Gradients], prepared: tf.Tensor
  ) -> tf.Tensor:
    """Bounds the squared norms of the gradients from above: float64 [n].

    Args:
      gradients: The gradients of each layer.
      prepared: The result of `prepare`.
    """
    known = {
      place: prepared[:, column] for column, place in enumerate(self._upstream)
    }
    wanted: list[tf.Tensor] = []
    for place, (factors, parts) in enumerate(gradients):
      wanted += parts
      if factors is None:
        continue
      value, delta = factors
      if self._views > 1:
        wanted += tf.unstack(value, axis=1) + tf.unstack(delta, axis=1)
        continue
      wanted.append(delta)
      if place not in known:
        wanted.append(value)
    norms = iter(tf.unstack(clipping.stacked_squared_norms(wanted)))
    squares: list[tf.Tensor] = []
    for place, (layer, (factors, parts)) in enumerate(
      zip(self._watched.layers, gradients, strict=True)
    ):
      squares += [next(norms) for _ in parts]
      if factors is None:
        continue
      if self._views > 1:
        value, _ = factors
        of_terms = [next(norms) for _ in range(2 * self._views)]
        squares.append(view_gradients.squared_norms_of_sums(value, of_terms))
        continue
      of_delta = next(norms)
      of_input = known[place] if place in known else next(norms)
      squares.append(of_delta * (of_input + 1.0 * layer.layer.use_bias))
    return tf.add_n(squares)

  def __call__(self, weights, features, labels, present, clip, prepared=None):
    """Sums the clipped gradients; see `clipping.ClippedSum`."""
    if prepared is None:
      prepared = self.prepare(features)
    labels = tf.cast(labels, tf.int32)  # Class numbers.
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
    # The norms are those of exactly the tensors that are added up, to the bit.
    seen, gradients = self._watched(weights, features, labels)
    squares = self._squares(gradients, prepared)
    used, scales = clipping.scales(squares, present, clip)
    all_finite = tf.reduce_all(tf.math.is_finite(squares))

    def shaped(of_examples, tensor):
      return tf.reshape(of_examples, [-1] + [1] * (len(tensor.shape) - 1))

    def kept(*tensors):
      # A factor of zero does not make NaN or infinity zero.
      return tf.cond(
        all_finite,
        lambda: tensors,
        lambda: tuple(
          tf.where(shaped(used, tensor), tensor, 0) for tensor in tensors
        ),
      )

    def flat_rows(tensor):
      return tf.reshape(tensor, [-1, tensor.shape[-1]])

    def sums_of(layer, of_layer, factors, parts):
      if isinstance(layer, ghost_layers.Embedding):
        (looked_up,) = kept(*parts)
        # Each example has at most one addend of a row that is not zero.
        return [
          tf.math.unsorted_segment_sum(
            flat_rows(looked_up * shaped(scales, looked_up)),
            tf.reshape(layer.indices(of_layer, self._views), [-1]),
            layer.layer.input_dim,
          )
        ]
      found = []
      if factors is not None:
        left, right = kept(*factors)
        scaled = flat_rows(right * shaped(scales, right))
        rows = clipping.RowSums(tf.shape(scaled)[0])
        found.append(rows.product(flat_rows(left), scaled))
        if layer.layer.use_bias and not parts:
          found.append(rows.sum(scaled))
      rows = clipping.RowSums(tf.shape(scales)[0])
      found += [
        rows.product(
          scales[:, tf.newaxis],
          tf.reshape(part, [-1, part.shape[1:].num_elements()]),
        )
        for part in (kept(*parts) if parts else ())
      ]
      return found

    return [
      tf.reshape(total, weight.shape)
      for layer, of_layer, found in zip(
        self._watched.layers, seen, gradients, strict=True
      )
      for total, weight in zip(
        sums_of(layer, of_layer, *found),
        layer.layer.trainable_weights,
        strict=True,
      )
    ]


def ghost_clipped_sum(
  model: functional.FunctionalModel,
  loss: tf.keras.losses.Loss,
  training: bool = True,
  views_name: str = views.NONE,
) -> clipping.ClippedSum:
  """Returns the sum of clipped gradients for a model supported by `ghost_list`.

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
