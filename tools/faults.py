"""Provokes every fault that a training run must survive, and writes a table.

  python -m tools.faults --output_dir=results/faults

Each fault is applied to the real program on the embedded digits. Afterwards,
the same command with --resume must end with the model, the metrics and the
ledger of an uninterrupted run, bit for bit. For full disks, it mounts separate
file systems; where it cannot, those rows say so. It takes 15 minutes on two
cores.
"""

import pathlib
import random
import signal
import tempfile

import tqdm
from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/faults', 'Where faults.csv and README.md are written.'
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  'Seed of the times of the kills; by default a new one every time.',
)


def main() -> None:
  """Provokes all faults."""
  # They load TensorFlow.
  from tools import fault_cases, fault_report, fault_suite  # noqa: PLC0415

  # A shell ignores SIGINT for background jobs, and the runs would inherit that.
  if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
  fault_report.write(rows, pathlib.Path(_OUTPUT_DIR.value), seed)
  print(f'{len(rows)} faults, seed {seed}, written to {_OUTPUT_DIR.value}')
  failed = [row for row in rows if not row.survived]
  for row in failed:
    print(f'NOT SURVIVED: {row}')
  if failed:
    raise errors.TrainingFailedError(f'{len(failed)} faults were not survived')


if __name__ == '__main__':
  program.run(main)
