"""Provokes every fault that a training run must survive, and writes a table.

  python -m tools.faults --output_dir=results/faults

Each fault befalls the real program on the embedded digits. Afterwards the same
command with --resume must end with the model, the metrics and the ledger of an
uninterrupted run, bit by bit. Full disks are file systems of their own: where
none can be mounted, those rows say so. It takes half an hour on two cores.
"""

import csv
import io
import pathlib
import random
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tqdm
from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program
from tvdp_tf.experiments import run_folder

if TYPE_CHECKING:
  from tools import fault_suite

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/faults', 'Where faults.csv and README.md are written.'
)
_SEED = flags.DEFINE_integer(
  'seed', None, 'Of the instants of the kills; by default another every time.'
)


def write(
  rows: 'Sequence[fault_suite.Row]', folder: pathlib.Path, seed: int
) -> None:
  """Writes `faults.csv` and `README.md`."""
  folder.mkdir(parents=True, exist_ok=True)
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(rows[0]._fields)
  writer.writerows(rows)
  run_folder.write_text(folder / 'faults.csv', text.getvalue())
  kills = [row for row in rows if row.fault.startswith('SIGKILL: ')]
  survived = sum(row.survived for row in kills)
  lines = [
    '# Faults, and what was lost',
    '',
    f'By `make faults ARGS=--seed={seed}`; every row is in `faults.csv`.',
    '',
    f'Runs with a seed were killed (SIGKILL) {len(kills)} times at random '
    f'instants, {sum("tff" in row.where for row in kills)} times on the '
    '`tff` runtime and the others on `compiled`, and resumed. Model, metrics '
    '(but for the seconds) and ledger were those of the uninterrupted run, bit '
    f'by bit, after {survived} of them.',
    '',
    '| fault | runtime, mechanism | what happened | lost |',
    '| --- | --- | --- | --- |',
    *(
      f'| {row.fault} | {row.where} | {row.happened.replace("|", " ")} | '
      f'{row.lost} |'
      for row in rows
      if row not in kills
    ),
  ]
  run_folder.write_text(folder / 'README.md', '\n'.join(lines) + '\n')


def main() -> None:
  """Provokes all faults."""
  # They load TensorFlow.
  from tools import fault_cases, fault_suite  # noqa: PLC0415

  seed = random.randrange(2**32) if _SEED.value is None else _SEED.value
  rows: list[fault_suite.Row] = []
  with (
    tempfile.TemporaryDirectory() as folder,
    tqdm.tqdm(unit='fault') as bar,
  ):
    suite = fault_suite.Suite(
      pathlib.Path(folder).resolve(), random.Random(seed)
    )
    for row in fault_cases.rows(suite):
      rows.append(row)
      bar.update()
      bar.set_postfix_str(row.fault)
  write(rows, pathlib.Path(_OUTPUT_DIR.value), seed)
  print(f'{len(rows)} faults, seed {seed}, written to {_OUTPUT_DIR.value}')
  failed = [row for row in rows if not row.survived]
  for row in failed:
    print(f'NOT SURVIVED: {row}')
  if failed:
    raise errors.TrainingFailedError(f'{len(failed)} faults were not survived')


if __name__ == '__main__':
  program.run(main)
