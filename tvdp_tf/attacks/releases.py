"""Simulates one client's uploads in a round, many times over.

The client has a data set D or the neighboring data set D', which differ in one
example:

  digits    real digits; the example that differs is a white picture, with one
            class in D and the other class in D'
  outlier   the scalar loss (w - x)^2 / 2; all x are 0 but one, +10 n or -10 n

The two examples pull the model in opposite directions, as far as any example of
the client can: the worst case that a guarantee has to cover.

Every upload is computed by the functions that train:
`local_training.local_steps` and `noise.perturb`, or
`private_training.private_local_steps` on the clipped sums that training uses.
To run thousands of trials at once, the weights are stacked, one copy per trial.
The noise is drawn for the whole stack, so each trial has independent noise.
Gradients are computed for each copy separately.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate, mechanisms
from tvdp_tf.learning import (
  clipping,
  datasets,
  functional,
  ghost_clipping,
  ghost_list,
  local_training,
  noise,
  private_training,
)

# (features [n, ...], labels [n])
Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ClientPair:
  """Two data sets that differ in their first example, and their model.

  Attributes:
    name: Name of the client.
    description: A description of the example that differs.
    model: The model; training starts from its initial weights.
    loss: Mean loss of (labels [n], outputs [n, ...]).
    data: D.
    alternative: D', equal to D except for example 0.
  """

  name: str
  description: str
  model: functional.FunctionalModel
  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  data: Data
  alternative: Data

  def __post_init__(self):
    for mine, other in zip(self.common, self.alternative, strict=True):
      if not np.array_equal(mine, other[1:]):
        raise ValueError(
          'alternative must be equal to data except for its first example'
        )

  @property
  def examples(self) -> int:
    """n, the size of either data set."""
    return len(self.data[1])

  @property
  def common(self) -> Data:
    """The n - 1 examples that both data sets share."""
    features, labels = self.data
    return features[1:], labels[1:]

  @property
  def loss_fn(self) -> local_training.LossFn:
    """The loss as a function of the weights."""

    def loss_fn(weights, features, labels):
      return self.loss(labels, self.model(weights, features, training=True))

    return loss_fn


def _linear_model(inputs: int, outputs: int, use_bias: bool):
  model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=(inputs,)),
      tf.keras.layers.Dense(
        outputs, use_bias=use_bias, kernel_initializer='zeros'
      ),
    ]
  )
  return functional.FunctionalModel(model)


def _replaced(values: np.ndarray, first) -> np.ndarray:
  result = values.copy()
  result[0] = first
  return result


def digits_pair(examples: int) -> ClientPair:
  """Returns a client that distinguishes digits below five from the others.

  The model is a softmax over two classes of a linear function of the 64 pixels,
  so the loss is convex. The picture that differs is white: its norm of 8 is the
  largest that pixels in [0, 1] allow. With two classes, its gradients in D and
  D' are exactly opposite.

  Args:
    examples: n, from 2 to 1,437; the first examples of the training part.

  Raises:
    ValueError: If there are not that many examples.
  """
  dataset = datasets.load('digits')
  features = np.reshape(dataset.train_features, (len(dataset.train_labels), -1))
  examples = _validate.integer('examples', examples, 2, len(features))
  features = _replaced(features[:examples], 1.0)
  labels = (dataset.train_labels[:examples] >= 5).astype(np.int32)
  return ClientPair(
    name='digits',
    description='a white picture, labelled "below five" or "five and above"',
    model=_linear_model(features.shape[1], 2, use_bias=True),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    data=(features, _replaced(labels, 0)),
    alternative=(features, _replaced(labels, 1)),
  )


def _half_squared_error(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(tf.square(outputs[:, 0] - labels)) / 2


def outlier_pair(examples: int) -> ClientPair:
  """Returns a client with one outlier; the loss is (w - x)^2 / 2, w a number.

  The mean of the x is +10 or -10. After a step with learning rate 1, Algorithm
  1 is at w = +C or -C (for C up to 10): the two uploads are 2 C apart, while
  the paper's sensitivity is 2 C / n.

  Args:
    examples: n >= 2.

  Raises:
    ValueError: If there are fewer.
  """
  examples = _validate.integer('examples', examples, 2)
  features = np.ones([examples, 1], np.float32)
  points = np.zeros([examples], np.float32)
  return ClientPair(
    name='outlier',
    description=f'+{10 * examples} or -{10 * examples}, all others are 0',
    model=_linear_model(1, 1, use_bias=False),
    loss=_half_squared_error,
    data=(features, _replaced(points, 10 * examples)),
    alternative=(features, _replaced(points, -10 * examples)),
  )


CLIENTS: dict[str, Callable[[int], ClientPair]] = {
  'digits': digits_pair,
  'outlier': outlier_pair,
}


def _signature(pair: ClientPair) -> list[tf.TensorSpec]:
  """Returns the signature of data sets with any number of examples."""
  return [
    tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in pair.data
  ]


def _stack(weights: local_training.Weights, trials: int) -> list[tf.Tensor]:
  return [
    tf.tile(w[tf.newaxis], [trials] + [1] * len(w.shape)) for w in weights
  ]


def flatten(weights: local_training.Weights, trials: int = 1) -> np.ndarray:
  """Flattens stacked weights to rows, float64 [trials, d]."""
  rows = [np.reshape(weight, [trials, -1]) for weight in weights]
  return np.concatenate(rows, axis=1).astype(np.float64)


class Releases(abc.ABC):
  """One client's uploads under a mechanism.

  Attributes:
    pair: The client.
  """

  def __init__(self, pair: ClientPair, mechanism: mechanisms.GraphMechanism):
    self.pair = pair
    self._mechanism = mechanism

  def noise_stddev(self, round_number: int) -> float:
    """Noise standard deviation of each value released in a round (from 1)."""
    return self._mechanism.client_stddev(round_number, self.pair.examples)

  @abc.abstractmethod
  def upload_variance(self, noise_stddev: float) -> float:
    """Variance of the noise in each uploaded value, without feedback."""

  @abc.abstractmethod
  def noiseless(
    self, weights: local_training.Weights, data: Data
  ) -> list[tf.Tensor]:
    """Trains the local model from the global one, without noise."""

  @abc.abstractmethod
  def uploads(
    self,
    weights: local_training.Weights,
    data: Data,
    noise_stddev: float,
    noise_key: np.ndarray,
    trials: int,
  ) -> list[tf.Tensor]:
    """Computes independent uploads in one round.

    Args:
      weights: The global model.
      data: The client's data.
      noise_stddev: As returned by `noise_stddev`, or a replacement.
      noise_key: int64 [2], only for this call.
      trials: Number of uploads.

    Returns:
      The uploads, stacked: tensors [trials, ...].
    """


class ModelReleases(Releases):
  """Algorithm 1: projected full-batch steps, then noise on the parameters."""

  def __init__(
    self,
    pair: ClientPair,
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
    # Only the noise is random.
    stacked = _stack(self.noiseless(weights, data), trials)
    return self._perturb(
      stacked, tf.constant(noise_stddev, tf.float64), tf.constant(noise_key)
    )


def _clipped_sum(pair: ClientPair) -> clipping.ClippedSum:
  """Sums like training: by ghost clipping, if it supports the model."""
  loss = pair.loss
  if isinstance(loss, tf.keras.losses.Loss) and ghost_list.supports(
    pair.model, loss
  ):
    return ghost_clipping.ghost_clipped_sum(pair.model, loss)
  return clipping.vectorized_clipped_sum(pair.loss_fn)


def _for_each_model(clipped_sum: clipping.ClippedSum) -> clipping.ClippedSum:
  """Computes the sums of stacked models, each on the same examples."""

  @tf.function(autograph=False)
  def stacked_sum(weights, features, labels, present, clip):
    def sum_of_one(model_weights):
      return clipped_sum(model_weights, features, labels, present, clip)

    return tf.vectorized_map(sum_of_one, list(weights), warn=False)

  return stacked_sum


class GradientReleases(Releases):
  """Noise on the clipped mean gradient of every local step.

  The server only sees the local model after the last step.
  """

  def __init__(
    self,
    pair: ClientPair,
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
    """Variance of the sum of tau noises, each times eta."""
    return self._local_steps * (self._learning_rate * noise_stddev) ** 2

  def noiseless(self, weights, data):
    trained = self.uploads(weights, data, 0.0, np.zeros([2], np.int64), 1)
    return [weight[0] for weight in trained]

  def uploads(self, weights, data, noise_stddev, noise_key, trials):
    stacked = _stack(weights, trials)
    if trials not in self._traces:
      # One trace for any number of examples.
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
  pair: ClientPair,
  mechanism: mechanisms.GraphMechanism,
  local_steps: int,
  learning_rate: float,
) -> Releases:
  """Builds the client's uploads under the mechanism.

  Raises:
    ValueError: If they cannot be simulated.
  """
  simulated = type(mechanism).simulated_releases()
  if not simulated:
    raise ValueError(
      'mechanism must have a graph of this library to audit one client, got'
      f' {type(mechanism).__name__}'
    )
  releases = _BY_NOISE[simulated]
  return releases(pair, mechanism, local_steps, learning_rate)
