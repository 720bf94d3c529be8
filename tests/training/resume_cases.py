"""What the tests of interrupted runs share."""

import contextlib
import functools
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import parameterized

from tvdp_tf import mechanisms, runtimes
from tvdp_tf.output import plots
from tvdp_tf.privacy import ledger
from tvdp_tf.training import export, federation, rounds, run_folder, sweep
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

# A run of a second or two.
SMALL = {
  'mechanism': 'paper',
  'users': 4,
  'users_per_round': 2,
  'local_steps': 2,
  'rounds': 3,
}

# (where it is, its name): what writes, and what computes a round.
_STEPS = (
  (ledger.PrivacyLedger, 'record'),
  (rounds.Rounds, 'run'),
  (tf.io.gfile, 'rename'),
  (tf.io.gfile, 'rmtree'),
  (os, 'rename'),
  (os, 'replace'),
  (pathlib.Path, 'unlink'),
  (shutil, 'rmtree'),
)


def small(**changes: Any) -> settings_lib.TrainingSettings:
  """Settings of a small run, but for `changes`."""
  return settings_lib.TrainingSettings(**{**SMALL, **changes})


def write_files(folder: pathlib.Path, examples: int) -> None:
  """Writes the data set `files:<folder>`, of three features and two classes."""
  folder.mkdir(exist_ok=True)
  for part, count in (('train', examples), ('test', 10)):
    features = np.random.default_rng(0).random((count, 3), np.float32)
    np.save(folder / f'{part}_features.npy', features)
    np.save(folder / f'{part}_labels.npy', np.arange(count) % 2)


@contextlib.contextmanager
def calling_around_steps(call: Callable[[str], None]) -> Iterator[None]:
  """Calls `call` with a description before and after every step of a run.

  One step at a time, so that nothing is removed while `call` looks at it: rows
  are released in a thread of their own.
  """
  lock = threading.RLock()

  def wrapped(owner: Any, name: str) -> Any:
    original = getattr(owner, name)

    def step(*args: Any, **kwargs: Any) -> Any:
      with lock:
        call(f'before {name}')
        result = original(*args, **kwargs)
        call(f'after {name}')
      return result

    return mock.patch.object(owner, name, step)

  with contextlib.ExitStack() as stack:
    for owner, name in _STEPS:
      stack.enter_context(wrapped(owner, name))
    yield


def copies_of_a_run(
  settings: settings_lib.TrainingSettings, folder: pathlib.Path
) -> list[tuple[str, pathlib.Path]]:
  """Trains into `folder` / 'run', and copies it at every step of the run.

  A copy is what a SIGKILL at that instant would leave: it takes from the
  process whatever it has not handed to the system.

  Returns:
    (description, copy) of every step, in order.
  """
  copies: list[tuple[str, pathlib.Path]] = []
  run = folder / 'run'
  taking: list[bool] = []

  def copy(step: str) -> None:
    if not run.exists() or taking:
      return
    taking.append(True)  # Copying takes steps too.
    path = folder / f'copy{len(copies)}'
    shutil.copytree(run, path)
    copies.append((step, path))
    taking.clear()

  with calling_around_steps(copy):
    training.train(settings, run)
  return copies


class _Process(NamedTuple):
  """A compiled process, as of one run."""

  initialize: Callable[[], Any]
  next: Callable[..., Any]


# Of all classes: what a computation is compiled to is its context's.
_context = functools.cache(lambda: runtimes.CompiledContext('cpu'))
_processes: dict[Any, Any] = {}


@contextlib.contextmanager
def compiling_once() -> Iterator[None]:
  """Lets runs whose graphs are the same share what is compiled, as in a sweep.

  Public seeds, which are in the graph, are 0; the noise is what it always is.
  The disk need not last, and there is nothing to see in the picture.
  """
  context = _context()
  build = rounds.build_process

  def build_once(plan: mechanisms.Mechanism, fed: federation.Federation) -> Any:
    key = (
      *(getattr(plan.settings, name) for name in sweep._GRAPH),
      plan.settings.server_optimizer,
      plan.graph_key(),
    )
    if key not in _processes:
      process = build(plan, fed)
      _processes[key] = (process, process.initialize())
    process, initial = _processes[key]
    return _Process(lambda: sweep._start(initial, plan, fed), process.next)

  with (
    tff.framework.get_context_stack().install(context),
    mock.patch.object(rounds, 'build_process', build_once),
    mock.patch.object(
      runtimes,
      'compiled_runtime',
      lambda device: tff.framework.get_context_stack().install(context),
    ),
    mock.patch.object(federation.secrets, 'randbits', return_value=0),
    mock.patch.object(os, 'fsync'),
    mock.patch.object(
      plots, 'draw_training_curves', lambda _, picture, title: picture.touch()
    ),
  ):
    yield
  context.forget_data()


def without_exports() -> contextlib.AbstractContextManager:
  """Has runs write no models: two thirds of the time of a small run."""
  return mock.patch.object(
    export, 'save_model', lambda path, *_: path.mkdir(exist_ok=True)
  )


def unfinish(run: pathlib.Path, completed: int) -> None:
  """Takes a finished run back to the end of its last round but some.

  Args:
    run: The run's folder.
    completed: The newest checkpoint that stays, one of the last two.
  """
  (run / run_folder.PRIVACY).unlink()
  shutil.rmtree(run / run_folder.MODEL)
  for path in (run / run_folder.CHECKPOINTS).iterdir():
    if int(path.name.removeprefix('round_')) > completed:
      path.unlink()


class KilledError(Exception):
  """In the place of a kill, where what comes after it does not matter."""


@contextlib.contextmanager
def killed_in_round(
  test: parameterized.TestCase, number: int
) -> Iterator[None]:
  """Within it a run is killed between the record of a round and its release."""
  original = rounds.Rounds.run

  def run(self, state, releases, noise_keys):
    if releases.number == number:
      raise KilledError
    return original(self, state, releases, noise_keys)

  with (
    mock.patch.object(rounds.Rounds, 'run', run),
    test.assertRaises(KilledError),
  ):
    yield


class FolderTestCase(parameterized.TestCase):
  """Runs whose processes and public seeds are those of the runs before."""

  # Whether the model is written.
  exports = True

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.enterClassContext(compiling_once())
    if not cls.exports:
      cls.enterClassContext(without_exports())

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.folder.chmod(0o700)  # As that of a shared ledger of secret draws.
    self.run_dir = self.folder / 'run'
