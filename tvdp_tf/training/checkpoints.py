"""The state of a run on the disk, and its recovery after a kill.

A checkpoint is a file of tensors (`tensor_files`) that is on the disk, whole,
before the next round begins. One that cannot be used is set aside, and the one
before takes its place.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from tvdp_tf import _arrays
from tvdp_tf.output import disk_errors
from tvdp_tf.training import saved_model_checkpoints, tensor_files

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


class _Saved(NamedTuple):
  """What is in a file.

  Attributes:
    digest: Of the run's configuration, uint8 [32].
    completed: The number of rounds completed.
    state: The tensors of the learning process's state.
    host: What else was saved: `_arrays.encoded`, uint8 [bytes]; once read,
      arrays by name.
  """

  digest: Any
  completed: Any
  state: Any
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
      self._manager = tensor_files.TensorFilesManager(folder, _KEPT)

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
    values = _Saved(
      self._digest,
      np.int64(completed),
      # The host may have put a Python number in the place of a float64.
      [
        np.asarray(leaf, like.dtype)
        for leaf, like in zip(leaves, self._like, strict=True)
      ],
      np.frombuffer(_arrays.encoded(host), np.uint8),
    )
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
    for version, path in reversed(self._manager.paths()):
      try:
        return await self._read(path, version, parse)
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
      saved = _Saved(*saved_model_checkpoints.read(path, len(self._like)))
    else:
      structure = _Saved(0, 0, [0] * len(self._like), 0)
      saved = await self._manager.load(version, structure)
      host = saved.host.tobytes()
      saved = saved._replace(
        host=_arrays.of_archive(host)
        if _arrays.is_archive(host)
        else _arrays.decoded(host)[0]
      )
    if not np.array_equal(saved.digest, self._digest):
      raise ValueError('it is of another run or configuration')
    if saved.completed != version:
      raise ValueError(f'it is that of round {saved.completed}')
    leaves = []
    for leaf, like in zip(saved.state, self._like, strict=True):
      # A text is of another dtype in NumPy for every length.
      if leaf.shape != like.shape or (
        tf.as_dtype(leaf.dtype) != tf.as_dtype(like.dtype)
      ):
        raise ValueError(
          f'it holds {leaf.dtype}{list(leaf.shape)} in the place of '
          f'{like.dtype}{list(like.shape)}'
        )
      leaves.append(leaf.astype(like.dtype))
    return Loaded(
      version,
      tf.nest.pack_sequence_as(self._structure, leaves),
      parse(version, saved.host),
    )


def _unused(path: pathlib.Path) -> pathlib.Path:
  """The path, or one with a number after it."""
  candidate, number = path, 1
  while candidate.exists():
    number += 1
    candidate = path.with_name(f'{path.name}{number}')
  return candidate
