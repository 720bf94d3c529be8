"""Checks that a process keeps its size in four thousand rounds with faults.

  python -m tools.soak --output_dir=results/soak

The training program's own machinery (ledger, rounds on the compiled runtime,
evaluation, checkpoints, metrics) trains on the embedded digits, while clients
vanish, lose their data, or send NaN and huge values, and the run is interrupted
and resumed four times. After every round, the resident memory, the open file
descriptors, the threads and the child processes of this process are sampled.
After a warm-up, they must be flat, as defined in `soak_run`. It takes a minute
or two on two cores.
"""

import pathlib

from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/soak', 'Where soak.csv, soak.png and README.md go.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 4000, 'Rounds of training.', lower_bound=50
)


def main() -> None:
  """Runs the soak test."""
  from tools import soak_report  # noqa: PLC0415 It loads TensorFlow.

  verdict = soak_report.soak(_ROUNDS.value, pathlib.Path(_OUTPUT_DIR.value))
  print(f'written to {_OUTPUT_DIR.value}')
  if failures := verdict.failures():
    raise errors.TrainingFailedError('; '.join(failures))


if __name__ == '__main__':
  program.run(main)
