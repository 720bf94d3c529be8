"""An output folder that appears whole or not at all."""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator


def check(path: pathlib.Path) -> None:
  """Checks that the folder can be created.

  Args:
    path: The folder.

  Raises:
    ValueError: If there is something at `path`, or no folder can be made there.
  """
  if os.path.lexists(path):
    raise ValueError(f'output_dir must not exist yet, got {str(path)!r}')
  above = path.absolute().parent
  while not os.path.lexists(above):
    above = above.parent
  if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
    raise ValueError(f'output_dir must be writable, got {str(path)!r}')


@contextlib.contextmanager
def create(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Creates the folder: it is written beside its place and renamed.

  What a creation of the same folder left that was killed is removed.

  Args:
    path: The folder, see `check`.

  Yields:
    Where to write what shall be in it.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  check(path)
  path = path.absolute()
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    _remove_abandoned(path)
    temporary.mkdir(parents=True)
    yield temporary
    os.rename(temporary, path)
    sync(path.parent)
  except OSError as error:
    raise ValueError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(path: pathlib.Path) -> None:
  """Removes `.<name>.<process>` of processes that are gone."""
  pattern = re.compile(rf'\.{re.escape(path.name)}\.([1-9][0-9]*)')
  if not path.parent.is_dir():
    return
  for entry in path.parent.iterdir():
    match = pattern.fullmatch(entry.name)
    if match and not pathlib.Path('/proc', match[1]).exists():
      shutil.rmtree(entry, ignore_errors=True)


def sync(folder: pathlib.Path) -> None:
  """Makes the names in a folder last, whatever happens to the machine."""
  descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
