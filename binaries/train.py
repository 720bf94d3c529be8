"""Trains one model under differential privacy, federated by TFF.

Without flags, it trains on scikit-learn's embedded digits with a guarantee that
holds, in seconds. It writes everything about the run to --output_dir. No matter
how a run ended, the same command with --resume continues it.
"""

import contextlib
import dataclasses
import importlib.metadata
import pathlib

import _start  # noqa: F401
from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program, shared_flags
from tvdp_tf.learning import datasets
from tvdp_tf.output import drawing_process
from tvdp_tf.training import run_folder, selection, shared_ledger
from tvdp_tf.training import settings as settings_lib

_SETTINGS = shared_flags.define()
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder to create; by default runs/<date and time>.'
)
_AUTO = shared_flags.define_auto()
flags.adopt_module_key_flags(shared_flags)
_RESUME = flags.DEFINE_bool(
  'resume',
  False,
  'Continue the run in --output_dir, with the same flags.',
)
_LEDGER = flags.DEFINE_string(
  'ledger',
  None,
  'File of a ledger, and so of a budget, that several runs on the same users'
  ' share, one after the other or at once; created if it is missing. By default'
  ' the run has its own, in --output_dir.',
)
_LEDGER_EPSILON = flags.DEFINE_float(
  'ledger_epsilon',
  None,
  'Epsilon that a client may spend in all runs that share --ledger; fixed when'
  ' the file is created; by default --epsilon.',
)
_BEST_OF = flags.DEFINE_float(
  'best_of',
  None,
  'With --mechanism=central: mean of a random number of runs, of which only the'
  ' best by test accuracy is published; --epsilon counts the choice.',
)
_PROGRESS = flags.DEFINE_bool('progress', True, 'Draw a progress bar.')
_DETERMINISTIC = flags.DEFINE_bool(
  'deterministic', False, 'Make runs on a GPU reproducible to the bit; slower.'
)
_WORKERS = flags.DEFINE_list(
  'workers', [], 'host:port of each worker, for --runtime=remote.'
)
_WORKER_TLS = flags.DEFINE_string(
  'worker_tls', None, 'Folder of ca.crt, tls.crt and tls.key for the workers.'
)
_INSECURE_WORKERS = flags.DEFINE_bool(
  'insecure_workers', False, 'Talk to the workers without TLS.'
)
_ALLOW_OPEN_PORT = flags.DEFINE_bool(
  'allow_open_port',
  False,
  "With --runtime=tff: start TFF's worker where others can reach it.",
)


def _shared_ledger(
  settings: settings_lib.TrainingSettings,
) -> shared_ledger.SharedLedger | None:
  if _LEDGER.value is None:
    if _LEDGER_EPSILON.value is not None:
      raise errors.UsageError(
        'ledger_epsilon must be given with --ledger, and only then, got '
        f'{_LEDGER_EPSILON.value!r}'
      )
    return None
  try:
    shared = shared_ledger.SharedLedger(
      pathlib.Path(_LEDGER.value), _LEDGER_EPSILON.value
    )
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  shared.check(settings)
  return shared


def _check_best_of(settings: settings_lib.TrainingSettings) -> None:
  if _BEST_OF.value is None:
    return
  for flag in (_RESUME, _LEDGER):
    if flag.value:
      raise errors.UsageError(
        f'best_of must be given without --{flag.name}, got both'
      )
  selection.check(settings, _BEST_OF.value)


def _check_workers(settings: settings_lib.TrainingSettings) -> None:
  if (settings.runtime == 'remote') != bool(_WORKERS.value):
    raise errors.UsageError(
      'workers must be given with --runtime=remote, and only then, got '
      f'{",".join(_WORKERS.value)!r} with {settings.runtime!r}'
    )
  if _WORKERS.value and bool(_WORKER_TLS.value) == _INSECURE_WORKERS.value:
    raise errors.UsageError(
      'workers must be given with one of --worker_tls and --insecure_workers'
    )
  for flag in (_WORKER_TLS, _INSECURE_WORKERS):
    if flag.value and not _WORKERS.value:
      raise errors.UsageError(
        f'{flag.name} must be given with --workers, and only then'
      )
  if _ALLOW_OPEN_PORT.value and settings.runtime != 'tff':
    raise errors.UsageError(
      'allow_open_port must be given with --runtime=tff, and only then, got '
      f'{settings.runtime!r}'
    )


def _own_runtime(settings: settings_lib.TrainingSettings):
  """A runtime that the settings do not describe, if the flags ask for one."""
  from tvdp_tf import runtimes  # noqa: PLC0415

  if settings.runtime == 'tff' and _ALLOW_OPEN_PORT.value:
    return runtimes.local_runtime(contained=False)
  if settings.runtime != 'remote':
    return None
  try:
    tls = _WORKER_TLS.value
    return runtimes.remote_runtime(
      _WORKERS.value,
      credentials=runtimes.tls_credentials(tls) if tls else None,
      insecure=_INSECURE_WORKERS.value,
    )
  except ValueError as error:
    raise errors.UsageError(f'workers: {error}') from error


def _check_device(settings: settings_lib.TrainingSettings) -> None:
  """Checks that TensorFlow is no build for the CPU, if a GPU is asked for.

  Whether it finds one is known only once it has been imported.
  """
  if settings.device != 'gpu':
    return
  with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    version = importlib.metadata.version('tensorflow-cpu')
    raise errors.UsageError(
      "device must be auto or cpu with TensorFlow's build for the CPU "
      f"(tensorflow-cpu {version}), got 'gpu': `make install-gpu` has the other"
    )


def main() -> None:
  """Runs the training that the flags describe."""
  try:
    settings = settings_lib.TrainingSettings(
      **shared_flags.resolved(_SETTINGS, _AUTO.value)
    )
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  _check_device(settings)
  _check_workers(settings)
  _check_best_of(settings)
  ledger = _shared_ledger(settings)
  if _RESUME.value and not _OUTPUT_DIR.value:
    raise errors.UsageError('output_dir must be given with --resume')
  output_dir = pathlib.Path(_OUTPUT_DIR.value or run_folder.new_name())
  if _RESUME.value:
    run_folder.config_to_resume(output_dir, dataclasses.asdict(settings))
    if run_folder.is_finished(output_dir):
      print(f'the run in {output_dir} is finished: nothing to do')
      return
  else:
    run_folder.check_absent(output_dir)
  # TensorFlow and TFF take seconds to import: what can be is checked before.
  # Beside that, a process and a thread do what takes as long.
  drawing_process.start()
  datasets.read_ahead(settings.dataset, settings.data_dir)
  with program.importing():
    from tvdp_tf import runtimes  # noqa: PLC0415
    from tvdp_tf.training import best_run  # noqa: PLC0415
    from tvdp_tf.training import train as training  # noqa: PLC0415

  runtimes.configure(
    settings.used_device,
    settings.users_per_round,
    _DETERMINISTIC.value,
    waits=settings.may_draw_discretely,
  )
  if _BEST_OF.value is not None:
    result = best_run.train_best(
      settings,
      output_dir,
      _BEST_OF.value,
      progress=_PROGRESS.value,
      make_runtime=lambda: _own_runtime(settings),
    )
  else:
    try:
      result = training.train(
        settings,
        output_dir,
        progress=_PROGRESS.value,
        resume=_RESUME.value,
        runtime=_own_runtime(settings),
        ledger=ledger,
      )
    except KeyboardInterrupt:
      again = f'run the same command with --output_dir={output_dir} --resume'
      raise KeyboardInterrupt(
        run_folder.interrupted(output_dir, again)
      ) from None
  print(f'test loss {result.loss:.4f}, test accuracy {result.accuracy:.4f}')
  if result.warning:
    print(result.warning)
  print()
  print(result.statement.describe())
  print()
  print(f'written to {result.output_dir}')


if __name__ == '__main__':
  program.run(main)
