"""Trains on 100,000 users on disk; measures memory and the time of a round.

  python -m tools.scale --minutes=60 --output_dir=results/scale

See `tools.scale_suite`. The users' files take 4.7 GB of the temporary folder.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/scale', 'Where scale.csv, scale.png and README.md go.'
)
_MINUTES = flags.DEFINE_float('minutes', 60.0, 'How long it trains.', 0.1)
_USERS = flags.DEFINE_integer('users', 100_000, 'U.', 2)
_USERS_PER_ROUND = flags.DEFINE_integer('users_per_round', 1000, 'K.', 1)


def main() -> None:
  """Runs the training."""
  from tools import scale_suite  # noqa: PLC0415

  scale_suite.run(
    pathlib.Path(_OUTPUT_DIR.value),
    _USERS.value,
    _USERS_PER_ROUND.value,
    60 * _MINUTES.value,
  )
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
