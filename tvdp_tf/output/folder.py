"""An output folder that appears whole or not at all."""

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
  try:
    _remove_abandoned(path)
    with files.replaced(path) as temporary:
      temporary.mkdir(parents=True)
      yield temporary
  except OSError as error:
    raise ValueError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error


def _remove_abandoned(path: pathlib.Path) -> None:
  """Removes `.<name>.<process>` of processes that are gone."""
  pattern = re.compile(rf'\.{re.escape(path.name)}\.([1-9][0-9]*)')
  if not path.parent.is_dir():
    return
  for entry in path.parent.iterdir():
    match = pattern.fullmatch(entry.name)
    if match and not pathlib.Path('/proc', match[1]).exists():
      shutil.rmtree(entry, ignore_errors=True)
