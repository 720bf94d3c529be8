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
      [
        *('paper', 'gradient', 'none'),
        *('comparison.csv', 'comparison.png', 'report.html'),
      ],
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


class ThetaTest(absltest.TestCase):
  def test_several(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    result = program_runner.run(
      'compare.py',
      f'--output_dir={folder}',
      '--mechanisms=gradient,none',
      '--theta=0.9,1.1',
      *('--rounds=2', '--local_steps=1', '--noprogress'),
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    with open(folder / 'comparison.csv', newline='') as file:
      rows = {row['run']: row for row in csv.DictReader(file)}
    self.assertEqual(
      [(name, row['mechanism'], row['theta']) for name, row in rows.items()],
      [
        ('gradient_theta_0.9', 'gradient', '0.9'),
        ('gradient_theta_1.1', 'gradient', '1.1'),
        ('none', 'none', '0.9'),
      ],
    )
    for name, row in rows.items():
      config = json.loads((folder / name / 'config.json').read_text())
      self.assertEqual(config['settings']['theta'], float(row['theta']))
      self.assertIn(f'\n{name} ', result.stdout)


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('--mechanisms=paper,magic', '--mechanisms must be some of', 'magic'),
    ('--mechanisms=paper,paper', '--mechanisms must be distinct', 'paper'),
    ('--theta=0', '--theta must be', '0.0'),
    ('--theta=0.9,-1', '--theta must be', '-1.0'),
    ('--theta=0.9,0.9', '--theta must be distinct', '0.9,0.9'),
    ('--theta=0.9,x', '--theta must be numbers, comma-separated', '0.9,x'),
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
