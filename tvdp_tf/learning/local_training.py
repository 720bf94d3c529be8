"""A client's training between two aggregations, in pure TensorFlow.

Algorithm 1 of the paper runs `local_steps` (tau) full-batch gradient steps
(eq_local_SGD), and projects the whole parameter vector onto the ball of radius
`l2_norm_clip` (C) after each step. These are functions of tensors only: they
run eagerly, in a `tf.function` and inside a TFF computation.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

Weights = Sequence[tf.Tensor]
# (weights, features [n, ...], labels [n]) -> mean loss, a scalar.
LossFn = Callable[[Weights, tf.Tensor, tf.Tensor], tf.Tensor]

# More steps run in a `tf.while_loop`: compiling hundreds of unrolled steps
# takes longer than running them.
_MAX_UNROLLED_STEPS = 20


def project(weights: Weights, l2_norm_clip: float) -> list[tf.Tensor]:
  """Scales `weights` to a global L2 norm of at most `l2_norm_clip`.

  The clipping line of Algorithm 1: w / max(1, ||w|| / C), which is the
  projection onto the ball. Weights whose norm overflows become NaN, because
  zeros would pass for a valid model.
  """
  norm = tf.linalg.global_norm(weights)
  clip = tf.constant(l2_norm_clip, norm.dtype)
  scale = clip / tf.maximum(norm, clip)
  scale = tf.where(tf.math.is_finite(norm), scale, float('nan'))
  return [weight * tf.cast(scale, weight.dtype) for weight in weights]


def descend(
  weights: Weights,
  gradients: Weights,
  learning_rate: float,
  l2_regularization: float,
) -> list[tf.Tensor]:
  """Takes one step: w - eta (gradient + lambda w)."""

  def stepped(weight, gradient):
    if l2_regularization:
      gradient += tf.constant(l2_regularization, weight.dtype) * weight
    return weight - tf.constant(learning_rate, weight.dtype) * gradient

  return [stepped(w, g) for w, g in zip(weights, gradients, strict=True)]


def gradient_step(
  loss_fn: LossFn,
  weights: Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  learning_rate: float,
  l2_norm_clip: float | None,
  l2_regularization: float = 0.0,
) -> list[tf.Tensor]:
  """Takes one full-batch gradient step, then projects if there is a clip."""
  weights = list(weights)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = loss_fn(weights, features, labels)
  gradients = tape.gradient(
    loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  stepped = descend(weights, gradients, learning_rate, l2_regularization)
  return stepped if l2_norm_clip is None else project(stepped, l2_norm_clip)


def local_steps(
  loss_fn: LossFn,
  weights: Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  num_steps: int,
  learning_rate: float,
  l2_norm_clip: float | None,
  l2_regularization: float = 0.0,
) -> list[tf.Tensor]:
  """Runs `num_steps` calls of `gradient_step` from `weights`.

  Args:
    loss_fn: Mean loss of a model on a batch.
    weights: Float tensors, the global model w(m-1).
    features: Tensor [n, ...], all of the client's examples.
    labels: Tensor [n].
    num_steps: tau, at least 1.
    learning_rate: eta.
    l2_norm_clip: C, or None for no projection.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.

  Returns:
    The local model w_k(tau m), tensors of the same shapes and dtypes.
  """

  def step(index, current):
    del index
    return gradient_step(
      loss_fn,
      current,
      features,
      labels,
      learning_rate=learning_rate,
      l2_norm_clip=l2_norm_clip,
      l2_regularization=l2_regularization,
    )

  return repeat(step, weights, num_steps)


def repeat(
  step: Callable[[int | tf.Tensor, list[tf.Tensor]], list[tf.Tensor]],
  weights: Weights,
  num_steps: int,
  most_unrolled: int = _MAX_UNROLLED_STEPS,
) -> list[tf.Tensor]:
  """Applies `step(index, weights)` for index = 0 to num_steps - 1.

  Uses a TensorFlow loop, unless there are at most `most_unrolled` steps.
  """
  current = list(weights)
  if num_steps <= most_unrolled:
    for index in range(num_steps):
      current = step(index, current)
    return current
  _, current = tf.while_loop(
    lambda index, _: index < num_steps,
    lambda index, loop_weights: (index + 1, step(index, loop_weights)),
    (tf.constant(0), current),
  )
  return list(current)
