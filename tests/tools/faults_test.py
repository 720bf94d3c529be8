"""The table of faults; the faults themselves take 15 minutes."""

import csv
import pathlib

from absl.testing import absltest

from tools import fault_report, fault_suite
from tvdp_tf.output import machine

_ROWS = [
  fault_suite.Row('SIGKILL: start', 'tff, paper', 'resumed', 'nothing'),
  fault_suite.Row('SIGKILL: end', 'compiled, paper', 'x', 'metrics', False),
  fault_suite.Row('no disk', 'compiled, paper', 'says "a|b"', 'nothing'),
]


class WriteTest(absltest.TestCase):
  def test_table(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'a', 'b')
    fault_report.write(_ROWS, folder, seed=5)
    with open(folder / 'faults.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(
      [row['survived'] for row in rows], ['True', 'False', 'True']
    )
    text = (folder / 'README.md').read_text()
    self.assertIn('killed (SIGKILL) 2 times', text)
    self.assertIn('after 1 of them', text)
    host = machine.in_words(machine.describe())
    self.assertIn(f'ARGS=--seed=5` on {host};', text)
    self.assertIn('| no disk | compiled, paper | says "a b" | nothing |', text)
    self.assertNotIn('SIGKILL: start', text)

  def test_folders_have_one_name(self):
    self.assertEqual(
      fault_suite.quoted("error: '/tmp/x/run12' and /tmp/x/run3/ledger.jsonl"),
      '"error: RUN and RUN/ledger.jsonl"',
    )
    self.assertEqual(
      fault_suite.quoted('/tmp/x/disk/.run.17/a: full\n'), '"RUN/a: full"'
    )
    self.assertEqual(
      fault_suite.quoted(
        'W1121 19:44:36.348540 139837807770496 training_run.py:161] one: 1\n'
        "W1121 19:44:36.348540      17 checkpoints.py:1] '/tmp/run1/a' two\n"
      ),
      '"training_run.py: one: 1 checkpoints.py: RUN/a two"',
    )
    self.assertEqual(fault_suite.quoted('\n'), 'without a word')


if __name__ == '__main__':
  absltest.main()
