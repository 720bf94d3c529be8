"""An output folder that appears whole or not at all."""

import contextlib
import os
import pathlib
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
    temporary.mkdir(parents=True)
    yield temporary
    os.rename(temporary, path)
  except OSError as error:
    raise ValueError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
