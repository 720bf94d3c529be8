"""Program states as files of tensors, for `tff.program`'s programs.

A file is the SHA-256 of all that follows, 32 bytes; the number of bytes of the
table of contents, 8 bytes, lowest first; the table, in JSON, a list of
[name, TensorFlow's dtype, NumPy's dtype, shape]; and the arrays in that order,
without gaps, the last index running fastest. Names are the positions in
`tf.nest.flatten`. An archive of NumPy's (`.npz`) takes three times as long to
write.
"""

import hashlib
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.output import files

_PREFIX = 'round_'
# Of the number of the table's bytes.
_LENGTH = 8


class TensorFilesManager(tff.program.ProgramStateManager):
  """A `tff.program.ProgramStateManager` of one file a version.

  A file is on the disk when `save` returns, and appears whole or not at all.
  States are nests of tensors, arrays, Python numbers and texts.
  """

  def __init__(self, folder: pathlib.Path, keep_total: int):
    """Opens the folder; creates it if it is missing.

    Args:
      folder: Where.
      keep_total: How many versions to keep, the newest ones; at least 1.

    Raises:
      OSError: If the folder cannot be made.
    """
    self._folder = folder
    self._keep_total = keep_total
    folder.mkdir(parents=True, exist_ok=True)

  def path(self, version: int) -> pathlib.Path:
    """Where a version is, or would be."""
    return self._folder / f'{_PREFIX}{version}'

  def paths(self) -> list[tuple[int, pathlib.Path]]:
    """All that has the name of a version, oldest first.

    A name may be an unusual one: `round_007` is taken for a version 7.
    """
    found = []
    for path in self._folder.glob(f'{_PREFIX}*'):
      try:
        found.append((int(path.name.removeprefix(_PREFIX)), path))
      except ValueError:  # It is none of ours.
        continue
    return sorted(found)

  async def get_versions(self) -> list[int] | None:
    """The versions that are there, in order; None if there are none."""
    return [version for version, _ in self.paths()] or None

  async def load(self, version: int, structure: Any) -> Any:
    """Reads a version.

    Args:
      version: Which.
      structure: A state of the same nesting; what its tensors are does not
        matter.

    Returns:
      The state, of arrays with the dtypes that were saved.

    Raises:
      ProgramStateNotFoundError: If it is not there.
      ValueError: If it is damaged, or of another nesting.
      OSError: If it cannot be read.
    """
    try:
      content = self.path(version).read_bytes()
    except FileNotFoundError as error:
      raise tff.program.ProgramStateNotFoundError(version) from error
    digest, rest = content[:32], memoryview(content)[32:]
    if hashlib.sha256(rest).digest() != digest:
      raise ValueError('it is damaged: its checksum is that of another content')
    arrays = decoded(rest)
    leaves = [arrays[str(i)] for i in range(len(arrays))]
    return tf.nest.pack_sequence_as(structure, leaves)

  async def save(self, program_state: Any, version: int) -> None:
    """Writes a version, and removes the oldest ones.

    Args:
      program_state: A nest of what NumPy can make arrays of.
      version: A number above those that are there.

    Raises:
      ProgramStateExistsError: If it is there already.
      TypeError: If a part of the state is no tensor, number or text.
      OSError: If it cannot be written.
    """
    path = self.path(version)
    if path.exists():
      raise tff.program.ProgramStateExistsError(version=version, path=str(path))
    leaves = tf.nest.flatten(program_state)
    if any(map(_is_reference, leaves)):  # A quarter of what a save takes.
      leaves = await tff.program.materialize_value(leaves)
    content = encoded(
      {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
    )
    with files.replaced(path) as temporary:
      temporary.write_bytes(
        b''.join((hashlib.sha256(content).digest(), content))
      )
    for _, old in self.paths()[: -self._keep_total]:
      _remove(old)

  async def remove_all(self) -> None:
    """Removes all versions."""
    for _, path in self.paths():
      _remove(path)


def _is_reference(leaf: Any) -> bool:
  return isinstance(leaf, tff.program.MaterializableValueReference)


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():  # Of an earlier release of this library.
    shutil.rmtree(path)
  else:
    path.unlink()


def _is_foreign(dtype: np.dtype) -> bool:
  """Whether others have defined it, as TensorFlow has bfloat16."""
  return dtype.isbuiltin == 2


def _plain(array: np.ndarray) -> np.ndarray:
  """The array, of a dtype that NumPy's archives know."""
  if array.dtype == object:  # Texts, as TensorFlow gives them.
    texts = array.astype(bytes)
    # NumPy's texts lose the zeros at their ends.
    if texts.astype(object).tolist() != array.tolist():
      raise TypeError(f'a state must consist of tensors, got {array!r:.60}')
    return texts
  if _is_foreign(array.dtype):  # Its bits.
    return array.view(f'u{array.itemsize}')
  return array


def encoded(arrays: Mapping[str, np.ndarray]) -> bytes:
  """Arrays by name as bytes; they say nothing of where they end.

  Raises:
    TypeError: If one holds anything but numbers and texts.
  """
  table, parts = [], []
  for name, array in arrays.items():
    plain = _plain(array)
    dtype = tf.as_dtype(array.dtype).name
    table.append([name, dtype, plain.dtype.str, plain.shape])
    parts.append(plain.tobytes())
  head = json.dumps(table).encode()
  return b''.join((len(head).to_bytes(_LENGTH, 'little'), head, *parts))


def decoded(content: bytes | memoryview) -> dict[str, np.ndarray]:
  """The reverse of `encoded`; of other bytes, an error or any arrays.

  Raises:
    ValueError: If they are none of `encoded`.
  """
  try:
    end = _LENGTH + int.from_bytes(content[:_LENGTH], 'little')
    arrays = {}
    for name, dtype, plain, shape in json.loads(bytes(content[_LENGTH:end])):
      stored = np.ndarray(shape, np.dtype(plain), content, end)
      end += stored.nbytes
      own = tf.as_dtype(dtype).as_numpy_dtype
      foreign = _is_foreign(np.dtype(own))
      arrays[name] = stored.view(own) if foreign else stored.astype(own)
  except (TypeError, RecursionError) as error:
    raise ValueError(f'it is no file of tensors: {error}') from error
  if end != len(content):
    raise ValueError(f'it holds {len(content) - end} bytes too many')
  return arrays
