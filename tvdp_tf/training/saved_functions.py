"""SavedModels without a trace of the process that wrote them.

TensorFlow numbers functions and tensors by one counter of the process, and
writes the numbers into the names of a SavedModel's functions. They tell how
many tensors there were before: how many clients took part, and how many sizes
their data had, which may be secrets that the model must not carry.
"""

import copy
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import saved_model_pb2

_GRAPH = 'saved_model.pb'
# Hashes of what is changed here; loaders do without.
_FINGERPRINT = 'fingerprint.pb'
_NUMBERED = re.compile(r'(__(?:inference|forward|backward)_\w+)_(\d+)')
# Where TensorFlow notes the number of a captured tensor.
_CAPTURED = '_user_specified_name'


def _rename_captured(function: function_pb2.FunctionDef) -> None:
  """Names what a function captures by its place among the arguments."""
  new_names = {}
  for index, argument in enumerate(function.signature.input_arg):
    attributes = function.arg_attr[index].attr
    number = attributes[_CAPTURED].s.decode() if _CAPTURED in attributes else ''
    if not number.isdigit():  # A name indeed.
      continue
    captured = f'captured_{index}'
    attributes[_CAPTURED].s = captured.encode()
    if argument.name.endswith(f'_{number}'):
      new_names[argument.name] = argument.name.removesuffix(number) + captured
      argument.name = new_names[argument.name]
  for node in function.node_def:
    for index, name in enumerate(node.input):
      node.input[index] = new_names.get(name, name)


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


def renumber(path: pathlib.Path) -> None:
  """Numbers the functions of a SavedModel from 0, in the order of their making.

  Args:
    path: Its folder.
  """
  file = path / _GRAPH
  model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  for graph in model.meta_graphs:
    for function in graph.graph_def.library.function:
      _rename_captured(function)
  numbered = {
    text: match
    for text in _texts(model)
    if (match := _NUMBERED.fullmatch(text))
  }
  numbers = sorted({int(match[2]) for match in numbered.values()})
  ranks = {number: rank for rank, number in enumerate(numbers)}
  _rename(
    model,
    {text: f'{m[1]}_{ranks[int(m[2])]}' for text, m in numbered.items()},
  )
  for graph in model.meta_graphs:
    # They come in the order of a hash table.
    graph.graph_def.library.function.sort(key=lambda f: f.signature.name)
  file.write_bytes(model.SerializeToString(deterministic=True))
  (path / _FINGERPRINT).unlink(missing_ok=True)
