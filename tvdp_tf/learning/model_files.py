"""Models that Keras saved: read, and checked to map features to scores."""

import json
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_OF_KERAS = ('keras', 'tensorflow')


def load(path: pathlib.Path) -> tf.keras.Model:
  """A model of one input and one output, whose shapes are known.

  Args:
    path: A `.keras` file.

  Raises:
    ValueError: If there is no such model in it, with what to do about it.
  """
  try:
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
