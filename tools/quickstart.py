"""Measures lines and seconds from nothing to a private model, by tool.

  python -m tools.quickstart --output_dir=results/quickstart

For each tool, a new environment is created, without pip's cache, from the pins
in `benchmarks/peers/<tool>/requirements.txt` or our lock. Then
`benchmarks/peers/<tool>/quickstart.py` trains a linear model of scikit-learn's
digits at about epsilon = 3, and prints what the tool itself says about privacy.
It needs `make install`, and takes some minutes.
"""

import pathlib
import sys
import tempfile

from absl import flags

from tools import quickstart_suite
from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/quickstart', 'Where quickstart.csv and README.md go.'
)
_TOOLS = flags.DEFINE_multi_enum(
  'tools',
  list(quickstart_suite.PROTECTS),
  list(quickstart_suite.PROTECTS),
  'A tool to measure; repeat the flag for several.',
)
_PYTHON = flags.DEFINE_string(
  'python', sys.executable, 'Python 3.11, which creates the environments.'
)


def main() -> None:
  """Measures all tools, and writes the results."""
  import numpy as np  # noqa: PLC0415
  from sklearn import datasets  # noqa: PLC0415

  x, y = datasets.load_digits(return_X_y=True)
  x, train = (x / 16).astype(np.float32), len(x) * 4 // 5
  with tempfile.TemporaryDirectory() as folder:
    digits = pathlib.Path(folder) / 'digits.npz'
    np.savez(
      digits, x=x[:train], y=y[:train], test_x=x[train:], test_y=y[train:]
    )
    rows = []
    for tool in _TOOLS.value:
      rows.append(quickstart_suite.measure(tool, _PYTHON.value, digits))
      print(
        {name: rows[-1][name] for name in quickstart_suite.COLUMNS[:-1]},
        flush=True,
      )
  quickstart_suite.write(rows, pathlib.Path(_OUTPUT_DIR.value))
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
