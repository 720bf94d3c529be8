"""Writes the results of a run: model, picture, report and statement."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from tvdp_tf import mechanisms, privacy
from tvdp_tf.mechanisms import statements
from tvdp_tf.output import drawing_process, files, report
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.training import (
  export,
  federation,
  recorder,
  run_folder,
  shared_ledger,
)
from tvdp_tf.training import selection as selection_lib

# The report shows the epsilon of at most this many clients; each takes 1 ms.
_MOST_CLIENTS = 1000


class Results:
  """Writes the results of a run, consistently with its ledger."""

  def __init__(
    self,
    plan: mechanisms.Mechanism,
    rounds_on_record: recorder.Recorder,
    ledger: ledger_lib.PrivacyLedger,
    output_dir: pathlib.Path,
    selection: selection_lib.Selection | None,
  ):
    """Prepares the results.

    Args:
      plan: The run's mechanism.
      rounds_on_record: Records the run's rounds in the ledger.
      ledger: The run's ledger.
      output_dir: The run's folder.
      selection: How the published run is selected, if it is one of several.
    """
    self._plan = plan
    self._recorder = rounds_on_record
    self._ledger = ledger
    self._output_dir = output_dir
    self._selection = selection
    self._statement: privacy.PrivacyStatement | None = None

  @property
  def _curves(self) -> tuple[pathlib.Path, pathlib.Path, str]:
    """Returns the arguments of `plots.draw_training_curves`."""
    settings = self._plan.settings
    return (
      self._output_dir / run_folder.METRICS,
      self._output_dir / run_folder.CURVES,
      f'{settings.dataset}, {settings.model}, mechanism '
      f'{settings.mechanism}, {settings.noise_words}',
    )

  def statement(self) -> privacy.PrivacyStatement:
    """Returns the statement on all that is recorded; no release may follow."""
    if self._statement is None:
      # A seeded run may have stopped before it had repeated all of them.
      for past in self._recorder.charged()[len(self._plan.history) :]:
        self._plan.take(past)
      self._statement = statements.of(
        self._plan, self._ledger.worst_epsilon_of_run()
      )
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

  def write_model(
    self, fed: federation.Federation, weights: Sequence[np.ndarray]
  ) -> None:
    """Exports the model of a finished run.

    Raises:
      NotWrittenError: If the model cannot be written.
    """
    drawing_process.begin(*self._curves)
    path = self._output_dir / run_folder.MODEL
    with files.errors_in_one_line(path):
      export.save_model(
        path,
        fed.spec,
        fed.input_shape,
        fed.dataset.num_classes,
        weights,
        self.statement().to_json_dict(),
        self._plan.settings.features,
      )

  def write(self, finished: bool) -> privacy.PrivacyStatement | None:
    """Writes picture, report and statement on all that was released.

    Args:
      finished: Whether the run is finished.

    Returns:
      The statement; None if nothing was released.

    Raises:
      NotWrittenError: If a file cannot be written.
      LedgerError: If the ledger cannot be read again to find out where the run
        was interrupted.
    """
    if not finished and self._statement is None:
      self._ledger.reread()
      self._plan.retake(self._recorder.charged())
    if not self._plan.history:
      return None
    statement = self.statement()
    words = {
      **statement.to_json_dict(),
      'rounds': len(self._plan.history),
      'ledger_head': self._ledger.head_hash,
    }
    with files.errors_in_one_line(self._output_dir):
      if not finished:  # The most important first, in case the disk is full.
        run_folder.write_privacy(self._output_dir, words, finished)
      drawing_process.draw(*self._curves)
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
      if finished:  # Last, because it marks the run as finished.
        run_folder.write_privacy(self._output_dir, words, finished)
    return statement
