"""The paper's models as Keras models, with their losses.

A model of your own is a file that Keras saved, `keras:PATH.keras`; like any
program, only from somebody you trust. It must have one input and one output, no
non-trainable weights, and give scores before any softmax; a module with classes
of its own is named by `--import`:

  my_model.save('mine.keras')
  settings = TrainingSettings(model='keras:mine.keras')
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from tvdp_tf.learning import model_files, model_sizes


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """How to build a model, and the loss that it is trained with.

  Attributes:
    name: The word of `--model`.
    build: (input shape, number of classes, seed) -> an uncompiled Keras model
      of outputs [n, classes], or [n, 1] for the score of the second of two
      classes; equal arguments give equal weights.
    loss: Keras loss of (labels [n], outputs [n, classes]), averaged over n.
    l2_regularization: lambda: training adds lambda/2 ||w||^2 to the loss. It
      does not depend on the data, so it is added beside clipping and noise.
  """

  name: str
  build: Callable[[Sequence[int], int, int], tf.keras.Model]
  loss: tf.keras.losses.Loss
  l2_regularization: float = 0.0


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
  """A linear support vector machine: one score, its sign the class.

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
  """A softmax regression: one layer, from zero, without a bias.

  A bias would take up half of the norm that gradients are clipped to, where
  features have norm 1. Features that need one hold a constant.
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
  """The cross-entropy of a softmax of scores [n, classes] and labels [n].

  A label that is no class has no gradient. TensorFlow's own op fails on it, and
  its message shows the labels of all examples.
  """

  def __init__(self):
    super().__init__(from_logits=True)

  def call(self, labels, scores):
    """The loss of each example, [n]."""
    labels = tf.reshape(labels, [-1])
    known = tf.logical_and(labels >= 0, labels < scores.shape[-1])

    def kept(tensor):
      # By rows: `tf.where`, which broadcasts, takes several times as long.
      return tf.raw_ops.Select(
        condition=known, x=tensor, y=tf.zeros_like(tensor)
      )

    return super().call(kept(labels), kept(scores))


def _cross_entropy() -> tf.keras.losses.Loss:
  return CrossEntropyLoss()


class HingeLoss(tf.keras.losses.Loss):
  """mean(max(0, 1 - y s)), y = -1 or +1 for labels 0 and 1."""

  def call(self, labels, scores):
    """The loss of each example, [n], of labels [n] and scores [n, 1]."""
    signs = 2 * tf.cast(tf.reshape(labels, [-1]), scores.dtype) - 1
    return tf.nn.relu(1 - signs * tf.squeeze(scores, axis=-1))


class LogisticLoss(tf.keras.losses.Loss):
  """The cross-entropy of a sigmoid of scores [n, 1] and labels 0 or 1, [n]."""

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
_FILE = 'keras:'


def find(name: str) -> ModelSpec:
  """The spec of a name: a key of `MODELS`, or keras:PATH.

  The loss of a file's model is the cross-entropy of its classes, or the hinge
  loss of a single score.

  Raises:
    ValueError: If there is none, or the file does not hold a model.
  """
  if name in MODELS:
    return MODELS[name]
  path = pathlib.Path(str(name).removeprefix(_FILE))
  # Other formats hold code that Keras runs.
  if path.suffix != '.keras' or not path.is_file():
    raise ValueError(
      f'model must be one of {", ".join(MODELS)} or {_FILE}PATH of a .keras '
      f'file, got {name!r}'
    )
  outputs = model_files.load(path).output_shape[-1]
  loss = HingeLoss() if outputs == 1 else _cross_entropy()
  return ModelSpec(name, functools.partial(_from_file, path), loss)


def _from_file(
  path: pathlib.Path, input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  del seed  # The weights are those of the file.
  model = model_files.load(path)
  outputs = (
    1 if num_classes == 2 and model.output_shape[-1] == 1 else num_classes
  )
  expected = ((None, *input_shape), (None, outputs))
  if (model.input_shape, model.output_shape) != expected:
    raise ValueError(
      f'model must map {expected[0]} to {expected[1]}, got a file that maps '
      f'{model.input_shape} to {model.output_shape}'
    )
  last = getattr(model.layers[-1], 'activation', None)
  if last not in (None, tf.keras.activations.linear):
    raise ValueError(
      'model must end in scores, without an activation, got '
      f'{getattr(last, "__name__", last)}'
    )
  return model
