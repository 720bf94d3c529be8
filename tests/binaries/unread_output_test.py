"""Programs whose reader goes away, as `head` does."""

import subprocess

from absl.testing import absltest, parameterized

from tests.binaries import program_runner


def _end_without_reader(*arguments, stderr=subprocess.PIPE):
  """The exit code and the standard error of a program that nobody reads."""
  process = subprocess.Popen(
    program_runner.command('plan.py', *arguments),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=stderr,
    text=True,
  )
  assert process.stdout is not None
  process.stdout.close()
  with process:
    errors = process.stderr.read() if process.stderr else ''
  return process.returncode, errors


class UnreadOutputTest(parameterized.TestCase):
  @parameterized.parameters('--rounds=3', '--help')
  def test_ends_without_a_word(self, argument):
    self.assertEqual(_end_without_reader(argument), (1, ''))

  def test_errors_that_nobody_reads(self):
    self.assertEqual(
      _end_without_reader('--wat', stderr=subprocess.STDOUT), (1, '')
    )

  def test_first_line_is_whole(self):
    command = ' '.join(program_runner.command('plan.py', '--rounds=3'))
    result = subprocess.run(
      ['sh', '-c', f'{command} | head -n 1'],
      capture_output=True,
      stdin=subprocess.DEVNULL,
      text=True,
      check=True,
    )
    self.assertEqual(result.stdout.count('\n'), 1)
    self.assertEmpty(result.stderr)


if __name__ == '__main__':
  absltest.main()
