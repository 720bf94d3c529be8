"""The state of a run on the disk, and its recovery after a kill.

A checkpoint is written by TFF's `FileProgramStateManager`: a SavedModel that
appears under its name complete, or not at all. Only its variables are read
back, with their checksums; the graph in it is never executed. A checkpoint that
cannot be used is set aside, and the one before takes its place.
"""

import collections
import contextlib
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tvdp_tf.output import disk_errors

_PREFIX = 'round_'
_VARIABLE = re.compile(r'_value/(\w+)/\.ATTRIBUTES/VARIABLE_VALUE')
# Damaged ones are told by their checksums, but for the disk's worst case.
_KEPT = 2

_T = TypeVar('_T')
# A tff.learning.templates.LearningAlgorithmState, which has no static type.
State = Any


class Loaded(NamedTuple):
  """A checkpoint.

  Attributes:
    completed: The number of rounds completed.
    state: The learning process's state after them.
    host: What else was saved, parsed.
  """

  completed: int
  state: State
  host: Any


class Checkpoints:
  """The checkpoints of one run, the last two of them."""

  def __init__(self, folder: pathlib.Path, initial_state: State, digest: bytes):
    """Opens the folder; creates it if it is missing.

    Args:
      folder: Where.
      initial_state: A state of the process; all others have its structure.
      digest: Of the run's configuration: no other checkpoint is taken.

    Raises:
      NotWrittenError: If the folder cannot be made.
    """
    self._folder = folder
    self._structure = initial_state
    self._like = [np.asarray(leaf) for leaf in tf.nest.flatten(initial_state)]
    self._digest = np.frombuffer(digest, np.uint8)
    with disk_errors.one_line(folder):
      self._manager = tff.program.FileProgramStateManager(
        folder, prefix=_PREFIX, keep_total=_KEPT, keep_first=False
      )

  async def save(
    self, completed: int, state: State, host: Mapping[str, np.ndarray]
  ) -> None:
    """Saves a checkpoint, and removes all but the last two.

    Args:
      completed: The number of rounds completed.
      state: The learning process's state after them.
      host: What else a resumed run needs.

    Raises:
      NotWrittenError: If it cannot be written.
    """
    leaves = tf.nest.flatten(state)
    values = collections.OrderedDict(
      digest=self._digest, completed=np.int64(completed)
    )
    for i, (leaf, like) in enumerate(zip(leaves, self._like, strict=True)):
      # The host may have put a Python number in the place of a float64.
      values[f'state_{i}'] = np.asarray(leaf, like.dtype)
    archive = io.BytesIO()
    np.savez(archive, **host)
    # One text, not arrays: some grow with the rounds, and TensorFlow keeps a
    # quarter of a megabyte for every shape that it has ever seen.
    values['host'] = np.array(archive.getvalue(), object)
    with disk_errors.one_line(self._folder):
      await self._manager.save(values, completed)

  async def load_latest(
    self, parse: Callable[[int, Mapping[str, np.ndarray]], _T]
  ) -> Loaded | None:
    """The newest checkpoint that can be used; those after it are set aside.

    Args:
      parse: Makes the result's `host` of the number of rounds completed and of
        what was saved. It raises an exception if that makes no sense.

    Returns:
      The checkpoint; None if there is none.

    Raises:
      NotWrittenError: If a damaged one cannot be set aside.
    """
    for version, path in sorted(self._versions(), reverse=True):
      try:
        return self._read(path, version, parse)
      except Exception as error:  # A damaged file may cause any.
        reason = ' '.join(str(error).split())[:200] or type(error).__name__
      aside = path.with_name(f'{path.name}.unusable')
      logging.warning(
        'checkpoint %s cannot be used and is renamed to %s: %s',
        path,
        aside.name,
        reason,
      )
      with disk_errors.one_line(self._folder):
        tf.io.gfile.rename(str(path), str(_unused(aside)))
    return None

  def _versions(self) -> Iterator[tuple[int, pathlib.Path]]:
    """All that TFF's manager takes for a checkpoint: `round_007` is one."""
    for path in self._folder.glob(f'{_PREFIX}*'):
      with contextlib.suppress(ValueError):
        yield int(path.name.removeprefix(_PREFIX)), path

  def _read(
    self,
    path: pathlib.Path,
    version: int,
    parse: Callable[[int, Mapping[str, np.ndarray]], _T],
  ) -> Loaded:
    if path.name != f'{_PREFIX}{version}':
      raise ValueError('its name is not that of a checkpoint')
    # Removing an old checkpoint takes this file first or later: it is whole
    # only with it.
    if not (path / 'saved_model.pb').stat().st_size:
      raise ValueError('its saved_model.pb is empty')
    reader = tf.train.load_checkpoint(str(path / 'variables' / 'variables'))
    values = {}
    for name in reader.get_variable_to_shape_map():
      value = reader.get_tensor(name)  # All: a whole file it is.
      if match := _VARIABLE.fullmatch(name):
        values[match[1]] = value
    if not np.array_equal(values['digest'], self._digest):
      raise ValueError('it is of another run or configuration')
    if values['completed'] != version:
      raise ValueError(f'it is that of round {values["completed"]}')
    leaves = []
    for i, like in enumerate(self._like):
      leaf = np.asarray(values[f'state_{i}'])
      # A text is of another dtype in NumPy for every length.
      if leaf.shape != like.shape or (
        tf.as_dtype(leaf.dtype) != tf.as_dtype(like.dtype)
      ):
        raise ValueError(
          f'it holds {leaf.dtype}{list(leaf.shape)} in the place of '
          f'{like.dtype}{list(like.shape)}'
        )
      leaves.append(leaf.astype(like.dtype))
    with np.load(io.BytesIO(values['host']), allow_pickle=False) as archive:
      host = dict(archive)
    return Loaded(
      version,
      tf.nest.pack_sequence_as(self._structure, leaves),
      parse(version, host),
    )


def _unused(path: pathlib.Path) -> pathlib.Path:
  """The path, or one with a number after it."""
  candidate, number = path, 1
  while candidate.exists():
    number += 1
    candidate = path.with_name(f'{path.name}{number}')
  return candidate
