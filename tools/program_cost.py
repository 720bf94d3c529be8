"""Measures the cost of a round of train.py, compared to its runtime's round.

  python -m tools.program_cost --data_dir=DIR

It trains on MNIST, with two mechanisms; see `tools.program_cost_suite`. It
takes two minutes on two cores.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/program_cost', 'Where rounds.csv and README.md go.'
)
_DATASET = flags.DEFINE_string('dataset', 'mnist', 'As of train.py.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'As of train.py.')
_MECHANISMS = flags.DEFINE_list('mechanisms', 'gradient,paper', 'Which.')
_BLOCKS = flags.DEFINE_integer(
  'blocks', 20, 'Blocks of each mechanism that are measured.', lower_bound=1
)


def main() -> None:
  """Measures the costs, and writes the results."""
  with program.importing():
    from tools import program_cost_suite  # noqa: PLC0415
    from tvdp_tf import runtimes  # noqa: PLC0415
  runtimes.configure('cpu', 10)  # As train.py does for `gradient`.
  measured = {
    mechanism: program_cost_suite.measure(
      mechanism, _DATASET.value, _DATA_DIR.value, _BLOCKS.value
    )
    for mechanism in _MECHANISMS.value
  }
  folder = pathlib.Path(_OUTPUT_DIR.value)
  program_cost_suite.write(measured, _DATASET.value, folder)
  print(f'written to {folder}')


if __name__ == '__main__':
  program.run(main)
