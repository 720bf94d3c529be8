"""Per-example gradients, clipped and summed.

`clipped_mean_gradient` goes through the examples in microbatches, so that its
memory does not grow with their number. How a microbatch's sum is had is a
`ClippedSum`: here by vectorised differentiation, for any model; in
`ghost_clipping` several times faster, for some.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tvdp_tf.learning import local_training

# (weights, features [b, ...], labels [b], present bool [b], C_g) -> the sum of
# the clipped gradients of the examples that are present, shaped as the weights.
ClippedSum = Callable[
  [Sequence[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor, float],
  list[tf.Tensor],
]

MICROBATCH_SIZE = 64

# Norms rounded in float32 must not let a gradient past the clip.
CLIP_FACTOR = 1 - 1e-5


def scales(
  norms: tf.Tensor, present: tf.Tensor, clip: float
) -> tuple[tf.Tensor, tf.Tensor]:
  """Which examples count, bool [b], and the factors that clip them, [b].

  An example whose gradient is not finite does not count: as a NaN it would be
  seen through any noise.
  """
  used = tf.logical_and(present, tf.math.is_finite(norms))
  limit = tf.constant(clip, norms.dtype)
  factors = limit * CLIP_FACTOR / tf.maximum(norms, limit)
  return used, tf.where(used, factors, tf.zeros_like(norms))


def vectorized_clipped_sum(loss_fn: local_training.LossFn) -> ClippedSum:
  """The sum for any model: holds the gradients of all examples of a batch.

  Args:
    loss_fn: Mean loss of a model on a batch; it is called on single examples.
  """

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
    used, factors = scales(norms, present, clip)
    return [
      tf.reshape(
        tf.linalg.matvec(
          tf.where(used[:, tf.newaxis], gradient, 0), factors, transpose_a=True
        ),
        weight.shape,
      )
      for gradient, weight in zip(gradients, weights, strict=True)
    ]

  return clipped_sum


def _pad(tensor: tf.Tensor, padding: tf.Tensor) -> tf.Tensor:
  paddings = [[0, padding]] + [[0, 0]] * (len(tensor.shape) - 1)
  return tf.pad(tensor, paddings)


def clipped_mean_gradient(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  example_l2_norm_clip: float,
  microbatch_size: int = MICROBATCH_SIZE,
) -> list[tf.Tensor]:
  """Mean over the examples of their gradients, each clipped to norm C_g.

  Args:
    clipped_sum: How to sum over a microbatch.
    weights: Float tensors of static shapes.
    features: Tensor [n, ...].
    labels: Tensor [n].
    example_l2_norm_clip: C_g > 0. The norm is over all weights together; what
      is clipped ends `CLIP_FACTOR` times as long.
    microbatch_size: How many examples are worked on at a time.

  Returns:
    Tensors of the shapes of `weights`; an example whose gradient is not finite
    counts as zero. Replacing one example moves them by at most 2 C_g / n.
  """
  weights = list(weights)
  num_examples = tf.shape(labels)[0]
  num_microbatches = (num_examples + microbatch_size - 1) // microbatch_size
  padding = num_microbatches * microbatch_size - num_examples
  features, labels = _pad(features, padding), _pad(labels, padding)

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
    (tf.constant(0), [tf.zeros_like(weight) for weight in weights]),
  )
  return [total / tf.cast(num_examples, total.dtype) for total in list(totals)]
