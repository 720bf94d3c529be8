"""The paper's models as Keras models, with their losses."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # No public name.

from tvdp_tf.learning import model_sizes


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """How to build a model, and the loss that it is trained with.

  Attributes:
    name: The value of `--model`.
    build: (input shape, number of classes, seed) -> an uncompiled Keras model
      with outputs [n, classes], or [n, 1] for the score of the second of two
      classes; equal arguments give equal weights.
    loss: Keras loss of (labels [n], outputs [n, classes]), averaged over n;
      Keras's cross-entropy is replaced by one that accepts `any_label`.
    l2_regularization: lambda: training adds lambda/2 ||w||^2 to the loss. The
      term does not depend on the data, so it bypasses clipping and noise.
  """

  name: str
  build: Callable[[Sequence[int], int, int], tf.keras.Model]
  loss: tf.keras.losses.Loss
  l2_regularization: float = 0.0

  def __post_init__(self):
    object.__setattr__(self, 'loss', any_label(self.loss))


def build_mlp(
  input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  """The paper's MLP: 32 linear hidden units, then a softmax over the classes.

  The model's outputs are logits; the softmax is in the loss, where it is
  numerically stable. 784-32-10 for MNIST: 25,450 parameters.
  """

  def initializer(offset):
    return tf.keras.initializers.GlorotUniform(seed=seed + offset)

  return tf.keras.Sequential(
    [
      tf.keras.Input(tuple(input_shape)),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(
        32, name='hidden', kernel_initializer=initializer(0)
      ),
      tf.keras.layers.Dense(
        num_classes, name='logits', kernel_initializer=initializer(1)
      ),
    ],
    name='mlp',
  )


def build_svm(
  input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  """A linear support vector machine: the sign of one score is the class.

  Raises:
    ValueError: If there are not two classes.
  """
  model_sizes.check_svm(num_classes)
  del seed  # The problem is convex: it starts from zero.
  return tf.keras.Sequential(
    [
      tf.keras.Input(tuple(input_shape)),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(1, name='score', kernel_initializer='zeros'),
    ],
    name='svm',
  )


def build_linear(
  input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  """Softmax regression: one layer that starts from zero, without a bias.

  With features of norm 1, a bias would take up half of the norm that gradients
  are clipped to. Features that need a bias contain a constant.
  """
  del seed  # The problem is convex.
  return tf.keras.Sequential(
    [
      tf.keras.Input(tuple(input_shape)),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(
        num_classes, use_bias=False, name='logits', kernel_initializer='zeros'
      ),
    ],
    name='linear',
  )


def build_cnn(
  input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  """The paper's CNN: two 5x5 convolutions, three dense layers, ReLU.

  The paper gives no widths. These are LeNet-5's: 6 and 16 maps, each pooled
  2x2, then 120 and 84 units.

  Raises:
    ValueError: If the input is not an image [height, width, channels] of at
      least 16 x 16.
  """
  model_sizes.check_cnn(input_shape)
  layers = tf.keras.layers

  def initializer(offset):
    return tf.keras.initializers.GlorotUniform(seed=seed + offset)

  def dense(units, offset, activation=None):
    return layers.Dense(
      units, activation, kernel_initializer=initializer(offset)
    )

  def convolution(filters, offset):
    return layers.Conv2D(
      filters, 5, activation='relu', kernel_initializer=initializer(offset)
    )

  return tf.keras.Sequential(
    [
      tf.keras.Input(tuple(input_shape)),
      convolution(6, 0),
      layers.MaxPool2D(),
      convolution(16, 1),
      layers.MaxPool2D(),
      layers.Flatten(),
      dense(120, 2, 'relu'),
      dense(84, 3, 'relu'),
      dense(num_classes, 4),
    ],
    name='cnn',
  )


class CrossEntropyLoss(tf.keras.losses.SparseCategoricalCrossentropy):
  """The softmax cross-entropy of scores [n, classes] and labels [n].

  A label that is not a class has a zero gradient. TensorFlow's own op would
  fail on it, with a message that shows the labels of all examples.
  """

  def __init__(self, from_logits: bool = True, **kwargs):
    super().__init__(from_logits=from_logits, **kwargs)
    self._is_of_scores = from_logits and kwargs.get('ignore_class') is None

  def call(self, labels, scores):
    """The loss of each example, [n]."""
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)  # Floats in Keras 3.
    classes = tf.clip_by_value(labels, 0, scores.shape[-1] - 1)
    # `tf.where`, which broadcasts, takes several times as long as `Select`, and
    # == compares identity in TFF's graphs.
    scores = tf.raw_ops.Select(
      condition=tf.equal(labels, classes), x=scores, y=tf.zeros_like(scores)
    )
    if self._is_of_scores and tf_config.is_op_determinism_enabled():
      # In this mode TensorFlow gathers by label: its gradient fails on a GPU.
      targets = tf.one_hot(classes, scores.shape[-1], dtype=scores.dtype)
      return tf.nn.softmax_cross_entropy_with_logits(targets, scores)
    return super().call(classes, scores)


def any_label(loss: tf.keras.losses.Loss) -> tf.keras.losses.Loss:
  """Returns the loss, or `CrossEntropyLoss` in place of Keras's own."""
  if type(loss) is tf.keras.losses.SparseCategoricalCrossentropy:
    config = loss.get_config()
    names = ('from_logits', 'ignore_class', 'reduction', 'name')
    return CrossEntropyLoss(
      **{name: config[name] for name in names if name in config}
    )
  return loss


def _cross_entropy() -> tf.keras.losses.Loss:
  return CrossEntropyLoss()


class HingeLoss(tf.keras.losses.Loss):
  """mean(max(0, 1 - y s)), y = -1 or +1 for labels 0 and 1."""

  def call(self, labels, scores):
    """The loss of each example, [n], for labels [n] and scores [n, 1]."""
    signs = 2 * tf.cast(tf.reshape(labels, [-1]), scores.dtype) - 1
    return tf.nn.relu(1 - signs * tf.squeeze(scores, axis=-1))


class LogisticLoss(tf.keras.losses.Loss):
  """The sigmoid cross-entropy of scores [n, 1] and labels 0 or 1, [n]."""

  def call(self, labels, scores):
    """The loss of each example, [n]."""
    signs = 2 * tf.cast(tf.reshape(labels, [-1]), scores.dtype) - 1
    return tf.nn.softplus(-signs * tf.squeeze(scores, axis=-1))


MODELS = {
  spec.name: spec
  for spec in (
    ModelSpec(name='mlp', build=build_mlp, loss=_cross_entropy()),
    ModelSpec(
      name='svm', build=build_svm, loss=HingeLoss(), l2_regularization=1e-3
    ),
    ModelSpec(name='cnn', build=build_cnn, loss=_cross_entropy()),
    ModelSpec(name='linear', build=build_linear, loss=_cross_entropy()),
  )
}
