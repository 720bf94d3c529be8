"""Atomic writes of text, JSON, tables and folders.

A file is written under a temporary name, flushed to disk and renamed. A reader,
also after a crash, finds either the old file or the new one.

An existing empty folder is filled, not replaced: it may be a mounted disk, or
have an owner and permissions of its own. Write errors are one line.
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
  """Writes a file or a folder beside its place, and renames it at the end.

  A file replaces what is there; a folder replaces an empty one at most. After
  an exception everything is as before.

  Args:
    path: The place.
    beside: The folder to write it in, on the same disk; by default that of
      `path`.
    lasting: Whether it is to outlast a crash of the machine, too.

  Yields:
    Where to write it: `.<name>.<process>`.

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
  """Makes a file, or the names in a folder, last whatever happens then."""
  descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def write_text(path: pathlib.Path, text: str, lasting: bool = True) -> None:
  """Writes a text file, in UTF-8, with the ends of lines as they are.

  Args:
    path: The place.
    text: What to write.
    lasting: As of `replaced`.
  """
  with replaced(path, lasting=lasting) as temporary:
    temporary.write_text(text, encoding='utf-8', newline='')


def json_text(value: Any) -> str:
  """A value as JSON with a line's end; a NaN or an infinity is an error."""
  return json.dumps(value, indent=2, allow_nan=False) + '\n'


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file; a NaN or an infinity is an error."""
  write_text(path, json_text(value))


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object; empty if there is none that can be read."""
  try:
    value = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError, RecursionError):
    return {}
  return value if isinstance(value, dict) else {}


def csv_text(
  header: Sequence[str], rows: Iterable[Sequence[Any]], end: str = '\n'
) -> str:
  """A table as CSV.

  Args:
    header: The names of the columns.
    rows: The cells, in their order.
    end: Of each line.
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
  """Writes a table; arguments as of `csv_text`."""
  write_text(path, csv_text(header, rows, end))


def read_csv(path: pathlib.Path) -> list[Mapping[str, str]]:
  """The rows of a table with a header.

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
    ValueError: If there is anything but an empty folder at `path`, or none can
      be made there.
  """
  above = path.absolute()
  try:
    os.fspath(above).encode()
  except UnicodeEncodeError as error:  # TensorFlow takes no other.
    raise ValueError(
      f'output_dir must be a path in UTF-8, got {str(path)!r}'
    ) from error
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
def create_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Creates the folder: it is written beside its place and renamed.

  An empty folder is written to in a folder in it, whose entries are moved at
  the end. What a creation of the same folder left that was killed is removed.

  Args:
    path: The folder, see `check_folder`.

  Yields:
    Where to write what shall be in it.

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
    # Of two processes that fill it at once, one sees the other's.
    if os.listdir(path) != [temporary.name]:
      raise ValueError(
        f'output_dir must be of this process alone, got {str(path)!r}'
      )
    for entry in temporary.iterdir():
      entry.rename(path / entry.name)
    sync(path)
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


class NotWrittenError(errors.TvdpError):
  """A file cannot be written; what was there before still is."""


@contextlib.contextmanager
def errors_in_one_line(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns the errors of a block that only writes to `path` into one line.

  Raises:
    NotWrittenError: If the block could not write.
  """
  try:
    yield
  except Exception as error:
    tensorflow = sys.modules.get('tensorflow')  # Not loaded for its errors.
    if isinstance(error, OSError):
      reason = error.strerror or str(error)
    elif tensorflow and isinstance(error, tensorflow.errors.OpError):
      # What TensorFlow says is: path of a temporary file; reason [operation].
      reason = error.message.rpartition('; ')[2].partition(' [Op:')[0]
    else:
      raise
    raise NotWrittenError(
      f'{os.fspath(path)} cannot be written: {reason}; nothing is lost, '
      '--resume goes on from there'
    ) from error
