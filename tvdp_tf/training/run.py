"""The training loop: rounds are recorded, run, evaluated and saved.

Every round writes to disk, in this order: the round to the ledger (before
anything is released), the metrics of the previous round, and the checkpoint.
So when a checkpoint is loaded, the metrics of all rounds but its last are on
disk, and the evaluation of the last one can be repeated.

A thread writes the checkpoint and then the next round to the ledger, in this
order. If the next round is computed in this process, it is computed meanwhile,
and nothing of it is shown, saved or evaluated before it is on record. At any
time, the files are as if all this happened in turn.
"""

import concurrent.futures
import contextlib
import math
import pathlib
import sys
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tvdp_tf import mechanisms
from tvdp_tf.federated import learning_process
from tvdp_tf.learning import evaluation
from tvdp_tf.output import files
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.training import (
  checkpoints,
  federation,
  recorder,
  results,
  run_folder,
)
from tvdp_tf.training import metrics as round_metrics
from tvdp_tf.training import rounds as rounds_lib
from tvdp_tf.training import selection as selection_lib


def _bar(**options: Any) -> Any:
  """Returns a progress bar of tqdm, in notebooks one for notebooks."""
  with warnings.catch_warnings():
    # Without ipywidgets, a bar of text will do.
    warnings.simplefilter('ignore')
    from tqdm import auto  # noqa: PLC0415
  return auto.tqdm(**options)


class TrainingRun:
  """The state of a run between its rounds.

  Attributes:
    log: The metrics of its rounds.
    results: Writes its results.
    weights: The exported weights, as arrays, once all rounds have been run.
  """

  def __init__(
    self,
    plan: mechanisms.Mechanism,
    fed: federation.Federation,
    ledger: ledger_lib.PrivacyLedger,
    config_digest: bytes,
    output_dir: pathlib.Path,
    process: tff.learning.templates.LearningProcess | None = None,
    selection: selection_lib.Selection | None = None,
  ):
    """Prepares the rounds.

    Args:
      plan: The run's mechanism, which has not released anything.
      fed: The users and their data.
      ledger: The run's ledger, open.
      config_digest: Digest of the run's configuration.
      output_dir: The run's folder.
      process: The result of `rounds.build_process`, if it was built before.
      selection: How the published run is selected, if it is one of several.

    Raises:
      NotWrittenError: If the folder cannot be written.
    """
    self._plan, self._fed = plan, fed
    self._output_dir = output_dir
    self._config_digest = config_digest
    self._rounds = rounds_lib.on_runtime(plan, fed, process)
    self._recorder = recorder.Recorder(self._rounds, ledger, config_digest)
    evaluator = evaluation.Evaluator(
      fed.functional_model,
      fed.spec.loss,
      fed.dataset.test_features,
      fed.dataset.test_labels,
    )
    self.log = round_metrics.RoundLog(evaluator, output_dir)
    self.results = results.Results(
      plan, self._recorder, ledger, output_dir, selection
    )
    self.weights: list[np.ndarray] = []
    # The last checkpoint; before the first one, there is nothing to save.
    self._saved: concurrent.futures.Future[None] = concurrent.futures.Future()
    self._saved.set_result(None)
    self._complete = True  # Whether the last cohort was.

  async def train(self, progress: bool, resume: bool) -> None:
    """Runs the remaining rounds, and exports the model.

    Args:
      progress: Whether to draw a progress bar on the standard error.
      resume: Whether to start from the last checkpoint and the ledger.

    Raises:
      TrainingFailedError: If the loss is not finite, or no client has any
        budget left for the first round. If the budget does not cover a later
        round, the run ends before that round.
      NotWrittenError: If a file cannot be written.
      LedgerError: If the ledger cannot be written.
    """
    rounds = self._rounds
    with (
      self.log,
      contextlib.closing(rounds),
      concurrent.futures.ThreadPoolExecutor(1) as self._disk,
    ):
      state = await self._start(resume)
      with _bar(
        initial=rounds.completed,
        total=rounds.total,
        unit='round',
        disable=not (progress and sys.stderr),
      ) as bar:
        try:
          while rounds.completed < rounds.total:
            started, planned = time.monotonic(), rounds.total
            state, recorded = await self._recorded(state)
            before = state
            state = rounds.run(state, recorded.releases, recorded.noise_keys)
            row = round_metrics.row(
              self._plan,
              recorded.releases,
              recorded.dropped + rounds.excluded,
              learning_process.mean_update(rounds.optimizer, before, state),
              seconds=time.monotonic() - started,
              rounds=planned,
            )
            await self.log.add(row, state)
            if self._plan.settings.refinement != 'none':
              await self.log.settle()
              state = rounds.refined(state, self.log.loss)
            self._save(state)
            await self.log.settle(wait=False)
            bar.total = rounds.total
            bar.update(rounds.completed - bar.n)  # Some may be left out.
            self._show(bar)
        except mechanisms.BudgetSpentError as error:
          if not rounds.completed:
            raise
          logging.warning('%s', error)
        self._saved.result()
        await self._finish(state)
        self._show(bar)

  async def _recorded(self, state: Any) -> tuple[Any, recorder.Recorded]:
    """Records the next round that a client of its cohort has budget for.

    The rounds before it are left out: the model stays as it is. After an
    interruption, this is a round that was lost and whose clients take part in
    no other.

    Args:
      state: The state after the completed rounds.

    Returns:
      The state before the round, and the round.

    Raises:
      BudgetSpentError: If there is no such round.
    """
    rounds = self._rounds
    while True:
      number = rounds.completed + 1
      try:
        return state, self._record(state, number)
      except recorder.CohortSpentError:
        if not self._recorder.any_affordable_after(state, number):
          raise
      logging.warning(
        'no client of round %d has budget left: it is left out', number
      )
      row = round_metrics.row_without_clients(
        self._plan, len(rounds.cohort(number)), rounds.total
      )
      state = rounds_lib.without_a_round(state)
      rounds.completed = number
      await self.log.add(row, state)

  def _record(self, state: Any, number: int) -> recorder.Recorded:
    """Records a round once the last checkpoint is on disk.

    Computes it meanwhile, unless that alone would release it, or clients of the
    last cohort had no budget left: then it is likely to be another round.
    """
    drawn = self._recorder.draw(state, number)
    recording = self._disk.submit(self._after_saving, state, number, drawn)
    if self._rounds.stays_here and self._complete:
      self._rounds.begin(state, *drawn)
    recorded = recording.result()
    self._complete = not recorded.dropped
    return recorded

  def _after_saving(
    self, state: Any, number: int, drawn: recorder.Drawn
  ) -> recorder.Recorded:
    self._saved.result()
    return self._recorder.record(state, number, drawn)

  def _show(self, bar: Any) -> None:
    loss, accuracy = self.log.loss, self.log.accuracy
    if math.isnan(accuracy):  # No evaluation yet.
      return
    bar.set_postfix(loss=f'{loss:.3f}', accuracy=f'{accuracy:.3f}')

  async def _finish(self, state: Any) -> None:
    await self.log.settle()
    weights = tf.nest.flatten(learning_process.released_weights(state))
    self.weights = [np.asarray(weight) for weight in weights]
    self.results.write_model(self._fed, self.weights)

  async def _start(self, resume: bool) -> Any:
    """Returns the state of the last checkpoint, or the one before round 1."""
    state = self._rounds.process.initialize()
    self._checkpoints = checkpoints.Checkpoints(
      self._output_dir / run_folder.CHECKPOINTS, state, self._config_digest
    )
    rows: list[round_metrics.Row] = []
    if resume:
      loaded = await self._checkpoints.load_latest(self._parse)
      state = self._resumed(state, loaded)
      rows = [] if loaded is None else loaded.host.rows
    with files.errors_in_one_line(self._output_dir):
      run_folder.remove_privacy(self._output_dir)
    await self.log.start(rows, state)
    return state

  def _resumed(self, state: Any, loaded: checkpoints.Loaded | None) -> Any:
    """Returns the state to continue from: a checkpoint's or the initial one."""
    releases = 0
    if loaded is None:
      logging.warning(
        'no checkpoint can be used: %s starts at round 1', self._output_dir
      )
    else:
      logging.info('resumes after round %d', loaded.completed)
      state, host = loaded.state, loaded.host
      self._rounds.completed = loaded.completed
      self._rounds.total = host.total
      self._rounds.plateau.last = host.last_loss
      releases = host.releases
    lost = self._recorder.replay(releases)
    if not lost:
      return state
    logging.warning(
      'rounds that were interrupted after they had been recorded: %d; without'
      ' a seed, their releases count, and so do those of their repetition',
      lost,
    )
    if self._plan.replans and self._rounds.completed < self._rounds.total:
      state = self._rounds.replanned(state)
    return state

  def _parse(
    self, completed: int, arrays: Mapping[str, np.ndarray]
  ) -> checkpoints.HostState:
    host = checkpoints.HostState.parse(completed, arrays)
    if self._plan.header.sampling != 'none':
      for row in host.rows:  # From an earlier version.
        row.pop('seconds', None)
    self._plan.restore(host.plan, host.total)
    return host

  def _save(self, state: Any) -> None:
    """Starts to save a checkpoint after a round."""
    completed = self._rounds.completed
    host = checkpoints.HostState(
      self._rounds.total,
      self._rounds.plateau.last,
      len(self._plan.history),
      # Copies, because the next round changes them.
      {name: np.array(v) for name, v in self._plan.snapshot().items()},
      [*self.log.rows],
    )
    self._saved = self._disk.submit(
      lambda: self._checkpoints.save(completed, state, host.to_arrays())
    )
