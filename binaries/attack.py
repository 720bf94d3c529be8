"""Attacks what a client releases, to check what is claimed of it.

--audit: runs one client's releases thousands of times with and without one
example, and prints the epsilon that an attacker demonstrates beside the one
that is claimed. Without other flags: Algorithm 1 of the paper on a client with
100 digits. The exit code is 0 whatever the verdict.
"""

import pathlib

from absl import flags

from tvdp_tf import errors
from tvdp_tf.attacks import audit_settings
from tvdp_tf.cli import program, shared_flags

_DEFAULTS = audit_settings.AuditSettings

_SHARED = (
  *('epsilon', 'delta', 'theta', 'rounds', 'local_steps', 'l2_norm_clip'),
  *('example_l2_norm_clip', 'learning_rate', 'calibration', 'seed'),
)


def _define() -> dict[str, flags.FlagHolder]:
  """The flags of `AuditSettings`."""
  holders = shared_flags.define(_SHARED)
  for name in ('epsilon', 'theta', 'rounds', 'local_steps'):
    flags.set_default(holders[name], getattr(_DEFAULTS, name))
  holders['mechanism'] = flags.DEFINE_enum(
    'mechanism',
    _DEFAULTS.mechanism,
    audit_settings.MECHANISMS,
    'paper: noise on the parameters before upload; gradient: noise on the'
    ' clipped gradient of every local step.',
  )
  holders['client'] = flags.DEFINE_enum(
    'client',
    _DEFAULTS.client,
    audit_settings.CLIENTS,
    'digits: real digits and one white picture of either label; outlier: the'
    ' loss (w - x)^2 / 2 and one x far off to either side.',
  )
  holders['examples'] = flags.DEFINE_integer(
    'examples',
    None,
    'n, examples of the client; by default 100 digits, or 600 with the'
    ' outlier.',
  )
  holders['trials'] = flags.DEFINE_integer(
    'trials', _DEFAULTS.trials, 'Runs with each of the two data sets.'
  )
  holders['confidence'] = flags.DEFINE_float(
    'confidence', _DEFAULTS.confidence, 'Of the lower bound.'
  )
  holders['noise_scale'] = flags.DEFINE_float(
    'noise_scale',
    _DEFAULTS.noise_scale,
    'Multiplies the calibrated noise; below 1 it breaks the mechanism on'
    ' purpose.',
  )
  return holders


_AUDIT = flags.DEFINE_bool(
  'audit', False, 'Find an epsilon that the releases are shown to exceed.'
)
_SETTINGS = _define()
flags.adopt_module_key_flags(shared_flags)  # So that --help lists them.
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default nothing is written.'
)


def _audit() -> None:
  """Makes, writes and prints the audit that the flags describe."""
  output_dir = _OUTPUT_DIR.value
  path = None if output_dir is None else pathlib.Path(output_dir)
  try:
    settings = audit_settings.AuditSettings(**shared_flags.values(_SETTINGS))
    # SciPy, Matplotlib and TensorFlow take seconds to import: flags come first.
    from tvdp_tf.attacks import claims  # noqa: PLC0415
    from tvdp_tf.experiments import output_folder  # noqa: PLC0415

    claims.delivered_epsilons(settings, claims.build_mechanism(settings))
    if path is not None:
      output_folder.check(path)

    from tvdp_tf.attacks import (  # noqa: PLC0415
      audit,
      audit_files,
      audit_text,
    )

    result = audit.audit(settings)
    if path is not None:
      with output_folder.create(path) as folder:
        audit_files.write(result, folder)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  print(audit_text.describe(result))
  if path is not None:
    print(f'\nwritten to {path}')


def main() -> None:
  """Runs the attack that the flags ask for."""
  if not _AUDIT.value:
    raise errors.UsageError('audit must be given: there is no other attack yet')
  _audit()


if __name__ == '__main__':
  program.run(main)
