"""The audit of the locks: what fails it, and what does not."""

import json
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest, parameterized

from tools import audit
from tvdp_tf import errors

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _package(name='keras', *vulnerabilities, **changes):
  return {
    'name': name,
    'version': '2.14.0',
    'vulns': [
      {'id': one, 'aliases': [f'{one}-alias'], 'fix_versions': ['3.0']}
      for one in vulnerabilities
    ],
    **changes,
  }


def _skipped(name):
  return {'name': name, 'skip_reason': 'not found'}


def _report(*packages):
  return {'dependencies': list(packages), 'fixes': []}


class JudgeTest(parameterized.TestCase):
  def test_what_is_not_listed_fails(self):
    verdict = audit.judge(_report(_package('keras', 'A', 'B')), {})
    self.assertEqual(
      verdict.unlisted,
      [
        'keras 2.14.0: A = A-alias, fixed in 3.0',
        'keras 2.14.0: B = B-alias, fixed in 3.0',
      ],
    )

  @parameterized.parameters('A', 'A-alias')
  def test_exception_is_of_one_package(self, one):
    report = _report(_package('keras', 'A'), _package('numpy', 'A'))
    verdict = audit.judge(report, {(one, 'keras'): 'why'})
    self.assertEqual(verdict.listed, {(one, 'keras')})
    self.assertLen(verdict.unlisted, 1)
    self.assertStartsWith(verdict.unlisted[0], 'numpy')

  def test_nothing_looked_up_is_no_success(self):
    with self.assertRaises(audit.NoAnswerError):
      audit.judge(_report(_skipped('keras'), _skipped('numpy')), {})
    verdict = audit.judge(_report(_package(), _skipped('numpy')), {})
    self.assertEqual(verdict.unknown, ['numpy'])

  def test_exceptions_are_read(self):
    text = '# id package reason\n\nA keras it is not used\n'
    self.assertEqual(
      audit.read_exceptions(text), {('A', 'keras'): 'it is not used'}
    )
    with self.assertRaisesRegex(errors.UsageError, 'line 1 must be an id'):
      audit.read_exceptions('A keras')

  def test_committed_exceptions_are_of_locked_packages(self):
    text = (_ROOT / 'audit-exceptions.txt').read_text()
    locked = ''.join((_ROOT / lock).read_text() for lock in audit._LOCKS)
    for _, package in audit.read_exceptions(text):
      self.assertIn(f'\n{package}==', locked)


class ProgramTest(parameterized.TestCase):
  def audit(self, answer, stderr=''):
    """The audit with an answer of pip-audit's, and what it prints."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    result = subprocess.CompletedProcess([], 1, stdout=text, stderr=stderr)
    with (
      mock.patch.object(audit, '_install'),
      mock.patch.object(audit, '_call', return_value=result) as call,
      mock.patch('builtins.print') as printed,
    ):
      try:
        audit.audit(audit._LOCKS)
      finally:
        self.assertIn('--require-hashes', call.call_args.args)
        self.printed = [line.args[0] for line in printed.call_args_list]

  def test_clean(self):
    self.audit(_report(_package()))
    self.assertEqual(
      self.printed, ['No vulnerability is known except 0 listed ones.']
    )

  def test_vulnerable(self):
    with self.assertRaisesRegex(audit.VulnerableError, '1 known vulnerab'):
      self.audit(_report(_package('keras', 'A')))
    self.assertStartsWith(self.printed[0], 'vulnerable: keras 2.14.0: A')

  def test_half_an_answer_is_none(self):
    with self.assertRaisesRegex(audit.NoAnswerError, 'not looked up: numpy'):
      self.audit(_report(_package(), _skipped('numpy')))
    # But it tells what it has found.
    with self.assertRaises(audit.VulnerableError):
      self.audit(_report(_package('keras', 'A'), _skipped('numpy')))

  def test_no_network(self):
    with self.assertRaisesRegex(audit.NoAnswerError, 'no answer: ConnectionE'):
      self.audit('', 'Traceback\n  a\nConnectionError: no such host\n')

  @parameterized.parameters(([], 0), (['--require_answer'], 1))
  def test_end_without_an_answer(self, arguments, code):
    script = (
      'from tools import audit\n'
      'def fail(locks): raise audit.NoAnswerError("no network")\n'
      'audit.audit = fail\n'
      'audit.program.run(audit.main)\n'
    )
    result = subprocess.run(
      [sys.executable, '-c', script, *arguments],
      capture_output=True,
      text=True,
      cwd=_ROOT,
      check=False,
    )
    self.assertEqual(result.returncode, code, result.stderr)
    line = 'The vulnerabilities of the locks cannot be looked up: no network'
    self.assertIn(line, result.stdout + result.stderr)
    self.assertLen((result.stdout + result.stderr).splitlines(), 1)


if __name__ == '__main__':
  absltest.main()
