"""Trains one model under differential privacy, federated by TFF.

Without flags: Algorithm 1 of the paper on scikit-learn's embedded digits, in
seconds. Everything about the run is written to --output_dir.
"""

import datetime
import pathlib

from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.experiments import settings as settings_lib

_SETTINGS = shared_flags.define()
flags.adopt_module_key_flags(shared_flags)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default runs/<date and time>.'
)
_PROGRESS = flags.DEFINE_bool('progress', True, 'Draw a progress bar.')


def main() -> None:
  """Runs the training that the flags describe."""
  try:
    settings = settings_lib.TrainingSettings(**shared_flags.values(_SETTINGS))
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  output_dir = pathlib.Path(
    _OUTPUT_DIR.value or f'runs/{datetime.datetime.now():%Y%m%d-%H%M%S}'
  )
  # TensorFlow and TFF take seconds to import: flags are checked before.
  from tvdp_tf.experiments import training  # noqa: PLC0415

  result = training.train(settings, output_dir, progress=_PROGRESS.value)
  print(f'test loss {result.loss:.4f}, test accuracy {result.accuracy:.4f}')
  print()
  print(result.statement.describe())
  print()
  print(f'written to {result.output_dir}')


if __name__ == '__main__':
  program.run(main)
