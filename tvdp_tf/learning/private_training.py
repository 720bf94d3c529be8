"""Local steps on clipped, noisy gradients, in pure TensorFlow.

Algorithm 1 adds noise to the parameters once per round. Here, each local step
is a separate Gaussian release: per-example gradients are clipped to
`example_l2_norm_clip` (C_g), and noise is added to their mean. For any model,
one example moves that mean by at most 2 C_g / n, so this sensitivity is proven,
unlike the paper's.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import (
  clipping,
  discrete_gaussian,
  flat,
  local_training,
  noise,
)
from tvdp_tf.privacy import noise_distance, sensitivity

# Most values of discrete noise to draw at once; each takes a few times 8 bytes.
# One draw for all steps takes two thirds of the time of one draw per step.
_MOST_DRAWN = 2**20


def _share_of_grid(
  weights: local_training.Weights,
  labels: tf.Tensor,
  clip: tf.Tensor,
  noise_stddev: tf.Tensor,
  adjacency: str,
) -> tf.Tensor:
  """The share of the clip that rounding takes; an error if it is too large.

  See `noise_distance.rounding_of_grid`. It depends only on public numbers.
  """
  factor = 2 if adjacency == sensitivity.REPLACE_ONE else 1
  moved = factor * clip / tf.cast(tf.shape(labels)[0], tf.float64)
  share = noise_distance.rounding_of_grid(
    flat.size(weights), tf.cast(noise_stddev, tf.float64) / moved
  )
  fits = tf.debugging.assert_less_equal(
    share,
    tf.constant(noise_distance.LARGEST_ROUNDING, tf.float64),
    message='the noise multiplier is too large for discrete noise',
  )
  with tf.control_dependencies([] if fits is None else [fits]):
    return tf.identity(share)


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
  noise_distribution: str = noise.GAUSSIAN,
  adjacency: str = sensitivity.REPLACE_ONE,
) -> list[tf.Tensor]:
  """Runs `num_steps` gradient steps, each on a fresh noisy mean gradient.

  Args:
    clipped_sum: How the clipped gradients of the model are summed.
    weights: Float tensors, the global model w(m-1).
    features: Tensor [n, ...], all of the client's examples.
    labels: Tensor [n].
    num_steps: tau, the number of releases: at least 1 and at most
      `noise.MOST_RELEASES`.
    learning_rate: eta.
    example_l2_norm_clip: C_g.
    noise_stddev: Scalar, standard deviation of the noise on each value of the
      mean gradient.
    noise_key: int64 tensor [2], used only for this client in this round.
    l2_regularization: lambda of lambda/2 ||w||^2, whose gradient is added after
      the noise.
    microbatch_size: How many examples to process at a time.
    noise_distribution: As for `noise.perturb`. The rounding for discrete noise
      is deducted from the clip.
    adjacency: The adjacency that `noise_stddev` is calibrated for; see
      `clipping.flat_gradient_sum`.

  Returns:
    The local model, tensors of the shapes and dtypes of `weights`.

  Raises:
    ValueError: If there are too many steps.
  """
  _validate.integer('local_steps', num_steps, 1, noise.MOST_RELEASES)
  clip = tf.constant(example_l2_norm_clip, tf.float64)
  if noise_distribution == noise.DISCRETE_GAUSSIAN:
    clip *= 1 - _share_of_grid(weights, labels, clip, noise_stddev, adjacency)

  prepared = clipping.examples(clipped_sum, features, labels)
  drawn, size = None, flat.size(weights)
  if (
    noise_distribution == noise.DISCRETE_GAUSSIAN
    and num_steps * size <= _MOST_DRAWN
  ):
    drawn = discrete_gaussian.discrete_gaussian(noise_key, num_steps * size)
    drawn = tf.reshape(drawn, [num_steps, size])

  def step(index, current):
    mean = clipping.flat_mean_gradient(
      clipped_sum,
      current,
      prepared,
      example_l2_norm_clip=clip,
      microbatch_size=microbatch_size,
      adjacency=adjacency,
    )
    # Both mean and noise are float64.
    (noised,) = noise.perturb(
      [mean],
      noise_stddev,
      noise_key,
      release=index,
      distribution=noise_distribution,
      drawn=None if drawn is None else drawn[index],
    )
    return local_training.descend(
      current, flat.like(noised, current), learning_rate, l2_regularization
    )

  # A clipped sum and its noise are graphs of hundreds of ops. Unrolled, they
  # are no faster, but take seconds to trace and to optimize.
  return local_training.repeat(step, weights, num_steps, most_unrolled=1)


def batch_trainer(
  clipped_sum: clipping.ClippedSum,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float,
  example_l2_norm_clip: float,
  noise_distribution: str,
  adjacency: str,
) -> Callable[
  [local_training.Weights, Mapping[str, tf.Tensor], tf.Tensor], list[tf.Tensor]
]:
  """Returns a function that trains a client for one round.

  It runs `private_local_steps`; see there for the arguments.

  Args:
    clipped_sum: How the clipped gradients of the model are summed.
    local_steps: tau.
    learning_rate: eta.
    l2_regularization: lambda.
    example_l2_norm_clip: C_g.
    noise_distribution: As for `noise.perturb`.
    adjacency: As for `clipping.flat_gradient_sum`.

  Returns:
    A function (global weights, all of the client's data as a
    `federated.client_data.element`, noise multiplier) -> the local model.
  """

  def train(weights, batch, noise_multiplier):
    return private_local_steps(
      clipped_sum,
      weights,
      batch['x'],
      batch['y'],
      num_steps=local_steps,
      learning_rate=learning_rate,
      example_l2_norm_clip=example_l2_norm_clip,
      noise_stddev=noise_multiplier * batch['noise_scale'],
      noise_key=batch['noise_key'],
      l2_regularization=l2_regularization,
      noise_distribution=noise_distribution,
      adjacency=adjacency,
    )

  return train
