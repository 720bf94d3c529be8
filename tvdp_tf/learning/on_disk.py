"""Data sets in files that are read on demand: `files:FOLDER`.

The folder holds NumPy arrays, written by `np.save`:

  train_features.npy   uint8 [n, ...], divided by 255 when read, or float32
  train_labels.npy     integers [n], in [0, num_classes)
  test_features.npy    like train_features.npy; public, and held in memory
  test_labels.npy      integers; the largest of them is num_classes - 1
  train_users.npy      with --split=natural: integers [users], the number of
                       examples of each user; the examples are sorted by user

Training holds only the examples of the current and the next cohort in memory.
"""

import pathlib
from typing import Any

import numpy as np

from tvdp_tf import errors
from tvdp_tf.learning import aligned

_FEATURES_DTYPES = (np.dtype(np.uint8), np.dtype(np.float32))


class Examples:
  """The features in a file, which are read when they are indexed.

  Attributes:
    shape: [n, ...].
    dtype: float32, the dtype of what is read.
  """

  dtype = np.dtype(np.float32)

  def __init__(self, path: pathlib.Path):
    """Opens the file, and reads only its header.

    Raises:
      DatasetUnavailableError: If the file does not hold features.
    """
    self._rows = _opened(path)
    if self._rows.dtype not in _FEATURES_DTYPES or self._rows.ndim < 2:
      raise errors.DatasetUnavailableError(
        f'{path} must hold uint8 or float32 features [n, ...], got '
        f'{self._rows.dtype} {list(self._rows.shape)}'
      )
    self.shape = self._rows.shape

  def __len__(self) -> int:
    return len(self._rows)

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    """Reads all examples."""
    del copy
    return self[:].astype(dtype or np.float32, copy=False)

  def __getitem__(self, index: Any) -> np.ndarray:
    """Reads examples as a float32 copy."""
    rows = self._rows[index]
    read = aligned.empty(rows.shape, np.float32)
    if rows.dtype == np.uint8:
      np.divide(rows, np.float32(255), out=read)
    else:
      read[...] = rows
    return read


def _opened(path: pathlib.Path) -> np.ndarray:
  """Maps a file's array into memory."""
  try:
    found = np.load(path, mmap_mode='r', allow_pickle=False)
  except OSError as error:
    raise errors.DatasetUnavailableError(
      f'{path} cannot be read: {error.strerror or error}'
    ) from error
  except ValueError as error:
    raise errors.DatasetUnavailableError(
      f'{path} must be an array of np.save: {" ".join(str(error).split())}'
    ) from error
  if isinstance(found, np.ndarray):
    return found
  found.close()
  raise errors.DatasetUnavailableError(
    f'{path} must be an array of np.save, got an archive of np.savez'
  )


def _integers(path: pathlib.Path, least: int) -> np.ndarray:
  """Reads a file's integers [n]; all must be at least `least`."""
  found = np.array(_opened(path))
  if found.ndim != 1 or found.dtype.kind not in 'iu' or not len(found):
    raise errors.DatasetUnavailableError(
      f'{path} must hold integers [n], one or more, got {found.dtype}'
      f' {list(found.shape)}'
    )
  # No larger ones, so that no sum and no smaller type wraps around.
  most = np.iinfo(np.int32).max
  if found.min() < least or found.max() > most:
    raise errors.DatasetUnavailableError(
      f'{path} must hold integers from {least} to {most}, got '
      f'{found.min()} to {found.max()}'
    )
  return found


def _labels(path: pathlib.Path, num_examples: int) -> np.ndarray:
  labels = _integers(path, 0)
  if len(labels) != num_examples:
    raise errors.DatasetUnavailableError(
      f'{path} must hold a label for each of {num_examples} examples, got '
      f'{len(labels)}'
    )
  return labels.astype(np.int32)


def load(
  folder: str,
) -> tuple[Examples, np.ndarray, np.ndarray, np.ndarray, int]:
  """Returns (train features, labels, test features, labels, num_classes).

  Args:
    folder: A folder as described above.

  Raises:
    DatasetUnavailableError: If a file is missing or is not as described above.
  """
  place = pathlib.Path(folder)
  train, test = (
    Examples(place / 'train_features.npy'),
    Examples(place / 'test_features.npy'),
  )
  if train.shape[1:] != test.shape[1:]:
    raise errors.DatasetUnavailableError(
      f'{place} must hold training and test features of one shape, got '
      f'{list(train.shape[1:])} and {list(test.shape[1:])}'
    )
  test_labels = _labels(place / 'test_labels.npy', len(test))
  num_classes = int(test_labels.max()) + 1
  train_labels = _labels(place / 'train_labels.npy', len(train))
  if train_labels.max() >= num_classes:
    raise errors.DatasetUnavailableError(
      f'{place}/train_labels.npy must hold labels below {num_classes}, as those'
      ' of the test set are, got larger ones'
    )
  return train, train_labels, test[:], test_labels, num_classes


def users(folder: str) -> list[range]:
  """Returns each user's examples, according to `train_users.npy`.

  Raises:
    DatasetUnavailableError: If that is missing or does not fit the examples.
  """
  path = pathlib.Path(folder) / 'train_users.npy'
  counts = _integers(path, 1)
  examples = len(_opened(path.with_name('train_labels.npy')))
  ends = np.cumsum(counts, dtype=np.int64).tolist()
  if ends[-1] != examples:
    raise errors.DatasetUnavailableError(
      f'{path} must share out all of {examples} examples, got {ends[-1]}'
    )
  return list(map(range, [0, *ends[:-1]], ends))
