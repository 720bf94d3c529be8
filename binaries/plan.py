"""Plans a run without training: noise, delivered epsilon, rounds and theta.

Takes the flags of train.py, with the same defaults, so the flag file of a
training run also plans it. Calibrates the mechanism as train.py would, and goes
through all rounds without data. The statement is the one that train.py will
make if every round happens as planned. With --output_dir, it also writes
plan.json, plan.csv (the convergence bound against the rounds) and plan.png.

--estimate_contraction=PILOT measures the contraction and the initial gap from a
run of train.py --mechanism=none on public data, instead of assuming them.

--ledger=FILE plans nothing. It audits what the runs in the ledger have spent,
from the ledger alone, and says HOLDS or DOES NOT HOLD, never better than a
run's statement. It exits with 1 if the ledger is damaged or a target that it
enforces is exceeded.

--claim=FORMULA:NAME=VALUE,... also plans nothing. It says what the noise of
another tool delivers, and exits with 1 if that is more than the tool claims.
"""

import pathlib

import _start  # noqa: F401
from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.planner import settings as planning_settings

_OWN = {
  'contraction': (
    'float',
    'A in (0, 1), by which a round without noise shrinks the gap to the'
    ' optimum.',
  ),
  'initial_gap': (
    'float',
    'Theta, the gap F(w(0)) - F* before the first round; by default ln of the'
    ' number of classes.',
  ),
  'smoothness': ('float', 'L, smoothness of the loss.'),
  'examples_per_user': (
    'integer',
    "n of every user; by default as the data set's examples are dealt out.",
  ),
  'dimension': (
    'integer',
    "d, number of parameters; by default the model's.",
  ),
}


def _define() -> dict[str, flags.FlagHolder]:
  """The flags of `PlanSettings`, those of training among them."""
  holders = shared_flags.define()
  for name, (kind, text) in _OWN.items():
    holders[name] = getattr(flags, f'DEFINE_{kind}')(
      name, getattr(planning_settings.PlanSettings, name), text
    )
  return holders


_SETTINGS = _define()
_AUTO = shared_flags.define_auto()
flags.adopt_module_key_flags(shared_flags)  # So that --help lists them.
_PROGRESS = flags.DEFINE_bool(
  'progress', True, 'Show how many plans were compared.'
)
_PILOT = flags.DEFINE_string(
  'estimate_contraction',
  None,
  'Folder or metrics.csv of a run of train.py --mechanism=none on public data:'
  ' measures --contraction and --initial_gap from its test loss.',
)
_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  "A run's ledger.jsonl: audits it instead of planning. Of the other flags only"
  ' --output_dir may be given.',
)
_CLAIM = flags.DEFINE_string(
  'claim',
  None,
  'Checks a claim of another tool instead of planning, such as flower-local-dp:'
  'epsilon=1,delta=1e-5,rounds=30,clip=1,sensitivity=1. Formulas: gaussian,'
  ' flower-local-dp, dp-sgd, nvflare-svt, nvflare-percentile.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default nothing is written.'
)


def _given() -> frozenset[str]:
  """The fields of the settings that the user has set."""
  return frozenset(name for name in _SETTINGS if flags.FLAGS[name].present)


def _plan(output_dir: pathlib.Path | None) -> None:
  """Makes, writes and prints the plan that the flags describe."""
  settings = planning_settings.PlanSettings(
    **shared_flags.resolved(_SETTINGS, _AUTO.value), given=_given()
  )
  # SciPy and Matplotlib take half a second to import: flags come first.
  from tvdp_tf.output import files  # noqa: PLC0415
  from tvdp_tf.planner import files as planning_files  # noqa: PLC0415
  from tvdp_tf.planner import pilot as planning_pilot  # noqa: PLC0415
  from tvdp_tf.planner import report as planning_report  # noqa: PLC0415
  from tvdp_tf.planner import text as planning_text  # noqa: PLC0415

  if output_dir is not None:
    files.check_folder(output_dir)
  pilot = None
  if _PILOT.value is not None:
    pilot = planning_pilot.read(_PILOT.value)
  report = planning_report.plan(settings, pilot, progress=_PROGRESS.value)
  if output_dir is not None:
    planning_files.write(report, output_dir)
  print(planning_text.describe(report))


def _audit(ledger: str, output_dir: pathlib.Path | None) -> None:
  """Audits a ledger, writes and prints what every client has spent."""
  others = sorted(_given())
  if _PILOT.value is not None:
    others.append(_PILOT.name)
  if others:
    raise ValueError(
      f'ledger must be given without --{others[0]}, got both: the file holds'
      ' all settings'
    )
  if not pathlib.Path(ledger).is_file():
    raise ValueError(f"ledger must be a run's ledger file, got {ledger!r}")
  from tvdp_tf.output import files  # noqa: PLC0415
  from tvdp_tf.planner import ledger_report  # noqa: PLC0415
  from tvdp_tf.privacy import ledger_audit  # noqa: PLC0415

  if output_dir is not None:
    files.check_folder(output_dir)
  audit = ledger_audit.audit(ledger)
  if output_dir is not None:
    ledger_report.write(audit, output_dir)
  print(ledger_report.describe(audit))
  ledger_report.check(audit)


def _check(claim: str) -> None:
  """Prints what another tool delivers."""
  others = sorted(_given())
  others += [
    holder.name
    for holder in (_PILOT, _LEDGER, _OUTPUT_DIR)
    if holder.value is not None
  ]
  if others:
    raise ValueError(f'claim must be given without --{others[0]}, got both')
  from tvdp_tf.privacy import claims  # noqa: PLC0415

  found = claims.check_text(claim)
  print(found.describe())
  claims.raise_unless_holds(found)


def main() -> None:
  """Plans, audits a ledger or checks a claim."""
  path = _OUTPUT_DIR.value
  output_dir = None if path is None else pathlib.Path(path)
  try:
    if _CLAIM.value is not None:
      _check(_CLAIM.value)
    elif _LEDGER.value is None:
      _plan(output_dir)
    else:
      _audit(_LEDGER.value, output_dir)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  if output_dir is not None:
    print(f'\nwritten to {output_dir}')


if __name__ == '__main__':
  program.run(main)
