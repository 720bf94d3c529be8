"""Audits the pinned packages for known vulnerabilities: `make audit`.

pip-audit asks the package index, from a separate environment that
requirements-audit.lock pins. A vulnerability fails the audit, unless
audit-exceptions.txt lists it with a reason. Without an answer (no network, or
an index that does not publish vulnerabilities) there is no audit: one line says
so, and the program succeeds, except with --require_answer.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from tvdp_tf import errors
from tvdp_tf.cli import program

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_ENVIRONMENT = _ROOT / '.venv-audit'
_TOOLS = _ROOT / 'requirements-audit.lock'
_LOCKS = (
  *('requirements.lock', 'requirements-gpu.lock', 'requirements-docs.lock'),
  'requirements-keras3.lock',
  _TOOLS.name,
)
_EXCEPTIONS = _ROOT / 'audit-exceptions.txt'
_TIMEOUT_S = 600

_REQUIRE_ANSWER = flags.DEFINE_bool(
  'require_answer', False, 'Fail if the vulnerabilities cannot be looked up.'
)


class VulnerableError(errors.TvdpError):
  """A pinned package has a known vulnerability that is not an exception."""


class NoAnswerError(errors.TvdpError):
  """It cannot be determined whether there are vulnerabilities."""


class Verdict(NamedTuple):
  """What pip-audit has found in a lock.

  Attributes:
    unlisted: A line for each vulnerability that is not an exception.
    listed: The exceptions that were found, as (id, package).
    unknown: Names of packages that could not be looked up.
  """

  unlisted: list[str]
  listed: set[tuple[str, str]]
  unknown: list[str]


def read_exceptions(text: str) -> dict[tuple[str, str], str]:
  """Reads `audit-exceptions.txt`: lines of an id, a package and a reason.

  Returns:
    The reason by (id, package).

  Raises:
    UsageError: If a line lacks one of the three.
  """
  found = {}
  for number, line in enumerate(text.splitlines(), start=1):
    if not line.strip() or line.startswith('#'):
      continue
    words = line.split(maxsplit=2)
    if len(words) < 3:
      raise errors.UsageError(
        f'{_EXCEPTIONS.name}: line {number} must be an id, a package and a '
        f'reason, got {line!r}'
      )
    found[words[0], words[1]] = words[2]
  return found


def judge(
  report: Mapping[str, Any], exceptions: Mapping[tuple[str, str], str]
) -> Verdict:
  """Sorts the output of `pip-audit --format=json`.

  Args:
    report: The parsed output.
    exceptions: The result of `read_exceptions`.

  Raises:
    NoAnswerError: If not a single package could be looked up, as with an index
      that only mirrors files. pip-audit treats that as a success.
  """
  verdict = Verdict([], set(), [])
  for package in report['dependencies']:
    name = package['name']
    if 'skip_reason' in package:
      verdict.unknown.append(name)
    for vulnerability in package.get('vulns', ()):
      ids = [vulnerability['id'], *vulnerability.get('aliases', ())]
      known = {(one, name) for one in ids} & exceptions.keys()
      verdict.listed.update(known)
      if not known:
        fixed = ', '.join(vulnerability.get('fix_versions', ())) or 'nothing'
        verdict.unlisted.append(
          f'{name} {package["version"]}: {" = ".join(ids)}, fixed in {fixed}'
        )
  if len(verdict.unknown) == len(report['dependencies']):
    raise NoAnswerError('the package index publishes no vulnerabilities')
  return verdict


def _call(*command: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    list(map(str, command)),
    capture_output=True,
    stdin=subprocess.DEVNULL,
    text=True,
    timeout=_TIMEOUT_S,
    check=False,
  )


def _last_line(text: str) -> str:
  return (text.strip().splitlines() or ['it printed nothing'])[-1]


def _install() -> None:
  """Creates the environment, unless it matches the lock already."""
  stamp = _ENVIRONMENT / '.installed-lock'
  lock = _TOOLS.read_text(encoding='utf-8')
  if stamp.exists() and stamp.read_text(encoding='utf-8') == lock:
    return
  python = _ENVIRONMENT / 'bin' / 'python'
  pip = (python, '-m', 'pip', 'install', '--quiet', '--no-deps')
  commands: tuple[tuple[str | pathlib.Path, ...], ...] = (
    (sys.executable, '-m', 'venv', '--clear', _ENVIRONMENT),
    (*pip, '--require-hashes', '--only-binary', ':all:', '-r', _TOOLS),
  )
  for command in commands:
    result = _call(*command)
    if result.returncode:
      raise NoAnswerError(
        f'pip-audit cannot be installed: {_last_line(result.stderr)}'
      )
  stamp.write_text(lock, encoding='utf-8')


def _ask(lock: str) -> dict[str, Any]:
  """Returns pip-audit's report on a lock."""
  result = _call(
    *(_ENVIRONMENT / 'bin' / 'pip-audit', '--progress-spinner', 'off'),
    *('--disable-pip', '--require-hashes', '--format', 'json'),
    *('--requirement', _ROOT / lock),
  )
  try:
    return json.loads(result.stdout)
  except ValueError:
    raise NoAnswerError(
      f'pip-audit gives no answer: {_last_line(result.stderr)[:200]}'
    ) from None


def audit(locks: Sequence[str]) -> None:
  """Audits locks, and prints the results.

  Raises:
    NoAnswerError: If there is no answer.
    VulnerableError: If a vulnerability is not listed.
  """
  exceptions = read_exceptions(_EXCEPTIONS.read_text(encoding='utf-8'))
  _install()
  unlisted: dict[str, None] = {}
  listed: set[tuple[str, str]] = set()
  unknown: set[str] = set()
  for lock in locks:
    verdict = judge(_ask(lock), exceptions)
    unlisted.update(dict.fromkeys(verdict.unlisted))
    listed |= verdict.listed
    unknown.update(verdict.unknown)
  for line in unlisted:
    print(f'vulnerable: {line}')
  for one, package in sorted(exceptions.keys() - listed):
    print(f'{_EXCEPTIONS.name}: {one} of {package} is no longer reported')
  if unlisted:
    raise VulnerableError(
      f'{len(unlisted)} known vulnerabilities are not in {_EXCEPTIONS.name}'
    )
  if unknown:
    raise NoAnswerError(f'not looked up: {", ".join(sorted(unknown))}')
  print(f'No vulnerability is known except {len(listed)} listed ones.')


def main() -> None:
  """Audits all locks."""
  try:
    audit(_LOCKS)
  except (NoAnswerError, subprocess.TimeoutExpired) as error:
    reason = f'The vulnerabilities of the locks cannot be looked up: {error}'
    if _REQUIRE_ANSWER.value:
      raise NoAnswerError(reason) from error
    print(reason)


if __name__ == '__main__':
  program.run(main)
