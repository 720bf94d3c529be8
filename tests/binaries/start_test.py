"""What a program imports before its first round: seconds of a short run."""

import re
import subprocess

from absl.testing import absltest

from tests.binaries import program_runner

# Each of a tenth of a second or more, and of no use until a run is over, or to
# another run.
_NOT_YET = {
  *('IPython', 'kymatio', 'matplotlib', 'statsmodels'),
  *('tensorflow_datasets', 'torch'),
}


class StartTest(absltest.TestCase):
  def test_imports_before_the_first_round(self):
    folder = self.create_tempdir().full_path
    program, *arguments = program_runner.command(
      'train.py',
      '--rounds=2',
      '--verbosity=0',
      '--progress=false',
      f'--output_dir={folder}/run',
    )
    done = subprocess.run(
      [program, '-X', 'importtime', *arguments],
      capture_output=True,
      text=True,
      timeout=240,
      check=True,
    )
    before, released, after = done.stderr.partition('round=1 ')
    self.assertTrue(released)

    def imported(text):
      lines = re.findall(r'^import time: +\d+ \| +\d+ \| +(\w+)', text, re.M)
      return set(lines)

    self.assertIn('tensorflow_federated', imported(before))
    self.assertEmpty(imported(before) & _NOT_YET)
    # For the picture, at the end.
    self.assertIn('matplotlib', imported(after))


if __name__ == '__main__':
  absltest.main()
