"""Models by name: those of `models`, or your own in a file saved by Keras.

Like a program, a file must come from somebody you trust. Its model must have
one input and one output, and no non-trainable weights. If it uses your own
classes, name their module with `--import`:

  my_model.save('mine.keras')
  settings = TrainingSettings(model='keras:mine.keras')
"""

import functools
import json
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import functional, models, own_model

_FILE = 'keras:'


def find(name: str) -> models.ModelSpec:
  """Finds the spec for a name: a key of `models.MODELS`, or keras:PATH.

  The loss of a file's model is the cross-entropy of its classes, or of its
  sigmoid; for one score it is the hinge loss. A softmax or sigmoid at the end
  is left to the loss, as in `own_model`.

  Raises:
    ValueError: If there is no such spec, or the file does not hold a model.
  """
  if name in models.MODELS:
    return models.MODELS[name]
  path = pathlib.Path(str(name).removeprefix(_FILE))
  # Other formats contain code that Keras runs.
  if path.suffix != '.keras' or not path.is_file():
    raise ValueError(
      f'model must be one of {", ".join(models.MODELS)} or {_FILE}PATH of an '
      f'existing .keras file, got {name!r}'
    )
  file = _File(path)
  return models.ModelSpec(name, file.build, file.loss)


class _File:
  """A model file, from which similar models can be built.

  Attributes:
    loss: The loss that they are trained with.
  """

  def __init__(self, path: pathlib.Path):
    self._load = functools.partial(load_file, path)
    self._own: dict[tuple[int, ...], own_model.OwnModel] = {}
    model = self._load()
    self._outputs = model.output_shape[-1]
    loss = None
    if self._outputs == 1 and own_model.layer_of_the_loss(model) is None:
      loss = 'hinge'
    self.loss = own_model.loss_of(loss, self._outputs)

  def build(
    self, input_shape: Sequence[int], num_classes: int, seed: int
  ) -> tf.keras.Model:
    """Builds the model for examples of a shape.

    Raises:
      ValueError: If the shape or the number of classes does not fit the model.
    """
    input_shape = tuple(input_shape)
    if input_shape not in self._own:
      self._own[input_shape] = own_model.OwnModel(
        self._load, input_shape, self.loss
      )
    own = self._own[input_shape]
    if (own.input_shape, own.num_classes) != (input_shape, num_classes):
      outputs = 1 if num_classes == 2 == own.num_classes else num_classes
      raise ValueError(
        f'model must map {(None, *input_shape)} to {(None, outputs)}, got a '
        f'file that maps {(None, *own.input_shape)} to {(None, self._outputs)}'
      )
    return own.spec.build(input_shape, num_classes, seed)


_OF_KERAS = ('keras', 'tensorflow')


def load_file(path: pathlib.Path) -> tf.keras.Model:
  """Loads a model with one input and one output.

  Args:
    path: A `.keras` file.

  Raises:
    ValueError: If it holds no such model; the message tells what to do.
  """
  try:
    with functional.unfused():
      model = tf.keras.models.load_model(path, compile=False, safe_mode=True)
  # Keras raises anything from OSError to KeyError.
  except Exception as error:
    own = dict(_own_classes(path))
    if own:
      raise ValueError(_cure(path, own)) from error
    raise ValueError(
      f'model must be a file that Keras saved, got {str(path)!r}: '
      f'{_validate.failure(error)}'
    ) from error
  if not model.built or not model.weights:
    raise ValueError(
      'model must be called or built before it is saved, so that it has'
      ' weights, for example by model.build((None, 8, 8, 1)), got'
      f' {str(path)!r}'
    )
  _check_one('input', _input_shape(model))
  try:
    symbolic = model.input_shape[0] is None and bool(model.output_shape)
  except AttributeError:  # Keras has no graph of a user's class.
    symbolic = False
  if not symbolic:
    inputs = tf.keras.Input(tuple(_input_shape(model))[1:])
    model = tf.keras.Model(inputs, model(inputs))
  _check_one('output', model.output_shape)
  return model


def _input_shape(model: tf.keras.Model) -> Any:
  """The shape a model was built for; Keras 3 does not know it for graphs."""
  shape = model.get_build_config().get('input_shape')
  return model.input_shape if shape is None else shape


def _check_one(what: str, shapes: Any) -> None:
  """Checks that a shape is that of one array [n, ...], not of several."""
  parts = [*shapes.values()] if isinstance(shapes, dict) else shapes
  if any(isinstance(part, list | tuple | dict) for part in parts):
    raise ValueError(
      f'model must have one {what}, got {len(parts)}: its input and its output'
      ' must each be one array, which it can split or join'
    )


def _own_classes(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields classes in the file that are not Keras's, with their modules."""
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
    'model must consist of classes that Keras finds, got'
    f' {", ".join(own)[:100]} in {str(path)!r}: decorate them with'
    ' @tf.keras.saving.register_keras_serializable(), save the model again,'
    f' and name their module: --import={",".join(modules)[:100] or "MODULE"}'
  )
