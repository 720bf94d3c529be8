"""Measures the test accuracy of `fit` by learning rate, model and epsilon.

  python -m tools.learning_rates --output_dir=results/learning_rates

`fit` chooses a learning rate from public numbers. See
`tools.learning_rates_suite`. Fashion-MNIST and Adult are read by TFDS. It takes
some 40 minutes on two cores.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/learning_rates', 'Where runs.csv and README.md go.'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, "TFDS's folder.")
_SEEDS = flags.DEFINE_integer(
  'seeds', 2, 'Runs of each rate, from seeds 0, 1, ...', lower_bound=1
)


def main() -> None:
  """Trains the models, and writes the results."""
  from tools import learning_rates_suite  # noqa: PLC0415

  learning_rates_suite.run(
    pathlib.Path(_OUTPUT_DIR.value), _DATA_DIR.value, _SEEDS.value
  )
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
