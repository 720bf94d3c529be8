"""Checkpoints: the state of a run on disk, and its recovery after a kill.

A checkpoint is a file of tensors. It is written completely before the next
round begins. A checkpoint that cannot be used is renamed, and the previous one
is used.

A file holds the tensors in the order of `tf.nest.flatten`, named by their
positions, in the format of `_arrays.encoded`; its notes are TensorFlow's names
of their dtypes.

Earlier checkpoints were SavedModels, written by TFF's
`FileProgramStateManager`. For one release they can still be read, but are no
longer written. Only the variables are read, with their checksums; the graph is
never executed.
"""

import io
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tvdp_tf import _arrays
from tvdp_tf.output import files
from tvdp_tf.training import metrics as round_metrics

# Checksums detect damaged checkpoints; the second is for the disk's worst case.
_KEPT = 2

_T = TypeVar('_T')
# A tff.learning.templates.LearningAlgorithmState, which has no static type.
State = Any


class Loaded(NamedTuple):
  """A loaded checkpoint.

  Attributes:
    completed: The number of rounds completed.
    state: The learning process's state after these rounds.
    host: The other saved data, parsed.
  """

  completed: int
  state: State
  host: Any


class _Saved(NamedTuple):
  """The content of a checkpoint file.

  Attributes:
    digest: Digest of the run's configuration, uint8 [32].
    completed: The number of rounds completed.
    state: The tensors of the learning process's state.
    host: The other saved data: `_arrays.encoded`, uint8 [bytes]; after reading,
      arrays by name.
  """

  digest: Any
  completed: Any
  state: Any
  host: Any


class Checkpoints:
  """The last two checkpoints of a run."""

  def __init__(self, folder: pathlib.Path, initial_state: State, digest: bytes):
    """Opens the folder; creates it if it is missing.

    Args:
      folder: The folder of the checkpoints.
      initial_state: A state of the process; all others have its structure.
      digest: Digest of the run's configuration. Checkpoints of other
        configurations are refused.

    Raises:
      NotWrittenError: If the folder cannot be created.
    """
    self._folder = folder
    self._structure = initial_state
    self._like = [np.asarray(leaf) for leaf in tf.nest.flatten(initial_state)]
    self._digest = np.frombuffer(digest, np.uint8)
    with files.errors_in_one_line(folder):
      self._manager = TensorFilesManager(folder, _KEPT)

  def save(
    self, completed: int, state: State, host: Mapping[str, np.ndarray]
  ) -> None:
    """Saves a checkpoint, and removes all but the last two.

    Args:
      completed: The number of rounds completed.
      state: The learning process's state after these rounds.
      host: Other data that a resumed run needs.

    Raises:
      NotWrittenError: If it cannot be written.
    """
    leaves = tf.nest.flatten(state)
    values = _Saved(
      self._digest,
      np.int64(completed),
      # The host may have replaced a float64 by a Python number.
      [
        np.asarray(leaf, like.dtype)
        for leaf, like in zip(leaves, self._like, strict=True)
      ],
      np.frombuffer(_arrays.encoded(host), np.uint8),
    )
    with files.errors_in_one_line(self._folder):
      self._manager.write(tf.nest.flatten(values), completed)

  async def load_latest(
    self, parse: Callable[[int, Mapping[str, np.ndarray]], _T]
  ) -> Loaded | None:
    """Loads the newest usable checkpoint, and sets newer ones aside.

    Args:
      parse: Converts the number of completed rounds and the saved data to the
        result's `host`. It raises an exception if these make no sense.

    Returns:
      The checkpoint; None if there is none.

    Raises:
      NotWrittenError: If a damaged checkpoint cannot be set aside.
    """
    for version, path in reversed(self._manager.paths()):
      try:
        return await self._read(path, version, parse)
      except Exception as error:  # A damaged file may cause any error.
        reason = ' '.join(str(error).split())[:200] or type(error).__name__
      aside = path.with_name(f'{path.name}.unusable')
      logging.warning(
        'checkpoint %s cannot be used and is renamed to %s: %s',
        path,
        aside.name,
        reason,
      )
      with files.errors_in_one_line(self._folder):
        path.rename(_unused(aside))
    return None

  async def _read(
    self,
    path: pathlib.Path,
    version: int,
    parse: Callable[[int, Mapping[str, np.ndarray]], _T],
  ) -> Loaded:
    if path != self._manager.path(version):
      raise ValueError('its name is not that of a checkpoint')
    if path.is_dir():
      saved = _Saved(*read_saved_model(path, len(self._like)))
    else:
      structure = _Saved(0, 0, [0] * len(self._like), 0)
      saved = await self._manager.load(version, structure)
      host, _ = _arrays.decoded(saved.host.tobytes())
      saved = saved._replace(host=host)
    if not np.array_equal(saved.digest, self._digest):
      raise ValueError('it belongs to another run or configuration')
    if saved.completed != version:
      raise ValueError(f'it is the checkpoint of round {saved.completed}')
    leaves = []
    for leaf, like in zip(saved.state, self._like, strict=True):
      # In NumPy, strings of different lengths have different dtypes.
      if leaf.shape != like.shape or (
        tf.as_dtype(leaf.dtype) != tf.as_dtype(like.dtype)
      ):
        raise ValueError(
          f'it holds {leaf.dtype}{list(leaf.shape)} instead of'
          f' {like.dtype}{list(like.shape)}'
        )
      leaves.append(leaf.astype(like.dtype))
    return Loaded(
      version,
      tf.nest.pack_sequence_as(self._structure, leaves),
      parse(version, saved.host),
    )


def _unused(path: pathlib.Path) -> pathlib.Path:
  """Returns the path, with a number appended if it is taken."""
  candidate, number = path, 1
  while candidate.exists():
    number += 1
    candidate = path.with_name(f'{path.name}{number}')
  return candidate


_PREFIX = 'round_'


class TensorFilesManager(tff.program.ProgramStateManager):
  """A `tff.program.ProgramStateManager` with one file per version.

  A file is on disk when `save` returns, and is written atomically. States are
  nested structures of tensors, arrays, Python numbers and strings.
  """

  def __init__(self, folder: pathlib.Path, keep_total: int):
    """Opens the folder; creates it if it is missing.

    Args:
      folder: The folder of the files.
      keep_total: How many of the newest versions to keep; at least 1.

    Raises:
      OSError: If the folder cannot be created.
    """
    self._folder = folder
    self._keep_total = keep_total
    folder.mkdir(parents=True, exist_ok=True)

  def path(self, version: int) -> pathlib.Path:
    """Returns the path where a version is, or would be."""
    return self._folder / f'{_PREFIX}{version}'

  def paths(self) -> list[tuple[int, pathlib.Path]]:
    """Returns all paths with the name of a version, oldest first.

    Unusual names are accepted: `round_007` is version 7.
    """
    found = []
    for path in self._folder.glob(f'{_PREFIX}*'):
      try:
        found.append((int(path.name.removeprefix(_PREFIX)), path))
      except ValueError:  # Not one of our files.
        continue
    return sorted(found)

  async def get_versions(self) -> list[int] | None:
    """Returns the existing versions, in order; None if there are none."""
    return [version for version, _ in self.paths()] or None

  async def load(self, version: int, structure: Any) -> Any:
    """Reads a version.

    Args:
      version: The version's number.
      structure: A state of the same structure; its values do not matter.

    Returns:
      The state, as arrays with the dtypes that were saved.

    Raises:
      ProgramStateNotFoundError: If the version does not exist.
      ValueError: If it is damaged, or has another structure.
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
      program_state: A nested structure of what NumPy can convert to arrays.
      version: A number above the existing versions.

    Raises:
      ProgramStateExistsError: If the version exists already.
      TypeError: If a part of the state is not a tensor, number or string.
      OSError: If it cannot be written.
    """
    self.write(
      await tff.program.materialize_value(tf.nest.flatten(program_state)),
      version,
    )

  def write(self, leaves: Sequence[Any], version: int) -> None:
    """Like `save`, for a state's leaves that are no references."""
    path = self.path(version)
    if path.exists():
      raise tff.program.ProgramStateExistsError(version=version, path=str(path))
    content = _encoded(list(map(np.asarray, leaves)))
    with files.replaced(path) as temporary:
      temporary.write_bytes(content)
    for _, old in self.paths()[: -self._keep_total]:
      _remove(old)

  async def remove_all(self) -> None:
    """Removes all versions."""
    for _, path in self.paths():
      _remove(path)


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():  # From an earlier release of this library.
    shutil.rmtree(path)
  else:
    path.unlink()


def _is_foreign(dtype: np.dtype) -> bool:
  """Whether NumPy does not define the dtype, like TensorFlow's bfloat16."""
  return dtype.isbuiltin == 2


def _plain(array: np.ndarray) -> np.ndarray:
  """Converts an array to a dtype that NumPy's archives support."""
  if array.dtype == object:  # Strings, as TensorFlow returns them.
    texts = array.astype(bytes)
    # NumPy's byte strings lose trailing zeros.
    if texts.astype(object).tolist() != array.tolist():
      raise TypeError(f'a state must consist of tensors, got {array!r:.60}')
    return texts
  if _is_foreign(array.dtype):  # Keep its bits.
    return array.view(f'u{array.itemsize}')
  return array


def _encoded(leaves: list[np.ndarray]) -> bytes:
  return _arrays.encoded(
    {str(i): _plain(leaf) for i, leaf in enumerate(leaves)},
    [tf.as_dtype(leaf.dtype).name for leaf in leaves],
  )


def _decoded(content: bytes) -> list[np.ndarray]:
  arrays, names = _arrays.decoded(content)
  leaves = []
  for i, name in enumerate(names):
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    leaf = arrays[str(i)]
    leaves.append(
      leaf.view(dtype) if _is_foreign(dtype) else leaf.astype(dtype)
    )
  return leaves


_VARIABLE = re.compile(r'_value/(\w+)/\.ATTRIBUTES/VARIABLE_VALUE')


def read_saved_model(
  path: pathlib.Path, tensors: int
) -> tuple[Any, Any, list[Any], dict[str, np.ndarray]]:
  """Reads a checkpoint that is a SavedModel.

  Args:
    path: Its folder.
    tensors: The number of tensors in the learning process's state.

  Returns:
    The digest of the configuration, the number of rounds completed, the tensors
    of the state, and the other saved data.

  Raises:
    Exception: Of any kind, if the checkpoint is damaged.
  """
  # A checkpoint without this file is incomplete: its removal was interrupted.
  if not (path / 'saved_model.pb').stat().st_size:
    raise ValueError('its saved_model.pb is empty')
  reader = tf.train.load_checkpoint(str(path / 'variables' / 'variables'))
  values = {}
  for name in reader.get_variable_to_shape_map():
    value = reader.get_tensor(name)  # Read all, to verify the whole file.
    if match := _VARIABLE.fullmatch(name):
      values[match[1]] = value
  state = [np.asarray(values[f'state_{i}']) for i in range(tensors)]
  with np.load(io.BytesIO(values['host']), allow_pickle=False) as archive:
    host = dict(archive)
  return values['digest'], values['completed'], state, host


class HostState(NamedTuple):
  """The data in a checkpoint besides the process's state.

  Attributes:
    total: The number of rounds planned.
    last_loss: The last loss of the plateau detector.
    releases: The length of the plan's history.
    plan: The plan's snapshot.
    rows: The metrics of all rounds; the last may lack its evaluation.
  """

  total: int
  last_loss: float
  releases: int
  plan: Mapping[str, np.ndarray]
  rows: list[round_metrics.Row]

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Converts it to arrays by name, for a checkpoint."""
    columns = round_metrics.columns(self.rows)
    return {
      'total': np.array(self.total),
      'last_loss': np.array(self.last_loss),
      'releases': np.array(self.releases),
      **{f'plan_{name}': value for name, value in self.plan.items()},
      **{f'row_{name}': value for name, value in columns.items()},
    }

  @classmethod
  def parse(
    cls, completed: int, arrays: Mapping[str, np.ndarray]
  ) -> 'HostState':
    """The inverse of `to_arrays`; the arrays may come from a damaged file.

    Args:
      completed: The number of rounds completed.
      arrays: The result of `to_arrays`.

    Raises:
      KeyError: If an array is missing.
      ValueError: If the arrays do not fit the number of rounds.
    """

    def part(prefix: str) -> dict[str, np.ndarray]:
      return {
        name.removeprefix(prefix): value
        for name, value in arrays.items()
        if name.startswith(prefix)
      }

    host = cls(
      int(arrays['total']),
      float(arrays['last_loss']),
      int(arrays['releases']),
      part('plan_'),
      round_metrics.rows(part('row_'), completed),
    )
    # A round may have no releases, and another may have been repeated.
    if completed > host.total or host.releases < 1:
      raise ValueError('it must hold releases, of no more rounds than planned')
    return host
