"""Writes seconds that were measured in turns: by what, and by its kind."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence

from tvdp_tf.output import files, layout, machine

# Seconds, by the name of what was measured and by the kind of it.
Seconds = Mapping[str, Mapping[str, Sequence[float]]]


def medians_ms(seconds: Mapping[str, Sequence[float]]) -> list[float]:
  """The median of each kind, in milliseconds."""
  return [1000 * statistics.median(values) for values in seconds.values()]


def write_csv(
  path: pathlib.Path, columns: tuple[str, str], results: Seconds
) -> None:
  """Writes every measurement.

  Args:
    path: The file; its folder is made.
    columns: What the names and the kinds are of.
    results: What was measured.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    path,
    [*columns, 'seconds'],
    [
      (name, kind, value)
      for name, seconds in results.items()
      for kind, values in seconds.items()
      for value in values
    ],
    end='\r\n',
  )


def write_table(
  path: pathlib.Path,
  title: str,
  command: str,
  words: str,
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
) -> None:
  """Writes a page of one table.

  Args:
    path: The file.
    title: Of the page.
    command: That measured it.
    words: What was measured, after the machine and its load.
    header: Of the table.
    rows: Of the table.
  """
  host = machine.describe()
  lines = [
    f'# {title}',
    '',
    f'By `{command}`, on {machine.in_words(host)}, at a load of '
    f'{host["load_average"]:.1f}: {words}',
    '',
    layout.markdown_table(header, rows),
  ]
  files.write_text(path, '\n'.join(lines) + '\n')
