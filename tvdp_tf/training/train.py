"""`train`: starts or resumes one training run, in its own folder.

`asyncio.run` cannot be used where an event loop is already running, as in
Jupyter. In that case the work is done in a separate thread (`with_event_loop`).
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import os
import pathlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from tvdp_tf import _validate, errors, privacy, runtimes
from tvdp_tf.learning import xla_functions
from tvdp_tf.output import files
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.training import federation, run_folder, shared_ledger
from tvdp_tf.training import run as training_run
from tvdp_tf.training import selection as selection_lib
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import start as start_lib

_Result = TypeVar('_Result')
RunCoroutine = Callable[[Coroutine[Any, Any, None]], None]


def with_event_loop(function: Callable[[RunCoroutine], _Result]) -> _Result:
  """Calls `function`, in this thread unless an event loop is running in it.

  Ctrl-C, or the interrupt button of a notebook, ends it as it would end
  `asyncio.run`: awaited tasks are cancelled, and KeyboardInterrupt is raised
  when `function` has ended.

  Args:
    function: Called with a replacement for `asyncio.run`.

  Raises:
    KeyboardInterrupt: If it was interrupted; and whatever `function` raises.
  """
  try:
    asyncio.get_running_loop()
  except RuntimeError:
    is_running = False
  else:
    is_running = True
  # Outside of the `try`: an error would seem to come from the missing loop.
  return _in_a_thread(function) if is_running else function(asyncio.run)


def _in_a_thread(function: Callable[[RunCoroutine], _Result]) -> _Result:
  interrupted = False
  running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

  def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def main():
      task = asyncio.current_task()
      assert task is not None
      running.append((asyncio.get_running_loop(), task))
      if interrupted:
        task.cancel()
      try:
        await coroutine
      finally:
        running.clear()

    asyncio.run(main())

  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    # By the context, a notebook knows which cell the output belongs to.
    future = pool.submit(contextvars.copy_context().run, function, run)
    try:
      return future.result()
    except KeyboardInterrupt:
      interrupted = True
      for loop, task in list(running):
        loop.call_soon_threadsafe(task.cancel)
      concurrent.futures.wait([future])
      raise


_pids: set[int] = set()  # Of this process, once it has trained.


def check_process() -> None:
  """Refuses a process that was forked from one that has trained.

  TensorFlow's threads are not in it, so it would wait for them forever.
  """
  if _pids - {os.getpid()}:
    raise errors.UsageError(
      'train and fit must be called in a process that was not forked from one'
      " that has trained: use multiprocessing's start method spawn"
    )
  _pids.add(os.getpid())


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """The result of a finished run.

  Attributes:
    loss: Test loss of the last round.
    accuracy: Test accuracy of the last round.
    statement: The privacy statement of the run.
    output_dir: The run's folder.
    weights: Weights of the exported model, arrays in Keras's order.
    majority: Fraction of the most frequent class in the test data.
  """

  loss: float
  accuracy: float
  statement: privacy.PrivacyStatement
  output_dir: pathlib.Path
  weights: Sequence[np.ndarray] = dataclasses.field(default=(), repr=False)
  majority: float = 0.0

  def __str__(self) -> str:
    text = (
      f'{self.statement.describe()}\n'
      f'Test loss {self.loss:.4f}, test accuracy {self.accuracy:.4f}.'
      f' The run is in {self.output_dir}.'
    )
    return f'{text}\n{self.warning}' if self.warning else text

  @property
  def warning(self) -> str:
    """Why the model is of no use, in a sentence; otherwise empty."""
    if self.accuracy > self.majority:
      return ''
    return (
      'That is no better than always predicting the most frequent class'
      f' ({self.majority:.4f}): more examples, a smaller model, or another'
      ' learning_rate or number of rounds may help.'
    )


def _runtime(
  settings: settings_lib.TrainingSettings,
) -> contextlib.AbstractContextManager:
  if settings.runtime == 'remote':
    raise errors.UsageError('workers must be given with runtime remote')
  if settings.runtime == 'tff':
    return runtimes.local_runtime()
  return runtimes.compiled_runtime(settings.used_device)


def _compiled_ahead(
  settings: settings_lib.TrainingSettings,
) -> contextlib.AbstractContextManager:
  """Compiles functions while graphs are built, if this process runs them."""
  if settings.runtime != 'compiled':
    return contextlib.nullcontext()
  return xla_functions.compiled_ahead(
    runtimes.device_name(settings.used_device)
  )


def train(
  settings: settings_lib.TrainingSettings,
  output_dir: pathlib.Path | str,
  progress: bool = False,
  resume: bool = False,
  runtime: contextlib.AbstractContextManager | None = None,
  ledger: shared_ledger.SharedLedger | None = None,
  selection: selection_lib.Selection | None = None,
  own: federation.Own | None = None,
) -> TrainingResult:
  """Trains a model and writes the run's folder; also works in notebooks.

  Args:
    settings: The settings of the run.
    output_dir: The folder to create, or the folder of the run to resume.
    progress: Whether to draw a progress bar on standard error.
    resume: Whether to continue the run in `output_dir`, no matter how it ended.
      A finished run has no round left: its results are written again, and
      returned.
    runtime: The runtime to use; by default the one in the settings. Required
      for runtime `remote`: its workers are not a setting, because one worker
      may replace another.
    ledger: A ledger that the run shares with other runs; with `resume`, the
      ledger in which the run began. By default, the run has its own ledger in
      its folder.
    selection: How the best run is chosen, if this run is one of several and
      only the best is published. The run's statement accounts for the
      selection; `settings` must be the selection's `run_settings`. Such a run
      shares no ledger and cannot be resumed.
    own: The caller's data and model, if data set and model of the settings are
      `own`; `fit` creates it.

  Returns:
    The result.

  Raises:
    UsageError: If settings or path are not valid, if a setting does not fit the
      data set or the shared ledger, if the ledger has no room for the first
      round, if `output_dir` exists or cannot be written, or if a GPU is
      requested and there is none; with `resume`, if the folder contains no run,
      or a run with another configuration.
    DatasetUnavailableError: If the data set cannot be loaded.
    TrainingFailedError: If the loss is not finite, or no client has any budget
      left for the first round. If the budget does not last for a later round,
      the run ends before that round, and a warning says so.
    NotWrittenError: If a file cannot be written.
    LedgerError: If the ledger cannot be written, is damaged, or is open in
      another process.
    KeyboardInterrupt: If it was interrupted; it says how to go on.
  """
  check_process()
  try:
    if not isinstance(settings, settings_lib.TrainingSettings):
      raise ValueError(
        f'settings must be TrainingSettings, got {_validate.quoted(settings)}'
      )
    # A plan's settings have more fields.
    settings = settings_lib.TrainingSettings(
      **{
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings_lib.TrainingSettings)
      }
    )
    folder = _validate.path('output_dir', output_dir)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  try:
    return with_event_loop(
      lambda run: _train(
        run,
        settings,
        folder,
        progress,
        resume,
        runtime,
        ledger,
        selection,
        own,
      )
    )
  except KeyboardInterrupt:
    if selection is not None:  # Such a run is not resumed.
      raise
    again = (
      'call it again with the same arguments and'
      f' output_dir={str(folder)!r}, resume=True'
    )
    raise KeyboardInterrupt(run_folder.interrupted(folder, again)) from None


def _train(
  run_coroutine: RunCoroutine,
  settings: settings_lib.TrainingSettings,
  output_dir: pathlib.Path,
  progress: bool,
  resume: bool,
  runtime: contextlib.AbstractContextManager | None,
  ledger: shared_ledger.SharedLedger | None,
  selection: selection_lib.Selection | None,
  own: federation.Own | None,
) -> TrainingResult:
  """Like `train`, with a replacement for `asyncio.run`."""
  if ledger is not None:
    if own is not None:
      raise errors.UsageError(
        'ledger must not be given with your own data: nothing shows that a'
        " user's number stands for the same user in every run"
      )
    ledger.check(settings)
  if resume:
    config = run_folder.config_to_resume(
      output_dir, dataclasses.asdict(settings)
    )
  else:
    run_folder.check_absent(output_dir)
  runtime = runtime or _runtime(settings)
  with contextlib.ExitStack() as stack:
    with _compiled_ahead(settings):
      if resume:
        start = start_lib.gone_on(
          settings, ledger, output_dir, config, progress, own
        )
      else:
        start = start_lib.begun(
          settings, ledger, output_dir, selection, progress, own, stack
        )
    stack.enter_context(run_folder.locked(output_dir))
    book = stack.enter_context(
      ledger_lib.PrivacyLedger.open(
        output_dir / run_folder.LEDGER if ledger is None else ledger.path,
        start.header,
        start.on_record,
        shared=ledger is not None,
      )
    )
    stack.enter_context(runtime)
    with files.errors_in_one_line(output_dir):
      run_folder.remove_leftovers(output_dir)
    run = training_run.TrainingRun(
      start.plan,
      start.fed,
      book,
      run_folder.digest(start.config),
      output_dir,
      start.process,
      selection,
    )
    try:
      run_coroutine(run.train(progress, resume))
    except BaseException:
      # A failed run has releases, too: its statement counts them.
      with contextlib.suppress(files.NotWrittenError, ledger_lib.LedgerError):
        run.results.write(finished=False)
      raise
    statement = run.results.write(finished=True)
  assert statement is not None  # There is at least one round.
  return TrainingResult(
    run.log.loss,
    run.log.accuracy,
    statement,
    output_dir,
    run.weights,
    start.fed.majority,
  )
