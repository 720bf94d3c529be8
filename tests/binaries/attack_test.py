import csv
import json
import pathlib
import subprocess
import sys

import tensorflow as tf
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
    (1, 'consistent: this attack shows no more than is claimed', 0),
    (0.25, 'REFUTED: the claim is false', 1),
  )
  def test_gradient(self, noise_scale, verdict, code):
    folder = self._folder()
    result = _attack(
      *('--audit', '--mechanism=gradient', '--client=outlier', '--rounds=2'),
      *('--local_steps=2', '--learning_rate=0.01', '--examples=50', '--seed=1'),
      *('--trials=4000', f'--noise_scale={noise_scale}'),
      cwd=folder,
    )
    self.assertEqual(result.returncode, code)
    line = f'attack.py: error: {verdict}\n' if code else ''
    self.assertEqual(result.stderr, line)
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

  def test_a_model_of_ones_own(self):
    folder = self._folder()
    layers = tf.keras.layers
    model = tf.keras.Sequential(
      [layers.InputLayer((8, 8, 1)), layers.Flatten(), layers.Dense(10)]
    )
    model.save(folder / 'mine.keras')
    result = _attack(
      *('--audit', '--model=keras:mine.keras', '--dataset=digits'),
      *('--epsilon=4', '--delta=1e-5', '--users=4', '--users_per_round=4'),
      *('--rounds=1', '--local_steps=1', '--learning_rate=0.5', '--seed=1'),
      *('--search_seconds=1', '--noprogress', '--output_dir=new/audit'),
      cwd=folder,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    text = ' '.join(result.stdout.split())
    self.assertIn('mechanism gradient, model keras:mine.keras', text)
    self.assertIn('claimed epsilon 4 at delta = 1e-05', text)
    self.assertIn('verdict: consistent: epsilon >= ', text)
    self.assertIn('written to new/audit', text)
    output = folder / 'new' / 'audit'
    self.assertCountEqual(
      [path.name for path in output.iterdir()],
      ['audit.json', 'audit.png', 'guesses.csv', 'pairs.csv', 'scores.csv'],
    )
    written = json.loads((output / 'audit.json').read_text())
    self.assertFalse(written['refuted'])
    self.assertEqual(written['settings']['training']['mechanism'], 'gradient')
    self.assertBetween(
      written['one_run']['lower_bound']['epsilon_lower_bound'], 0.3, 4
    )
    self.assertBetween(written['hostile_pairs']['largest_ratio'], 0.5, 1)

  def test_a_model_with_too_little_noise(self):
    # A longer search may find a pair that refutes it before the canaries do.
    result = _attack(
      *('--audit', '--dataset=digits', '--users=4', '--users_per_round=4'),
      *('--rounds=1', '--local_steps=1', '--learning_rate=0.5', '--seed=1'),
      *('--search_seconds=0.001', '--noprogress', '--noise_scale=0.2'),
    )
    self.assertEqual(result.returncode, 1, result.stderr)
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertRegex(
      result.stderr,
      r'attack.py: error: REFUTED: epsilon is at least [1-9][0-9.]*, not 1, as',
    )
    self.assertIn('verdict: REFUTED: epsilon is at least', result.stdout)

  def test_membership(self):
    folder = self._folder()
    result = _attack(
      *('--membership', '--mechanism=gradient', '--epsilon=0.5', '--seed=1'),
      *('--rounds=2', '--local_steps=2', '--examples=12', '--trials=12'),
      *('--shadow_models=4', '--output_dir=new/attack'),
      cwd=folder,
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(
      _verdict(result), 'consistent: the attacks show no more than is delivered'
    )
    text = ' '.join(result.stdout.split())
    self.assertIn('the global model after round 2', text)
    self.assertIn('claimed epsilon 0.5 at delta = 0.001', text)
    self.assertIn('it holds: every local step', text)
    written = json.loads((folder / 'new/attack/membership.json').read_text())
    self.assertLessEqual(
      written['epsilon_lower_bound'], written['delivered_epsilon']
    )
    self.assertEqual(written['settings']['training']['seed'], 1)

  def test_a_guarantee_without_its_noise_is_refuted(self):
    """The program as it is, but the noise of the clients is lost."""
    program = program_runner.ROOT / 'binaries' / 'attack.py'
    code = (
      'import os, runpy, sys; from tvdp_tf import mechanisms;'
      'scale = mechanisms.GradientMechanism.noise_scale;'
      'mechanisms.GradientMechanism.noise_scale = '
      'lambda self, n, z: 1e-9 * scale(self, n, z);'
      f'sys.argv[0] = {str(program)!r};'
      'sys.path[0] = os.path.dirname(sys.argv[0]);'
      "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    result = subprocess.run(
      [
        *(sys.executable, '-c', code, '--membership', '--mechanism=gradient'),
        *('--dataset=generated_mnist', '--epsilon=0.5', '--learning_rate=0.5'),
        *('--rounds=2', '--local_steps=30', '--examples=12', '--trials=12'),
        *('--shadow_models=12', '--seed=0'),
      ],
      cwd=program_runner.ROOT,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(result.returncode, 1, result.stderr)
    self.assertRegex(
      _verdict(result),
      r'REFUTED: epsilon is at least [1-9][0-9.]*, not 0\.5 as guaranteed',
    )
    self.assertEqual(result.stderr, f'attack.py: error: {_verdict(result)}\n')

  def test_help(self):
    result = _attack('--help')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    text = ' '.join(result.stdout.split())
    self.assertIn("--epsilon: Target epsilon. (default: '1.0')", text)
    for name in (
      *('audit', 'trials', 'noise_scale', 'calibration', 'output_dir'),
      *('canaries', 'search_seconds', 'progress'),
      *('membership', 'shadow_models', 'users', 'dataset'),
    ):
      self.assertRegex(text, rf'--(\[no\])?{name}: ')

  @parameterized.parameters(
    ('', '--audit or --membership must be given, but not both'),
    ('--audit --membership', '--audit or --membership must be given, but not'),
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
    ('--audit --output_dir=.', '--output_dir must be a new or an'),
    ('--audit now', "expected only flags, got 'now'"),
    (
      '--audit --dataset=digits --mechanism=central',
      '--mechanism must be one of gradient, distributed, distributed_users to'
      " audit a model, got 'central': canaries exist only for these",
    ),
    ('--audit --model=me', '--model must be one of mlp, svm, cnn, linear, ke'),
    ('--audit --dataset=me', '--dataset must be one of digits, mnist'),
    ('--audit --model=keras:me.keras', '--model must be one of mlp, svm, cnn'),
    ('--audit --model=mlp --client=digits', '--client must not be given in'),
    ('--audit --model=mlp --trials=10', '--trials must not be given in the'),
    ('--audit --users=3', '--users must not be given with --audit without'),
    (
      '--audit --canaries=3',
      '--canaries must not be given with --audit without',
    ),
    ('--audit --model=mlp --canaries=0', '--canaries must be an integer >= 1'),
    (
      '--audit --model=mlp --canaries=1000',
      '--canaries must be an integer from 1 to 143, got 1000',
    ),
    ('--audit --model=mlp --search_seconds=0', '--search_seconds must be a'),
    ('--audit --model=mlp --noise_scale=0', '--noise_scale must be a finite'),
    ('--audit --model=mlp --output_dir=.', '--output_dir must be a new'),
    ('--membership --canaries=2', '--canaries must not be given with'),
    ('--membership --mechanism=central', '--mechanism must be one of paper, g'),
    ('--membership --users=0', '--users must be an integer >= 1, got 0'),
    ('--membership --examples=1', '--examples must be an integer >= 2, got 1'),
    ('--membership --shadow_models=1', '--shadow_models must be an integer >='),
    ('--membership --trials=1', '--trials must be an integer >= 4, got 1'),
    ('--membership --output_dir=.', '--output_dir must be a new or an'),
    (
      '--membership --examples=719',
      '--examples must be an integer from 1 to 718, got 719',
    ),
  )
  def test_bad_flags(self, arguments, message):
    result = _attack(*arguments.split())
    self.assertEqual((result.returncode, result.stdout), (2, ''))
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertStartsWith(result.stderr, f'attack.py: error: {message}')


if __name__ == '__main__':
  absltest.main()
