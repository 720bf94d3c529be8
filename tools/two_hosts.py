"""Measures how much faster rounds are with two workers on two hosts.

  python -m tools.two_hosts --output_dir=results/two_hosts

See `tools.two_hosts_suite`. It needs two cores, Linux and the right to create
network namespaces, and takes two minutes.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/two_hosts', 'Where rounds.csv and README.md go.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 10, 'Rounds of each training, the first two not counted.', 3
)
_TURNS = flags.DEFINE_integer('turns', 2, 'Trainings of each kind.', 1)


def main() -> None:
  """Trains with one worker and with two, in turns."""
  from tools import two_hosts_suite  # noqa: PLC0415

  two_hosts_suite.run(
    pathlib.Path(_OUTPUT_DIR.value), _ROUNDS.value, _TURNS.value
  )
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
