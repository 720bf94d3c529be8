"""Flags of `train.py`: a bad one is one line, and nothing is written."""

import importlib.metadata
import os
import pathlib

from absl.testing import absltest, parameterized

from tests.binaries import program_runner

_CPU_BUILD = any(
  one.name == 'tensorflow-cpu' for one in importlib.metadata.distributions()
)


def _processor_seconds() -> float:
  """What all processes that were waited for have used."""
  times = os.times()
  return times.children_user + times.children_system


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    (['--epsilon=0'], '--epsilon must be a finite number > 0, got 0.0'),
    (['--epsilon=nan'], '--epsilon must be a finite number > 0, got nan'),
    (['--delta=1'], '--delta must be a number strictly between 0 and 1'),
    (['--schedule=1,2'], '--schedule must have a number for each of the 10'),
    (
      ['--schedule=1,x'],
      "--schedule must be numbers, comma-separated, got '1,",
    ),
    (
      ['--output_dir=/etc'],
      '--output_dir must be a new or an empty folder, got',
    ),
    (['--output_dir=/etc/passwd/a'], '--output_dir must be writable, got'),
    *(
      [
        (
          ['--device=gpu', '--noise=continuous'],
          '--device must be auto or cpu with TensorFlow',
        )
      ]
      if _CPU_BUILD
      else []
    ),
    (['--device=gpu'], '--device must be auto or cpu with discrete noise'),
    (['--rounds=ten'], "--rounds must be an integer, got 'ten'"),
    (['--users_per_round=11'], '--users_per_round must be an integer from 1'),
    (['--dataset=cats'], '--dataset must be one of digits, mnist, '),
    (
      ['--model=svm'],
      '--model must be mlp, linear or cnn for 10 classes, got svm',
    ),
    (
      ['--mechanism=gradient', '--calibration=printed'],
      '--calibration must be one of exact, rdp, pld with mechanism gradient',
    ),
    (
      ['--participation=poisson'],
      '--participation must be one of uniform, balanced with mechanism grad',
    ),
    (
      ['--device=gpu', '--runtime=tff'],
      '--device must be auto or cpu with runtime tff',
    ),
    (
      ['--participation=balanced', '--users_per_round=3'],
      '--users_per_round must divide users with balanced participation',
    ),
    (['--runtime=remote'], '--workers must be given with --runtime=remote'),
    (
      ['--workers=a:1', '--insecure_workers'],
      '--workers must be given with --runtime=remote, and only then, got '
      "'a:1' with 'compiled'",
    ),
    (
      ['--runtime=remote', '--workers=a:1'],
      '--workers must be given with one of --worker_tls and --insecure_workers',
    ),
    (
      [
        *('--runtime=remote', '--workers=a:1'),
        *('--worker_tls=/x', '--insecure_workers'),
      ],
      '--workers must be given with one of --worker_tls and --insecure_workers',
    ),
    (['--worker_tls=/x'], '--worker_tls must be given with --workers'),
    (['--insecure_workers'], '--insecure_workers must be given with --workers'),
    (['--allow_open_port'], '--allow_open_port must be given with --runtime'),
    (['--resume'], '--output_dir must be the folder of a run to resume, got'),
    (['--ledger_epsilon=3'], '--ledger_epsilon must be given with --ledger'),
    (
      ['--ledger=/nowhere/ledger.jsonl'],
      "--ledger must be in a folder that exists, got '/nowhere/ledger.jsonl'",
    ),
    (['--ledger=x', '--seed=1'], '--ledger must be given without --seed, got'),
    (
      ['--ledger=x', '--ledger_epsilon=1'],
      '--ledger_epsilon must be at least --epsilon, 10.0, got 1.0',
    ),
    (
      ['--ledger=x', '--ledger_epsilon=nan'],
      '--ledger_epsilon must be a finite number > 0, got nan',
    ),
    (['--best_of=3'], '--best_of must be given with mechanism central, got'),
    (
      ['--best_of=1', '--mechanism=central'],
      '--best_of must be above 1 and at most 1000, got 1.0',
    ),
    (
      ['--best_of=3', '--mechanism=central', '--ledger=x'],
      '--best_of must be given without --ledger, got both',
    ),
    (
      ['--best_of=3', '--mechanism=central', '--resume'],
      '--best_of must be given without --resume, got both',
    ),
    (['--nonsense=1'], 'nonsense'),
    (['word'], "expected only flags, got 'word'"),
    (['--import='], '--import must not be empty'),
    (['--output_dir='], '--output_dir must not be empty'),
  )
  def test_one_line_before_any_work(self, arguments, line):
    folder = self.create_tempdir().full_path + '/run'
    started = _processor_seconds()
    result = program_runner.run(
      'train.py', f'--output_dir={folder}', *arguments
    )
    # Imports at the most.
    self.assertLess(_processor_seconds() - started, 15)
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(line, result.stderr)
    self.assertEmpty(result.stdout)
    self.assertFalse(os.path.lexists(folder))

  def test_resume_needs_a_folder(self):
    result = program_runner.run('train.py', '--resume')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--output_dir must be given with --resume', result.stderr)
    self.assertLen(result.stderr.splitlines(), 1)

  def test_more_users_than_examples(self):
    folder = self.create_tempdir().full_path + '/run'
    result = program_runner.run(
      'train.py', f'--output_dir={folder}', '--users=2000'
    )
    self.assertEqual(result.returncode, 2)
    self.assertIn('--users must be at most', result.stderr)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertFalse(os.path.lexists(folder))

  def test_existing_folder_is_left_alone(self):
    folder = self.create_tempdir().full_path
    pathlib.Path(folder, 'mine').touch()
    result = program_runner.run('train.py', f'--output_dir={folder}')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--output_dir must be a new or an em', result.stderr)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertEqual(os.listdir(folder), ['mine'])

  def test_missing_data_set(self):
    folder = self.create_tempdir().full_path
    blocked = self.create_tempfile('not-a-folder').full_path
    result = program_runner.run(
      'train.py',
      f'--output_dir={folder}/run',
      '--dataset=mnist',
      f'--data_dir={blocked}',
    )
    self.assertEqual(result.returncode, 1)
    notice, error = result.stderr.splitlines()
    self.assertIn('data set mnist is not in', notice)
    self.assertEndsWith(notice, ': downloading it')
    self.assertStartsWith(error, 'train.py: error: data set mnist is not in')
    self.assertFalse(os.path.lexists(f'{folder}/run'))

  def test_help(self):
    result = program_runner.run('train.py', '--help')
    self.assertEqual(result.returncode, 0)
    self.assertIn('--theta', result.stdout)


if __name__ == '__main__':
  absltest.main()
