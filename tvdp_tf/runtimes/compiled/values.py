"""Converts values of TFF types to flat tensors, and back.

`tensors` converts a value to the arguments of a `GraphFunction`; a `packer`
puts the results into the Python containers of a TFF type.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.runtimes.compiled import graph_function


def flatten(value: Any, type_spec: tff.Type) -> Iterable[Any]:
  """Yields a value's leaves in TFF's order; a sequence is a leaf."""
  if isinstance(type_spec, tff.FederatedType):
    yield from flatten(value, type_spec.member)
  elif isinstance(type_spec, tff.StructType):
    if isinstance(value, Mapping):
      parts = [value[name] for name in tff.structure.name_list(type_spec)]
    elif fields := getattr(type(value), '__attrs_attrs__', ()):
      parts = [getattr(value, field.name) for field in fields]
    else:
      parts = list(value)
    if len(parts) != len(type_spec):
      raise ValueError(
        f'a value must have the {len(type_spec)} parts of '
        f'{type_spec.compact_representation()}, got {len(parts)}'
      )
    for part, (_, part_type) in zip(
      parts, tff.structure.iter_elements(type_spec), strict=True
    ):
      yield from flatten(part, part_type)
  else:
    yield value


def _checked(leaf: Any, tensor_type: tff.TensorType) -> Any:
  """Checks that a leaf has the type, except for its precision; returns it.

  TensorFlow would accept a wrong shape, wrap an integer that is too large, and
  drop an imaginary part.

  Raises:
    ValueError: If the leaf does not have the type.
  """
  array = leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
  wanted, dtype = tensor_type.dtype, array.dtype
  if isinstance(dtype, tf.DType):
    dtype = np.dtype(dtype.as_numpy_dtype)
  shape = tuple(array.shape)
  fits = tensor_type.shape is None or (
    len(shape) == len(tensor_type.shape)
    and all(
      size in (known, None)
      for size, known in zip(tensor_type.shape, shape, strict=True)
    )
  )
  in_range = True
  if fits and dtype != wanted:
    texts, integers = 'USO', 'iu'
    if wanted.kind in texts:
      fits = dtype.kind in texts
    elif wanted.kind in integers and dtype.kind in integers:
      limits, array = np.iinfo(wanted), np.asarray(array)
      in_range = bool(np.all((limits.min <= array) & (array <= limits.max)))
    else:
      fits = np.can_cast(dtype, wanted, 'same_kind')
  if not (fits and in_range):
    # Does not show the values, which may be a client's.
    raise ValueError(
      f'a value must be {tensor_type.compact_representation()}, got '
      f'{dtype.name}{list(shape)}{"" if in_range else " beyond its range"}'
    )
  return leaf


def _leaf_types(type_spec: tff.Type) -> Iterator[tff.Type]:
  """Yields the types of `flatten`'s leaves."""
  if isinstance(type_spec, tff.StructType):
    for _, part_type in tff.structure.iter_elements(type_spec):
      yield from _leaf_types(part_type)
  else:
    yield type_spec


def _only_element(
  sequence: Iterable[Any], element_type: tff.Type
) -> list[tf.Tensor]:
  """Returns the tensors of a sequence's only element."""
  elements = list(sequence)
  if len(elements) != 1:
    raise ValueError(
      'a client must bring a sequence of exactly one element, got '
      f'{len(elements)}'
    )
  leaves = tf.nest.flatten(elements[0])
  types = list(_leaf_types(element_type))
  if len(leaves) != len(types):
    raise ValueError(
      f'a client must bring elements of '
      f'{element_type.compact_representation()}, got one of {len(leaves)} parts'
    )
  return [_checked(leaf, one) for leaf, one in zip(leaves, types, strict=True)]


def _dataset(elements: Sequence[Any]) -> tf.data.Dataset:
  """Makes a data set; elements of the same shape are stored together."""

  def shapes(element):
    return [np.shape(leaf) for leaf in tf.nest.flatten(element)]

  if not elements:
    raise ValueError('a client without elements must bring a tf.data.Dataset')
  parts = [
    tf.data.Dataset.from_tensor_slices(
      tf.nest.map_structure(lambda *leaves: np.stack(leaves), *group)
    )
    for _, group in itertools.groupby(elements, shapes)
  ]
  return functools.reduce(tf.data.Dataset.concatenate, parts)


def _variant(sequence: Any, type_spec: tff.SequenceType) -> tf.Tensor:
  """Converts a client's data set to a tensor; lists become data sets first."""
  is_dataset = isinstance(sequence, tf.data.Dataset)
  data = sequence if is_dataset else _dataset(list(sequence))
  element = tff.types.tensorflow_to_type(data.element_spec)
  if not type_spec.element.is_assignable_from(element):
    raise ValueError(
      'a client must bring elements of '
      f'{type_spec.element.compact_representation()}, got '
      f'{element.compact_representation()}'
    )
  return tf.data.experimental.to_variant(data)


def tensors(
  value: Any, type_spec: tff.Type, kinds: Iterable[str]
) -> Iterator[Any]:
  """Converts a value to arguments of a `GraphFunction`; arrays are unchanged.

  Args:
    value: A value of the type.
    type_spec: The type of the function's parameter, or of its first ones.
    kinds: The `kinds` of the function.

  Yields:
    Tensors, arrays or numbers.

  Raises:
    ValueError: If the value is not of the type, or if a sequence does not have
      a single element where only one is extracted.
  """
  leaves, types = flatten(value, type_spec), _leaf_types(type_spec)
  for leaf, leaf_type, kind in zip(leaves, types, kinds, strict=False):
    if kind == graph_function.DATASET:
      yield _variant(leaf, leaf_type)
    elif kind == graph_function.ELEMENT:
      yield from _only_element(leaf, leaf_type.element)
    else:
      yield _checked(leaf, leaf_type)


def _filler(positions: Any) -> Callable[[Sequence[Any]], Any]:
  """Returns a function that fills a container with leaves, by position.

  It is like `tf.nest.map_structure`, but several times faster.
  """
  if isinstance(positions, int):
    return operator.itemgetter(positions)
  kind = type(positions)
  if isinstance(positions, Mapping):
    names = list(positions)
    parts = [_filler(part) for part in positions.values()]
    return lambda leaves: kind(
      zip(names, [part(leaves) for part in parts], strict=True)
    )
  if fields := getattr(kind, '__attrs_attrs__', ()):
    parts = [_filler(getattr(positions, field.name)) for field in fields]
    return lambda leaves: kind(*[part(leaves) for part in parts])
  parts = [_filler(part) for part in positions]
  if hasattr(kind, '_fields'):  # A named tuple.
    return lambda leaves: kind(*[part(leaves) for part in parts])
  return lambda leaves: kind([part(leaves) for part in parts])


def packer(type_spec: tff.Type) -> Callable[[Sequence[Any]], Any]:
  """Returns a function that packs leaves into a TFF type's Python containers.

  TFF creates the containers once, with the positions as leaves; after that, the
  function fills them. TFF's own conversion takes half a millisecond.
  """
  positions = itertools.count()

  def build(part: tff.Type) -> Any:
    if isinstance(part, tff.FederatedType):
      return build(part.member)
    if isinstance(part, tff.StructType):
      return tff.structure.Struct(
        [(name, build(p)) for name, p in tff.structure.iter_elements(part)]
      )
    return next(positions)

  return _filler(tff.types.type_to_py_container(build(type_spec), type_spec))
