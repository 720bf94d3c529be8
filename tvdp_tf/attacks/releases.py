"""What one client uploads in a round, many times over.

Every upload comes from the functions that train: `local_training.local_steps`
and `noise.perturb`, or `private_training.private_local_steps` on the clipped
sums that training uses. To run thousands of trials at once the weights are
stacked, one copy a trial: the noise is drawn for the stack as for any other
weights, so that each trial has its own. Gradients are those of each copy alone.
"""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf import mechanisms
from tvdp_tf.attacks import client_pairs
from tvdp_tf.learning import (
  clipping,
  ghost_clipping,
  local_training,
  noise,
  private_training,
)


def _signature(pair: client_pairs.ClientPair) -> list[tf.TensorSpec]:
  """The signature of data sets with any number of examples."""
  return [
    tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in pair.data
  ]


def _stack(weights: local_training.Weights, trials: int) -> list[tf.Tensor]:
  return [
    tf.tile(w[tf.newaxis], [trials] + [1] * len(w.shape)) for w in weights
  ]


def flatten(weights: local_training.Weights, trials: int = 1) -> np.ndarray:
  """Stacked weights as rows, float64 [trials, d]."""
  rows = [np.reshape(weight, [trials, -1]) for weight in weights]
  return np.concatenate(rows, axis=1).astype(np.float64)


class Releases(abc.ABC):
  """One client's uploads under a mechanism.

  Attributes:
    pair: The client.
  """

  def __init__(
    self, pair: client_pairs.ClientPair, mechanism: mechanisms.GraphMechanism
  ):
    self.pair = pair
    self._mechanism = mechanism

  def noise_stddev(self, round_number: int) -> float:
    """Noise standard deviation of each value released in a round, from 1."""
    return self._mechanism.client_stddev(round_number, self.pair.examples)

  @abc.abstractmethod
  def upload_variance(self, noise_stddev: float) -> float:
    """Variance of the noise in each uploaded value, without feedback."""

  @abc.abstractmethod
  def noiseless(
    self, weights: local_training.Weights, data: client_pairs.Data
  ) -> list[tf.Tensor]:
    """The local model from the global one, without noise."""

  @abc.abstractmethod
  def uploads(
    self,
    weights: local_training.Weights,
    data: client_pairs.Data,
    noise_stddev: float,
    noise_key: np.ndarray,
    trials: int,
  ) -> list[tf.Tensor]:
    """So many independent uploads in one round.

    Args:
      weights: The global model.
      data: What the client holds.
      noise_stddev: As of `noise_stddev`, or what takes its place.
      noise_key: int64 [2], for this call alone.
      trials: How many.

    Returns:
      The uploads, stacked: tensors [trials, ...].
    """


class ModelReleases(Releases):
  """Algorithm 1: projected full-batch steps, then noise on the parameters."""

  def __init__(
    self,
    pair: client_pairs.ClientPair,
    mechanism: Any,
    local_steps: int,
    learning_rate: float,
  ):
    super().__init__(pair, mechanism)

    @tf.function(autograph=False)
    def train(weights, features, labels):
      return local_training.local_steps(
        pair.loss_fn,
        weights,
        features,
        labels,
        num_steps=local_steps,
        learning_rate=learning_rate,
        l2_norm_clip=mechanism.l2_norm_clip,
      )

    weights_spec = [
      tf.TensorSpec(w.shape, w.dtype) for w in pair.model.initial_weights
    ]
    self._train = train.get_concrete_function(weights_spec, *_signature(pair))
    self._perturb = tf.function(noise.perturb, autograph=False)

  def upload_variance(self, noise_stddev: float) -> float:
    return noise_stddev**2

  def noiseless(self, weights, data):
    return self._train(list(weights), *map(tf.constant, data))

  def uploads(self, weights, data, noise_stddev, noise_key, trials):
    # Nothing but the noise is random.
    stacked = _stack(self.noiseless(weights, data), trials)
    return self._perturb(
      stacked, tf.constant(noise_stddev, tf.float64), tf.constant(noise_key)
    )


def _clipped_sum(pair: client_pairs.ClientPair) -> clipping.ClippedSum:
  """Sums as training does: by ghost clipping where it knows the model."""
  loss = pair.loss
  if isinstance(loss, tf.keras.losses.Loss) and ghost_clipping.supports(
    pair.model, loss
  ):
    return ghost_clipping.ghost_clipped_sum(pair.model, loss)
  return clipping.vectorized_clipped_sum(pair.loss_fn)


def _for_each_model(clipped_sum: clipping.ClippedSum) -> clipping.ClippedSum:
  """The sums of stacked models, each on the same examples."""

  @tf.function(autograph=False)
  def stacked_sum(weights, features, labels, present, clip):
    def sum_of_one(model_weights):
      return clipped_sum(model_weights, features, labels, present, clip)

    return tf.vectorized_map(sum_of_one, list(weights), warn=False)

  return stacked_sum


class GradientReleases(Releases):
  """Noise on the clipped mean gradient of every local step.

  The server sees the local model after the last step only.
  """

  def __init__(
    self,
    pair: client_pairs.ClientPair,
    mechanism: Any,
    local_steps: int,
    learning_rate: float,
  ):
    super().__init__(pair, mechanism)
    self._local_steps = local_steps
    self._learning_rate = learning_rate
    clipped_sum = _for_each_model(_clipped_sum(pair))

    @tf.function(autograph=False)
    def train(weights, data, noise_stddev, noise_key):
      features, labels = data
      return private_training.private_local_steps(
        clipped_sum,
        weights,
        features,
        labels,
        num_steps=local_steps,
        learning_rate=learning_rate,
        example_l2_norm_clip=mechanism.example_l2_norm_clip,
        noise_stddev=noise_stddev,
        noise_key=noise_key,
      )

    self._train = train
    self._traces: dict[int, Callable] = {}

  def upload_variance(self, noise_stddev: float) -> float:
    """The variance of tau noises, each times eta."""
    return self._local_steps * (self._learning_rate * noise_stddev) ** 2

  def noiseless(self, weights, data):
    trained = self.uploads(weights, data, 0.0, np.zeros([2], np.int64), 1)
    return [weight[0] for weight in trained]

  def uploads(self, weights, data, noise_stddev, noise_key, trials):
    stacked = _stack(weights, trials)
    if trials not in self._traces:
      # One, whatever the number of examples.
      self._traces[trials] = self._train.get_concrete_function(
        [tf.TensorSpec(w.shape, w.dtype) for w in stacked],
        _signature(self.pair),
        tf.TensorSpec([], tf.float64),
        noise.NOISE_KEY_SPEC,
      )
    return self._traces[trials](
      stacked,
      [tf.constant(part) for part in data],
      tf.constant(noise_stddev, tf.float64),
      tf.constant(noise_key),
    )


_BY_NOISE: dict[str, Callable[..., Releases]] = {
  mechanisms.MODEL: ModelReleases,
  mechanisms.GRADIENTS: GradientReleases,
}


def build(
  pair: client_pairs.ClientPair,
  mechanism: mechanisms.GraphMechanism,
  local_steps: int,
  learning_rate: float,
) -> Releases:
  """The client's uploads under the mechanism."""
  releases = _BY_NOISE[mechanism.CLIENT_RELEASES]
  return releases(pair, mechanism, local_steps, learning_rate)
