"""Clients under attack: a data set D and its neighbour D', one example apart.

  digits    real digits; the example that differs is a white picture, in D of
            the one class and in D' of the other
  outlier   the scalar loss (w - x)^2 / 2; all x are 0 but one, +10 n or -10 n

Both examples pull the model in opposite directions, as far as any example of
the client can: the worst case that a guarantee has to cover.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import datasets, functional, local_training

# (features [n, ...], labels [n])
Data = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ClientPair:
  """Two data sets that differ in their first example, and their model.

  Attributes:
    name: What the client is called.
    description: The example that differs, in words.
    model: The model; training starts from its initial weights.
    loss: Mean loss of (labels [n], outputs [n, ...]).
    data: D.
    alternative: D', equal to D but for example 0.
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
          'alternative must be equal to data but for its first example'
        )

  @property
  def examples(self) -> int:
    """n, of either data set."""
    return len(self.data[1])

  @property
  def common(self) -> Data:
    """The n - 1 examples of both data sets."""
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


def digits(examples: int) -> ClientPair:
  """A client that tells digits below five from the others.

  The model is a softmax over the two classes of a linear function of the 64
  pixels, so that the loss is convex. The picture that differs is white: its
  norm of 8 is the largest that pixels in [0, 1] allow. Of two classes, its
  gradients in D and D' are exactly opposite.

  Args:
    examples: n, from 2 to 1,437; the first of the training part.

  Raises:
    ValueError: If there are not so many.
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


def outlier(examples: int) -> ClientPair:
  """A client with one example far off: the loss (w - x)^2 / 2, w a number.

  The mean of the x is +10 or -10. After a step with learning rate 1 Algorithm 1
  is at w = +C or -C (for C up to 10): the two uploads are 2 C apart, where the
  paper's sensitivity is 2 C / n.

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
  'digits': digits,
  'outlier': outlier,
}
