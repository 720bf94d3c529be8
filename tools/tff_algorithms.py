"""Measures rounds of TFF's own algorithms on both runtimes, on a CPU.

  python -m tools.tff_algorithms --output_dir=results/tff_algorithms

See `tools.tff_algorithms_suite`. It takes half a minute on two cores.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/tff_algorithms', 'Where rounds.csv and README.md go.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 20, 'Rounds of each kind that are measured.', lower_bound=1
)


def main() -> None:
  """Runs the measurements."""
  from tools import tff_algorithms_suite  # noqa: PLC0415

  tff_algorithms_suite.run(pathlib.Path(_OUTPUT_DIR.value), _ROUNDS.value)
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
