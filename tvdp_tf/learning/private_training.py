"""Local steps on clipped, noisy gradients, in pure TensorFlow.

Where Algorithm 1 adds noise to the parameters once a round, each local step
here is a Gaussian release of its own: per-example gradients are clipped to
`example_l2_norm_clip` (C_g) and their mean gets noise. Whatever the model, one
example moves that mean by at most 2 C_g / n, so the sensitivity is proven where
the paper's is not.
"""

import tensorflow as tf

from tvdp_tf.learning import local_training, noise

# Per-example gradients of so many examples are held at a time.
MICROBATCH_SIZE = 32

# Rounding in float32 must not carry a clipped gradient past the clip.
_BELOW_CLIP = 1 - 1e-6


def _clipped_sum(
  loss_fn: local_training.LossFn,
  weights: list[tf.Tensor],
  features: tf.Tensor,
  labels: tf.Tensor,
  present: tf.Tensor,
  example_l2_norm_clip: float,
) -> list[tf.Tensor]:
  """Sum of the clipped gradients of those examples that are present."""

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
  # An example whose gradient is not finite counts as zero: as a NaN it would
  # be seen through any noise.
  used = tf.logical_and(present, tf.math.is_finite(norms))
  clip = tf.constant(example_l2_norm_clip, norms.dtype)
  scales = tf.where(used, clip * _BELOW_CLIP / tf.maximum(norms, clip), 0)
  return [
    tf.reshape(
      tf.linalg.matvec(
        tf.where(used[:, tf.newaxis], gradient, 0), scales, transpose_a=True
      ),
      weight.shape,
    )
    for gradient, weight in zip(gradients, weights, strict=True)
  ]


def _pad(tensor: tf.Tensor, padding: tf.Tensor) -> tf.Tensor:
  paddings = [[0, padding]] + [[0, 0]] * (len(tensor.shape) - 1)
  return tf.pad(tensor, paddings)


def clipped_mean_gradient(
  loss_fn: local_training.LossFn,
  weights: local_training.Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  example_l2_norm_clip: float,
  microbatch_size: int = MICROBATCH_SIZE,
) -> list[tf.Tensor]:
  """Mean over the examples of their gradients, each clipped to norm C_g.

  Args:
    loss_fn: Mean loss of a model on a batch; it is called on single examples.
    weights: Float tensors of static shapes.
    features: Tensor [n, ...].
    labels: Tensor [n].
    example_l2_norm_clip: C_g > 0. The norm is over all weights together.
    microbatch_size: How many per-example gradients are held at a time.

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
    place = start + tf.range(microbatch_size)
    sums = _clipped_sum(
      loss_fn,
      weights,
      features[start : start + microbatch_size],
      labels[start : start + microbatch_size],
      place < num_examples,
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


def private_local_steps(
  loss_fn: local_training.LossFn,
  weights: local_training.Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  num_steps: int,
  learning_rate: float,
  example_l2_norm_clip: float,
  noise_stddev: tf.Tensor,
  noise_key: tf.Tensor,
  microbatch_size: int = MICROBATCH_SIZE,
) -> list[tf.Tensor]:
  """Runs `num_steps` gradient steps, each on a fresh noisy mean gradient.

  Args:
    loss_fn: Mean loss of a model on a batch.
    weights: Float tensors, the global model w(m-1).
    features: Tensor [n, ...], all of the client's examples.
    labels: Tensor [n].
    num_steps: tau, at least 1: as many releases.
    learning_rate: eta.
    example_l2_norm_clip: C_g.
    noise_stddev: Scalar, standard deviation of the noise on each value of the
      mean gradient.
    noise_key: int64 tensor [2], used for this client in this round alone.
    microbatch_size: How many per-example gradients are held at a time.

  Returns:
    The local model, tensors of the shapes and dtypes of `weights`.
  """

  def step(index, current):
    gradients = noise.perturb(
      clipped_mean_gradient(
        loss_fn,
        current,
        features,
        labels,
        example_l2_norm_clip=example_l2_norm_clip,
        microbatch_size=microbatch_size,
      ),
      noise_stddev,
      noise_key,
      release=index,
    )
    return [
      weight - tf.constant(learning_rate, weight.dtype) * gradient
      for weight, gradient in zip(current, gradients, strict=True)
    ]

  return local_training.repeat(step, weights, num_steps)
