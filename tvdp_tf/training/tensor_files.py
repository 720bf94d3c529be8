"""Program states as files of tensors, for `tff.program`'s programs.

A file holds the tensors in the order of `tf.nest.flatten`, named by their
positions, as `_arrays.encoded`; its notes are their dtypes, as TensorFlow calls
them.
"""

import hashlib
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _arrays
from tvdp_tf.output import files

_PREFIX = 'round_'
# Bytes of a SHA-256.
_DIGEST = 32


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
    return tf.nest.pack_sequence_as(structure, _decoded(content))

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
    content = _encoded(list(map(np.asarray, leaves)))
    with files.replaced(path) as temporary:
      temporary.write_bytes(content)
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


def _encoded(leaves: list[np.ndarray]) -> bytes:
  return _arrays.encoded(
    {str(i): _plain(leaf) for i, leaf in enumerate(leaves)},
    [tf.as_dtype(leaf.dtype).name for leaf in leaves],
  )


def _decoded(content: bytes) -> list[np.ndarray]:
  if _arrays.is_archive(content[_DIGEST:]):
    arrays, names = _of_archive(content)
  else:
    arrays, names = _arrays.decoded(content)
  leaves = []
  for i, name in enumerate(names):
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    leaf = arrays[str(i)]
    leaves.append(
      leaf.view(dtype) if _is_foreign(dtype) else leaf.astype(dtype)
    )
  return leaves


def _of_archive(content: bytes) -> tuple[dict[str, np.ndarray], list[str]]:
  """As `_arrays.decoded`, of a file that was written before it."""
  rest = content[_DIGEST:]
  if hashlib.sha256(rest).digest() != content[:_DIGEST]:
    raise ValueError('it is damaged: its checksum is that of another content')
  arrays = _arrays.of_archive(rest)
  return arrays, arrays.pop('dtypes').tolist()
