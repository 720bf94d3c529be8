"""The metrics of a run: rows, evaluated and released beside the next round."""

import asyncio
import concurrent.futures
import pathlib
from typing import Any

import numpy as np

from tvdp_tf import errors
from tvdp_tf.federated import server_optimizer
from tvdp_tf.learning import evaluation
from tvdp_tf.training import metrics as round_metrics


class RoundLog:
  """Evaluates the model of each round, and releases its row, beside the next.

  Attributes:
    rows: Of all rounds that have been run; the last may lack its evaluation.
    loss: Test loss of the last round that has been evaluated.
    accuracy: Its test accuracy.
  """

  def __init__(self, evaluator: evaluation.Evaluator, output_dir: pathlib.Path):
    """Starts before round 1.

    Args:
      evaluator: Of the run's model, on its test set.
      output_dir: The run's folder.
    """
    self._evaluator = evaluator
    self._output_dir = output_dir
    self.rows: list[round_metrics.Row] = []
    self.loss = self.accuracy = float('nan')
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    # Of the last round, until its row is whole; at its end it is released.
    self._evaluation: concurrent.futures.Future | None = None

  def __enter__(self) -> 'RoundLog':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._thread.shutdown()

  async def start(self, rows: list[round_metrics.Row], state: Any) -> None:
    """Starts after the rounds of these rows, with the state after the last.

    Raises:
      TrainingFailedError: If the loss of the last is not finite.
      NotWrittenError: If a file cannot be written.
    """
    self.rows = rows
    self._releaser = round_metrics.Releaser(self._output_dir, rows[:-1])
    if rows:
      self._evaluate(state)
      # A model that has diverged must not cost another round.
      await self.settle()

  async def add(self, row: round_metrics.Row, state: Any) -> None:
    """Adds the row of a round, once that of the round before is released.

    Raises:
      TrainingFailedError: If the loss of the round before is not finite.
      NotWrittenError: If a file cannot be written.
    """
    await self.settle()
    self.rows.append(row)
    self._evaluate(state)

  def _evaluate(self, state: Any) -> None:
    """Starts the evaluation of the last round, beside what comes next."""
    self._evaluation = self._thread.submit(
      self._evaluated,
      len(self.rows),
      self.rows[-1],
      server_optimizer.released_weights(state),
    )

  def _evaluated(
    self, number: int, row: round_metrics.Row, weights: Any
  ) -> tuple[float, float]:
    """Evaluates the weights after a round, and releases its row.

    Here, for a rename waits for the disk, and the next round need not. The row
    itself is left as it is: a checkpoint is made of it meanwhile.
    """
    loss, accuracy = self._evaluator.evaluate(weights)
    if not np.isfinite(loss):
      raise errors.TrainingFailedError(
        f'the test loss of round {number} is {loss}: lower '
        '--learning_rate or the noise'
      )
    self._releaser.release(number, round_metrics.whole(row, loss, accuracy))
    return loss, accuracy

  async def settle(self, wait: bool = True) -> None:
    """Takes in the evaluation of the last round; its row is released then.

    Args:
      wait: Whether to wait for it.

    Raises:
      TrainingFailedError: If its loss is not finite.
      NotWrittenError: If a file cannot be written.
    """
    evaluation = self._evaluation
    if evaluation is None or not (wait or evaluation.done()):
      return
    self.loss, self.accuracy = await asyncio.wrap_future(evaluation)
    self._evaluation = None
    self.rows[-1] = round_metrics.whole(self.rows[-1], self.loss, self.accuracy)
