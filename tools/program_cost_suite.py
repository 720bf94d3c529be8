"""Measures a round of a whole training, compared to its runtime's own round.

The training uses all defaults of `train.py` (the ledger, a checkpoint per
round, evaluation, metrics, TensorBoard, the bar), with 100 users of whom 10
take part, and five local steps. Blocks of its rounds alternate with as many
rounds of the bare process, with the same cohorts' data, so that other load on
the machine affects both.
"""

import dataclasses
import os
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

_ROUNDS = 10  # Per block.
# Until the functions for the cohort's shapes have been traced.
_WARM_UP = 30


@dataclasses.dataclass(frozen=True)
class Block:
  """Mean seconds per round of a block, and of an evaluation.

  Attributes:
    whole: Seconds of the training, from the start of one round to the next.
    alone: Seconds of `process.next` with the same cohorts.
    whole_cpu: CPU seconds of `whole`, of all cores together.
    alone_cpu: CPU seconds of `alone`, of all cores together.
    syncs: Seconds in which the training waits for the disk, in `fsync`.
    evaluation: Seconds to evaluate the model on the test set, with nothing else
      running.
  """

  whole: float
  alone: float
  whole_cpu: float
  alone_cpu: float
  syncs: float
  evaluation: float


class _Watch:
  """Measures wall-clock seconds, and CPU seconds of all cores."""

  def __init__(self):
    self._now = time.perf_counter(), time.process_time()

  def read(self) -> tuple[float, float]:
    wall, cpu = self._now
    return time.perf_counter() - wall, time.process_time() - cpu


class _Clock:
  """Measures the rounds of a training."""

  def __init__(self):
    from tvdp_tf.learning import evaluation  # noqa: PLC0415
    from tvdp_tf.training import rounds  # noqa: PLC0415

    self.blocks: list[Block] = []
    self._calls: list[tuple] = []
    self._watch = _Watch()
    self._syncs = 0.0
    self._evaluated: tuple[Any, ...] = ()
    # Held during an evaluation: the last one of a block belongs to the block.
    self._evaluating = threading.Lock()
    self._run = rounds.Rounds.run
    self._evaluate = evaluation.Evaluator.evaluate
    self._fsync = os.fsync

  def run(self, rounds: Any, *arguments: Any) -> Any:
    """Replaces `Rounds.run`; first ends the block, if it is complete."""
    if rounds.completed >= _WARM_UP:
      if len(self._calls) == _ROUNDS:
        with self._evaluating:
          whole = self._watch.read()
        self._end(rounds, *whole)
      if not self._calls:
        self._syncs = 0.0
        self._watch = _Watch()
      self._calls.append(arguments)
    return self._run(rounds, *arguments)

  def _end(self, rounds: Any, whole: float, whole_cpu: float) -> None:
    state = self._calls[0][0]
    data = [rounds._client_data(*cohort) for _, *cohort in self._calls]
    self._calls = []
    watch = _Watch()
    for cohort in data:
      state = rounds.process.next(state, cohort).state
    alone, alone_cpu = watch.read()
    watch = _Watch()
    self._evaluate(*self._evaluated)
    evaluation, _ = watch.read()
    self.blocks.append(
      Block(
        whole=whole / _ROUNDS,
        alone=alone / _ROUNDS,
        whole_cpu=whole_cpu / _ROUNDS,
        alone_cpu=alone_cpu / _ROUNDS,
        syncs=self._syncs / _ROUNDS,
        evaluation=evaluation,
      )
    )

  def evaluate(self, *arguments: Any) -> tuple[float, float]:
    """Replaces `Evaluator.evaluate`."""
    self._evaluated = arguments
    with self._evaluating:
      return self._evaluate(*arguments)

  def fsync(self, descriptor: int) -> None:
    """Replaces `os.fsync`."""
    watch = _Watch()
    self._fsync(descriptor)
    self._syncs += watch.read()[0]


def measure(
  mechanism: str, dataset: str, data_dir: str | None, blocks: int
) -> list[Block]:
  """Measures the blocks of a training with a mechanism."""
  from tvdp_tf.learning import evaluation  # noqa: PLC0415
  from tvdp_tf.training import rounds  # noqa: PLC0415
  from tvdp_tf.training import settings as settings_lib  # noqa: PLC0415
  from tvdp_tf.training import train as training  # noqa: PLC0415

  settings = settings_lib.TrainingSettings(
    mechanism=mechanism,
    dataset=dataset,
    data_dir=data_dir,
    users=100,
    users_per_round=10,
    local_steps=5,
    rounds=_WARM_UP + _ROUNDS * blocks + 1,
    delta=1e-3,
  )
  clock = _Clock()

  # Functions, because a method would not receive the object it is called on.
  def run(*arguments):
    return clock.run(*arguments)

  def evaluate(*arguments):
    return clock.evaluate(*arguments)

  with (
    tempfile.TemporaryDirectory() as folder,
    mock.patch.object(rounds.Rounds, 'run', run),
    mock.patch.object(evaluation.Evaluator, 'evaluate', evaluate),
    mock.patch.object(os, 'fsync', clock.fsync),
  ):
    training.train(settings, pathlib.Path(folder, 'run'), progress=True)
  return clock.blocks


def _median(values: Sequence[float], digits: int = 1) -> str:
  return f'{statistics.median(values):.{digits}f}'


def write(
  measured: dict[str, list[Block]], dataset: str, folder: pathlib.Path
) -> None:
  """Creates a folder with rounds.csv and README.md."""
  from tvdp_tf.output import files, layout, machine  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  names = [field.name for field in dataclasses.fields(Block)]
  files.write_csv(
    folder / 'rounds.csv',
    ['mechanism', *names],
    (
      [mechanism, *dataclasses.astuple(block)]
      for mechanism, blocks in measured.items()
      for block in blocks
    ),
    end='\r\n',
  )
  rows = []
  for mechanism, blocks in measured.items():
    best = min(b.whole for b in blocks) / min(b.alone for b in blocks)
    rows.append(
      (
        mechanism,
        *(_median([1000 * getattr(b, name) for b in blocks]) for name in names),
        _median([b.whole / b.alone for b in blocks], 2),
        f'{best:.2f}',
        _median([b.whole_cpu / b.alone_cpu for b in blocks], 2),
      )
    )
  host = machine.describe()
  header = (
    '',
    "train.py's round, ms",
    "its runtime's, ms",
    'the first, CPU ms',
    'the second, CPU ms',
    'waiting for the disk, ms',
    'an evaluation alone, ms',
    'times as long',
    'the best blocks',
    'times as much CPU',
  )
  lines = [
    '# What a round of train.py costs',
    '',
    f'By `python -m tools.program_cost`, on {machine.in_words(host)}, at a '
    f'load of {host["load_average"]:.1f}: {dataset}, the MLP, 100 users of '
    'whom 10 take part, 5 local steps, and every default of `train.py`: the '
    'ledger on the disk before each release, a checkpoint every round, '
    'evaluation, metrics, TensorBoard, the bar. Medians of '
    f'{len(next(iter(measured.values())))} blocks of {_ROUNDS} rounds, which '
    "took turns with as many of the runtime's own on the same cohorts. All of "
    'it is in the whole; most of the evaluation runs beside the next round.',
    '',
    layout.markdown_table(header, rows),
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')
