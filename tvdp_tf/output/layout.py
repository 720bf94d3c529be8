"""Lays out reports for a terminal of 80 characters, and in Markdown."""

import textwrap
from collections.abc import Iterable, Sequence

from tvdp_tf.privacy import statement as statement_lib

_WIDTH = 80


def wrap(text: str, indent: int = 2, first: str = '') -> list[str]:
  """Wraps a paragraph.

  Args:
    text: The text, broken at its spaces. A word that is too long, such as a
      path, stays whole.
    indent: Number of spaces before every line.
    first: Text before the first line; the others are indented by its length.

  Returns:
    The lines.
  """
  start = ' ' * indent + first
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=start,
    subsequent_indent=' ' * len(start),
    break_on_hyphens=False,
    break_long_words=False,
  )


def table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
  """Aligns rows; the first `left` columns and the last are left-aligned."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  last = len(widths) - 1
  return [
    '  '
    + '  '.join(
      cell.ljust(width) if i < left or i == last else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def epsilon(value: float | None) -> str:
  """Formats an epsilon, rounded up; '-' for None."""
  return '-' if value is None else statement_lib.format_epsilon(value)


def noise(level: float) -> str:
  """Formats a noise level, rounded up, so that the noise shown is enough."""
  return statement_lib.format_epsilon(level)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Formats a table; every row has as many cells as the header."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
