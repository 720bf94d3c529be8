"""Exports a trained model as files that do not need this library.

  model/              a SavedModel, for TF Serving and `tf.saved_model.load`
  model/model.keras   the same model as a Keras file, for Keras 2 and 3

The SavedModel's signature `serving_default` takes `features` and returns
`class_scores` (the outputs of the model: logits, or the score of the second of
two classes) and `predicted_class`. Both contain two JSON files, the SavedModel
in `assets.extra/`, the Keras file as members of its zip archive:

  model_spec.json   types and shapes of the signature; the features it takes
  privacy.json      the privacy statement of the training, if there is one

Keras 3 loads the Keras files of most models, too (`_for_both`). For attention,
and for operators between layers, load the SavedModel with `TFSMLayer`.

The files do not depend on the process that wrote them, or on the time: equal
weights and notes give equal files. TensorFlow numbers functions and tensors,
and Keras numbers unnamed layers, by counters of the process. In a model's files
these numbers would reveal how many there were before: how many clients took
part, how many different sizes their data had, or which of several runs was
chosen (`best_run`). These may be secrets.
"""

import contextlib
import copy
import inspect
import json
import logging as python_logging
import pathlib
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import ops

from tvdp_tf import _environment
from tvdp_tf.learning import evaluation, functional, models
from tvdp_tf.learning import features as features_lib
from tvdp_tf.output import files

SPEC = 'model_spec.json'
STATEMENT = 'privacy.json'
KERAS = 'model.keras'
# In Keras's format: the earliest date that a zip archive can have.
_DATE_SAVED = '1980-01-01@00:00:00'
# What Keras raises for a model that it cannot write; disk errors differ.
_UNWRITABLE = (
  *(AssertionError, AttributeError, LookupError, NotImplementedError),
  *(TypeError, ValueError),
)


def save_model(
  path: pathlib.Path,
  spec: models.ModelSpec,
  input_shape: Sequence[int],
  num_classes: int,
  weights: Sequence,
  statement: Mapping[str, Any] | None = None,
  features: str = features_lib.NONE,
) -> None:
  """Writes a SavedModel, with a Keras file in it.

  If Keras cannot write a model to its own format, only the SavedModel is
  written, with a warning in the log. If Keras cannot write it as a SavedModel
  either, that contains only the signature and the weights. Custom layers need
  their code to load the Keras file; the SavedModel does not.

  Args:
    path: The folder to create, atomically.
    spec: The model's spec.
    input_shape: Shape of one example.
    num_classes: Number of classes.
    weights: The trained weights, in Keras's order.
    statement: The privacy statement, ready for `json.dumps`.
    features: The features that the inputs consist of (`learning.features`).
  """
  least = _draw_high()
  with (
    _names_from_the_start(),
    functional.unfused(),
    files.replaced(path) as temporary,
  ):
    model = spec.build(input_shape, num_classes, 0)
    for variable, weight in zip(model.weights, weights, strict=True):
      variable.assign(weight)
    serve = _serving_function(model)
    notes = {SPEC: _model_spec(spec.name, features, serve)}
    if statement is not None:
      notes[STATEMENT] = files.json_text(statement)
    # TensorFlow warns that the model is not compiled, which is intended.
    with _environment.tensorflow_logs_from(python_logging.ERROR):
      _save_saved_model(model, temporary, serve)
    _renumber_drawn(temporary, least)
    extra = temporary / 'assets.extra'
    extra.mkdir()
    for name, text in notes.items():
      (extra / name).write_text(text, encoding='utf-8')
    _save_keras(model, temporary / KERAS, notes)
    if path.exists():
      shutil.rmtree(path)


@contextlib.contextmanager
def _names_from_the_start() -> Iterator[None]:
  """Makes Keras name layers as if it had built nothing before.

  At the end of the context, the counters are restored, so that code that builds
  a model around it gets no name twice.
  """
  # The counters have no public name.
  backend: Any = inspect.getmodule(tf.keras.backend.get_uid)
  of_layers = backend.PER_GRAPH_OBJECT_NAME_UIDS, backend.OBSERVED_NAMES
  before = [names.copy() for names in of_layers]
  for names in of_layers:
    names.clear()
  try:
    yield
  finally:
    for names, former in zip(of_layers, before, strict=True):
      names.clear()
      names.update(former)


def _serving_function(model: tf.keras.Model) -> tf.types.experimental.Callable:
  @tf.function(
    autograph=False,
    input_signature=[
      tf.TensorSpec(model.input_shape, model.inputs[0].dtype, name='features')
    ],
  )
  def serve(features):
    scores = model(features, training=False)
    return {
      'class_scores': scores,
      'predicted_class': evaluation.predicted_classes(scores, tf.int64),
    }

  return serve


def _in_one_line(error: Exception) -> str:
  return ' '.join(str(error).split())[:200]


def _save_saved_model(
  model: tf.keras.Model,
  path: pathlib.Path,
  serve: tf.types.experimental.Callable,
) -> None:
  try:
    model.save(
      path, save_format='tf', include_optimizer=False, signatures=serve
    )
  except _UNWRITABLE as error:
    logging.warning(
      'the SavedModel has only the signature, because Keras cannot write the'
      ' model: %s',
      _in_one_line(error),
    )
    shutil.rmtree(path, ignore_errors=True)
    served = tf.Module()
    served.weights = model.weights
    tf.saved_model.save(served, str(path), signatures=serve)


def _model_spec(
  name: str, features: str, serve: tf.types.experimental.Callable
) -> str:
  def words(spec):
    return {'dtype': spec.dtype.name, 'shape': spec.shape.as_list()}

  (example,) = serve.input_signature
  outputs = serve.get_concrete_function().structured_outputs
  described = {
    'model': name,
    'features': features,
    'inputs': {example.name: words(example)},
    'outputs': {key: words(outputs[key]) for key in sorted(outputs)},
  }
  return files.json_text(described)


# Options that Keras 2 writes but does not need, and Keras 3 does not know. A
# separable convolution has these for its depthwise and pointwise kernels.
_DEPTHWISE = ('DepthwiseConv1D', 'DepthwiseConv2D')
_SEPARABLE = ('SeparableConv1D', 'SeparableConv2D')
_NOT_IN_KERAS_3 = {
  'time_major': ('SimpleRNN', 'LSTM', 'GRU'),
  'groups': (*_DEPTHWISE, *_SEPARABLE),
  'kernel_initializer': _SEPARABLE,
  'kernel_regularizer': _SEPARABLE,
  'kernel_constraint': _SEPARABLE,
}
# Keras's number for an object that is used twice.
_SHARED = 'shared_object_id'
# Option -> the only value with which it may be left out.
_LEFT_OUT = {'time_major': False, 'groups': 1}


def _for_both(model: dict[str, Any]) -> dict[str, Any]:
  """Converts a Keras 2 configuration so that Keras 3 understands it, too."""
  model = _without_options(model)
  if model['module'] == 'keras.src.engine.functional':
    # Both versions recognize it by its inputs and outputs. Not done for inner
    # models: Keras 3 would take them for models of lists.
    as_both = {
      'module': 'keras',
      'class_name': 'Model',
      'registered_name': None,
    }
    return model | as_both
  return model


def _without_options(value: Any) -> Any:
  """Returns the configuration without options that Keras 3 does not know."""
  if isinstance(value, list):
    return [_without_options(part) for part in value]
  if not isinstance(value, dict):
    return value
  value = {name: _without_options(part) for name, part in value.items()}
  config, kind = value.get('config'), value.get('class_name')
  # Nothing is known about custom classes.
  if not isinstance(config, dict) or not str(value.get('module')).startswith(
    'keras.'
  ):
    return value
  unknown = {
    name
    for name, kinds in _NOT_IN_KERAS_3.items()
    if kind in kinds
    and config.get(name) == _LEFT_OUT.get(name, config.get(name))
  }
  if kind != 'InputLayer':  # Every model here has one.
    unknown.add('batch_input_shape')
  config = {n: part for n, part in config.items() if n not in unknown}
  return value | {'config': config}


def _renumber_shared(value: Any, numbers: dict[int, int]) -> None:
  """Renumbers shared objects, which Keras numbers by memory address."""
  for part in value.values() if isinstance(value, dict) else value:
    if isinstance(part, dict | list):
      _renumber_shared(part, numbers)
  if isinstance(value, dict) and _SHARED in value:
    value[_SHARED] = numbers.setdefault(value[_SHARED], len(numbers) + 1)


def _save_keras(
  model: tf.keras.Model, path: pathlib.Path, notes: Mapping[str, str]
) -> None:
  try:
    model.save(path, save_format='keras')
  except _UNWRITABLE as error:
    path.unlink(missing_ok=True)
    logging.warning('no Keras file is written: %s', _in_one_line(error))
    return
  with zipfile.ZipFile(path) as archive:
    members = {name: archive.read(name) for name in archive.namelist()}
  members['metadata.json'] = json.dumps(
    {**json.loads(members['metadata.json']), 'date_saved': _DATE_SAVED}
  ).encode()
  config = _for_both(json.loads(members['config.json']))
  _renumber_shared(config, {})
  members['config.json'] = json.dumps(config).encode()
  members |= {name: text.encode() for name, text in notes.items()}
  with zipfile.ZipFile(path, 'w') as archive:
    for name, content in members.items():
      archive.writestr(zipfile.ZipInfo(name), content)  # Also dated 1980.


_GRAPH = 'saved_model.pb'
# Hashes of files that are changed here; loaders do not need them.
_FINGERPRINT = 'fingerprint.pb'
# Numbers that TensorFlow draws during an export are above this; no other number
# in a name is.
_LEAST_DRAWN = 10**6
_DRAWN = re.compile(r'(?<!\d)\d{7,}(?!\d)')
# Matches names, but no text of a configuration or a table.
_NAME = re.compile(r'[\w./:;^@+>-]*')


def _fields(message: Any) -> Iterator[tuple[str, Any, bool]]:
  """Yields (name, value, whether it is a map) for the fields of a message."""
  for field, value in message.ListFields():
    entry = field.message_type and field.message_type.GetOptions().map_entry
    yield field.name, value, bool(entry)


def _rename(message: Any, new_name: Callable[[str], str]) -> None:
  """Replaces all names in a message."""

  def renamed(value):
    if isinstance(value, str) and _NAME.fullmatch(value):
      return new_name(value)
    if isinstance(value, bytes) and value.isascii():  # In an attribute.
      return renamed(value.decode()).encode()
    return value

  for name, value, is_map in _fields(message):
    if is_map:
      old = copy.deepcopy(dict(value))
      value.clear()
      for key, inner in old.items():
        if hasattr(inner, 'ListFields'):
          _rename(inner, new_name)
          value[renamed(key)].CopyFrom(inner)
        else:
          value[renamed(key)] = renamed(inner)
    elif isinstance(value, str) or (isinstance(value, bytes) and name == 's'):
      setattr(message, name, renamed(value))
    elif hasattr(value, 'ListFields'):
      _rename(value, new_name)
    elif not isinstance(value, bytes | int | float):
      for index, inner in enumerate(value):
        if hasattr(inner, 'ListFields'):
          _rename(inner, new_name)
        elif isinstance(inner, str) or name == 's':
          value[index] = renamed(inner)


def _draw_high() -> int:
  """Returns a number drawn by TensorFlow; all later ones are higher."""
  while (number := ops.uid()) < _LEAST_DRAWN:
    pass
  return number


def _renumber_drawn(path: pathlib.Path, least: int) -> None:
  """Replaces the numbers that TensorFlow has drawn by their ranks.

  Args:
    path: The folder of a SavedModel.
    least: A lower bound on the numbers that were drawn for it.
  """
  file = path / _GRAPH
  model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  drawn: set[int] = set()
  most = ops.uid()

  def noted(name: str) -> str:
    numbers = map(int, _DRAWN.findall(name))
    drawn.update(n for n in numbers if least <= n <= most)
    return name

  _rename(model, noted)
  new = {
    str(number): str(_LEAST_DRAWN + rank)
    for rank, number in enumerate(sorted(drawn))
  }
  _rename(model, lambda n: _DRAWN.sub(lambda m: new.get(m[0], m[0]), n))
  for graph in model.meta_graphs:
    library = graph.graph_def.library
    # TensorFlow writes them in the order of a hash table.
    library.function.sort(key=lambda f: f.signature.name)
    library.registered_gradients.sort(key=lambda g: g.gradient_func)
  file.write_bytes(model.SerializeToString(deterministic=True))
  (path / _FINGERPRINT).unlink(missing_ok=True)
