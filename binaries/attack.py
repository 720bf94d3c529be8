"""Attacks the releases of training, to check privacy claims.

--audit: runs one client's releases thousands of times with and without one
example, and prints the epsilon that an attacker demonstrates next to the
claimed epsilon. Without other flags: Algorithm 1 of the paper on a client with
100 digits. The exit code is 1 if it refutes the guarantee of a mechanism that
gives one; the paper's gives none.

--audit with --model or --dataset: audits a training run of your own, with
mechanism gradient, distributed or distributed_users. Searches for data sets
that move the clipped mean gradient of the model, or a user's clipped update,
further than the guarantee allows. Also executes the run once with canaries:
pairs of examples, or of users' data, from which a coin flip has chosen one. The
server guesses the coin flips. With distributed and distributed_users it sees
only the sums, without as many clients as may drop out or collude. The exit code
is 1 if either attack shows that the guarantee is false.

--membership: trains models on one example of each pair, and asks an attacker
who sees the global models which example it was. Prints how often the attacker
is right, and the epsilon that this demonstrates. The exit code is 1 if this
epsilon is above a delivered epsilon that is said to hold.
"""

import pathlib
import secrets
from collections.abc import Sequence

import _start  # noqa: F401
from absl import flags

from tvdp_tf import errors, mechanisms
from tvdp_tf.attacks import audit_settings
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.training import settings as settings_lib

_DEFAULTS = audit_settings.AuditSettings

# Of both attacks, and of --membership alone.
_SHARED = (
  *('mechanism', 'epsilon', 'delta', 'theta', 'rounds', 'local_steps'),
  *('l2_norm_clip', 'example_l2_norm_clip', 'learning_rate', 'calibration'),
  'seed',
)
_TRAINING = (
  *('dataset', 'data_dir', 'model', 'users', 'users_per_round'),
  *('participation', 'noise', 'dropouts', 'colluders', 'device'),
)


# Of the audit of one client, and of that of a model.
_OF_A_CLIENT = ('client', 'examples', 'trials', 'l2_norm_clip')
_OF_A_MODEL = ('canaries', 'search_seconds', *_TRAINING)


class GuaranteeRefutedError(errors.TvdpError):
  """An attack shows more than a guarantee allows."""


def _define() -> dict[str, flags.FlagHolder]:
  """The flags of `AuditSettings`, those of `GameSettings` among them."""
  holders = shared_flags.define(_SHARED)
  for name in (
    *('mechanism', 'epsilon', 'delta', 'theta', 'rounds', 'local_steps'),
  ):
    flags.set_default(holders[name], getattr(_DEFAULTS, name))
  holders['client'] = flags.DEFINE_enum(
    'client',
    _DEFAULTS.client,
    audit_settings.CLIENTS,
    '--audit: digits: real digits and one white picture of either label;'
    ' outlier: the loss (w - x)^2 / 2 and one x far off to either side.',
  )
  holders['examples'] = flags.DEFINE_integer(
    'examples',
    None,
    'n, examples of the client; by default 100 digits, or 600 with the'
    ' outlier. --membership: of all users together; by default 40.',
  )
  holders['trials'] = flags.DEFINE_integer(
    'trials',
    None,
    'Runs with each of the two data sets; by default 10,000. --membership:'
    ' models to attack; by default 50.',
  )
  holders['confidence'] = flags.DEFINE_float(
    'confidence', _DEFAULTS.confidence, 'Confidence of the lower bound.'
  )
  holders['noise_scale'] = flags.DEFINE_float(
    'noise_scale',
    _DEFAULTS.noise_scale,
    '--audit: multiplies the calibrated noise; below 1 it breaks the mechanism'
    ' on purpose.',
  )
  return holders


_AUDIT = flags.DEFINE_bool(
  'audit', False, 'Find a lower bound of epsilon from the releases.'
)
_MEMBERSHIP = flags.DEFINE_bool(
  'membership',
  False,
  'Infer from the global models which examples they were trained on.',
)
_SETTINGS = _define()
_TRAINING_SETTINGS = shared_flags.define(_TRAINING)
for _name in ('users', 'users_per_round'):
  # Of few users, lest the noise leave no model to attack.
  flags.set_default(_TRAINING_SETTINGS[_name], 2)
_CANARIES = flags.DEFINE_integer(
  'canaries',
  None,
  '--audit of a model: how many examples of each user are canaries; by default'
  ' half of them.',
)
_SHADOW_MODELS = flags.DEFINE_integer(
  'shadow_models', 25, '--membership: models that the attacker trains.'
)
_SEARCH_SECONDS = flags.DEFINE_float(
  'search_seconds',
  60.0,
  '--audit of a model: about how long to search for hostile pairs.',
)
_PROGRESS = flags.DEFINE_bool(
  'progress', True, '--audit of a model: draw progress bars.'
)
flags.adopt_module_key_flags(shared_flags)  # So that --help lists them.
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default nothing is written.'
)


def _print_where(path: pathlib.Path | None) -> None:
  if path is not None:
    print(f'\nwritten to {path}')


def _is_given(name: str) -> bool:
  return flags.FLAGS[name].present > 0


def _check_not_given(names: Sequence[str], when: str) -> None:
  for name in names:
    if _is_given(name):
      raise ValueError(
        f'{name} must not be given {when}, got {flags.FLAGS[name].value!r}'
      )


def _audit(path: pathlib.Path | None) -> None:
  """The audit of one client, or of a model if one is given."""
  if _is_given('model') or _is_given('dataset'):
    refused = [*_OF_A_CLIENT]
    kind = mechanisms.MECHANISMS.get(flags.FLAGS.mechanism)
    if kind is not None and kind.unit == 'user':
      refused.remove('l2_norm_clip')  # Of the updates.
    _check_not_given(refused, 'in the audit of a model or data set')
    _audit_model(path)
  else:
    _check_not_given(_OF_A_MODEL, 'with --audit without --model or --dataset')
    _audit_client(path)


def _audit_model(path: pathlib.Path | None) -> None:
  """Makes, writes and prints the audit of a model that the flags describe.

  Raises:
    GuaranteeRefutedError: If it shows that the guarantee is false.
  """
  given = shared_flags.values(_SETTINGS)
  shared = {name: given[name] for name in _SHARED if name in given}
  if not _is_given('mechanism'):
    shared['mechanism'] = 'gradient'
  # What is not given is as `train.py` has it.
  own = shared_flags.values(_TRAINING_SETTINGS)
  training = settings_lib.TrainingSettings(
    **shared, **{name: own[name] for name in own if _is_given(name)}
  )
  # SciPy, Matplotlib and TensorFlow take seconds to import: flags come first.
  from tvdp_tf.attacks.model_audit import settings as audit_settings_lib  # noqa: PLC0415
  from tvdp_tf.output import files  # noqa: PLC0415

  settings = audit_settings_lib.ModelAuditSettings(
    training,
    canaries=_CANARIES.value,
    confidence=given['confidence'],
    noise_scale=given['noise_scale'],
    search_seconds=_SEARCH_SECONDS.value,
  )
  if path is not None:
    files.check_folder(path)

  with program.importing():
    from tvdp_tf import runtimes  # noqa: PLC0415
    from tvdp_tf.attacks.model_audit import audit as model_audit  # noqa: PLC0415
    from tvdp_tf.attacks.model_audit import report  # noqa: PLC0415

  with runtimes.compiled_runtime(training.device):
    found = model_audit.audit(settings, progress=_PROGRESS.value)
  if path is not None:
    with files.create_folder(path) as folder:
      report.write(found, folder)
  print(report.describe(found))
  _print_where(path)
  if found.refuted:
    raise GuaranteeRefutedError(report.verdict(found))


def _audit_client(path: pathlib.Path | None) -> None:
  """Makes, writes and prints the audit that the flags describe.

  Raises:
    GuaranteeRefutedError: If it shows that a guarantee is false; a mechanism
      like the paper's has none.
  """
  settings = audit_settings.AuditSettings(**shared_flags.values(_SETTINGS))
  # SciPy, Matplotlib and TensorFlow take seconds to import: flags come first.
  with program.importing():
    from tvdp_tf.attacks import audit  # noqa: PLC0415
    from tvdp_tf.output import files  # noqa: PLC0415

  audit.delivered_epsilons(settings, audit.build_mechanism(settings))
  if path is not None:
    files.check_folder(path)

  with program.importing():
    from tvdp_tf.attacks import audit, audit_report  # noqa: PLC0415

  result = audit.audit(settings)
  if path is not None:
    with files.create_folder(path) as folder:
      audit_report.write(result, folder)
  print(audit_report.describe(result))
  _print_where(path)
  if result.refuted and mechanisms.MECHANISMS[settings.mechanism].is_sound:
    raise GuaranteeRefutedError(audit_report.verdict(result))


def _membership(path: pathlib.Path | None) -> None:
  """Plays, writes and prints the membership game that the flags describe.

  Raises:
    GuaranteeRefutedError: If it shows that a guarantee is false.
  """
  _check_not_given(('canaries', 'search_seconds'), 'with --membership')
  given = shared_flags.values(_SETTINGS)
  shared = {name: given[name] for name in _SHARED if name in given}
  training = settings_lib.TrainingSettings(
    **({'seed': secrets.randbits(63)} | shared),
    **shared_flags.values(_TRAINING_SETTINGS),
  )
  # SciPy, Matplotlib and TensorFlow take seconds to import: flags come first.
  from tvdp_tf.attacks.membership_game import settings as membership_settings  # noqa: PLC0415
  from tvdp_tf.output import files  # noqa: PLC0415

  settings = membership_settings.GameSettings(
    training,
    shadow_models=_SHADOW_MODELS.value,
    confidence=given['confidence'],
    **{name: given[name] for name in ('examples', 'trials') if name in given},
  )
  if path is not None:
    files.check_folder(path)

  with program.importing():
    from tvdp_tf import runtimes  # noqa: PLC0415
    from tvdp_tf.attacks.membership_game import game as membership_game  # noqa: PLC0415
    from tvdp_tf.attacks.membership_game import report as membership_report  # noqa: PLC0415
    from tvdp_tf.output import files  # noqa: PLC0415

  with runtimes.compiled_runtime(training.device) as context:
    game = membership_game.Games(context).play(settings)
  found = membership_report.Report(game, membership_report.attack(game))
  if path is not None:
    with files.create_folder(path) as folder:
      files.write_json(folder / 'membership.json', found.to_json_dict())
  print(membership_report.describe(found))
  _print_where(path)
  if found.refuted:
    raise GuaranteeRefutedError(membership_report.verdict(found))


def main() -> None:
  """Runs the attack that the flags ask for."""
  if _AUDIT.value == _MEMBERSHIP.value:
    raise errors.UsageError('audit or --membership must be given, but not both')
  path = None if _OUTPUT_DIR.value is None else pathlib.Path(_OUTPUT_DIR.value)
  try:
    (_audit if _AUDIT.value else _membership)(path)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


if __name__ == '__main__':
  program.run(main)
