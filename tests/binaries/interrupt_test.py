"""Ctrl-C and SIGTERM, whenever they come, and a disk that is full."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tvdp_tf.privacy import ledger_audit


def _start(program, *arguments, **kwargs):
  return subprocess.Popen(
    program_runner.command(program, *arguments),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **kwargs,
  )


def _wait_for(condition, timeout_s=120):
  deadline = time.monotonic() + timeout_s
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError('the condition did not come true')
    time.sleep(0.02)


def _ignore_sigint():
  """As a shell does for a program in the background."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)


class AgainTest(absltest.TestCase):
  def test_seconds_later_it_ends_what_does_not_end(self):
    script = (
      'import time\n'
      'from tvdp_tf.cli import program\n'
      'program._PATIENCE_S = 1.0\n'
      'def main():\n'
      '  print("runs", flush=True)\n'
      '  while True:\n'
      '    try:\n'
      '      time.sleep(60)\n'
      '    except KeyboardInterrupt:\n'
      '      print("waits", flush=True)\n'
      'program.run(main)\n'
    )
    process = subprocess.Popen(
      [sys.executable, '-c', script],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.addCleanup(process.kill)
    assert process.stdout is not None
    self.assertEqual(process.stdout.readline(), 'runs\n')
    for _ in range(2):  # Some send it twice.
      time.sleep(0.2)
      process.terminate()
      self.assertEqual(process.stdout.readline(), 'waits\n')
    time.sleep(1.3)
    process.terminate()
    _, errors = process.communicate(timeout=30)
    self.assertEqual(process.returncode, 1)
    self.assertEqual(errors, '-c: error: interrupted\n')


class TrainingTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('ctrl_c', [signal.SIGINT], None),
    ('terminated', [signal.SIGTERM], None),
    ('terminated_in_the_background', [signal.SIGTERM], _ignore_sigint),
    ('ctrl_c_twice', [signal.SIGINT, signal.SIGINT], None),
    ('terminated_twice', [signal.SIGTERM, signal.SIGTERM], None),
  )
  def test_one_line_that_says_how_to_go_on(self, signals, before):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    process = _start(
      'train.py',
      f'--output_dir={folder}',
      '--rounds=2000',
      '--theta=1',
      '--noprogress',
      preexec_fn=before,
    )
    _wait_for(lambda: [*folder.glob('checkpoints/round_2*')])
    for number in signals:
      process.send_signal(number)
      time.sleep(0.1)
    output, error = process.communicate(timeout=60)
    self.assertEqual(
      (process.returncode, output, error),
      (
        1,
        '',
        'train.py: error: interrupted: to continue, run the same '
        f'command with --output_dir={folder} --resume\n',
      ),
    )
    if len(signals) == 1:
      statement = json.loads((folder / 'privacy.json').read_text())
      self.assertIs(statement['finished'], False)
      audit = ledger_audit.audit(folder / 'ledger.jsonl')
      self.assertEqual(statement['rounds'], audit.rounds)
      self.assertTrue((folder / 'curves.png').is_file())
      report = (folder / 'report.html').read_text()
      self.assertIn(
        f'The run is NOT FINISHED: {audit.rounds} rounds have been', report
      )

  def test_before_the_first_release_nothing_is_left(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    process = _start(
      'train.py',
      f'--output_dir={folder}',
      '--runtime=remote',
      '--workers=localhost:9',
      '--insecure_workers',
    )
    _wait_for(folder.exists)
    self.addCleanup(process.kill)
    # More than once: code of a library that is called back swallows one.
    for _ in range(40):
      process.send_signal(signal.SIGTERM)
      time.sleep(1.5)
      if process.poll() is not None:
        break
    error = process.communicate(timeout=1)[1]
    self.assertEqual(process.returncode, 1)
    self.assertEqual(
      error.splitlines()[-1],
      'train.py: error: interrupted before anything was released: nothing was '
      'written',
    )
    self.assertNotIn('Traceback', error)
    self.assertFalse(folder.exists())


class ImportTest(parameterized.TestCase):
  @parameterized.product(
    number=(signal.SIGINT, signal.SIGTERM),
    # The first import of ours, of TensorFlow, and of TFF.
    module=('tvdp_tf/mechanisms', 'site-packages/tensorflow/', 'jax/'),
  )
  def test_one_line(self, number, module):
    folder = pathlib.Path(self.create_tempdir().full_path)
    # Python says on the standard error what it imports.
    process = subprocess.Popen(
      [
        *(sys.executable, '-v'),
        *program_runner.command('train.py', f'--output_dir={folder}/run')[1:],
      ],
      stdin=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
    assert process.stderr is not None
    with process:
      for line in process.stderr:
        if line.startswith('import ') or module not in line:
          continue
        process.send_signal(number)
        break
      rest = process.stderr.read()
    self.assertEqual(process.returncode, 1)
    # It may be in the midst of a line of Python's.
    self.assertEqual(rest.count('train.py: error: interrupted\n'), 1)
    self.assertNotIn('Traceback', rest)
    self.assertEmpty(os.listdir(folder))


class FullDiskTest(parameterized.TestCase):
  @parameterized.product(
    arguments=(
      ('plan.py', '--rounds=3'),
      ('plan.py', '--help'),
    ),
    unbuffered=('', '1'),
  )
  def test_one_line(self, arguments, unbuffered):
    with open('/dev/full', 'w') as full:
      result = subprocess.run(
        program_runner.command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=full,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, 'PYTHONUNBUFFERED': unbuffered},
      )
    self.assertEqual(result.returncode, 1)
    self.assertEqual(
      result.stderr,
      'plan.py: error: the standard output cannot be written: No space left on '
      'device\n',
    )


if __name__ == '__main__':
  absltest.main()
