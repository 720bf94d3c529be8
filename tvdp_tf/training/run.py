"""The rounds of one training run: recorded, run, evaluated, saved.

What is on the disk after every round, in this order: the round in the ledger
(before anything of it is released), the metrics of the round before, the
checkpoint. So a checkpoint finds the metrics of all rounds but its last, whose
evaluation it can repeat.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging
from tqdm import auto as tqdm  # A bar for notebooks, in one.

from tvdp_tf import errors, mechanisms, privacy
from tvdp_tf.federated import server_optimizer
from tvdp_tf.learning import evaluation, functional
from tvdp_tf.output import disk_errors, report
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.training import (
  checkpoints,
  export,
  federation,
  host_state,
  recorder,
  run_folder,
  shared_ledger,
)
from tvdp_tf.training import metrics as round_metrics
from tvdp_tf.training import rounds as rounds_lib
from tvdp_tf.training import selection as selection_lib

# Of whom the report shows what each has spent: a millisecond each.
_MOST_CLIENTS = 1000


class TrainingRun:
  """The state of a run between its rounds.

  Attributes:
    loss: Test loss of the last round that has been evaluated.
    accuracy: Its test accuracy.
    weights: Those that are exported, arrays, once all rounds have been run.
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
      plan: How the run is to be private, nothing released.
      fed: The users and their data.
      ledger: The run's ledger, open.
      config_digest: Of the run's configuration.
      output_dir: The run's folder.
      process: Of `rounds.build_process`, if it was built before.
      selection: How the run may come to be published among others.

    Raises:
      NotWrittenError: If the folder cannot be written.
    """
    self._plan = plan
    self._settings, self._fed = plan.settings, fed
    self._ledger = ledger
    self._output_dir = output_dir
    self._selection = selection
    self.loss = self.accuracy = float('nan')
    self.weights: list[np.ndarray] = []
    self._config_digest = config_digest
    self._rounds = rounds_lib.on_runtime(plan, fed, process)
    self._recorder = recorder.Recorder(self._rounds, ledger, config_digest)
    self._evaluator = evaluation.Evaluator(
      functional.FunctionalModel(self._fed.initial_model()),
      self._fed.spec.loss,
      self._fed.dataset.test_features,
      self._fed.dataset.test_labels,
    )
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    # The evaluation of the last round, until its row is released.
    self._evaluation: concurrent.futures.Future | None = None
    self._rows: list[round_metrics.Row] = []
    self._statement: privacy.PrivacyStatement | None = None

  async def train(self, progress: bool, resume: bool) -> None:
    """Runs the rounds that are left, and exports the model.

    Args:
      progress: Whether to draw a progress bar on the standard error.
      resume: Whether to start from the last checkpoint and the ledger.

    Raises:
      TrainingFailedError: If the loss is not finite, or no client has any
        budget left. In the latter case the model of the rounds before is
        exported.
      NotWrittenError: If a file cannot be written.
      LedgerError: If the ledger cannot be written.
    """
    with self._thread, contextlib.closing(self._rounds):
      state = await self._start(resume)
      rounds = self._rounds
      with tqdm.tqdm(
        initial=rounds.completed,
        total=rounds.total,
        unit='round',
        disable=not progress,
      ) as bar:
        try:
          while rounds.completed < rounds.total:
            state = await self._next_round(state)
            bar.total = rounds.total
            bar.update()
            self._show(bar)
        except mechanisms.BudgetSpentError:
          if rounds.completed:
            await self._finish(state)
          raise
        await self._finish(state)
        self._show(bar)

  def _show(self, bar: tqdm.tqdm) -> None:
    bar.set_postfix(loss=f'{self.loss:.3f}', accuracy=f'{self.accuracy:.3f}')

  async def _start(self, resume: bool) -> Any:
    """The state of the last checkpoint, if any, or that before round 1."""
    state = self._rounds.process.initialize()
    self._checkpoints = checkpoints.Checkpoints(
      self._output_dir / run_folder.CHECKPOINTS, state, self._config_digest
    )
    if resume:
      state = self._resumed(
        state, await self._checkpoints.load_latest(self._parse)
      )
    with disk_errors.one_line(self._output_dir):
      run_folder.remove_privacy(self._output_dir)
    self._releaser = round_metrics.Releaser(self._output_dir, self._rows[:-1])
    if self._rows:
      self._evaluate(state)
      # A model that has diverged must not cost another round.
      await self._settle()
    return state

  def _resumed(self, state: Any, loaded: checkpoints.Loaded | None) -> Any:
    """The state to go on with: a checkpoint's, or that before round 1."""
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
      self._rows = host.rows
      releases = host.releases
    lost = self._recorder.replay(releases)
    if not lost:
      return state
    logging.warning(
      'rounds that were interrupted after they had been recorded: %d; without '
      'a seed their releases count, and those of their repetition besides',
      lost,
    )
    if self._plan.replans and self._rounds.completed < self._rounds.total:
      state = self._rounds.replanned(state)
    return state

  def _parse(
    self, completed: int, arrays: Mapping[str, np.ndarray]
  ) -> host_state.HostState:
    host = host_state.HostState.parse(completed, arrays)
    self._plan.restore(host.plan, host.total)
    return host

  async def _next_round(self, state: Any) -> Any:
    """Runs a round and saves it; returns the state after it."""
    started = time.monotonic()
    before = state
    recorded = self._recorder.record(state, self._rounds.completed + 1)
    planned = self._rounds.total
    state = self._rounds.run(state, recorded.releases, recorded.noise_keys)
    row = round_metrics.row(
      self._plan,
      recorded.releases,
      recorded.dropped + self._rounds.excluded,
      server_optimizer.mean_update(self._rounds.optimizer, before, state),
    )
    row['seconds'] = time.monotonic() - started
    row['rounds'] = planned
    await self._settle()  # The round before.
    self._rows.append(row)
    self._evaluate(state)
    if self._settings.refinement != 'none':
      await self._settle()
      state = self._rounds.refined(state, self.loss)
    host = host_state.HostState(
      self._rounds.total,
      self._rounds.plateau.last,
      len(self._plan.history),
      self._plan.snapshot(),
      self._rows,
    )
    await self._checkpoints.save(
      self._rounds.completed, state, host.to_arrays()
    )
    if self._evaluation is not None and self._evaluation.done():
      await self._settle()
    return state

  def _evaluate(self, state: Any) -> None:
    """Starts the evaluation of the last round, beside what comes next."""
    self._evaluation = self._thread.submit(
      self._evaluator.evaluate, server_optimizer.released_weights(state)
    )

  async def _settle(self) -> None:
    """Waits for the evaluation of the last round and releases its row."""
    if self._evaluation is None:
      return
    self.loss, self.accuracy = await asyncio.wrap_future(self._evaluation)
    self._evaluation = None
    row, number = self._rows[-1], len(self._rows)
    if not np.isfinite(self.loss):
      raise errors.TrainingFailedError(
        f'the test loss of round {number} is {self.loss}: lower '
        '--learning_rate or the noise'
      )
    row[round_metrics.LOSS] = self.loss
    row[round_metrics.ACCURACY] = self.accuracy
    self._releaser.release(number, row)

  async def _finish(self, state: Any) -> None:
    await self._settle()
    weights = tf.nest.flatten(server_optimizer.released_weights(state))
    self.weights = [np.asarray(weight) for weight in weights]
    path = self._output_dir / run_folder.MODEL
    with disk_errors.one_line(path):
      export.save_model(
        path,
        self._fed.spec,
        self._fed.input_shape,
        self._fed.dataset.num_classes,
        self.weights,
        self._final_statement().to_json_dict(),
        self._settings.features,
      )

  def _final_statement(self) -> privacy.PrivacyStatement:
    """On all that is on record; nothing more will be released."""
    if self._statement is None:
      # A run with a seed may have stopped before it had repeated them all.
      for past in self._recorder.charged()[len(self._plan.history) :]:
        self._plan.take(past)
      self._statement = self._plan.statement()
      if self._selection is not None:
        self._statement = self._selection.statement(
          self._statement,
          [float(past.noise_multipliers[0]) for past in self._plan.history],
          self._plan.noise_distance,
        )
      if self._ledger.shared or len(self._ledger.runs) > 1:
        self._statement = dataclasses.replace(
          self._statement,
          assumptions=(
            *self._statement.assumptions,
            shared_ledger.together(self._ledger),
          ),
        )
    return self._statement

  def write_results(self, finished: bool) -> privacy.PrivacyStatement | None:
    """Writes picture, report and statement on all that was released.

    Args:
      finished: Whether the run has come to its end.

    Returns:
      The statement; None if nothing was released.

    Raises:
      NotWrittenError: If one cannot be written.
      LedgerError: If the ledger cannot be read again, to learn where the run
        was interrupted.
    """
    if not finished and self._statement is None:
      self._ledger.reread()
      self._plan.retake(self._recorder.charged())
    if not self._plan.history:
      return None
    # Matplotlib is not needed before: rounds need not wait for its import.
    from tvdp_tf.output import plots  # noqa: PLC0415

    statement = self._final_statement()
    words = {
      **statement.to_json_dict(),
      'rounds': len(self._plan.history),
      'ledger_head': self._ledger.head_hash,
    }
    with disk_errors.one_line(self._output_dir):
      if not finished:  # First what matters most, should the disk be full.
        run_folder.write_privacy(self._output_dir, words, finished)
      plots.draw_training_curves(
        self._output_dir / run_folder.METRICS,
        self._output_dir / run_folder.CURVES,
        f'{self._settings.dataset}, {self._settings.model}, mechanism '
        f'{self._settings.mechanism}, {self._settings.noise_words}',
      )
      report.write_run(
        self._output_dir,
        statement,
        rounds=len(self._plan.history),
        finished=finished,
        epsilons=self._ledger.epsilons().tolist()
        if self._ledger.header.clients <= _MOST_CLIENTS
        else [],
        target=self._ledger.header.target_epsilon,
      )
      if finished:  # Last what says so.
        run_folder.write_privacy(self._output_dir, words, finished)
    return statement
