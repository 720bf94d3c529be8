"""Files that appear whole or not at all: text, JSON, tables, folders.

What is new is written beside its place, flushed to the disk and renamed. So a
reader, and who comes after a crash, finds the old one or the new one.
"""

import contextlib
import csv
import io
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


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
