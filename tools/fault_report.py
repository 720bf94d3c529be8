"""Writes the table of faults to files."""

import pathlib
from collections.abc import Sequence

from tools import fault_suite
from tvdp_tf.output import files, layout, machine


def write(
  rows: Sequence[fault_suite.Row], folder: pathlib.Path, seed: int
) -> None:
  """Writes `faults.csv` and `README.md`."""
  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(folder / 'faults.csv', rows[0]._fields, rows)
  kills = [row for row in rows if row.fault.startswith('SIGKILL: ')]
  survived = sum(row.survived for row in kills)
  host = machine.in_words(machine.describe())
  lines = [
    '# Faults, and what was lost',
    '',
    f'By `make faults ARGS=--seed={seed}` on {host}; every row '
    'is in `faults.csv`.',
    '',
    f'Runs with a seed were killed (SIGKILL) {len(kills)} times at random '
    f'instants, {sum("tff" in row.where for row in kills)} times on the '
    '`tff` runtime and the others on `compiled`, and resumed. Model, metrics '
    '(but for the seconds) and ledger were those of the uninterrupted run, bit '
    f'by bit, after {survived} of them.',
    '',
    layout.markdown_table(
      ('fault', 'runtime, mechanism', 'what happened', 'lost'),
      (
        (row.fault, row.where, row.happened.replace('|', ' '), row.lost)
        for row in rows
        if row not in kills
      ),
    ),
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')
