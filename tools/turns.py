"""Writes seconds that were measured in turns, by name and kind."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence

from tvdp_tf.output import files, layout, machine

# Name of what was measured -> kind -> seconds.
Seconds = Mapping[str, Mapping[str, Sequence[float]]]


def medians_ms(seconds: Mapping[str, Sequence[float]]) -> list[float]:
  """Returns the median of each kind, in milliseconds."""
  return [1000 * statistics.median(values) for values in seconds.values()]


def write_csv(
  path: pathlib.Path, columns: tuple[str, str], results: Seconds
) -> None:
  """Writes every measurement.

  Args:
    path: The file; its folder is created.
    columns: Headers for the names and the kinds.
    results: The measurements.
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
    title: Title of the page.
    command: The command that measured it.
    words: What was measured; follows the machine and its load.
    header: Header of the table.
    rows: Rows of the table.
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
