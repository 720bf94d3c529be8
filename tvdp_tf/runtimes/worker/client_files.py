"""Clients' examples in files that TFF's worker reads itself.

Data that are passed to a TFF computation go through gRPC in every round: 19 MB
for ten clients of MNIST. The files are written once; the worker maps them into
its memory and copies a client's rows from the page cache.

Security: the files have no name. They have mode 0600, in the folder for
temporary files (`TMPDIR`, by default /tmp), and are opened through
`/proc/<process>/fd`, which the kernel permits to this user and to root. They
disappear with the processes that have them open, this one and its worker,
however these end; there is nothing to clean up. The examples are not encrypted:
anyone who may read this process's memory may read them, and so may anyone who
can send graphs to the worker (see `worker_runtime`), because it executes any
graph. On a disk, blocks of deleted files can outlive them; for sensitive data,
`TMPDIR` should be encrypted or in memory.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import IO

import numpy as np
import tensorflow as tf

from tvdp_tf import errors


class ClientFilesError(errors.TvdpError):
  """The clients' examples cannot be written: no space or no permission."""


def own_path(descriptor: int) -> str:
  """Returns a path to an open file of this process, for the user's processes.

  Only processes in the same user namespace can use it.
  """
  return f'/proc/{os.getpid()}/fd/{descriptor}'


class _Rows:
  """An array on disk that grows by rows, all of one shape and dtype."""

  def __init__(self, name: str):
    self._name = name
    self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    self._dtype: np.dtype | None = None
    self._shape: tuple[int, ...] = ()
    self.count = 0

  def append(self, rows: np.ndarray) -> None:
    dtype, shape = rows.dtype.newbyteorder('='), rows.shape[1:]
    if self._dtype is None:
      if dtype.kind not in 'biuf':
        raise ValueError(
          f'{self._name} must be an array of numbers, got dtype {dtype}'
        )
      self._dtype, self._shape = dtype, shape
    if (dtype, shape) != (self._dtype, self._shape):
      raise ValueError(
        f'{self._name} must be the same for every client, {self._dtype} of '
        f'shape {[None, *self._shape]}, got {dtype} of shape {[None, *shape]}'
      )
    self._file.write(np.ascontiguousarray(rows, self._dtype).data)
    self.count += len(rows)

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    with contextlib.suppress(
      OSError
    ):  # What is left in a buffer is not needed.
      self._file.close()

  def read(
    self, indices: tf.Tensor, path_of: Callable[[int], str]
  ) -> tf.Tensor:
    mapped = tf.raw_ops.ImmutableConst(
      dtype=tf.as_dtype(self._dtype),
      shape=[self.count, *self._shape],
      memory_region_name=path_of(self._file.fileno()),
    )
    # A copy, not a slice: ops may overwrite an input that nothing else needs,
    # and writing to this map would kill the worker.
    return tf.gather(mapped, indices)


class ClientFiles(contextlib.AbstractContextManager['ClientFiles']):
  """All clients' examples on disk, until `close` or the end of the process.

  Attributes:
    num_clients: Number of clients.
  """

  def __init__(self, clients: Iterable[tuple[np.ndarray, np.ndarray]]):
    """Writes the files, which are as large as the arrays.

    Args:
      clients: For each client, its features [n, ...] and labels [n, ...], with
        the same dtypes and shapes for all clients except for n.

    Raises:
      ValueError: If dtypes or shapes differ, or there are no examples at all.
      ClientFilesError: If the files cannot be written.
    """
    self.num_clients = 0
    with contextlib.ExitStack() as stack:
      try:
        self._features = stack.enter_context(_closing('features'))
        self._labels = stack.enter_context(_closing('labels'))
        # Where each client's rows begin, and where the last one's end.
        self._starts = stack.enter_context(_closing('starts'))
        self._write(clients)
      except OSError as error:
        raise ClientFilesError(
          "the clients' examples cannot be written to"
          f' {tempfile.tempdir or "any folder"}: {error.strerror or error};'
          ' set the environment variable TMPDIR to another folder'
        ) from error
      if not self._labels.count:
        raise ValueError('clients must have at least one example, got none')
      self._exit_stack = stack.pop_all()

  def _write(self, clients: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    for features, labels in clients:
      if len(features) != len(labels):
        raise ValueError(
          f'labels of client {self.num_clients} must have {len(features)}'
          f' values, one per example, got {len(labels)}'
        )
      self._starts.append(np.array([self._labels.count], np.int64))
      self._features.append(features)
      self._labels.append(labels)
      self.num_clients += 1
    self._starts.append(np.array([self._labels.count], np.int64))
    for rows in (self._features, self._labels, self._starts):
      rows.flush()

  def read(
    self, client: tf.Tensor, path_of: Callable[[int], str] = own_path
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads features [n, ...] and labels [n, ...] of a client, within a graph.

    The graph works on this host, until `close`. An index out of range is an
    error when the graph is executed.

    Args:
      client: Scalar int64, counted from 0.
      path_of: Maps this process's descriptor of a file to a path by which the
        process that executes the graph can open it.
    """
    starts = self._starts.read(tf.stack([client, client + 1]), path_of)
    rows = tf.range(*tf.unstack(starts))
    return self._features.read(rows, path_of), self._labels.read(rows, path_of)

  def close(self) -> None:
    """Frees the disk space; it is safe to call it again."""
    self._exit_stack.close()

  def __exit__(self, *error: object) -> None:
    self.close()


def _closing(name: str) -> contextlib.closing[_Rows]:
  return contextlib.closing(_Rows(name))
