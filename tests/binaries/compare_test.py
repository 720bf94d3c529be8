"""The comparison program, run as a user runs it."""

import csv
import json
import os
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from tests.binaries import program_runner


class CompareTest(absltest.TestCase):
  def test_default_comparison(self):
    folder = pathlib.Path(
      self.enterContext(tempfile.TemporaryDirectory()), 'out'
    )
    result = program_runner.run('compare.py', f'--output_dir={folder}')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertCountEqual(
      os.listdir(folder),
      ['paper', 'gradient', 'none', 'comparison.csv', 'comparison.png'],
    )
    with open(folder / 'comparison.csv', newline='') as file:
      rows = {row['mechanism']: row for row in csv.DictReader(file)}
    self.assertEqual(list(rows), ['paper', 'gradient', 'none'])
    self.assertEqual(
      [row['holds'] for row in rows.values()], ['False', 'True', 'False']
    )
    self.assertGreater(float(rows['paper']['delivered_epsilon']), 10)
    self.assertLessEqual(float(rows['gradient']['delivered_epsilon']), 10)
    self.assertGreater(float(rows['gradient']['test_accuracy']), 0.85)
    for name, row in rows.items():
      statement = json.loads((folder / name / 'privacy.json').read_text())
      self.assertEqual(str(statement['holds']), row['holds'])
      with open(folder / name / 'metrics.csv', newline='') as file:
        last = list(csv.DictReader(file))[-1]
      self.assertEqual(last['test_loss'], row['test_loss'])
      self.assertIn(f'{float(row["test_accuracy"]):9.4f}', result.stdout)
    picture = (folder / 'comparison.png').read_bytes()
    self.assertStartsWith(picture, b'\x89PNG')


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('--mechanisms=paper,magic', '--mechanisms must be some of', 'magic'),
    ('--mechanisms=paper,paper', '--mechanisms must be distinct', 'paper'),
    ('--theta=0', '--theta must be', '0.0'),
  )
  def test_one_line(self, flag, line, value):
    folder = self.create_tempdir().full_path + '/out'
    result = program_runner.run('compare.py', flag, f'--output_dir={folder}')
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(line, result.stderr)
    self.assertIn(value, result.stderr)
    self.assertFalse(os.path.lexists(folder))


if __name__ == '__main__':
  absltest.main()
