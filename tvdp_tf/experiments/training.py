"""One training run into a folder of its own, from its start or from a kill."""

import asyncio
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import pathlib
from typing import Any

import tensorflow as tf

from tvdp_tf import errors, federated, privacy, simulation
from tvdp_tf.experiments import (
  disk_errors,
  federation,
  plans,
  run_folder,
  training_run,
)
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.privacy import ledger as ledger_lib

_RECORDED_VERSIONS = (
  'tensorflow-federated',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """What a run ends with.

  Attributes:
    loss: Test loss of the last round.
    accuracy: Test accuracy of the last round.
    statement: What the run's releases reveal.
    output_dir: The run's folder.
  """

  loss: float
  accuracy: float
  statement: privacy.PrivacyStatement
  output_dir: pathlib.Path


def _versions() -> dict[str, str]:
  versions = {
    name: importlib.metadata.version(name) for name in _RECORDED_VERSIONS
  }
  return {'tensorflow': tf.__version__, **versions}


def _resolved(plan: plans.Plan) -> dict[str, Any]:
  """What the settings have come to."""
  resolved: dict[str, Any] = {'public_seed': plan.fed.public_seed}
  if plan.header.unit == 'example':
    # Where users are protected, so is how much they have.
    resolved['examples_per_user'] = plan.fed.examples_per_user.tolist()
  kind, _, path = plan.settings.model.partition(':')
  if kind == 'keras':
    content = pathlib.Path(path).read_bytes()
    resolved['model_sha256'] = hashlib.sha256(content).hexdigest()
  schedule = getattr(plan.mechanism, 'schedule', None)
  if schedule is not None:
    resolved['schedule'] = dataclasses.asdict(schedule)
  return resolved


def _runtime(
  settings: settings_lib.TrainingSettings,
) -> contextlib.AbstractContextManager:
  if settings.runtime == 'remote':
    raise errors.UsageError('workers must be given with runtime remote')
  if settings.runtime == 'tff':
    return federated.local_runtime()
  return simulation.compiled_runtime(settings.device)


def _build(
  settings: settings_lib.TrainingSettings, public_seed: int | None
) -> plans.Plan:
  try:
    return plans.build(settings, federation.assemble(settings, public_seed))
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


def train(
  settings: settings_lib.TrainingSettings,
  output_dir: pathlib.Path,
  progress: bool = False,
  resume: bool = False,
  runtime: contextlib.AbstractContextManager | None = None,
) -> TrainingResult:
  """Trains, and writes the run's folder.

  Args:
    settings: What to run.
    output_dir: The folder to create, or to go on with.
    progress: Whether to draw a progress bar on the standard error.
    resume: Whether to go on with the run in `output_dir`, however it ended.
    runtime: Where to run it, by default what the settings say; given with
      runtime remote, whose workers are no setting: one may replace another.

  Returns:
    The result.

  Raises:
    UsageError: If a setting does not fit the data set, `output_dir` exists or
      cannot be written, or a GPU is asked for and there is none; with `resume`,
      if the folder holds no run, a finished one, or one of another
      configuration.
    DatasetUnavailableError: If the data set cannot be loaded.
    TrainingFailedError: If the loss is not finite, or no client has any budget
      left.
    NotWrittenError: If a file cannot be written.
    LedgerError: If the ledger cannot be written, is damaged, or is open in
      another process.
  """
  public_seed = None
  if resume:
    config = run_folder.config_to_resume(
      output_dir, dataclasses.asdict(settings)
    )
    if run_folder.is_finished(output_dir):
      raise errors.UsageError(
        f'resume must be of an unfinished run, got {str(output_dir)!r}'
      )
    run_folder.check_unchanged(output_dir, config, 'versions', _versions())
    public_seed = config['resolved']['public_seed']
  else:
    run_folder.check_absent(output_dir)
  runtime = runtime or _runtime(settings)
  plan = _build(settings, public_seed)
  now = {
    'settings': dataclasses.asdict(settings),
    'resolved': _resolved(plan),
    'versions': _versions(),
  }
  if resume:
    run_folder.check_unchanged(output_dir, config, 'resolved', now['resolved'])
    run_folder.check_whole(output_dir, config)
  else:
    run_folder.create(output_dir, now, plan.header)
  digest = run_folder.digest(now)
  with (
    ledger_lib.PrivacyLedger.open(
      output_dir / run_folder.LEDGER, plan.header
    ) as ledger,
    runtime,
  ):
    with disk_errors.one_line(output_dir):
      run_folder.remove_leftovers(output_dir)
    run = training_run.TrainingRun(plan, ledger, digest, output_dir)
    try:
      asyncio.run(run.train(progress, resume))
    except BaseException:
      # A failed run has released things too: its statement counts them.
      with contextlib.suppress(disk_errors.NotWrittenError):
        run.write_results(finished=False)
      raise
    statement = run.write_results(finished=True)
  assert statement is not None  # There is at least one round.
  return TrainingResult(run.loss, run.accuracy, statement, output_dir)
