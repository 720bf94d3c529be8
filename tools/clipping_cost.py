"""Measures the cost of a clipped mean, by the layers of the model.

  python -m tools.clipping_cost --output_dir=results/clipping_cost

See `tools.clipping_cost_suite`. It takes three minutes on two cores.
"""

import pathlib

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/clipping_cost', 'Where means.csv and README.md go.'
)
_TURNS = flags.DEFINE_integer(
  'turns', 7, 'Times that each mean is measured.', lower_bound=1
)


def main() -> None:
  """Runs the measurements."""
  from tools import clipping_cost_suite  # noqa: PLC0415

  clipping_cost_suite.run(pathlib.Path(_OUTPUT_DIR.value), _TURNS.value)
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
