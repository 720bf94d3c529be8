"""The walk-through of remote workers on one machine, as it is in the docs."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from absl.testing import absltest

from tests.binaries import program_runner


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class LocalhostTest(absltest.TestCase):
  def test_the_walk_through(self):
    text = (program_runner.ROOT / 'docs' / 'DISTRIBUTED.md').read_text()
    (script,) = re.findall(
      r'localhost_test\.py -->\n```bash\n(.*?)```', text, re.DOTALL
    )
    with tempfile.TemporaryDirectory() as folder:
      result = subprocess.run(
        ['bash', '-ec', script.replace('.venv/bin/python', sys.executable)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=program_runner.ROOT,
        env={**os.environ, 'TMPDIR': folder},
        timeout=240,
        check=False,
      )
      log = '\n'.join(
        p.read_text() for p in pathlib.Path(folder).rglob('*.log')
      )
      self.assertEqual(result.returncode, 0, result.stderr + log)
      (metrics,) = pathlib.Path(folder).rglob('metrics.csv')
      self.assertLen(metrics.read_text().splitlines(), 21)
    self.assertIn('HOLDS', result.stdout)
    self.assertRegex(result.stderr, r'worker unix:\S+one\.sock is lost')


if __name__ == '__main__':
  absltest.main()
