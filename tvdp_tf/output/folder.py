"""An output folder that appears whole or not at all.

One that is there and empty is filled: it may be a mounted disk, or have an
owner and permissions of its own.
"""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from tvdp_tf.output import files


def check(path: pathlib.Path) -> None:
  """Checks that the folder can be created.

  Args:
    path: The folder.

  Raises:
    ValueError: If there is anything but an empty folder at `path`, or none can
      be made there.
  """
  above = path.absolute()
  if os.path.lexists(path):
    if path.is_symlink() or not path.is_dir() or _entries(path):
      raise ValueError(
        f'output_dir must not exist yet, or be empty, got {str(path)!r}'
      )
  else:
    while not os.path.lexists(above):
      above = above.parent
  if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
    raise ValueError(f'output_dir must be writable, got {str(path)!r}')


def _entries(path: pathlib.Path) -> list[str]:
  """What is in a folder, but for what a killed creation of it has left."""
  try:
    names = os.listdir(path)
  except OSError as error:
    raise ValueError(
      f'output_dir must be readable, got {str(path)!r}: {error.strerror}'
    ) from error
  return [name for name in names if not _is_abandoned(path, name)]


@contextlib.contextmanager
def create(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Creates the folder: it is written beside its place and renamed.

  An empty folder is written to in a folder in it, whose entries are moved at
  the end. What a creation of the same folder left that was killed is removed.

  Args:
    path: The folder, see `check`.

  Yields:
    Where to write what shall be in it.

  Raises:
    ValueError: If the folder is not empty or cannot be written.
  """
  check(path)
  path = path.absolute()
  try:
    if path.is_dir():
      with _filled(path) as temporary:
        yield temporary
      return
    _remove_abandoned(path, path.parent)
    with files.replaced(path) as temporary:
      temporary.mkdir(parents=True)
      yield temporary
  except OSError as error:
    raise ValueError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error


@contextlib.contextmanager
def _filled(path: pathlib.Path) -> Iterator[pathlib.Path]:
  _remove_abandoned(path, path)
  temporary = path / f'.{path.name}.{os.getpid()}'
  temporary.mkdir()
  try:
    yield temporary
    # Of two processes that fill it at once, one sees the other's.
    if os.listdir(path) != [temporary.name]:
      raise ValueError(
        f'output_dir must be of this process alone, got {str(path)!r}'
      )
    for entry in temporary.iterdir():
      entry.rename(path / entry.name)
    files.sync(path)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _is_abandoned(path: pathlib.Path, name: str) -> bool:
  """Whether it is `.<name>.<process>` of a process that is gone."""
  match = re.fullmatch(rf'\.{re.escape(path.name)}\.([1-9][0-9]*)', name)
  return match is not None and not pathlib.Path('/proc', match[1]).exists()


def _remove_abandoned(path: pathlib.Path, where: pathlib.Path) -> None:
  """Removes what killed creations of `path` have left in a folder."""
  if not where.is_dir():
    return
  for entry in where.iterdir():
    if _is_abandoned(path, entry.name):
      shutil.rmtree(entry, ignore_errors=True)
