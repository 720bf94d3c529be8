"""Exports a trained model as files that do not need this library.

  model/              a SavedModel, for TF Serving and `tf.saved_model.load`
  model/model.keras   the same as a Keras file, of Keras 2 and 3

The SavedModel's signature `serving_default` takes `features` and returns
`class_scores` (the outputs of the model: logits, or the score of the second of
two classes) and `predicted_class`. Both contain two JSON files, the SavedModel
in `assets.extra/`, the Keras file as members of its zip archive:

  model_spec.json   types and shapes of the signature; what features it takes
  privacy.json      the privacy statement of the training, if there is one

Keras 3 loads the Keras files of most models, too (`_for_both`). For attention,
and for operators between layers, it takes the SavedModel, by `TFSMLayer`.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import saved_model_pb2

from tvdp_tf import _environment
from tvdp_tf.learning import evaluation, functional, models
from tvdp_tf.learning import features as features_lib
from tvdp_tf.output import files

SPEC = 'model_spec.json'
STATEMENT = 'privacy.json'
KERAS = 'model.keras'
# In Keras's words: the first date that a zip archive can have.
_DATE_SAVED = '1980-01-01@00:00:00'
# What Keras raises of a model that it cannot write: not of a disk.
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

  A model that Keras cannot write to its own format is written as a SavedModel
  alone, with a warning in the log; one that it cannot write as a SavedModel
  either, with the signature and the weights alone. Layers of one's own need
  their code to load the Keras file; the SavedModel needs none.

  Args:
    path: The folder to create; it appears whole or not at all.
    spec: The model's spec.
    input_shape: Shape of one example.
    num_classes: Number of classes.
    weights: The trained weights, in Keras's order.
    statement: The privacy statement, ready for `json.dumps`.
    features: Of `learning.features`: what the inputs are computed with.
  """
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
    # It warns of a model that is not compiled, as none here is.
    with _environment.tensorflow_logs_from(python_logging.ERROR):
      _save_saved_model(model, temporary, serve)
    renumber_functions(temporary)
    extra = temporary / 'assets.extra'
    extra.mkdir()
    for name, text in notes.items():
      (extra / name).write_text(text, encoding='utf-8')
    _save_keras(model, temporary / KERAS, notes)
    if path.exists():
      shutil.rmtree(path)


@contextlib.contextmanager
def _names_from_the_start() -> Iterator[None]:
  """Within it Keras names layers as if it had built nothing before.

  Afterwards its counters are where they were: who builds a model around that
  gets no name twice.
  """
  # They have no public name.
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
      'the SavedModel has the signature alone, for Keras cannot write it: %s',
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


# What Keras 2 writes of a layer and does without, and Keras 3 does not know. Of
# a separable convolution the depthwise and the pointwise kernel are made.
_DEPTHWISE = ('DepthwiseConv1D', 'DepthwiseConv2D')
_SEPARABLE = ('SeparableConv1D', 'SeparableConv2D')
_NOT_IN_KERAS_3 = {
  'time_major': ('SimpleRNN', 'LSTM', 'GRU'),
  'groups': (*_DEPTHWISE, *_SEPARABLE),
  'kernel_initializer': _SEPARABLE,
  'kernel_regularizer': _SEPARABLE,
  'kernel_constraint': _SEPARABLE,
}
# The number of an object that is used twice.
_SHARED = 'shared_object_id'
# The only value that may be left out, where there is one.
_LEFT_OUT = {'time_major': False, 'groups': 1}


def _for_both(model: dict[str, Any]) -> dict[str, Any]:
  """A model's configuration of Keras 2 as Keras 3 understands it, too."""
  model = _without_options(model)
  if model['module'] == 'keras.src.engine.functional':
    # Both know it by its inputs and outputs. In another model Keras 3 would
    # take it for one of lists.
    as_both = {
      'module': 'keras',
      'class_name': 'Model',
      'registered_name': None,
    }
    return model | as_both
  return model


def _without_options(value: Any) -> Any:
  """The same configuration without what Keras 3 does not know."""
  if isinstance(value, list):
    return [_without_options(part) for part in value]
  if not isinstance(value, dict):
    return value
  value = {name: _without_options(part) for name, part in value.items()}
  config, kind = value.get('config'), value.get('class_name')
  # Of a class of one's own nothing is known.
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
  if kind != 'InputLayer':  # Which every model here has.
    unknown.add('batch_input_shape')
  config = {n: part for n, part in config.items() if n not in unknown}
  return value | {'config': config}


def _renumber_shared(value: Any, numbers: dict[int, int]) -> None:
  """Counts what Keras numbers by its place in memory."""
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
      archive.writestr(zipfile.ZipInfo(name), content)  # Of 1980, too.


_GRAPH = 'saved_model.pb'
# Hashes of what is changed here; loaders do without.
_FINGERPRINT = 'fingerprint.pb'
# A function; or what a part of a loop is given and does not use.
_NUMBERED = re.compile(r'(\w+)_(\d+)((?:___redundant_placeholder\d+)?)')
_TRACED = re.compile(r'__(?:inference|forward|backward)_')
# Where TensorFlow notes the number of a captured tensor.
_CAPTURED = '_user_specified_name'
# With which captured tensors, by their numbers, an op is placed.
_BESIDE = '_class'
_PASSED_ON = re.compile(r'(\w+)_\d+_0')


def _rename_captured(function: function_pb2.FunctionDef) -> None:
  """Names what a function captures by its place among the arguments."""
  signature = function.signature
  new_names = {}
  for index, argument in enumerate(signature.input_arg):
    attributes = function.arg_attr[index].attr
    number = attributes[_CAPTURED].s.decode() if _CAPTURED in attributes else ''
    if not number.isdigit():  # A name indeed.
      continue
    captured = f'captured_{index}'
    attributes[_CAPTURED].s = captured.encode()
    if argument.name.endswith(f'_{number}'):
      new_names[argument.name] = argument.name.removesuffix(number) + captured
      argument.name = new_names[argument.name]
  # A loop's body returns what it captures, whose name is without this end then.
  returned = {f'{argument.name}_0' for argument in signature.output_arg}
  new_results = {}
  for index, argument in enumerate(signature.input_arg):
    match = _PASSED_ON.fullmatch(argument.name)
    if match and argument.name in returned:
      new_name = f'{match[1]}_captured_{index}'
      new_results[argument.name.removesuffix('_0')] = new_name
      new_names[argument.name] = argument.name = f'{new_name}_0'
  for argument in signature.output_arg:
    argument.name = new_results.get(argument.name, argument.name)
  results = dict(function.ret)
  function.ret.clear()
  for name, source in results.items():
    function.ret[new_results.get(name, name)] = new_names.get(source, source)
  for node in function.node_def:
    for index, name in enumerate(node.input):
      node.input[index] = new_names.get(name, name)
    beside = node.attr[_BESIDE].list.s if _BESIDE in node.attr else []
    for index, name in enumerate(beside):
      beside[index] = re.sub(rb'/\d+$', b'/captured', name)


def _fields(message: Any) -> Iterator[tuple[str, Any, bool]]:
  """The name, the value and whether it is a map of what a message holds."""
  for field, value in message.ListFields():
    entry = field.message_type and field.message_type.GetOptions().map_entry
    yield field.name, value, bool(entry)


def _texts(value: Any) -> Iterator[str]:
  """All texts in a message, or in a value of one."""
  if isinstance(value, str):
    yield value
  elif hasattr(value, 'ListFields'):
    for _, inner, is_map in _fields(value):
      yield from _texts(inner)
      if is_map:
        yield from _texts(list(inner.values()))
  elif not isinstance(value, bytes | int | float):
    for inner in value:  # A list, or the keys of a map.
      yield from _texts(inner)


def _rename(message: Any, names: dict[str, str]) -> None:
  """Gives new names wherever the old ones stand in a message."""
  for name, value, is_map in _fields(message):
    if is_map:
      old = copy.deepcopy(dict(value))
      value.clear()
      for key, inner in old.items():
        if hasattr(inner, 'ListFields'):
          _rename(inner, names)
          value[names.get(key, key)].CopyFrom(inner)
        else:
          value[names.get(key, key)] = names.get(inner, inner)
    elif isinstance(value, str):
      setattr(message, name, names.get(value, value))
    elif hasattr(value, 'ListFields'):
      _rename(value, names)
    elif not isinstance(value, bytes | int | float):
      for index, inner in enumerate(value):
        if isinstance(inner, str):
          value[index] = names.get(inner, inner)
        elif hasattr(inner, 'ListFields'):
          _rename(inner, names)


def renumber_functions(path: pathlib.Path) -> None:
  """Numbers the functions of a SavedModel from 0, in the order of their making.

  Args:
    path: Its folder.
  """
  file = path / _GRAPH
  model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  for graph in model.meta_graphs:
    for function in graph.graph_def.library.function:
      _rename_captured(function)
  # Parts of loops and conditions have names without a prefix.
  names = {
    function.signature.name
    for graph in model.meta_graphs
    for function in graph.graph_def.library.function
  }
  numbered = {
    text: match
    for text in _texts(model)
    if (match := _NUMBERED.fullmatch(text))
    and (match[3] or text in names or _TRACED.match(text))
  }
  numbers = sorted({int(match[2]) for match in numbered.values()})
  ranks = {number: rank for rank, number in enumerate(numbers)}
  _rename(
    model,
    {text: f'{m[1]}_{ranks[int(m[2])]}{m[3]}' for text, m in numbered.items()},
  )
  for graph in model.meta_graphs:
    # They come in the order of a hash table.
    graph.graph_def.library.function.sort(key=lambda f: f.signature.name)
  file.write_bytes(model.SerializeToString(deterministic=True))
  (path / _FINGERPRINT).unlink(missing_ok=True)
