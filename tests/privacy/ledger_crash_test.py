"""Killed runs, and random histories of runs that are killed."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import mpmath
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import settings, stateful
from hypothesis import strategies as st

from tests.privacy import ledger_cases
from tvdp_tf.privacy import accounting, ledger, ledger_audit
from tvdp_tf.privacy.ledger import (
  BudgetExceededError,
  NoiseReuseError,
  PrivacyLedger,
)

# Prints a noise digest as soon as `record` has returned: "released".
_RUN = """
import os, sys
from tvdp_tf.privacy.ledger import PrivacyLedger, release_id
with PrivacyLedger.open(sys.argv[1]) as ledger:
  round_number = 0
  while True:
    round_number += 1
    clients = [round_number % 3, (round_number + 1) % 3]
    ids = [release_id(os.urandom(16), b'm', b's') for _ in clients]
    ledger.record(round_number, clients, ids, 1e4)
    os.write(1, ''.join(f'{identity[:64]}\\n' for identity in ids).encode())
"""


class KillTest(parameterized.TestCase):
  def test_what_was_released_is_on_record_after_kill_9(self):
    path = os.path.join(self.create_tempdir().full_path, 'ledger.jsonl')
    ledger_cases.create(path).close()
    rng = random.Random(0)
    released = []
    for _ in range(6):
      released += self.run_and_kill(path, 0.02 + 0.2 * rng.random())
      lines = pathlib.Path(path).read_text()
      for digest in released:
        self.assertIn(digest, lines)
      # The killed run holds no lock; what it left is sound and goes on.
      with PrivacyLedger.open(path) as ledger_:
        epsilons = ledger_.epsilons()
      audit = ledger_audit.audit(path)
      np.testing.assert_array_equal(audit.epsilons, epsilons)
      self.assertGreaterEqual(2 * audit.records, len(released))
      self.assertLessEqual(2 * audit.records, len(released) + 2 * 6)
    self.assertGreater(len(released), 20)

  def run_and_kill(self, path, seconds):
    """The digests that a run has printed when it is killed."""
    root = pathlib.Path(ledger.__file__).parents[2]
    with subprocess.Popen(
      [sys.executable, '-c', _RUN, path], cwd=root, stdout=subprocess.PIPE
    ) as process:
      assert process.stdout is not None
      try:
        first = process.stdout.readline()
        time.sleep(seconds)
      finally:
        process.send_signal(signal.SIGKILL)
      printed = first + process.stdout.read()
    self.assertEqual(process.returncode, -signal.SIGKILL)
    return [line for line in printed.decode().split('\n') if len(line) == 64]


def _log_delta(multipliers, epsilon):
  """The exact delta of Gaussian releases at epsilon, to 40 digits."""
  with mpmath.workdps(60):
    mu = mpmath.sqrt(mpmath.fsum(1 / mpmath.mpf(z) ** 2 for z in multipliers))
    if mu == 0:
      return -mpmath.inf
    return mpmath.log(
      mpmath.ncdf(mu / 2 - epsilon / mu)
      - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    )


_CLIENTS = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
_HEADER = ledger_cases.header(target_epsilon=2.0, delta=1e-4)


class History(stateful.RuleBasedStateMachine):
  """A ledger beside a list of the releases that really took place."""

  def __init__(self):
    super().__init__()
    self.folder = tempfile.TemporaryDirectory()
    self.path = os.path.join(self.folder.name, 'ledger.jsonl')
    self.syncing = mock.patch.object(os, 'fsync')
    self.syncing.start()
    self.ledger = ledger_cases.create(self.path, _HEADER)
    self.spent: list[list[float]] = [[], [], []]
    self.past = []
    self.key = 0

  def teardown(self):
    self.ledger.close()
    self.syncing.stop()
    self.folder.cleanup()

  def fits(self, client, z, count):
    """True, False, or None where it is too close to call."""
    limit = mpmath.log(mpmath.mpf(_HEADER.delta))
    multipliers = self.spent[client] + [z] * count
    excess = _log_delta(multipliers, _HEADER.target_epsilon) - limit
    return None if abs(excess) < 1e-9 else bool(excess < 0)

  @stateful.rule(
    round_number=st.integers(1, 4),
    clients=_CLIENTS,
    z=st.floats(2.0, 40.0),
    count=st.integers(1, 3),
  )
  def fresh(self, round_number, clients, z, count):
    ids = [ledger_cases.identity(self.key + i) for i in range(len(clients))]
    self.key += len(clients)
    fits = [self.fits(client, z, count) for client in clients]
    affordable = self.ledger.affordable_clients(clients, z, count)
    for client, expected in zip(clients, fits, strict=True):
      if expected is not None:
        assert (client in affordable) == expected
    try:
      self.ledger.record(round_number, clients, ids, z, count)
    except BudgetExceededError as error:
      assert False in fits or None in fits
      assert error.client in clients
      return
    assert False not in fits
    for client in clients:
      self.spent[client] += [z] * count
    self.past.append((round_number, clients, ids, z, count))

  @stateful.precondition(lambda self: self.past)
  @stateful.rule(data=st.data())
  def repeat(self, data):
    round_number, clients, ids, z, count = data.draw(st.sampled_from(self.past))
    keep = data.draw(st.permutations(range(len(clients))))
    keep = keep[: data.draw(st.integers(1, len(clients)))]
    attempts = self.ledger.attempts(round_number)
    clients, ids = [clients[i] for i in keep], [ids[i] for i in keep]
    self.ledger.record(round_number, clients, ids, z, count)
    assert self.ledger.attempts(round_number) == attempts + 1

  @stateful.precondition(lambda self: self.past)
  @stateful.rule(data=st.data(), model=st.sampled_from([b'm', b'other']))
  def reuse(self, data, model):
    round_number, _, ids, z, count = data.draw(st.sampled_from(self.past))
    digest = ids[0][:64]
    other = digest + ledger_cases.identity(0, model)[64:]
    try:
      self.ledger.record(round_number + 1, [0], [other], z, count)
    except NoiseReuseError:
      return
    raise AssertionError('a noise key was used twice')

  @stateful.rule(torn=st.binary(max_size=9).filter(lambda b: b'\n' not in b))
  def crash(self, torn):
    self.ledger.close()
    with open(self.path, 'ab') as file:
      file.write(torn)
    self.ledger = PrivacyLedger.open(self.path, _HEADER)

  @stateful.rule(data=st.data())
  def crash_while_recording(self, data):
    """The line is written, wholly or not; nothing was released."""
    before = pathlib.Path(self.path).read_bytes()
    head = pathlib.Path(self.path + '.head').read_bytes()
    ids = [ledger_cases.identity(self.key)]
    self.key += 1
    try:
      self.ledger.record(1, [0], ids, 35.0)
    except BudgetExceededError:
      return
    self.ledger.close()
    after = pathlib.Path(self.path).read_bytes()
    length = data.draw(st.integers(len(before), len(after)))
    pathlib.Path(self.path).write_bytes(after[:length])
    pathlib.Path(self.path + '.head').write_bytes(head)
    self.ledger = PrivacyLedger.open(self.path, _HEADER)
    if length == len(after):
      # It cannot be known that it was not released: it counts.
      self.spent[0].append(35.0)

  @stateful.invariant()
  def is_what_took_place(self):
    delivered = [
      accounting.delivered_epsilon(z, _HEADER.delta, 'exact')
      for z in self.spent
    ]
    expected = np.minimum(delivered, _HEADER.target_epsilon)
    np.testing.assert_array_equal(self.ledger.epsilons(), expected)
    audit = ledger_audit.audit(self.path)
    np.testing.assert_array_equal(audit.epsilons, expected)
    assert audit.within_budget and audit.head_verified
    for multipliers in self.spent:
      limit = mpmath.log(mpmath.mpf(_HEADER.delta))
      assert _log_delta(multipliers, _HEADER.target_epsilon) <= limit


HistoryTest = History.TestCase
HistoryTest.settings = settings(max_examples=25, stateful_step_count=20)


if __name__ == '__main__':
  absltest.main()
