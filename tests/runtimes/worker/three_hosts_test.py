"""Runs `three_hosts` where it can have a network of its own."""

import shutil
import subprocess
import unittest

from absl.testing import absltest

from tests.runtimes.worker import worker_checks

_OWN_NETWORK = ['unshare', '--user', '--map-root-user', '--net']


def _obstacle() -> str:
  """Why there can be no hosts here; empty if there can."""
  for name in ('unshare', 'nsenter', 'ip'):
    if shutil.which(name) is None:
      return f'{name} is not installed (Debian: util-linux, iproute2)'
  done = subprocess.run(
    [*_OWN_NETWORK, 'ip', 'link', 'add', 'bridge', 'type', 'bridge'],
    capture_output=True,
    text=True,
    check=False,
  )
  return done.stderr.strip()


@unittest.skipIf(_obstacle(), _obstacle())
class ThreeHostsTest(absltest.TestCase):
  def test_three_hosts(self):
    child = worker_checks.start_child(
      self,
      'from tests.runtimes.worker import three_hosts\n'
      'three_hosts.absltest.main(module=three_hosts)',
      prefix=_OWN_NETWORK,
    )
    output, errors = child.communicate(timeout=240)
    self.assertEqual(child.returncode, 0, output + errors)
    self.assertRegex(errors, r'Ran 6 tests')


if __name__ == '__main__':
  absltest.main()
