"""Reproduces an experiment of the paper: CSV, picture and summary.

--resume continues an interrupted run. Several machines can share the work with
--shard=1/4 to --shard=4/4, each with its own folder; --merge joins the folders.
"""

import pathlib
import re

import _start  # noqa: F401
from absl import flags

from reproduction import catalogue
from tvdp_tf import _validate, errors
from tvdp_tf.cli import program
from tvdp_tf.training import run_folder, settings

_EXPERIMENT = flags.DEFINE_enum(
  'experiment',
  None,
  list(catalogue.EXPERIMENTS),
  'What to reproduce.',
)
_SCALE = flags.DEFINE_enum(
  'scale',
  'paper',
  ['smoke', 'paper'],
  'smoke: generated data, seconds; paper: the real data.',
)
_SEEDS = flags.DEFINE_integer(
  'seeds', None, "Number of seeds; by default the experiment's own."
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "TFDS's folder; downloads on first use."
)
_DEVICE = flags.DEFINE_enum(
  'device', 'auto', settings.DEVICES, 'Where it is executed.'
)
_SHARD = flags.DEFINE_string('shard', '1/1', 'i/n: run the i-th of n parts.')
_MERGE = flags.DEFINE_list('merge', [], 'Folders of shards to join.')
_RESUME = flags.DEFINE_bool('resume', False, 'Continue in --output_dir.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder; by default runs/<experiment>.'
)
_PROGRESS = flags.DEFINE_bool('progress', True, 'Draw a progress bar.')


def _shard() -> tuple[int, int]:
  match = re.fullmatch(r'(\d{1,6})/(\d{1,6})', _SHARD.value)
  part, count = map(int, match.groups()) if match else (0, 0)
  if not 1 <= part <= count:
    raise errors.UsageError(
      f'shard must be i/n with 1 <= i <= n, got {_SHARD.value!r}'
    )
  return part, count


def main() -> None:
  """Runs, resumes or merges what the flags describe."""
  if _EXPERIMENT.value is None:
    names = ', '.join(catalogue.EXPERIMENTS)
    raise errors.UsageError(f'experiment must be one of {names}, got none')
  part, count = _shard()
  experiment = catalogue.EXPERIMENTS[_EXPERIMENT.value]
  seeds = experiment.seeds if _SEEDS.value is None else _SEEDS.value
  try:
    _validate.integer('seeds', seeds)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  output_dir = pathlib.Path(_OUTPUT_DIR.value or f'runs/{experiment.name}')
  if not _RESUME.value:
    run_folder.check_absent(output_dir)
  with program.importing():
    from reproduction import runner as reproduction  # noqa: PLC0415
    from tvdp_tf import runtimes  # noqa: PLC0415

  runtimes.configure(_DEVICE.value, experiment.base['users_per_round'])

  smoke = _SCALE.value == 'smoke'
  points = reproduction.points(experiment, seeds, smoke, _DATA_DIR.value)
  if smoke:
    experiment = experiment.on_generated_data()
  if _MERGE.value:
    shards = [pathlib.Path(folder) for folder in _MERGE.value]
    reproduction.merge(experiment, points, shards, output_dir)
  else:
    reproduction.run(
      experiment,
      points[part - 1 :: count],
      output_dir,
      _DEVICE.value,
      _PROGRESS.value,
    )
  print((output_dir / reproduction.REPORT).read_text())
  print(f'written to {output_dir}')


if __name__ == '__main__':
  program.run(main)
