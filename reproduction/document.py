"""Fills in the tables of the documents, and draws a picture.

A line `<!-- table: KIND NAME -->` is followed by a table, up to
`<!-- end -->`. Run without arguments; a test checks that nothing changes.
"""

import pathlib
import re
from collections.abc import Callable, Mapping

from reproduction import (
  correlated_table,
  planner_tables,
  result_tables,
  theory_tables,
)

_ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = _ROOT / 'docs/REPRODUCTION.md'
README = _ROOT / 'README.md'
SCHEDULE = _ROOT / 'docs/SCHEDULE.md'
# The picture in the README.
FRONTIER = result_tables.RESULTS / 'frontier.png'

_BLOCK = re.compile(
  r'(<!-- table: (\w+)(?: (\w+))? -->\n).*?(<!-- end -->)', re.DOTALL
)
_TABLES: Mapping[str, Callable[[], str]] = {
  **theory_tables.TABLES,
  **planner_tables.TABLES,
  'learning_rates': result_tables.learning_rates_table,
  'frontier': result_tables.frontier_table,
  'correlated': correlated_table.table,
}
_TABLES_OF_EXPERIMENTS: Mapping[str, Callable[[str], str]] = {
  'claims': result_tables.claims_table,
  'ends': result_tables.ends_table,
}


def _filled(match: re.Match) -> str:
  head, kind, name, end = match.groups()
  table = _TABLES_OF_EXPERIMENTS[kind](name) if name else _TABLES[kind]()
  return f'{head}{table}\n{end}'


def filled(text: str) -> str:
  """Returns the document with new tables."""
  return _BLOCK.sub(_filled, text)


if __name__ == '__main__':
  for path in (DOCUMENT, README, SCHEDULE):
    path.write_text(filled(path.read_text()))
  result_tables.draw_frontier(FRONTIER)
