"""The paper's models as Keras models, with their losses.

Your own model is a file saved by Keras, `keras:PATH.keras`. Like any program,
load it only from somebody you trust. It must have one input and one output, no
non-trainable weights, and return scores before any softmax. If it uses your own
classes, name their module with `--import`:

  my_model.save('mine.keras')
  settings = TrainingSettings(model='keras:mine.keras')
"""

import dataclasses
import functools
import json
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # No public name.

from tvdp_tf.learning import functional, model_sizes


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """How to build a model, and the loss that it is trained with.

  Attributes:
    name: The word of `--model`.
    build: (input shape, number of classes, seed) -> an uncompiled Keras model
      of outputs [n, classes], or [n, 1] for the score of the second of two
      classes; equal arguments give equal weights.
    loss: Keras loss of (labels [n], outputs [n, classes]), averaged over n;
      Keras's cross-entropy becomes one that takes `any_label`.
    l2_regularization: lambda: training adds lambda/2 ||w||^2 to the loss. It
      does not depend on the data, so it is added beside clipping and noise.
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

  def __init__(self, from_logits: bool = True, **kwargs):
    super().__init__(from_logits=from_logits, **kwargs)
    self._is_of_scores = from_logits and kwargs.get('ignore_class') is None

  def call(self, labels, scores):
    """The loss of each example, [n]."""
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)  # Keras 3 has floats.
    classes = tf.clip_by_value(labels, 0, scores.shape[-1] - 1)
    # By rows: `tf.where`, which broadcasts, takes several times as long. And
    # not by ==, which asks for identity in TFF's graphs.
    scores = tf.raw_ops.Select(
      condition=tf.equal(labels, classes), x=scores, y=tf.zeros_like(scores)
    )
    if self._is_of_scores and tf_config.is_op_determinism_enabled():
      # TensorFlow gathers by label then: a failing op on a GPU's way back.
      targets = tf.one_hot(classes, scores.shape[-1], dtype=scores.dtype)
      return tf.nn.softmax_cross_entropy_with_logits(targets, scores)
    return super().call(classes, scores)


def any_label(loss: tf.keras.losses.Loss) -> tf.keras.losses.Loss:
  """The loss itself, or `CrossEntropyLoss` in the place of Keras's own."""
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
      f'model must be one of {", ".join(MODELS)} or {_FILE}PATH of an existing '
      f'.keras file, got {name!r}'
    )
  outputs = load_file(path).output_shape[-1]
  loss = HingeLoss() if outputs == 1 else _cross_entropy()
  return ModelSpec(name, functools.partial(_from_file, path), loss)


def _from_file(
  path: pathlib.Path, input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  del seed  # The weights are those of the file.
  model = load_file(path)
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


_OF_KERAS = ('keras', 'tensorflow')


def load_file(path: pathlib.Path) -> tf.keras.Model:
  """A model of one input and one output, whose shapes are known.

  Args:
    path: A `.keras` file.

  Raises:
    ValueError: If there is no such model in it, with what to do about it.
  """
  try:
    with functional.unfused():
      model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
  # Keras fails with anything from OSError to KeyError.
  except Exception as error:
    own = dict(_own_classes(path))
    if own:
      raise ValueError(_cure(path, own)) from error
    raise ValueError(
      f'model must be a file that Keras saved, got {str(path)!r}: '
      f'{type(error).__name__}: {" ".join(str(error).split())[:200]}'
    ) from error
  if not model.built or not model.weights:
    raise ValueError(
      'model must have been called or built before it was saved, for it to '
      f'have weights: model.build((None, 8, 8, 1)), say; got {str(path)!r}'
    )
  _check_one('input', _input_shape(model))
  try:
    symbolic = model.input_shape[0] is None and bool(model.output_shape)
  except AttributeError:  # Of a class of one's own: Keras has no graph of it.
    symbolic = False
  if not symbolic:
    inputs = tf.keras.Input(tuple(_input_shape(model))[1:])
    model = tf.keras.Model(inputs, model(inputs))
  _check_one('output', model.output_shape)
  return model


def _input_shape(model: tf.keras.Model) -> Any:
  """What a model was built for; Keras 3 does not say it of a graph."""
  shape = model.get_build_config().get('input_shape')
  return model.input_shape if shape is None else shape


def _check_one(what: str, shapes: Any) -> None:
  """Checks that a shape is of one array [n, ...], not several of them."""
  parts = [*shapes.values()] if isinstance(shapes, dict) else shapes
  if any(isinstance(part, list | tuple | dict) for part in parts):
    raise ValueError(
      f'model must have one {what}, got {len(parts)}: one array holds all that '
      'belongs to an example, and the model takes it apart'
    )


def _own_classes(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Classes in the file that Keras does not bring, with their modules."""
  try:
    with zipfile.ZipFile(path) as file:
      found = [json.loads(file.read('config.json'))]
  except (OSError, ValueError, KeyError, RecursionError, zipfile.BadZipFile):
    return
  while found:
    value = found.pop()
    if isinstance(value, dict):
      module, name = value.get('module'), value.get('class_name')
      own = isinstance(module, str) and module.split('.')[0] not in _OF_KERAS
      if own and isinstance(name, str):
        yield name, str(module)
      found += value.values()
    elif isinstance(value, list):
      found += value


def _cure(path: pathlib.Path, own: dict[str, str]) -> str:
  modules = sorted({*own.values()} - {'__main__'})
  return (
    f'model must be of classes that Keras finds, got {", ".join(own)[:100]} in '
    f'{str(path)!r}: decorate them with '
    '@tf.keras.saving.register_keras_serializable(), save the model again, and '
    f'name their module: --import={",".join(modules)[:100] or "MODULE"}'
  )
