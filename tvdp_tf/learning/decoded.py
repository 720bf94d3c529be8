"""Data sets of TFDS as they were decoded, so that they are decoded once.

TFDS takes ten seconds to decode MNIST and one to be imported. What it gave is
kept beside its own folders, in one file for each data set, and taken only while
everything is as it was: the name that was asked for, TFDS's version, which data
sets of that name there are in which versions, and names, sizes and times of the
files that were decoded. A checksum covers the whole. What does not fit is read
through TFDS, and replaced.
"""

import importlib.metadata
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from tvdp_tf import _arrays

_FOLDER = 'decoded_by_tvdp_tf'
# Larger ones would not fit into memory twice.
_MOST_BYTES = 2**30

# Train, test, and the number of classes.
Parts = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray], int]


def _root(data_dir: str | None) -> pathlib.Path:
  """TFDS's folder; by default what it takes itself."""
  default = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  return pathlib.Path(data_dir or default).expanduser()


def _path(name: str, data_dir: str | None) -> pathlib.Path:
  return _root(data_dir) / _FOLDER / re.sub(r'\W', '_', name)


def _facts(name: str, root: pathlib.Path, source: str) -> list[Any]:
  """What must be as it was: JSON.

  Raises:
    OSError: If the folder is not there.
  """
  folder = root / source
  files = [
    [path.name, status.st_size, status.st_mtime_ns]
    for path in sorted(folder.iterdir())
    for status in [path.stat()]
  ]
  return [
    name,
    importlib.metadata.version('tensorflow-datasets'),
    source,
    sorted(os.listdir(folder.parent)),
    files,
  ]


def read(name: str, data_dir: str | None) -> Parts | None:
  """A data set as it was decoded; None if there is none, or anything changed.

  Args:
    name: What TFDS calls it.
    data_dir: TFDS's folder, by default its own choice.
  """
  path = _path(name, data_dir)
  try:
    if not path.is_file():  # Who reads from a pipe waits for a writer.
      return None
    arrays, (facts, num_classes) = _arrays.decoded(path.read_bytes())
    if facts != _facts(name, _root(data_dir), facts[2]):
      return None
    train, test = (
      {
        key.removeprefix(part): array
        for key, array in arrays.items()
        if key.startswith(part)
      }
      for part in ('train_', 'test_')
    )
    return train, test, int(num_classes)
  except (OSError, ValueError, TypeError, LookupError):
    return None


def write(name: str, data_dir: str | None, builder: Any, parts: Parts) -> None:
  """Keeps a data set, if it can be kept.

  Args:
    name: As of `read`.
    data_dir: The same.
    builder: TFDS's, that read it.
    parts: What it gave.
  """
  train, test, num_classes = parts
  arrays = {
    **{f'train_{name}': column for name, column in train.items()},
    **{f'test_{name}': column for name, column in test.items()},
  }
  if (
    # Code of somebody else's may change without a number.
    not type(builder).__module__.startswith('tensorflow_datasets.')
    or any(column.dtype.hasobject for column in arrays.values())
    or sum(column.nbytes for column in arrays.values()) > _MOST_BYTES
  ):
    return
  path, root = _path(name, data_dir), _root(data_dir)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    source = os.path.relpath(builder.data_path, root)
    content = _arrays.encoded(arrays, [_facts(name, root, source), num_classes])
    path.parent.mkdir(exist_ok=True)
    try:
      temporary.write_bytes(content)
      # What a crash leaves of it, its checksum tells.
      os.replace(temporary, path)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as error:  # A folder that only others can write to, say.
    logging.info('data set %s is not kept decoded: %s', name, error)
