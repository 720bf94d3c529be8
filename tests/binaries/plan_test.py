import csv
import json
import math
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest, parameterized

_PLAN = pathlib.Path(__file__).resolve().parents[2] / 'binaries' / 'plan.py'


def _run(*arguments, cwd=None):
  return subprocess.run(
    [sys.executable, str(_PLAN), *arguments],
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
    cwd=cwd,
    timeout=60,
    check=False,
  )


class PlanTest(parameterized.TestCase):
  def _folder(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path)

  def test_without_flags(self):
    folder = self._folder()
    result = _run(cwd=folder)
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    for expected in (
      '2 C / n = 2 * 5.0 / 600 = 0.0166667: NOT PROVEN',
      'proven for this upload: 2 C = 2 * 5.0 = 10',
      'Verdict: NO GUARANTEE',
      "the paper's moment bound: 13.6192, a CLAIM, not a bound",
    ):
      self.assertIn(expected, result.stdout)
    lines = [' '.join(line.split()) for line in result.stdout.splitlines()]
    self.assertIn(
      'printed 0.0107298 0.0107298 0.64379 0.64379 61.6312 <- chosen', lines
    )
    self.assertIn(
      'client in every round 61.6312 61.6312 65.8432 conditional', lines
    )
    rows = [line.split() for line in lines]
    visible = next(row for row in rows if row[:1] == ['visible,'])
    self.assertEqual(visible[4], '16.4737')
    for name in ('examples_per_user', 'contraction', 'dimension'):
      row = next(row for row in rows if row[:1] == [f'--{name}'])
      self.assertEqual(row[2], 'assumed')
    self.assertNotIn('HOLDS', result.stdout)
    self.assertEmpty(list(folder.iterdir()))

  def test_what_is_given_is_not_called_assumed(self):
    # The default's very value, but stated.
    result = _run('--contraction=0.85', '--learning_rate=0.1')
    rows = [line.split() for line in result.stdout.splitlines()]
    row = next(row for row in rows if row[:1] == ['--contraction'])
    self.assertEqual(row[:3], ['--contraction', '0.85', 'given'])
    self.assertIn('not used by mechanism paper: --learning_rate', result.stdout)

  def test_gradient(self):
    result = _run('--mechanism=gradient', '--theta=0.95', '--rounds=34')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertIn(
      '2 C_g / n = 2 * 1.0 / 600 = 0.00333333: PROVEN', result.stdout
    )
    self.assertIn('Verdict: HOLDS', result.stdout)
    self.assertIn('10, 20, 30, 34 (20 releases)', result.stdout)

  def test_exact_calibration_with_poisson_participation(self):
    result = _run('--calibration=exact', '--participation=poisson')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    rows = [line.split() for line in result.stdout.splitlines()]
    row = next(row for row in rows if row[:2] == ['secret', 'Poisson,'])
    self.assertEqual(row[5], '-')
    self.assertEqual(row[-2:], ['NOT', 'GRANTED'])

  def test_help_lists_the_papers_settings(self):
    result = _run('--help')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    help_text = ' '.join(result.stdout.split())
    self.assertIn(
      "--users: U, the number of users. (default: '100')", help_text
    )
    self.assertIn('--output_dir', help_text)

  @parameterized.parameters(
    ('--users=0', '--users must be an integer from 1 to 1000000, got 0'),
    ('--users_per_round=101', '--users_per_round must be an integer from 1 to'),
    ('--epsilon=0', '--epsilon must be a finite number > 0, got 0.0'),
    ('--epsilon=nan', '--epsilon must be a finite number > 0, got nan'),
    ('--delta=1', '--delta must be a number strictly between 0 and 1, got 1.0'),
    ('--theta=abc', "--theta must be a number, got 'abc'"),
    ('--rounds=1.5', "--rounds must be an integer, got '1.5'"),
    ('--local_steps=0', '--local_steps must be an integer from 1 to'),
    ('--l2_norm_clip=-1', '--l2_norm_clip must be a finite number > 0'),
    ('--example_l2_norm_clip=0', '--example_l2_norm_clip must be a finite'),
    ('--learning_rate=inf', '--learning_rate must be a finite number > 0'),
    ('--examples_per_user=0', '--examples_per_user must be an integer from 1'),
    ('--contraction=1', '--contraction must be a number strictly between 0'),
    ('--initial_gap=0', '--initial_gap must be a finite number > 0, got 0.0'),
    ('--smoothness=-2', '--smoothness must be a finite number > 0, got -2.0'),
    ('--dimension=0', '--dimension must be an integer from 1 to'),
    (
      '--mechanism=none',
      "--mechanism must be one of paper, gradient, got 'none'",
    ),
    (
      '--participation=once',
      '--participation must be one of uniform, balanced',
    ),
    (
      '--calibration=guess',
      '--calibration must be one of printed, tight, exact',
    ),
    (
      '--mechanism=gradient --calibration=printed',
      '--calibration must be one of exact, rdp, pld with mechanism gradient',
    ),
    (
      '--mechanism=gradient --users=7 --users_per_round=3',
      '--users_per_round must divide users with balanced participation, got 3',
    ),
    ('--theta=1e-30 --rounds=1000', '--theta must leave the noise of all 1000'),
    ('--output_dir=.', "--output_dir must not exist yet, got '.'"),
    ('rounds', "expected only flags, got 'rounds'"),
  )
  def test_bad_flags(self, arguments, message):
    result = _run(*arguments.split())
    self.assertEqual((result.returncode, result.stdout), (2, ''))
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertStartsWith(result.stderr, f'plan.py: error: {message}')

  def test_output_folder_is_refused_and_left_alone(self):
    folder = self._folder()
    (folder / 'there').mkdir()
    (folder / 'there' / 'mine').write_text('text')
    for output_dir in ('there', 'there/mine', 'there/mine/below'):
      result = _run(f'--output_dir={output_dir}', cwd=folder)
      self.assertEqual((result.returncode, result.stdout), (2, ''))
      self.assertEqual(result.stderr.count('\n'), 1)
      self.assertStartsWith(result.stderr, 'plan.py: error: --output_dir must')
    self.assertEqual(os.listdir(folder), ['there'])
    self.assertEqual((folder / 'there' / 'mine').read_text(), 'text')

  def test_files_agree_and_tensorflow_stays_out(self):
    folder = self._folder()
    script = f"""
import runpy, sys
sys.argv = ['plan.py', '--theta=0.95', '--output_dir=new/plan']
try:
  runpy.run_path({str(_PLAN)!r}, run_name='__main__')
except SystemExit as end:
  assert not end.code, end.code
loaded = {{name.split('.')[0] for name in sys.modules}}
print(sorted(name for name in loaded if name.startswith(('tensor', 'keras'))))
"""
    result = subprocess.run(
      [sys.executable, '-c', script],
      capture_output=True,
      text=True,
      cwd=folder,
      timeout=60,
      check=False,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    self.assertEqual(os.listdir(folder / 'new'), ['plan'])
    self.assertCountEqual(
      os.listdir(folder / 'new' / 'plan'), ['plan.json', 'plan.csv', 'plan.png']
    )
    self._check_files(folder / 'new' / 'plan', result.stdout)

  def _check_files(self, folder, printed):
    plan = json.loads((folder / 'plan.json').read_text())
    with open(folder / 'plan.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    columns = ['theta', 'rounds', 'bound', 'decay', 'noise', 'sigma']
    self.assertEqual(list(rows[0]), columns)
    self.assertEqual(
      [{name: float(value) for name, value in row.items()} for row in rows],
      plan['curve'],
    )
    self.assertEqual(
      (folder / 'plan.png').read_bytes()[:8], b'\x89PNG\r\n\x1a\n'
    )
    # The curve holds the plans that the table compares.
    points = {(row['theta'], row['rounds']): row for row in plan['curve']}
    for theta in plan['plan']['thetas']:
      for point in (theta['asked'], theta['best']):
        self.assertEqual(points[point['theta'], point['rounds']], point)
    lowest = min(plan['curve'], key=lambda row: row['bound'])
    optimal = plan['plan']['optimal']
    self.assertEqual(lowest['rounds'], optimal['rounds'])
    self.assertAlmostEqual(lowest['theta'], math.sqrt(0.85))
    # What is printed is what is written.
    stddevs = plan['noise']['noise_stddevs']
    self.assertLen(stddevs, 30)
    self.assertIn(f'{stddevs[0]:.6g}  {stddevs[-1]:.6g}', printed)
    self.assertIn(
      f'theta = {optimal["theta"]:.6g}, M = {optimal["rounds"]}', printed
    )
    self.assertFalse(plan['statement']['holds'])
    self.assertIn('dimension', plan['assumed'])


if __name__ == '__main__':
  absltest.main()
