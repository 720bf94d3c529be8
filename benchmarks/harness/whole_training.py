"""Whole trainings from the command line: from a process's start to its end.

Ours is `train.py` with its defaults: evaluation, a checkpoint and a ledger
record in every round, and statement, report and exported model at the end. A
peer's is a program in its folder, see `training`.
"""

import csv
import dataclasses
import json
import math
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import processes
from benchmarks.harness import session as session_lib
from benchmarks.harness import training as training_lib
from benchmarks.harness import work as work_lib

# The peers' models have other initial weights and other noise.
ACCURACY_TOLERANCE = 0.05
_DATASETS = {False: 'mnist', True: 'generated_mnist'}
_ROUNDS = {False: 30, True: 3}
_TIMEOUT_S = 900.0
# How often to list the processes of a program, to end them with it.
_LOOK_S = 1.0
_LOG_TAIL = 2000


@dataclasses.dataclass(frozen=True)
class WholeTraining:
  """One training.

  Attributes:
    contender: Name of the contender.
    number: Number of the training, from 1.
    seconds: Seconds from the start of the process to its end.
    accuracy: Accuracy on the test set, after the last round.
  """

  contender: str
  number: int
  seconds: float
  accuracy: float


def trains(contender: contenders_lib.Contender, work: work_lib.Work) -> bool:
  """Whether a contender has a program that trains the model of a work."""
  return contender.trains and contender.does(work) and work.model == 'mlp'


def write_data(folder: pathlib.Path, name: str, data_dir: str | None) -> int:
  """Writes a data set for `training`.

  Returns:
    The number of its training examples.

  Raises:
    DatasetUnavailableError: If the data set is not available.
  """
  from tvdp_tf.learning import datasets  # noqa: PLC0415 (loads TensorFlow)

  dataset = datasets.load(name, data_dir)
  for part in training_lib.PARTS:
    values = getattr(dataset, part)
    if part.endswith('features'):
      values = np.round(values.reshape(len(values), -1) * 255).astype(np.uint8)
    np.save(training_lib.path_of(folder, part), values)
  return len(dataset.train_labels)


def _our_arguments(
  work: work_lib.Work, dataset: str, data_dir: str | None
) -> list[str]:
  is_private = work.kind == work_lib.PRIVATE
  settings = {
    'dataset': dataset,
    'model': work.model,
    'users': work.users,
    'users_per_round': work.users_per_round,
    'local_steps': work.local_steps,
    'learning_rate': work.learning_rate,
    'participation': 'uniform',
    'theta': 1,
    'device': 'cpu',
    **(
      {
        'mechanism': 'gradient',
        'example_l2_norm_clip': work.example_l2_norm_clip,
      }
      if is_private
      else {'mechanism': 'paper', 'l2_norm_clip': work.l2_norm_clip}
    ),
    **({'data_dir': data_dir} if data_dir else {}),
  }
  flags = [f'--{name}={value}' for name, value in settings.items()]
  return ['binaries/train.py', *flags, '--noprogress']


def _seconds(command: Sequence[str], root: pathlib.Path, name: str) -> float:
  """Runs a program to its end, and ends processes it leaves behind.

  Raises:
    ProgramError: If it fails.
  """
  with tempfile.TemporaryFile() as log:
    started = time.perf_counter()
    process = subprocess.Popen(
      command,
      cwd=root,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
    members: set[int] = {process.pid}
    ended = threading.Event()

    def look():
      while not ended.wait(_LOOK_S):
        members.update(processes.tree(process.pid))
        if time.perf_counter() - started > _TIMEOUT_S:
          process.kill()
          return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
      code = process.wait()
      seconds = time.perf_counter() - started
    finally:
      ended.set()
      watcher.join()
      processes.kill(sorted(members))
    if code:
      log.seek(0)
      tail = log.read()[-_LOG_TAIL:].decode(errors='replace')
      last = (tail.strip().splitlines() or ['(it wrote no error)'])[-1]
      error = session_lib.ProgramError(
        f'the training of {name} ended with exit status {code}; its last line: '
        f'{last}'
      )
      error.add_note(tail)
      raise error
  return seconds


def final_accuracy(folder: pathlib.Path, rounds: int, name: str) -> float:
  """Returns the accuracy after the last round of a complete training.

  Args:
    folder: The folder that it has written.
    rounds: The requested number of rounds.
    name: Name of the contender.

  Raises:
    ProgramError: If it has not evaluated every round, or has not written a
      checkpoint of the last one.
  """
  numbers, accuracy = [], math.nan
  path = folder / training_lib.METRICS
  if path.exists():
    with open(path, newline='', encoding='utf-8') as file:
      for row in csv.DictReader(file):
        numbers.append(int(row['round']))
        accuracy = float(row['test_accuracy'])
  if numbers != list(range(1, rounds + 1)):
    raise session_lib.ProgramError(
      f'the training of {name} was to evaluate rounds 1 to {rounds}, it has '
      f'evaluated {len(numbers)}'
    )
  if not (folder / training_lib.CHECKPOINTS / f'round_{rounds}').exists():
    raise session_lib.ProgramError(
      f'the training of {name} has left no checkpoint of round {rounds}'
    )
  return accuracy


def check_accuracies(trainings: Sequence[WholeTraining]) -> None:
  """Checks that all programs reach the same median accuracy.

  Args:
    trainings: Trainings of all programs; the first one is ours.

  Raises:
    ProgramError: If a program's median differs from ours by more than
      `ACCURACY_TOLERANCE`.
  """
  accuracies: dict[str, list[float]] = {}
  for one in trainings:
    accuracies.setdefault(one.contender, []).append(one.accuracy)
  medians = {name: statistics.median(of) for name, of in accuracies.items()}
  ours = next(iter(medians.values()))
  for name, median in medians.items():
    if not abs(median - ours) <= ACCURACY_TOLERANCE:
      raise session_lib.ProgramError(
        f'the trainings of {name} come to a test accuracy of {median:.3f} in '
        f'the median, ours to {ours:.3f}'
      )


def measure(
  work: work_lib.Work,
  contenders: Sequence[contenders_lib.Contender],
  root: pathlib.Path,
  repeats: int,
  data_dir: str | None = None,
  smoke: bool = False,
  on_turn: Callable[[str], None] = lambda name: None,
) -> list[WholeTraining]:
  """Runs every program's training, `repeats` times, in turns.

  Args:
    work: Defines the sizes; the examples of MNIST are dealt out to its users.
    contenders: The contenders, all present; ours comes first.
    root: The checkout.
    repeats: Number of trainings of each.
    data_dir: TFDS's folder.
    smoke: Whether to train on a few generated examples, for a few rounds.
    on_turn: Called with the name of each contender that has trained.

  Raises:
    ProgramError: If a program fails, is incomplete, or reaches another accuracy
      than ours (not checked with `smoke`).
  """
  found: list[WholeTraining] = []
  dataset, rounds = _DATASETS[smoke], _ROUNDS[smoke]
  with tempfile.TemporaryDirectory() as name:
    data = pathlib.Path(name)
    examples = write_data(data, dataset, data_dir)
    work = dataclasses.replace(work, examples_per_user=examples // work.users)

    def train(contender, number):
      if contender.environment:
        arguments = [
          '-m',
          contender.training_module,
          f'--form={contender.form}',
          f'--work={json.dumps(dataclasses.asdict(work))}',
          f'--data={data}',
        ]
      else:
        arguments = _our_arguments(work, dataset, data_dir)
      interpreter = str(contender.interpreter(root))
      with tempfile.TemporaryDirectory() as folder:
        seconds = _seconds(
          [
            interpreter,
            *arguments,
            f'--rounds={rounds}',
            f'--output_dir={folder}',
          ],
          root,
          contender.name,
        )
        accuracy = final_accuracy(pathlib.Path(folder), rounds, contender.name)
      return WholeTraining(contender.name, number, seconds, accuracy)

    rng = random.Random(work.seed)
    for number in range(1, repeats + 1):
      order = list(contenders)
      if number > 1:
        rng.shuffle(order)
      for contender in order:
        one = train(contender, number)
        found.append(one)
        on_turn(contender.name)
  if not smoke:
    check_accuracies(found)
  return found
