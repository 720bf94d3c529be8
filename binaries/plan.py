"""Plans a run without training: noise, delivered epsilon, rounds and theta.

Without flags: the paper's settings. What is printed goes to --output_dir too,
as plan.json, plan.csv (the convergence bound against the rounds) and plan.png.
"""

import pathlib

from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.experiments import planning_settings

_DEFAULTS = planning_settings.PlanSettings

_SHARED = (
  *('users', 'users_per_round', 'epsilon', 'delta', 'theta', 'rounds'),
  *('local_steps', 'l2_norm_clip', 'learning_rate'),
)


def _define() -> dict[str, flags.FlagHolder]:
  """The flags of `PlanSettings`; the defaults are the paper's, not train's."""
  holders = shared_flags.define(_SHARED)
  for name, holder in holders.items():
    flags.set_default(holder, getattr(_DEFAULTS, name))
  numbers = {
    'example_l2_norm_clip': 'C_g, norm that per-example gradients are clipped'
    ' to.',
    'contraction': 'A in (0, 1), by which a round without noise shrinks the'
    ' gap to the optimum.',
    'initial_gap': 'Theta, the gap F(w(0)) - F* before the first round.',
    'smoothness': 'L, smoothness of the loss.',
  }
  for name, text in numbers.items():
    holders[name] = flags.DEFINE_float(name, getattr(_DEFAULTS, name), text)
  holders['examples_per_user'] = flags.DEFINE_integer(
    'examples_per_user',
    _DEFAULTS.examples_per_user,
    'n = |D_k|, examples of the smallest user.',
  )
  holders['dimension'] = flags.DEFINE_integer(
    'dimension', _DEFAULTS.dimension, 'd, number of model parameters.'
  )
  holders['mechanism'] = flags.DEFINE_enum(
    'mechanism',
    _DEFAULTS.mechanism,
    planning_settings.MECHANISMS,
    'paper: noise on the parameters before upload; gradient: noise on the'
    ' clipped gradient of every local step.',
  )
  holders['participation'] = flags.DEFINE_enum(
    'participation',
    None,
    planning_settings.PARTICIPATIONS,
    'uniform: K of U at random; balanced: everyone once in U/K rounds; poisson:'
    ' each user with probability K/U. By default uniform for mechanism paper,'
    ' balanced for gradient.',
  )
  holders['calibration'] = flags.DEFINE_enum(
    'calibration',
    None,
    planning_settings.CALIBRATIONS['paper'],
    'How the noise is set: printed (the default of mechanism paper) and tight'
    " by the paper's unsound moment bound, exact (that of gradient), rdp and"
    ' pld by an accountant.',
  )
  return holders


_SETTINGS = _define()
flags.adopt_module_key_flags(shared_flags)  # So that --help lists them.
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default nothing is written.'
)


def _settings() -> planning_settings.PlanSettings:
  values = shared_flags.values(_SETTINGS)
  return planning_settings.PlanSettings(
    **{name: value for name, value in values.items() if value is not None},
    given=frozenset(name for name in values if flags.FLAGS[name].present),
  )


def main() -> None:
  """Makes, writes and prints the plan that the flags describe."""
  output_dir = _OUTPUT_DIR.value
  path = None if output_dir is None else pathlib.Path(output_dir)
  try:
    settings = _settings()
    # SciPy and Matplotlib take half a second to import: flags come first.
    from tvdp_tf.experiments import (  # noqa: PLC0415
      planning_files,
      planning_report,
      planning_text,
    )

    if path is not None:
      planning_files.check_folder(path)
    report = planning_report.make_report(settings)
    if path is not None:
      planning_files.write(report, path)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  print(planning_text.describe(report))
  if path is not None:
    print(f'\nwritten to {path}')


if __name__ == '__main__':
  program.run(main)
