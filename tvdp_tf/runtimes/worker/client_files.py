"""Clients' examples in files that TFF's worker reads by itself.

Data that are passed to a TFF computation cross gRPC in every round: 19 MB for
ten clients of MNIST. The files are written once; the worker maps them into its
memory and copies a client's rows from the page cache.

Security: the files have no name. They are of mode 0600, in the folder for
temporary files (`TMPDIR`, by default /tmp), and are opened through
`/proc/<process>/fd`, which the kernel grants to this user and to root. They go
with the processes that have them open, this one and its worker, however these
end; there is nothing to clean up. The examples are in the clear: who may read
this process's memory may read them, and so may whoever can send graphs to the
worker (see `worker_runtime`), for it executes any graph. On a disk, blocks of
deleted files can outlive them: for such data let `TMPDIR` be encrypted, or in
memory.
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
  """The clients' examples cannot be written, for want of space or of rights."""


def own_path(descriptor: int) -> str:
  """A path to a file that this process has open, for processes of its user.

  Only for those in its user namespace: the kernel does not let others look.
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
    # A copy, not a slice: ops write their result over an input that nobody
    # else needs, and writing to this map kills the worker.
    return tf.gather(mapped, indices)


class ClientFiles(contextlib.AbstractContextManager['ClientFiles']):
  """The examples of all clients on disk; `close` or the process's end frees it.

  Attributes:
    num_clients: How many clients there are.
  """

  def __init__(self, clients: Iterable[tuple[np.ndarray, np.ndarray]]):
    """Writes the files, of as many bytes as the arrays have.

    Args:
      clients: For each client, its features [n, ...] and labels [n, ...]: as
        many of each, of the same dtypes and shapes for all clients but for n.

    Raises:
      ValueError: If they are not so, or there are no examples at all.
      ClientFilesError: If they cannot be written.
    """
    self.num_clients = 0
    with contextlib.ExitStack() as stack:
      try:
        self._features = stack.enter_context(_closing('features'))
        self._labels = stack.enter_context(_closing('labels'))
        # Where each client's rows begin, and the last one's end.
        self._starts = stack.enter_context(_closing('starts'))
        self._write(clients)
      except OSError as error:
        raise ClientFilesError(
          "the clients' examples cannot be written to "
          f'{tempfile.tempdir or "any folder"}: {error.strerror or error}; the '
          'environment variable TMPDIR names another folder'
        ) from error
      if not self._labels.count:
        raise ValueError('clients must have an example, got none at all')
      self._exit_stack = stack.pop_all()

  def _write(self, clients: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    for features, labels in clients:
      if len(features) != len(labels):
        raise ValueError(
          f'labels must be as many as the {len(features)} features of client '
          f'{self.num_clients}, got {len(labels)}'
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
    """Features [n, ...] and labels [n, ...] of a client, within a graph.

    The graph works on this host, until `close`. An index that no client has is
    an error when it is executed.

    Args:
      client: Scalar int64, from 0.
      path_of: From this process's descriptor of a file to a path by which the
        process that executes the graph can open it.
    """
    starts = self._starts.read(tf.stack([client, client + 1]), path_of)
    rows = tf.range(*tf.unstack(starts))
    return self._features.read(rows, path_of), self._labels.read(rows, path_of)

  def close(self) -> None:
    """Frees the disk; harmless when called again."""
    self._exit_stack.close()

  def __exit__(self, *error: object) -> None:
    self.close()


def _closing(name: str) -> contextlib.closing[_Rows]:
  return contextlib.closing(_Rows(name))
