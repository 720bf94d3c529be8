"""Runs on private data that differ, with all that leaves them written down.

What the noise covers is replaced by nothing: noise of the same key is released
in its place. The entropy of the system and the clocks are replaced as well. So
whatever of two runs differs has left the clients by another way than under the
noise.

`Runs` are runs in this process; this module as a program is a run of
`binaries/train.py`, with the same replacements:

  python -m tests.two_worlds CHANGE UNIT FLAG...
"""

import concurrent.futures
import contextlib
import functools
import gc
import io
import logging
import os
import pathlib
import re
import runpy
import secrets
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tqdm import auto as tqdm

from tvdp_tf import errors
from tvdp_tf.learning import datasets, evaluation, noise, partitions
from tvdp_tf.output import plots
from tvdp_tf.training import checkpoints, export, metrics, rounds
from tvdp_tf.training import run as training_run
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

ROOT = pathlib.Path(__file__).resolve().parents[1]
# This module as a program, from the folder of the programs.
PROGRAM = '../tests/two_worlds.py'

USERS = 4
_EXAMPLES_PER_USER = 12
_TEST_EXAMPLES = 20
# The user that the change is made to, or whose first example it is made to.
_CHANGED = 0

# Features [n, ...] and labels [n] of the unit of privacy, and of another one.
_Unit = tuple[np.ndarray, np.ndarray]
_Change = Callable[[_Unit, _Unit], _Unit]


def _all(value: float) -> _Change:
  return lambda unit, other: (np.full_like(unit[0], value), unit[1])


def _repeated(times: float) -> _Change:
  def change(unit, other):
    del other
    index = np.arange(round(times * len(unit[1]))) % len(unit[1])
    return unit[0][index], unit[1][index]

  return change


# What any unit may be instead.
VALUES: Mapping[str, _Change] = {
  'nan': _all(np.nan),
  'infinite': _all(-np.inf),
  'failing': _all(1e30),  # Squares, and losses after one step, overflow.
  'zeros': _all(0.0),
  'duplicate': lambda unit, other: other,
  'label': lambda unit, other: (unit[0], (unit[1] + 1) % 10),
  'no_class': lambda unit, other: (unit[0], np.full_like(unit[1], 99)),
}
# What a user may be besides, whose number of examples is not public.
SIZES: Mapping[str, _Change] = {
  'empty': _repeated(0),
  'smaller': _repeated(0.5),
  'larger': _repeated(2),
}
UNCHANGED = 'unchanged'
_CHANGES: Mapping[str, _Change] = {
  UNCHANGED: lambda unit, other: unit,
  **VALUES,
  **SIZES,
}


def _users(change: str, unit: str) -> list[_Unit]:
  """The examples of every user, one unit of them changed."""
  digits = datasets.LOADERS['digits'](None)
  users = [
    (digits.train_features[part], digits.train_labels[part])
    for part in (
      slice(user * _EXAMPLES_PER_USER, (user + 1) * _EXAMPLES_PER_USER)
      for user in range(USERS)
    )
  ]
  # What there is of it in its user: the first example, or all.
  size = 1 if unit == 'example' else _EXAMPLES_PER_USER
  (features, labels), other = users[_CHANGED], users[_CHANGED + 1]
  new = _CHANGES[change](
    (features[:size], labels[:size]), (other[0][:size], other[1][:size])
  )
  users[_CHANGED] = (
    np.concatenate([new[0], features[size:]]),
    np.concatenate([new[1], labels[size:]]),
  )
  return users


# The first word of a key that nobody has.
_NO_KEY = -(2**63) + 12345


def covered(perturb: Callable[..., Any]) -> Callable[..., Any]:
  """A function of `learning.noise` that adds its noise to zeros instead."""

  def noise_alone(tensors, noise_stddev, noise_key, *args, **kwargs):
    # What it covers is computed all the same: no graph knows that nobody asks.
    asked = tf.equal(noise_key[0], _NO_KEY)
    nothing = [
      tf.raw_ops.Select(condition=asked, x=tensor, y=tf.zeros_like(tensor))
      for tensor in tensors
    ]
    return perturb(nothing, noise_stddev, noise_key, *args, **kwargs)

  return noise_alone


def bare(perturb: Callable[..., Any]) -> Callable[..., Any]:
  """A function of `learning.noise` that adds none."""
  del perturb
  return lambda tensors, *args, **kwargs: list(tensors)


# What adds noise: (where it is, its name).
_NOISE = ((noise, 'perturb'),)


class _Entropy:
  """In place of the system's: the same for every run."""

  def __init__(self):
    self._draws = np.random.default_rng(0)

  def token_bytes(self, count: int) -> bytes:
    return self._draws.bytes(count)

  def token_hex(self, count: int) -> str:
    return self._draws.bytes(count).hex()

  def randbits(self, count: int) -> int:
    return int.from_bytes(self._draws.bytes(16), 'little') % 2**count


class _AtOnce(concurrent.futures.Executor):
  """In place of a thread, whose pace decides when a loss is shown."""

  def submit(self, fn, /, *args, **kwargs):
    future: concurrent.futures.Future = concurrent.futures.Future()
    try:
      future.set_result(fn(*args, **kwargs))
    except Exception as error:
      future.set_exception(error)
    return future


def _system_noise_key() -> tf.Tensor:
  return tf.constant([1, 2], tf.int64)


@contextlib.contextmanager
def world(
  change: str, unit: str, replaced: Callable[..., Any] = covered
) -> Iterator[None]:
  """The world in which one unit of privacy is changed.

  Args:
    change: What becomes of it: a key of `VALUES` or `SIZES`, or `UNCHANGED`.
    unit: 'example' or 'user'.
    replaced: What becomes of the functions that add noise.
  """
  users = _users(change, unit)
  digits = datasets.LOADERS['digits'](None)
  dataset = datasets.Dataset(
    name='digits',
    train_features=np.concatenate([features for features, _ in users]),
    train_labels=np.concatenate([labels for _, labels in users]),
    test_features=digits.test_features[:_TEST_EXAMPLES],
    test_labels=digits.test_labels[:_TEST_EXAMPLES],
    num_classes=digits.num_classes,
  )
  ends = np.cumsum([len(labels) for _, labels in users])
  parts = np.split(np.arange(ends[-1]), ends[:-1])
  deal_out = partitions.iid

  def iid(num_examples, users, seed):
    if num_examples == len(dataset.train_labels):
      return parts
    return deal_out(num_examples, users, seed)  # Others, that are made up.

  entropy = _Entropy()
  with contextlib.ExitStack() as stack:

    def replace(owner: Any, name: str, value: Any) -> None:
      stack.enter_context(mock.patch.object(owner, name, value))

    for owner, name in _NOISE:
      replace(owner, name, replaced(getattr(owner, name)))
    replace(noise, 'system_noise_key', _system_noise_key)
    for name in ('token_bytes', 'token_hex', 'randbits'):
      replace(secrets, name, getattr(entropy, name))
    replace(datasets, 'load', lambda *_, **__: dataset)
    replace(partitions, 'iid', iid)
    clock = types.SimpleNamespace(monotonic=lambda: 0.0)
    replace(training_run, 'time', clock)
    futures = types.SimpleNamespace(
      ThreadPoolExecutor=lambda _: _AtOnce(), Future=concurrent.futures.Future
    )
    for module in (metrics, training_run):
      replace(module, 'concurrent', types.SimpleNamespace(futures=futures))
    yield


# Of a program's log: when, in which process, and the names of files that are
# renamed when they are whole.
_TIMES = re.compile(
  r'(?<=^[IWEF]\d{4}) .*?(?=[\w.]+:\d+\])|(?<=_temp)\d+|(?<=/\.model\.)\d+'
)


def without_times(text: str) -> str:
  """What a program prints, but for the times."""
  return '\n'.join(_TIMES.sub('', line) for line in text.splitlines())


def _events(path: pathlib.Path) -> str:
  """What TensorBoard reads."""
  lines = []
  for record in tf.data.TFRecordDataset(str(path)):
    event = tf.compat.v1.Event.FromString(record.numpy())
    event.wall_time = 0
    lines.append(str(event))
  return '\n'.join(lines)


def files(folder: pathlib.Path) -> dict[str, Any]:
  """What the files of a run's folder say, but for the times; by name."""
  found: dict[str, Any] = {}
  for path in sorted(folder.rglob('*')):
    name = str(path.relative_to(folder))
    if path.is_dir():
      found[name] = 'folder'
    elif 'tfevents' in name:
      found[f'{path.parent.name}/events'] = _events(path)
    else:
      found[name] = path.read_bytes()
  return found


def _described(values: Sequence[Any]) -> list[Any]:
  """What arrays and texts in a structure hold, to the bit."""
  described: list[Any] = []
  for value in tf.nest.flatten(values):
    array = np.asarray(value)
    if array.dtype == object:
      described.append(repr(value))
    else:
      described.append((array.dtype.str, array.shape, array.tobytes()))
  return described


@contextlib.contextmanager
def _caught(streams: dict[str, str]) -> Iterator[None]:
  """Adds what this process prints, whoever writes it."""
  with contextlib.ExitStack() as stack:
    for name, descriptor in (('stdout', 1), ('stderr', 2)):
      getattr(sys, name).flush()
      before = os.dup(descriptor)
      stack.callback(os.close, before)
      file = stack.enter_context(tempfile.TemporaryFile('w+'))
      os.dup2(file.fileno(), descriptor)

      def end(name=name, descriptor=descriptor, before=before, file=file):
        getattr(sys, name).flush()
        os.dup2(before, descriptor)
        file.seek(0)
        streams[name] = without_times(file.read())

      stack.callback(end)
    yield


_CHECKPOINTS = 'saved checkpoints'
_MODEL = 'saved model'


class Runs:
  """Runs of the same settings in this process, in different worlds.

  They share what is compiled. Checkpoints and the export, which take most of
  the time of a small run, are not written: what would be written is noted down.
  """

  def __init__(
    self,
    settings: settings_lib.TrainingSettings,
    unit: str,
    replaced: Callable[..., Any] = covered,
  ):
    """Starts without runs.

    Args:
      settings: Of all runs.
      unit: 'example' or 'user': what is changed.
      replaced: What becomes of the functions that add noise.
    """
    # What other tests have left open is not to be seen in one world alone.
    gc.collect()
    self._settings = settings
    self._unit = unit
    self._replaced = replaced
    self._processes: dict[str, Any] = {}
    self._evaluator: Any = None

  def observed(self, change: str, folder: pathlib.Path) -> dict[str, Any]:
    """Everything that leaves a run in a world, by where it is seen.

    Args:
      change: As of `world`.
      folder: The run's folder; it must not exist.
    """
    seen: dict[str, Any] = {_CHECKPOINTS: [], _MODEL: []}
    bar = io.StringIO()
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    # What TFF says of a graph when it is compiled: in the first world alone.
    handler.addFilter(lambda record: record.module != 'graph_optimizations')
    build = rounds.build_process

    def build_once(plan, fed):
      key = repr((plan.mechanism, fed.initial_weights))
      if key not in self._processes:
        self._processes[key] = build(plan, fed)
      return self._processes[key]

    evaluator = evaluation.Evaluator

    def evaluator_once(*args):
      self._evaluator = self._evaluator or evaluator(*args)
      return self._evaluator

    def save(unused_checkpoints, *args):
      seen[_CHECKPOINTS].append(_described(args))

    def export_model(unused_path, *args):
      seen[_MODEL].append(_described(args))

    draw = functools.partial(
      tqdm.tqdm, file=bar, mininterval=0, bar_format='{n_fmt} {postfix}'
    )
    with contextlib.ExitStack() as stack:
      for owner, name, value in (
        (rounds, 'build_process', build_once),
        (evaluation, 'Evaluator', evaluator_once),
        (checkpoints.Checkpoints, 'save', save),
        (export, 'save_model', export_model),
        (plots, 'draw_training_curves', lambda *_: None),
        (tqdm, 'tqdm', draw),
      ):
        stack.enter_context(mock.patch.object(owner, name, value))
      for name in ('', 'absl', 'tensorflow'):
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
      caught = stack.enter_context(warnings.catch_warnings(record=True))
      warnings.simplefilter('always')
      # Of a library that the first training of a process loads.
      warnings.filterwarnings('ignore', 'np.find_common_type is deprecated')
      stack.enter_context(_caught(seen))
      stack.enter_context(world(change, self._unit, self._replaced))
      try:
        result = training.train(
          self._settings,
          folder,
          progress=True,
          runtime=contextlib.nullcontext(),
        )
        seen['result'] = repr((result.loss, result.accuracy, result.statement))
      except errors.TvdpError as error:
        seen['result'] = repr(error)
    seen.update(
      bar=bar.getvalue(),
      log=log.getvalue(),
      warnings=[(w.category, str(w.message)) for w in caught],
      **files(folder),
    )
    return {
      name: what.replace(str(folder), '') if isinstance(what, str) else what
      for name, what in seen.items()
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """Where two worlds are seen to differ."""
  return sorted(
    name
    for name in one.keys() | other.keys()
    if one.get(name) != other.get(name)
  )


if __name__ == '__main__':
  _, change_, unit_, *flags_ = sys.argv
  with world(change_, unit_):
    sys.argv = [str(ROOT / 'binaries' / 'train.py'), *flags_]
    sys.path.insert(0, str(ROOT / 'binaries'))
    runpy.run_path(sys.argv[0], run_name='__main__')
