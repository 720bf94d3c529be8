"""`make install`: what it does, what it leaves undone, and what it refuses.

The interpreter is a script that writes down its arguments, so nothing is
installed and nobody asks the network.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_COPIED = (
  'Makefile',
  'pyproject.toml',
  'requirements-gpu.lock',
  'requirements.lock',
  'setup.cfg',
  'tools/install.sh',
  'tools/lock.sh',
  'tvdp_tf/__init__.py',
)

# Answers the Makefile's question; `-m venv FOLDER` copies it into FOLDER. The
# file `fails` holds the last argument, or all of them, at which it fails.
_PYTHON = """#!/bin/sh
for last in "$@"; do :; done
case "$*" in
  *platform*) echo "$PLATFORM"; exit ;;
  '-c ') exit ;;
  '-m venv'*) mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
esac
echo "$*" >> "$CALLS"
! [ -e fails ] || case "$(cat fails)" in "$last"|"$*") false ;; esac
"""


class InstallTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    # A space, which a path may have and a shell script may forget.
    self.root = folder / 'a checkout'
    for name in _COPIED:
      (self.root / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(_ROOT / name, self.root / name)
    self.calls = folder / 'calls'
    self.python = folder / 'python'
    self.python.write_text(_PYTHON)
    self.python.chmod(0o755)

  def make(
    self, *arguments: str, platform: str = '3.11-linux-x86_64'
  ) -> subprocess.CompletedProcess[str]:
    """Runs make; `self.calls` then has what this call did."""
    self.calls.write_text('')
    environment = {
      name: value
      for name, value in os.environ.items()
      if name not in {'MAKEFLAGS', 'MAKELEVEL', 'PYTHON', 'VENV', 'ARGS'}
    }
    environment.update(CALLS=str(self.calls), PLATFORM=platform)
    return subprocess.run(
      ['make', f'PYTHON={self.python}', *arguments],
      cwd=self.root,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
      timeout=60,
    )

  def installs(self) -> list[str]:
    """The last argument of each call of pip: a lock or the project."""
    return [
      line.rpartition(' ')[2]
      for line in self.calls.read_text().splitlines()
      if line.startswith('-m pip ')
    ]

  def assert_installs(self, *names: str) -> None:
    done = self.make('install')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertEqual(self.installs(), list(names))

  def test_first_time(self):
    done = self.make('install')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'^Installing [0-9]+ packages into .*\n$')
    self.assertEqual(
      self.installs(), ['.venv/build-tools.lock', 'requirements.lock', '.']
    )
    calls = self.calls.read_text().splitlines()
    self.assertEqual(calls[0], '-m venv .venv')
    for line in calls[1:3]:
      self.assertIn('--no-deps --require-hashes', line)
    self.assertIn('--only-binary :all:', calls[1])
    build_tools = (self.root / '.venv/build-tools.lock').read_text()
    self.assertRegex(build_tools, r'^setuptools==.*\n(    --hash=.*\n)+')
    self.assertIn('\nwheel==', build_tools)
    self.assertEqual(build_tools.count('=='), 2)

  def test_second_time_does_nothing(self):
    self.make('install')
    self.assert_installs()

  def test_other_lock_makes_a_new_environment(self):
    self.make('install')
    left_over = self.root / '.venv/left-over'
    left_over.touch()
    with (self.root / 'requirements.lock').open('a') as lock:
      lock.write('new==1 --hash=sha256:0\n')
    self.assert_installs('.venv/build-tools.lock', 'requirements.lock', '.')
    self.assertFalse(left_over.exists())

  def test_other_metadata_installs_the_project_again(self):
    self.make('install')
    with (self.root / 'setup.cfg').open('a') as metadata:
      metadata.write('# changed\n')
    self.assert_installs('.')
    self.assert_installs()

  def test_moved_checkout_installs_the_project_again(self):
    self.make('install')
    moved = self.root.with_name('moved')
    self.root.rename(moved)
    self.root = moved
    self.assert_installs('.')

  def test_broken_environment_is_made_again(self):
    self.make('install')
    (self.root / '.venv/bin/python').unlink()
    self.assert_installs('.venv/build-tools.lock', 'requirements.lock', '.')

  def test_failure_is_not_taken_for_done(self):
    for name in ('requirements.lock', '.'):
      (self.root / 'fails').write_text(name)
      done = self.make('install')
      self.assertNotEqual(done.returncode, 0)
      self.assertEqual(self.installs()[-1], name)
    (self.root / 'fails').unlink()
    self.assert_installs('.')  # The lock's packages were complete.
    self.assert_installs()

  def test_python_without_ensurepip(self):
    (self.root / 'fails').write_text('-m venv .venv')
    self.assert_installs('.venv/build-tools.lock', 'requirements.lock', '.')
    calls = self.calls.read_text().splitlines()
    self.assertEqual(
      calls[:2], ['-m venv .venv', '-m venv --without-pip .venv']
    )
    installs = [line for line in calls[2:] if '-m compileall ' not in line]
    self.assertLen(installs, 3)
    for line in installs:
      self.assertStartsWith(line, '-m pip --python .venv/bin/python install')

  def test_gpu_environment_takes_the_gpu_lock(self):
    done = self.make('install-gpu')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertEqual(self.installs()[1:], ['requirements-gpu.lock', '.'])
    self.assertFalse((self.root / '.venv').exists())

  def _files(self) -> set[str]:
    return {str(path) for path in self.root.rglob('*')}

  def assert_refused(
    self, done: subprocess.CompletedProcess[str], message: str
  ) -> None:
    self.assertNotEqual(done.returncode, 0)
    self.assertEqual(done.stdout, '')
    self.assertRegex(done.stderr, rf'^[^\n]*{message}[^\n]*\n$')
    self.assertEqual(self.calls.read_text(), '')

  def test_wrong_python_is_one_line(self):
    before = self._files()
    for target in ('install', 'lock', 'demo', 'lint', 'pytest'):
      for platform in (
        '3.12-linux-x86_64',
        '3.11-darwin-arm64',
        '3.11-linux-aarch64',
      ):
        with self.subTest(target=target, platform=platform):
          done = self.make(target, platform=platform)
          self.assert_refused(
            done, f'needs Python 3.11-linux-x86_64, but .* is {platform}'
          )
          self.assertEqual(self._files(), before)

  def test_no_python_is_one_line(self):
    before = self._files()
    for python in ('/bin/false', 'no-such-python'):
      with self.subTest(python=python):
        done = self.make('install', f'PYTHON={python}')
        self.assert_refused(done, f'but {python} is no Python that runs')
        self.assertEqual(self._files(), before)

  def test_help_needs_no_python(self):
    done = self.make(platform='')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'(?m)^make install +\S')
    self.assertRegex(done.stdout, r'(?m)^make demo +\S')


if __name__ == '__main__':
  absltest.main()
