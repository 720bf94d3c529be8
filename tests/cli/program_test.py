"""Exit codes and the one line on the standard error."""

import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest, parameterized

_PROGRAM = """
from absl import flags
from tvdp_tf import errors
from tvdp_tf.cli import program, shared_flags

FLAGS = shared_flags.define(['theta', 'dataset', 'rounds', 'calibration'])
WHAT = flags.DEFINE_string('what', '', 'What happens.')

def main():
  if WHAT.value == 'usage':
    raise errors.UsageError('theta must be positive,\\n got -1')
  if WHAT.value == 'failure':
    raise errors.TrainingFailedError('the loss is nan')
  if WHAT.value == 'bug':
    raise ZeroDivisionError('a bug')
  if WHAT.value in ('tensorflow_federated', 'json_missing'):
    import importlib, sys
    sys.modules[WHAT.value] = None
    importlib.import_module(WHAT.value)
  if WHAT.value == 'broken pipe':
    raise BrokenPipeError('of a worker')
  if WHAT.value == 'closed':
    raise PermissionError(13, 'Permission denied', '/closed')
  if WHAT.value == 'full':
    raise OSError(28, 'No space left on device')
  if WHAT.value == 'log':
    from absl import logging
    import tensorflow as tf
    for level in ('error', 'warning', 'info'):
      exec(
        compile(
          f'logging.{level}("ours {level}")', errors.__file__, 'exec'
        ),
        {'logging': logging},
      )
      getattr(logging, level)('theirs %s', level)
      getattr(tf.get_logger(), level)('tensorflow %s', level)
  if WHAT.value in ('SIGINT', 'SIGTERM'):
    import gc, signal, time
    number = getattr(signal, WHAT.value)
    def collected(*_):
      gc.callbacks.clear()
      signal.raise_signal(number)
    gc.callbacks.append(collected)
    gc.collect()
    for _ in range(600):  # A signal may come just before one of them.
      time.sleep(0.1)
  if WHAT.value.startswith('streams'):
    import os, sys
    with open(WHAT.value.partition(':')[2], 'w') as file:
      null = os.stat(os.devnull).st_rdev
      found = [os.fstat(number).st_rdev == null for number in range(3)]
      child = os.spawnlp(os.P_WAIT, 'sh', 'sh', '-c', 'true >&1 && true >&2')
      sys.stderr.write('to nobody')
      print(*found, child, file.fileno() > 2, file=file)
  if WHAT.value == 'interrupt':
    raise KeyboardInterrupt
  if WHAT.value.startswith('print:'):
    print(WHAT.value[6:])
  print(sorted(shared_flags.values(FLAGS).items()))

program.run(main)
"""


def run(*arguments):
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM, *arguments],
    capture_output=True,
    text=True,
    check=False,
  )


class ProgramTest(parameterized.TestCase):
  def test_values_without_those_left_to_the_settings(self):
    result = run('--theta=0.5')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(
      result.stdout.strip(),
      "[('dataset', 'digits'), ('rounds', 10), ('theta', 0.5)]",
    )

  @parameterized.parameters('~/data', 'files:~/data', '~')
  def test_the_home_folder(self, path):
    result = run(f'--dataset={path}')
    self.assertIn(
      repr(path.replace('~', os.path.expanduser('~'))), result.stdout
    )
    self.assertIn("'x~/data'", run('--dataset=x~/data').stdout)

  @parameterized.parameters(
    ('--what=usage', 2, '--theta must be positive, got -1'),
    ('--what=failure', 1, 'the loss is nan'),
    ('--what=closed', 1, '/closed cannot be used: Permission denied'),
    ('--what=full', 1, 'a file cannot be used: No space left on device'),
    ('--what=interrupt', 1, 'interrupted'),
    ('--what=tensorflow_federated', 1, 'TensorFlow Federated is not installed'),
    ('--theta=big', 2, "--theta must be a number, got 'big'"),
    ('--rounds=1.5', 2, "--rounds must be an integer, got '1.5'"),
    ('--calibration=x', 2, '--calibration must be one of printed, tight, '),
    ('--wat=1', 2, "Unknown command line flag 'wat'"),
    ('--import=no_such', 2, '--import must name Python modules that can be'),
    ('word', 2, "expected only flags, got 'word'"),
    (
      '--flagfile=/',
      2,
      "--flagfile must be a file of flags, got '/': Is a dir",
    ),
    ('--flagfile=/nowhere', 2, "--flagfile must be a file of flags, got '/now"),
    (f'--flagfile={sys.executable}', 2, '--flagfile must be a text file'),
  )
  def test_one_line_and_the_exit_code(self, argument, code, line):
    result = run(argument)
    self.assertEqual(result.returncode, code)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(f'error: {line}', result.stderr)
    self.assertEmpty(result.stdout.strip())

  def test_another_module_that_is_missing_is_a_bug(self):
    result = run('--what=json_missing')
    self.assertEqual(result.returncode, 1)
    self.assertIn('ModuleNotFoundError', result.stderr)

  @parameterized.parameters(
    ([], ['ours error', 'theirs error', 'tensorflow error', 'ours warning']),
    (
      ['--verbosity=0'],
      [
        'ours error',
        'theirs error',
        'tensorflow error',
        'ours warning',
        'ours info',
      ],
    ),
  )
  def test_log(self, arguments, expected):
    result = run('--what=log', *arguments)
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertEqual(
      [line.partition('] ')[2] for line in result.stderr.splitlines()],
      expected,
    )

  @parameterized.parameters('SIGINT', 'SIGTERM')
  def test_an_interrupt_where_nothing_can_be_raised(self, number):
    """In a callback of the garbage collector, as JAX has one."""
    result = run(f'--what={number}')
    self.assertEqual(
      (result.returncode, result.stdout, result.stderr),
      (1, '', '-c: error: interrupted\n'),
    )

  def test_a_bug_is_not_hidden(self):
    result = run('--what=bug')
    self.assertEqual(result.returncode, 1)
    self.assertIn('Traceback', result.stderr)

  def test_a_pipe_of_its_own_that_breaks_is_not_hidden(self):
    result = run('--what=broken pipe')
    self.assertEqual(result.returncode, 1)
    self.assertIn('BrokenPipeError: of a worker', result.stderr)

  def test_a_name_that_the_terminal_cannot_show(self):
    with mock.patch.dict(os.environ, PYTHONIOENCODING='ascii'):
      result = run('--what=print:\u00fc')
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertStartsWith(result.stdout, '\\xfc\n')

  @parameterized.parameters(
    ('<&- >&- 2>&-', 'True True True 0 True'),
    ('2>&-', 'False False True 0 True'),
    ('', 'False False False 0 True'),
  )
  def test_a_closed_stream_is_no_other_file(self, closed, expected):
    path = self.create_tempfile().full_path
    result = subprocess.run(
      [
        *('sh', '-c', f'exec "$@" {closed}', 'sh'),
        *(sys.executable, '-c', _PROGRAM, f'--what=streams:{path}'),
      ],
      input='',
      capture_output=True,
      text=True,
      check=True,
    )
    with open(path, encoding='utf-8') as file:
      self.assertEqual(file.read().strip(), expected)
    self.assertEqual(result.stderr, '' if closed else 'to nobody')

  def test_help_lists_the_flags(self):
    result = run('--help')
    self.assertEqual(result.returncode, 0)
    self.assertIn('--what', result.stdout)


if __name__ == '__main__':
  absltest.main()
