import csv
import json
import pathlib

from absl.testing import absltest, parameterized

from tests.binaries import program_runner


def _attack(*arguments, **kwargs):
  return program_runner.run('attack.py', *arguments, **kwargs)


def _verdict(result) -> str:
  (line,) = (
    line for line in result.stdout.splitlines() if line.startswith('verdict: ')
  )
  return line.removeprefix('verdict: ')


class AuditTest(parameterized.TestCase):
  def _folder(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path)

  def test_refutes_the_papers_claim(self):
    folder = self._folder()
    result = _attack(
      *('--audit', '--client=outlier', '--local_steps=5', '--rounds=3'),
      *('--seed=1', '--output_dir=new/audit'),
      cwd=folder,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(_verdict(result), 'REFUTED: the claim is false')
    self.assertIn('2 C / n = 2 * 5.0 / 600 (NOT PROVEN)', result.stdout)
    self.assertIn('written to new/audit', result.stdout)
    output = folder / 'new' / 'audit'
    self.assertCountEqual(
      [path.name for path in output.iterdir()],
      ['audit.json', 'audit.csv', 'audit.png'],
    )
    written = json.loads((output / 'audit.json').read_text())
    self.assertTrue(written['refuted'])
    self.assertEqual(written['settings']['local_steps'], 5)
    bound = written['lower_bound']['epsilon_lower_bound']
    granted, proven = (row['epsilon'] for row in written['delivered'])
    self.assertLess(max(granted, written['claimed_epsilon']), bound)
    self.assertLess(bound, proven)
    # What is printed is what is written, rounded down.
    self.assertIn(f'{bound:.2f} with 95 % confidence', result.stdout)
    with open(output / 'audit.csv', newline='') as file:
      rates = [row['true_positive_rate'] for row in csv.DictReader(file)]
    self.assertIn('1.0', rates)

  @parameterized.parameters(
    (1, 'consistent: this attack shows no more than is claimed'),
    (0.25, 'REFUTED: the claim is false'),
  )
  def test_gradient(self, noise_scale, verdict):
    folder = self._folder()
    result = _attack(
      *('--audit', '--mechanism=gradient', '--client=outlier', '--rounds=2'),
      *('--local_steps=2', '--learning_rate=0.01', '--examples=50', '--seed=1'),
      *('--trials=4000', f'--noise_scale={noise_scale}'),
      cwd=folder,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(_verdict(result), verdict)
    text = ' '.join(result.stdout.split())
    self.assertIn('2 C_g / n = 2 * 1.0 / 50 (proven)', text)
    self.assertEmpty(list(folder.iterdir()))

  def test_a_run_that_fails(self):
    folder = self._folder()
    result = _attack(
      *('--audit', '--learning_rate=1e38', '--rounds=1', '--trials=10'),
      '--output_dir=new',
      cwd=folder,
    )
    self.assertEqual((result.returncode, result.stdout), (1, ''))
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertIn('learning_rate', result.stderr)
    self.assertEmpty(list(folder.iterdir()))

  def test_help(self):
    result = _attack('--help')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    text = ' '.join(result.stdout.split())
    self.assertIn("--epsilon: Target epsilon. (default: '1.0')", text)
    for name in ('audit', 'trials', 'noise_scale', 'calibration', 'output_dir'):
      self.assertRegex(text, rf'--(\[no\])?{name}: ')

  @parameterized.parameters(
    ('', '--audit must be given'),
    ('--audit --mechanism=central', '--mechanism must be one of paper, grad'),
    (
      '--audit --client=me',
      "--client must be one of digits, outlier, got 'me'",
    ),
    ('--audit --examples=1', '--examples must be an integer from 2 to 1437'),
    ('--audit --examples=1438', '--examples must be an integer from 2 to 1437'),
    ('--audit --epsilon=0', '--epsilon must be a finite number > 0, got 0.0'),
    ('--audit --delta=1', '--delta must be a number strictly between 0 and 1'),
    ('--audit --trials=3', '--trials must be an integer from 4 to'),
    ('--audit --trials=1.5', "--trials must be an integer, got '1.5'"),
    ('--audit --confidence=95', '--confidence must be a number strictly'),
    ('--audit --noise_scale=0', '--noise_scale must be a finite number > 0'),
    ('--audit --rounds=0', '--rounds must be an integer from 1 to'),
    ('--audit --theta=1e-30 --rounds=1000', '--theta must leave the noise'),
    (
      '--audit --mechanism=gradient --calibration=printed',
      '--calibration must be one of exact, rdp, pld with mechanism gradient',
    ),
    ('--audit --output_dir=.', "--output_dir must not exist yet, got '.'"),
    ('--audit now', "expected only flags, got 'now'"),
  )
  def test_bad_flags(self, arguments, message):
    result = _attack(*arguments.split())
    self.assertEqual((result.returncode, result.stdout), (2, ''))
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertStartsWith(result.stderr, f'attack.py: error: {message}')


if __name__ == '__main__':
  absltest.main()
