"""Means of clipped per-example gradients, written by hand in JAX.

* `ghost`: norms from the layers' inputs and the gradients of their outputs, so
  that one backward pass gives norms and sum, as in our
  `learning/ghost_clipping.py`. Convolutions are dense layers on patches, whose
  per-example gradients are the product of the two: two hundred times less
  arithmetic at LeNet's shapes than with Gram matrices.
* `examples`: `vmap(grad)`, as in jax_privacy.
"""

import jax
from jax import numpy as jnp


def _factors(squares, clip):
  """Returns the clip factors for gradients with these squared norms."""
  return clip / jnp.maximum(jnp.sqrt(squares), clip)


def _square(values):
  """Computes squared norms, [n]."""
  return jnp.square(values.reshape(len(values), -1)).sum(axis=1)


def _dense_sum(inputs, deltas, factors):
  scaled = deltas * factors[:, None]
  return [inputs.T @ scaled, scaled.sum(axis=0)]


def _weighted(gradients, factors):
  """Returns the weighted sum of examples' gradients, [n, ...]."""
  flat = factors @ gradients.reshape(len(factors), -1)
  return flat.reshape(gradients.shape[1:])


def input_squares(features):
  """Computes squared norms of a client's features, equal in every step."""
  return _square(features)


def ghost(network, loss_sum):
  """Returns (weights, features, labels, squares of features, clip) -> the mean.

  Args:
    network: (weights, features, taps) -> outputs, and the inputs of all layers:
      [n, in] or patches [n, ..., in]. Taps are added to the layers' outputs.
    loss_sum: (outputs, labels) -> the sum of the losses.
  """

  def mean(weights, features, labels, squares_of_features, clip):
    count = len(features)

    def loss(taps):
      outputs, inputs = network(weights, features, taps)
      return loss_sum(outputs, labels), inputs

    shapes = jax.eval_shape(
      lambda: network(weights, features, [0.0] * (len(weights) // 2))[1]
    )
    taps = [
      jnp.zeros((*shape.shape[:-1], bias.size))
      for shape, bias in zip(shapes, weights[1::2], strict=True)
    ]
    deltas, inputs = jax.grad(loss, has_aux=True)(taps)
    squares = 0.0
    explicit = []
    for index, (seen, delta) in enumerate(zip(inputs, deltas, strict=True)):
      if seen.ndim == 2:
        of_input = squares_of_features if index == 0 else _square(seen)
        squares += (of_input + 1) * _square(delta)
        explicit.append(None)
      else:
        rows = seen.reshape(count, -1, seen.shape[-1])
        columns = delta.reshape(count, -1, delta.shape[-1])
        parts = jnp.einsum('npi,npo->nio', rows, columns), columns.sum(axis=1)
        squares += sum(map(_square, parts))
        explicit.append(parts)
    factors = _factors(squares, clip)
    sums = []
    for seen, delta, parts in zip(inputs, deltas, explicit, strict=True):
      sums += (
        _dense_sum(seen, delta, factors)
        if parts is None
        else [_weighted(part, factors) for part in parts]
      )
    return [
      total.reshape(w.shape) / count
      for total, w in zip(sums, weights, strict=True)
    ]

  return mean


def examples(mean_loss):
  """Like `ghost`, but computes the gradients of all examples at once.

  Args:
    mean_loss: (weights, features, labels) -> the mean of the losses.
  """

  def one(weights, features, label):
    return jax.grad(mean_loss)(weights, features[None], label[None])

  def mean(weights, features, labels, squares_of_features, clip):
    del squares_of_features
    gradients = jax.vmap(one, (None, 0, 0))(weights, features, labels)
    factors = _factors(sum(map(_square, gradients)), clip)
    return [_weighted(g, factors) / len(features) for g in gradients]

  return mean
