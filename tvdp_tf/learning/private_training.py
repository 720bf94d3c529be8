"""Local steps on clipped, noisy gradients, in pure TensorFlow.

Where Algorithm 1 adds noise to the parameters once a round, each local step
here is a Gaussian release of its own: per-example gradients are clipped to
`example_l2_norm_clip` (C_g) and their mean gets noise. Whatever the model, one
example moves that mean by at most 2 C_g / n, so the sensitivity is proven where
the paper's is not.
"""

import tensorflow as tf

from tvdp_tf.learning import clipping, local_training, noise


def private_local_steps(
  clipped_sum: clipping.ClippedSum,
  weights: local_training.Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  num_steps: int,
  learning_rate: float,
  example_l2_norm_clip: float,
  noise_stddev: tf.Tensor,
  noise_key: tf.Tensor,
  l2_regularization: float = 0.0,
  microbatch_size: int = clipping.MICROBATCH_SIZE,
) -> list[tf.Tensor]:
  """Runs `num_steps` gradient steps, each on a fresh noisy mean gradient.

  Args:
    clipped_sum: How the clipped gradients of the model are summed.
    weights: Float tensors, the global model w(m-1).
    features: Tensor [n, ...], all of the client's examples.
    labels: Tensor [n].
    num_steps: tau, at least 1: as many releases.
    learning_rate: eta.
    example_l2_norm_clip: C_g.
    noise_stddev: Scalar, standard deviation of the noise on each value of the
      mean gradient.
    noise_key: int64 tensor [2], used for this client in this round alone.
    l2_regularization: lambda of lambda/2 ||w||^2, whose gradient is added after
      the noise.
    microbatch_size: How many examples are worked on at a time.

  Returns:
    The local model, tensors of the shapes and dtypes of `weights`.
  """

  def step(index, current):
    gradients = noise.perturb(
      clipping.clipped_mean_gradient(
        clipped_sum,
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
    return local_training.descend(
      current, gradients, learning_rate, l2_regularization
    )

  return local_training.repeat(step, weights, num_steps)
