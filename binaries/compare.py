"""Trains in several ways at the same target epsilon, and compares them.

Trains each of --mechanisms with each given --theta.

Without flags, it compares the paper's mechanism, a mechanism whose guarantee
holds, and no noise, on scikit-learn's embedded digits, in seconds.
"""

import pathlib
from typing import Any

import _start  # noqa: F401
from absl import flags

from tvdp_tf import errors, mechanisms
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.training import run_folder
from tvdp_tf.training import settings as settings_lib

_SETTINGS = shared_flags.define(
  [
    name
    for name in shared_flags.NAMES
    if name
    not in ('mechanism', 'participation', 'calibration', 'refinement', 'theta')
  ]
)
flags.adopt_module_key_flags(shared_flags)
_MECHANISMS = flags.DEFINE_list(
  'mechanisms',
  ['paper', 'gradient', 'none'],
  f'Some of {", ".join(mechanisms.MECHANISMS)}, or your own of --import.',
)
_THETA = flags.DEFINE_list(
  'theta',
  [str(settings_lib.TrainingSettings.theta)],
  'Ratio of the noise variances of successive rounds; or several of them,'
  ' comma-separated.',
)
_NONE_LEARNING_RATE = flags.DEFINE_float(
  'none_learning_rate',
  0.5,
  'Learning rate of the mechanism none, whose steps no projection or clip'
  ' limits.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default runs/<date and time>.'
)
_PROGRESS = flags.DEFINE_bool('progress', True, 'Draw progress bars.')


def _thetas() -> tuple[float, ...]:
  try:
    return tuple(map(float, _THETA.value))
  except ValueError:
    raise errors.UsageError(
      f'theta must be numbers, comma-separated, got {",".join(_THETA.value)!r}'
    ) from None


def _values(mechanism: str) -> dict[str, Any]:
  """The settings of a mechanism's runs but for its name and theta."""
  values = shared_flags.values(_SETTINGS)
  if mechanism == 'none':
    values['learning_rate'] = _NONE_LEARNING_RATE.value
  return values


def main() -> None:
  """Runs the comparison that the flags describe."""
  output_dir = pathlib.Path(_OUTPUT_DIR.value or run_folder.new_name())
  # Flags are checked before the seconds that the imports take.
  for name in _MECHANISMS.value:
    if name not in mechanisms.MECHANISMS:
      raise errors.UsageError(
        f'mechanisms must be some of {", ".join(mechanisms.MECHANISMS)}, got '
        f'{name!r}'
      )
    for theta in _thetas():
      values = {**_values(name), 'theta': theta}
      try:
        settings_lib.TrainingSettings.of_mechanism(name, values)
      except ValueError as error:
        raise errors.UsageError(str(error)) from error
  with program.importing():
    from reproduction import comparison  # noqa: PLC0415
    from tvdp_tf import runtimes  # noqa: PLC0415

  try:
    settings = comparison.settings_of(_MECHANISMS.value, _thetas(), _values)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  first = next(iter(settings.values()))
  runtimes.configure(
    first.device,
    first.users_per_round,
    waits=any(one.may_draw_discretely for one in settings.values()),
  )
  results = comparison.compare(settings, output_dir, _PROGRESS.value)
  for result in results.values():
    print()
    print(result.statement.describe())
  print()
  print(comparison.describe(results))
  print()
  print(f'written to {output_dir}')


if __name__ == '__main__':
  program.run(main)
