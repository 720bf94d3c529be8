"""Flat leaves in the Python containers of a TFF type."""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow_federated as tff


def _filler(positions: Any) -> Callable[[Sequence[Any]], Any]:
  """A function of leaves that makes a container in which they replace theirs.

  As `tf.nest.map_structure`, several times faster.
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
  """A function of leaves: the Python containers that a TFF type asks for.

  TFF makes them from one example of leaves, the positions; from then on the
  containers are filled. TFF's own conversion costs half a millisecond.
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
