"""A long run with faults, watched from within its process."""

import collections
import dataclasses
import gc
import os
import pathlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import psutil
from scipy import stats

from benchmarks.harness import processes
from tvdp_tf import mechanisms
from tvdp_tf.training import federation, rounds
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

# Not 0, because the ledger and the history keep every round, 3 KiB in all.
MOST_KIB_A_ROUND = 5.0
FAULTS = ('vanished', 'empty', 'nan', 'huge')
_FAULT_RATE = 0.4


class Sample(NamedTuple):
  """This process after a round.

  Attributes:
    round: The round.
    resident_kib: Resident memory.
    descriptors: Open file descriptors.
    threads: Threads, except those of asyncio's pool, which starts one whenever
      none is idle, up to four more than there are cores.
    children: Descendant processes that did not exist before.
    seconds: Seconds since the start.
  """

  round: int
  resident_kib: int
  descriptors: int
  threads: int
  children: int
  seconds: float


class Verdict(NamedTuple):
  """The result of the samples after the warm-up.

  Attributes:
    kib_a_round: Growth of the resident memory: the median of the slopes between
      all pairs of samples that follow a garbage collection (Theil-Sen).
    kib_a_round_interval: Its 95 % interval.
    descriptors: The maximum in the first half, and in the second half.
    threads: The maximum in the first half, and in the second half.
    children: The maximum.
  """

  kib_a_round: float
  kib_a_round_interval: tuple[float, float]
  descriptors: tuple[int, int]
  threads: tuple[int, int]
  children: int

  def failures(self) -> list[str]:
    """Returns what is not flat."""
    found = []
    if not self.kib_a_round <= MOST_KIB_A_ROUND:
      found.append(f'memory grows by {self.kib_a_round:.1f} KiB a round')
    for name in ('descriptors', 'threads'):
      before, after = getattr(self, name)
      if after > before:
        found.append(f'{name} grow from {before} to {after}')
    if self.children:
      found.append(f'child processes: {self.children}')
    return found


def verdict(samples: Sequence[Sample], collect_every: int) -> Verdict:
  """Judges the samples of the rounds after the warm-up.

  Args:
    samples: One per round.
    collect_every: As for `Soak`.
  """
  clean = [sample for sample in samples if sample.round % collect_every == 0]
  slope, _, low, high = stats.theilslopes(
    [sample.resident_kib for sample in clean],
    [sample.round for sample in clean],
  )
  half = len(samples) // 2

  def most(name: str) -> tuple[int, int]:
    values = [getattr(sample, name) for sample in samples]
    return max(values[:half]), max(values[half:])

  return Verdict(
    kib_a_round=float(slope),
    kib_a_round_interval=(float(low), float(high)),
    descriptors=most('descriptors'),
    threads=most('threads'),
    children=max(sample.children for sample in samples),
  )


def _pooled_threads() -> int:
  return sum(t.name.startswith('asyncio_') for t in threading.enumerate())


class _InterruptionError(Exception):
  """Interrupts a run, as if a user had pressed Ctrl-C."""


class _FaultyRounds(rounds.Rounds):
  """Rounds in which all clients but the first one may fail."""

  def __init__(
    self,
    plan: mechanisms.Mechanism,
    fed: federation.Federation,
    soak: 'Soak',
  ):
    super().__init__(plan, fed, rounds.build_process(plan, fed))
    self._soak = soak

  def run(self, state, releases, noise_keys):
    after = super().run(state, releases, noise_keys)
    self._soak.observe(releases.number)
    return after

  def _client_data(self, releases, noise_keys):
    first, *others = super()._client_data(releases, noise_keys)
    rng = np.random.default_rng(releases.number)
    sent = [first]
    for client in others:
      fault = ''
      if rng.random() < _FAULT_RATE:
        fault = FAULTS[rng.integers(len(FAULTS))]
        self._soak.faults[fault] += 1
      if fault != 'vanished':
        sent.append(_spoilt(client, fault))
    return sent


def _spoilt(client: Sequence[Any], fault: str) -> Sequence[Any]:
  (element,) = client
  change: dict[str, Callable] = {
    'empty': lambda array: array[:0],
    'nan': lambda array: np.full_like(array, np.nan),
    'huge': lambda array: np.full_like(array, 1e30),
  }
  if not fault:
    return client
  names = ('x', 'y') if fault == 'empty' else ('x',)
  spoilt = collections.OrderedDict(element)
  for name in names:
    spoilt[name] = change[fault](element[name])
  return [spoilt]


@dataclasses.dataclass
class Soak:
  """A run that is being watched.

  Attributes:
    interrupt_after: Rounds after which the run is interrupted, and resumed.
    collect_every: After how many rounds Python's garbage is collected before
      the sample. By itself, Python waits for about 150 rounds, in which 45 MiB
      accumulate: a saw-tooth that hides what grows.
    samples: One per round, and one more for a round that was repeated.
    faults: How often each of `FAULTS` happened to a client.
  """

  interrupt_after: Collection[int]
  collect_every: int
  samples: list[Sample] = dataclasses.field(default_factory=list)
  faults: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  _started: float = dataclasses.field(default_factory=time.monotonic)
  _before: list[int] = dataclasses.field(
    default_factory=lambda: processes.tree(os.getpid())
  )

  def observe(self, round_number: int) -> None:
    """Takes a sample; ends the run if it is to be interrupted here."""
    if round_number % self.collect_every == 0:
      gc.collect()
    own = psutil.Process()
    repeated = any(sample.round == round_number for sample in self.samples)
    self.samples.append(
      Sample(
        round_number,
        own.memory_info().rss // 1024,
        own.num_fds(),
        own.num_threads() - _pooled_threads(),
        len({*processes.tree(os.getpid())} - {*self._before}),
        time.monotonic() - self._started,
      )
    )
    if round_number in self.interrupt_after and not repeated:
      raise _InterruptionError

  def run(
    self, settings: settings_lib.TrainingSettings, run_dir: pathlib.Path
  ) -> training.TrainingResult:
    """Trains to the end, on the compiled runtime."""
    with mock.patch.object(
      rounds,
      'on_runtime',
      lambda plan, fed, _: _FaultyRounds(plan, fed, self),
    ):
      resume = False
      while True:
        try:
          return training.train(settings, run_dir, resume=resume)
        except _InterruptionError:
          resume = True
