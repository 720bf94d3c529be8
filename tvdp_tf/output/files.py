"""Atomic writes of text, JSON, tables and folders.

A file is written under a temporary name, flushed to disk and renamed. Even
after a crash, a reader finds either the old file or the new one.

An existing empty folder is filled, not replaced: it may be a mounted disk, or
have its own owner and permissions. Write errors are one line.
"""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tvdp_tf import errors


@contextlib.contextmanager
def replaced(
  path: pathlib.Path,
  beside: pathlib.Path | None = None,
  lasting: bool = True,
) -> Iterator[pathlib.Path]:
  """Writes a file or a folder under a temporary name, and then renames it.

  A file replaces an existing one; a folder can only replace an empty one. After
  an exception, everything is as before.

  Args:
    path: The final path.
    beside: The folder to write it in, on the same disk; by default that of
      `path`.
    lasting: Whether it must also survive a crash of the machine.

  Yields:
    The path to write to: `.<name>.<process>`.

  Raises:
    OSError: If it cannot be written.
  """
  temporary = (beside or path.parent) / f'.{path.name}.{os.getpid()}'
  try:
    yield temporary
    if lasting and temporary.is_file():
      sync(temporary)
    os.replace(temporary, path)
    if lasting:
      sync(path.parent)
  finally:
    if temporary.is_dir():
      shutil.rmtree(temporary, ignore_errors=True)
    else:
      temporary.unlink(missing_ok=True)


def sync(path: pathlib.Path) -> None:
  """Flushes a file, or the names in a folder, to disk."""
  descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def write_text(path: pathlib.Path, text: str, lasting: bool = True) -> None:
  """Writes a text file in UTF-8, with unchanged line endings.

  Args:
    path: The file.
    text: What to write.
    lasting: As for `replaced`.
  """
  with replaced(path, lasting=lasting) as temporary:
    temporary.write_text(text, encoding='utf-8', newline='')


def json_text(value: Any) -> str:
  """Returns a value as JSON with a line feed; NaN and infinity are errors."""
  return json.dumps(value, indent=2, allow_nan=False) + '\n'


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file; NaN and infinity are errors."""
  write_text(path, json_text(value))


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Reads a JSON object; empty if it cannot be read."""
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError, RecursionError):
    return {}
  return value if isinstance(value, dict) else {}


def csv_text(
  header: Sequence[str], rows: Iterable[Sequence[Any]], end: str = '\n'
) -> str:
  """Returns a table as CSV.

  Args:
    header: The names of the columns.
    rows: The cells, in their order.
    end: The end of each line.
  """
  text = io.StringIO()
  writer = csv.writer(text, lineterminator=end)
  writer.writerow(header)
  writer.writerows(rows)
  return text.getvalue()


def write_csv(
  path: pathlib.Path,
  header: Sequence[str],
  rows: Iterable[Sequence[Any]],
  end: str = '\n',
) -> None:
  """Writes a table; arguments as for `csv_text`."""
  write_text(path, csv_text(header, rows, end))


def read_csv(path: pathlib.Path) -> list[Mapping[str, str]]:
  """Reads the rows of a table with a header.

  Raises:
    OSError: If it cannot be read.
  """
  with open(path, newline='', encoding='utf-8') as file:
    return list(csv.DictReader(file))


def check_folder(path: pathlib.Path) -> None:
  """Checks that the folder can be created.

  Args:
    path: The folder.

  Raises:
    ValueError: If there is anything but an empty folder at `path`, or if no
      folder can be created there.
  """
  above = path.absolute()
  try:
    os.fspath(above).encode()
  except UnicodeEncodeError as error:  # TensorFlow accepts only UTF-8.
    raise ValueError(
      f'output_dir must be a path in UTF-8, got {str(path)!r}'
    ) from error
  if os.path.lexists(path):
    if path.is_symlink() or not path.is_dir() or _entries(path):
      raise ValueError(
        f'output_dir must be a new or an empty folder, got {str(path)!r}'
      )
  else:
    while not os.path.lexists(above):
      above = above.parent
  if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
    raise ValueError(f'output_dir must be writable, got {str(path)!r}')


def _entries(path: pathlib.Path) -> list[str]:
  """The names in a folder, except leftovers of a process killed creating it."""
  try:
    names = os.listdir(path)
  except OSError as error:
    raise ValueError(
      f'output_dir must be readable, got {str(path)!r}: {error.strerror}'
    ) from error
  return [name for name in names if not _is_abandoned(path, name)]


@contextlib.contextmanager
def create_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Creates the folder: it is written under a temporary name and renamed.

  If the folder exists and is empty, the files are written to a folder inside it
  and moved at the end. Leftovers of killed processes that were creating the
  same folder are removed.

  Args:
    path: The folder; see `check_folder`.

  Yields:
    The path to write its contents to.

  Raises:
    ValueError: If the folder is not empty or cannot be written.
  """
  check_folder(path)
  path = path.absolute()
  try:
    if path.is_dir():
      with _filled(path) as temporary:
        yield temporary
      return
    _remove_abandoned(path, path.parent)
    with replaced(path) as temporary:
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
    # If two processes fill it at once, one sees the other's entries.
    if os.listdir(path) != [temporary.name]:
      raise ValueError(
        f'output_dir must be used by this process only, got {str(path)!r}'
      )
    for entry in temporary.iterdir():
      entry.rename(path / entry.name)
    sync(path)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _is_abandoned(path: pathlib.Path, name: str) -> bool:
  """Whether a name is `.<name>.<process>` of a process that is gone."""
  match = re.fullmatch(rf'\.{re.escape(path.name)}\.([1-9][0-9]*)', name)
  return match is not None and not pathlib.Path('/proc', match[1]).exists()


def _remove_abandoned(path: pathlib.Path, where: pathlib.Path) -> None:
  """Removes leftovers of processes that were killed while creating `path`."""
  if not where.is_dir():
    return
  for entry in where.iterdir():
    if _is_abandoned(path, entry.name):
      shutil.rmtree(entry, ignore_errors=True)


class NotWrittenError(errors.TvdpError):
  """A file cannot be written; what was there before is unchanged."""


@contextlib.contextmanager
def errors_in_one_line(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns the errors of a block that only writes to `path` into one line.

  Raises:
    NotWrittenError: If the block could not write.
  """
  try:
    yield
  except Exception as error:
    tensorflow = sys.modules.get('tensorflow')  # Do not import it for this.
    if isinstance(error, OSError):
      reason = error.strerror or str(error)
    elif tensorflow and isinstance(error, tensorflow.errors.OpError):
      # TensorFlow's message is: path of a temporary file; reason [operation].
      reason = error.message.rpartition('; ')[2].partition(' [Op:')[0]
    else:
      raise
    raise NotWrittenError(
      f'{os.fspath(path)} cannot be written: {reason}; nothing is lost,'
      ' continue with --resume'
    ) from error
