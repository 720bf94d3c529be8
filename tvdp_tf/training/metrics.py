"""The metrics of a run: a row per round, on disk, in TensorBoard, in the log.

For any mechanism, a row has only values that are released or public anyway:

  noise_stddev       of the schedule
  test_loss, test_accuracy   of the released model, on public data
  delivered_epsilon  from the ledger's numbers: the worst client, server's view
  remaining_budget   the target minus that: negative where a mechanism that
                     does not enforce its target has overspent
  signal_to_noise    of the released models before and after the round
  participants       the clients of the cohort that were asked to upload
  dropped            those that had no budget left, or whose upload could not
                     be used after its noise
  rounds             planned when the round began
  seconds            of the round, without its evaluation

There is no fraction of clipped gradients and no norm of a client's update:
these are computed from the data before any noise, and no guarantee covers them.
`paper`, which has no guarantee, shows no more than the others, so that metrics
do not change when it is replaced by a sound mechanism. `dropped` is left out if
users are protected: then the noise is added after the sum, and whether an
upload can be used is private. With Poisson participation, the size of a cohort
is secret, so `participants` is left out as well, and so is `seconds`, which
reveals it. Without noise, `signal_to_noise` and `remaining_budget` are left
out, because they would have no meaning.

Rows are evaluated and released while the next round runs (`RoundLog`).
"""

import asyncio
import collections
import concurrent.futures
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tvdp_tf import errors, mechanisms
from tvdp_tf.federated import learning_process
from tvdp_tf.learning import evaluation
from tvdp_tf.output import files
from tvdp_tf.privacy import statement
from tvdp_tf.training import run_folder

Row = collections.OrderedDict[str, Any]
_KEY = run_folder.METRICS_COLUMNS[0]
_END = '\r\n'
# DATA_CLASS_SCALAR of TensorFlow's summary.proto.
_SCALARS = 1


def signal_to_noise(
  mean_update: Sequence[Any], mean_noise_stddev: float
) -> float:
  """Estimates how far a round moved the model, relative to its noise.

  The released mean update u is the clients' mean update plus noise whose
  expected squared norm is d s^2. So ||u||^2 - d s^2 is an unbiased estimate of
  the squared norm of the clients' mean update, and the ratio is

    sqrt(max(0, ||u||^2 - d s^2)) / (sqrt(d) s).

  It is computed only from two released models and public numbers, so it reveals
  nothing beyond them (post-processing).

  Args:
    mean_update: The mean update of the round's clients, arrays of d parameters
      in total (`server_optimizer.mean_update`).
    mean_noise_stddev: s, standard deviation of the noise in each parameter of
      the mean, > 0.

  Returns:
    The ratio; 0 if the noise hides the update.
  """
  updates = [np.asarray(part, np.float64) for part in mean_update]
  dimension = sum(update.size for update in updates)
  square = sum(float(np.sum(update * update)) for update in updates)
  ratio = square / dimension / mean_noise_stddev / mean_noise_stddev
  return math.sqrt(max(0.0, ratio - 1))


def row(
  plan: mechanisms.Mechanism,
  releases: mechanisms.Round,
  dropped: int,
  mean_update: Sequence[Any],
  *,
  seconds: float,
  rounds: int,
) -> Row:
  """Returns the row of a round that has been run, but not evaluated.

  Args:
    plan: The run's plan, with the round in its history.
    releases: The round.
    dropped: How many clients of its cohort were left out.
    mean_update: The result of `server_optimizer.mean_update`.
    seconds: The duration of the round.
    rounds: How many rounds were planned when it began.

  Returns:
    The row; its loss and accuracy are NaN.
  """
  signal = None
  if mean_noise_stddev := plan.mean_noise_stddev(releases):
    signal = signal_to_noise(mean_update, mean_noise_stddev)
  return _row(
    plan,
    releases.noise_stddev,
    len(releases.clients),
    dropped,
    signal,
    seconds,
    rounds,
  )


def row_without_clients(
  plan: mechanisms.Mechanism, cohort_size: int, rounds: int
) -> Row:
  """Returns the row of a round for which its cohort had no budget left.

  Nothing was released, so the columns of the noise are NaN.

  Args:
    plan: The run's plan.
    cohort_size: How many clients were drawn.
    rounds: How many rounds are planned.
  """
  return _row(plan, math.nan, 0, cohort_size, math.nan, 0.0, rounds)


def _row(
  plan: mechanisms.Mechanism,
  noise_stddev: float,
  participants: int,
  dropped: int,
  signal: float | None,
  seconds: float,
  rounds: int,
) -> Row:
  delivered = plan.worst_epsilon()
  values = collections.OrderedDict(
    noise_stddev=noise_stddev,
    test_loss=math.nan,
    test_accuracy=math.nan,
    delivered_epsilon=delivered,
  )
  is_secret = plan.header.sampling != 'none'
  if not is_secret:
    values['participants'] = participants
    if plan.header.unit != 'user':
      values['dropped'] = dropped
  if signal is not None:
    values['signal_to_noise'] = signal
    values['remaining_budget'] = plan.spending.target_epsilon - delivered
  if not is_secret:
    values['seconds'] = seconds
  values['rounds'] = rounds
  return values


def _text(name: str, value: float) -> str:
  """Formats a value for the log; spent budget is never rounded down."""
  if name == 'remaining_budget':
    return repr(float(value))
  if name == 'delivered_epsilon':
    return statement.format_epsilon(value)
  return f'{value:.6g}'


def _float32(name: str, value: float) -> float:
  """Rounds a value for TensorBoard: spent budget up, remaining budget down."""
  up = {'delivered_epsilon': math.inf, 'remaining_budget': -math.inf}
  nearest = np.float32(value)
  if name in up and (nearest < value if up[name] > 0 else nearest > value):
    nearest = np.nextafter(nearest, np.float32(up[name]))
  return float(nearest)


def whole(row: Row, loss: float, accuracy: float) -> Row:
  """Returns a row completed by its evaluation."""
  return collections.OrderedDict(row, test_loss=loss, test_accuracy=accuracy)


def columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
  """Returns the rows by column, for a checkpoint."""
  names = rows[0] if rows else ()
  return {name: np.array([one[name] for one in rows]) for name in names}


def rows(by_column: Mapping[str, np.ndarray], count: int) -> list[Row]:
  """The inverse of `columns`; the columns may come from a damaged file.

  Raises:
    ValueError: If they are not `count` rows of numbers.
  """
  missing = {*run_folder.METRICS_COLUMNS[1:]} - by_column.keys()
  if missing or any(
    column.shape != (count,) or column.dtype.kind not in 'if'
    for column in by_column.values()
  ):
    raise ValueError(f'it must hold the metrics of {count} rounds')
  names = sorted(by_column)
  return [
    collections.OrderedDict(zip(names, values, strict=True))
    for values in zip(*(by_column[n].tolist() for n in names), strict=True)
  ]


class Releaser:
  """Releases the rows of one run, in order."""

  def __init__(self, output_dir: pathlib.Path, released: Sequence[Row]):
    """Starts with the rows of previous rounds, whatever the file contains.

    Args:
      output_dir: The run's folder.
      released: The rows of rounds 1, 2, ...

    Raises:
      NotWrittenError: If a file cannot be written.
    """
    self._csv = output_dir / run_folder.METRICS
    self._text = _csv_text(released)
    with files.errors_in_one_line(self._csv):
      files.write_text(self._csv, self._text)
    self._tensorboard = output_dir / run_folder.TENSORBOARD
    with files.errors_in_one_line(self._tensorboard):
      self._events = tf.summary.create_file_writer(str(self._tensorboard))

  def release(self, round_number: int, values: Row) -> None:
    """Releases a row.

    Raises:
      NotWrittenError: If a file cannot be written.
    """
    table = _csv_text([values], first=round_number)
    header, _, line = table.partition(_END)
    # Appends to the existing text, so that the time of a release does not grow.
    # Without rows, the header lacks the additional columns.
    self._text = (self._text if round_number > 1 else header + _END) + line
    with files.errors_in_one_line(self._csv):
      # Atomic, but not synced: the checkpoint contains it, too.
      files.write_text(self._csv, self._text, lasting=False)
    with files.errors_in_one_line(self._tensorboard):
      self._write_events(round_number, values)
    text = ' '.join(
      f'{name}={_text(name, value)}' for name, value in values.items()
    )
    logging.info('round=%d %s', round_number, text)

  def _write_events(self, round_number: int, values: Row) -> None:
    """Writes all scalars at once; one op for each takes ten times as long."""
    summary = tf.compat.v1.Summary()
    for name, value in values.items():
      found = summary.value.add(tag=name)
      # Like `tf.make_tensor_proto`, which takes ten times as long.
      found.tensor.dtype = tf.float32.as_datatype_enum
      found.tensor.tensor_shape.SetInParent()
      found.tensor.float_val.append(_float32(name, value))
      # Like `tf.summary.scalar`.
      found.metadata.plugin_data.plugin_name = 'scalars'
      found.metadata.data_class = _SCALARS
    with self._events.as_default():
      tf.summary.experimental.write_raw_pb(
        summary.SerializeToString(), step=round_number
      )


def _csv_text(released: Sequence[Row], first: int = 1) -> str:
  """Formats rows as a table; the first row is that of round `first`."""
  others = (
    released[0].keys() - {*run_folder.METRICS_COLUMNS} if released else ()
  )
  # `seconds` comes first.
  further = sorted(others, key=lambda name: (name != 'seconds', name))
  names = [*run_folder.METRICS_COLUMNS[1:], *further]
  return files.csv_text(
    [_KEY, *names],
    (
      [round_number, *(values[name] for name in names)]
      for round_number, values in enumerate(released, start=first)
    ),
    end=_END,
  )


class RoundLog:
  """Evaluates each round's model and releases its row during the next round.

  Attributes:
    rows: The rows of all rounds run so far; the last may lack its evaluation.
    loss: Test loss of the last round that has been evaluated.
    accuracy: Its test accuracy.
  """

  def __init__(self, evaluator: evaluation.Evaluator, output_dir: pathlib.Path):
    """Starts before round 1.

    Args:
      evaluator: Evaluates the run's model on its test set.
      output_dir: The run's folder.
    """
    self._evaluator = evaluator
    self._output_dir = output_dir
    self.rows: list[Row] = []
    self.loss = self.accuracy = float('nan')
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    # Evaluation of the last round until its row is complete; it releases it.
    self._evaluation: concurrent.futures.Future | None = None

  def __enter__(self) -> 'RoundLog':
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._thread.shutdown()

  async def start(self, rows: list[Row], state: Any) -> None:
    """Starts after the rounds of these rows, with the state after the last.

    Raises:
      TrainingFailedError: If the loss of the last round is not finite.
      NotWrittenError: If a file cannot be written.
    """
    self.rows = rows
    self._releaser = Releaser(self._output_dir, rows[:-1])
    if rows:
      self._evaluate(state)
      # A model that has diverged must not cost another round.
      await self.settle()

  async def add(self, row: Row, state: Any) -> None:
    """Adds the row of a round, after releasing that of the previous round.

    Raises:
      TrainingFailedError: If the loss of the previous round is not finite.
      NotWrittenError: If a file cannot be written.
    """
    await self.settle()
    self.rows.append(row)
    self._evaluate(state)

  def _evaluate(self, state: Any) -> None:
    """Starts evaluating the last round, in parallel with the next one."""
    self._evaluation = self._thread.submit(
      self._evaluated,
      len(self.rows),
      self.rows[-1],
      learning_process.released_weights(state),
    )

  def _evaluated(
    self, number: int, row: Row, weights: Any
  ) -> tuple[float, float]:
    """Evaluates the weights after a round, and releases its row.

    The release is done here because a rename waits for the disk, and the next
    round need not wait. The row itself is not changed, because a checkpoint may
    be reading it.
    """
    loss, accuracy = self._evaluator.evaluate(weights)
    if not np.isfinite(loss):
      noise = ' or the noise' if 'signal_to_noise' in row else ''
      raise errors.TrainingFailedError(
        f'the test loss of round {number} is {loss}: lower --learning_rate'
        f'{noise}'
      )
    self._releaser.release(number, whole(row, loss, accuracy))
    return loss, accuracy

  async def settle(self, wait: bool = True) -> None:
    """Completes the last round's row by its evaluation, which releases it.

    Args:
      wait: Whether to wait for the evaluation.

    Raises:
      TrainingFailedError: If the loss is not finite.
      NotWrittenError: If a file cannot be written.
    """
    evaluation = self._evaluation
    if evaluation is None or not (wait or evaluation.done()):
      return
    self.loss, self.accuracy = await asyncio.wrap_future(evaluation)
    self._evaluation = None
    self.rows[-1] = whole(self.rows[-1], self.loss, self.accuracy)
