"""Crashes of runs that share a ledger: nothing promised is lost."""

import os
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import disk_model
from tvdp_tf.privacy import _chained_file, accounting, ledger, ledger_audit
from tvdp_tf.privacy._chained_file import ChainedFile


def exact(*multipliers, delta=1e-5):
  return accounting.delivered_epsilon(multipliers, delta, 'exact')


class CrashTest(parameterized.TestCase):
  """Two writers in turn; any crash of both, at any point, keeps promises."""

  def test_any_crash_keeps_what_was_promised(self):
    folder = self.create_tempdir().full_path
    path = os.path.join(folder, 'chain')
    payloads = [{'n': n} for n in range(5)]
    model = disk_model.DiskModel(folder)
    model.crash()
    with model.watching():
      first = ChainedFile.create(path, payloads[0], shared=True)
      model.promised = 1
      second, _ = ChainedFile.open(path, shared=True)
      for n, payload in enumerate(payloads[1:], start=2):
        writer = (first, second)[n % 2]
        with writer.locked():
          writer.append(payload)
          model.promised = n
          model.crash()
    first.close()
    second.close()
    survived = set()
    with mock.patch.object(os, 'fsync'):
      for image, promised in model.promises.items():
        disk_model.restore(image, folder)
        if not os.path.exists(path):
          self.assertEqual(promised, 0)
          continue
        # The next writer was waiting for its turn.
        file, chain = ChainedFile.open(path, shared=True)
        count = len(chain.payloads)
        self.assertEqual(chain.payloads, payloads[:count])
        self.assertBetween(count, promised, promised + 1)
        survived.add((promised, count))
        with file.locked() as others:
          self.assertEmpty(others)
          file.append({'after': 'the crash'})
        file.close()
        self.assertEqual(_chained_file.read(path).head_count, count + 1)
    for n in (1, 2, 3, 4):
      self.assertContainsSubset({(n, n), (n, n + 1)}, survived)

  def test_line_of_a_killed_writer_is_durable_before_the_next(self):
    """The next writer's head vouches for it: so it must be on the disk."""
    folder = self.create_tempdir().full_path
    path = os.path.join(folder, 'chain')
    first = ChainedFile.create(path, {'n': 0}, shared=True)
    second, _ = ChainedFile.open(path, shared=True)
    size = os.path.getsize(path)
    with (
      mock.patch.object(os, 'fsync', side_effect=KeyboardInterrupt),
      self.assertRaises(KeyboardInterrupt),
      first.locked(),
    ):
      first.append({'n': 1})
    model = disk_model.DiskModel(folder)
    model.forget('chain', size)
    model.promised = 1
    model.crash()
    with model.watching():
      # What was opened before it watched.
      model._open_files[second._descriptor] = model._written['chain']
      with second.locked() as others:
        self.assertEqual(others, [{'n': 1}])
        model.promised = 2
        model.crash()
    first.close()
    second.close()
    with mock.patch.object(os, 'fsync'):
      for image, promised in model.promises.items():
        disk_model.restore(image, folder)
        count = len(_chained_file.read(path).payloads)
        self.assertBetween(count, promised, 2)


# Joins, and records until nobody has anything left; says what was acknowledged.
_RUN = """
import os, sys
from tests.privacy import ledger_cases
from tvdp_tf.privacy.ledger import *
path, target = sys.argv[1], float(sys.argv[2])
header = ledger_cases.shared_header(target_epsilon=target)
while True:
  try:
    if os.path.exists(path):
      ledger = PrivacyLedger.open(path, header, shared=True)
    else:
      ledger = PrivacyLedger.create(path, header, shared=True)
    break
  except LedgerError as error:
    if 'already exists' not in str(error):
      raise
ledger.join(ledger_cases.run(header))
left, number = {0, 1, 2}, 0
while left:
  number += 1
  client = number % 3
  ids = ledger_cases.fresh()
  try:
    ledger.record(number, [client], ids, 25.0)
    os.write(1, (ids[0][:64] + '\\n').encode())
  except BudgetExceededError:
    left.discard(client)
"""


class ProcessesTest(parameterized.TestCase):
  def test_runs_at_once(self):
    """Of which one is killed now and then: no record lost, none too many."""
    path = os.path.join(self.create_tempdir().full_path, 'ledger.jsonl')
    root = pathlib.Path(ledger.__file__).parents[2]
    target = 2.0

    def start():
      return subprocess.Popen(
        [sys.executable, '-c', _RUN, path, repr(target)],
        # `communicate` does not see what a first line has left in a buffer.
        bufsize=0,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
      )

    processes = [start() for _ in range(4)]
    killed = processes[0]
    killed.stdout.readline()  # It has begun.
    killed.kill()
    outputs = [process.communicate(timeout=240) for process in processes]
    for process, (_, error) in zip(processes[1:], outputs[1:], strict=True):
      self.assertEqual((process.returncode, error), (0, b''))
    acknowledged = b''.join(output for output, _ in outputs).decode().split()
    self.assertLen(set(acknowledged), len(acknowledged))
    audit = ledger_audit.audit(path)
    self.assertTrue(audit.holds, audit.reason)
    self.assertEqual((audit.beyond_head, audit.torn_bytes), (0, 0))
    self.assertLen(audit.runs, 4)
    text = pathlib.Path(path).read_text()
    for digest in acknowledged:
      self.assertIn(digest, text)
    # The killed one's first and last words are not all heard.
    self.assertBetween(audit.records, len(acknowledged), len(acknowledged) + 2)
    # No more than fit, and as many.
    most = 0
    while exact(*[25.0] * (most + 1)) <= target:
      most += 1
    np.testing.assert_array_equal(audit.participations, [most] * 3)
    self.assertGreater(sum(share.records > 1 for share in audit.runs), 1)


if __name__ == '__main__':
  absltest.main()
