"""The examples are short and run."""

import contextlib
import io
import os
import pathlib
import runpy
import subprocess
import sys
from unittest import mock

from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# What each of them prints.
_PRINTS = {
  'central_noise.py': 'A user has spent epsilon = 8.0',
  'clipping_and_zeroing.py': 'zeroed_count -1',
  'hand_over.py': 'accumulate',
  'local_noise.py': 'Round 3 of 3: noise 1.976, mean of 2 clients.',
  'own_loop.py': "Round 3: {'delivered_epsilon': 3.7",
  'secure_aggregation.py': 'range of the sum: 0',
  'train_model.py': 'training_checkpoint_round_3',
}
_AS_PROGRAM = 'local_noise.py'


class ExamplesTest(parameterized.TestCase):
  def test_all_are_known(self):
    names = [path.name for path in (_ROOT / 'examples').glob('*.py')]
    self.assertCountEqual(names, _PRINTS)

  @parameterized.parameters(*_PRINTS)
  def test_is_short(self, name):
    lines = (_ROOT / 'examples' / name).read_text().splitlines()
    self.assertLessEqual(len(lines), 45)
    command = f'  TF_CPP_MIN_LOG_LEVEL=3 python examples/{name}'
    self.assertIn(command, lines)

  @parameterized.parameters(*sorted(_PRINTS.keys() - {_AS_PROGRAM}))
  def test_runs(self, name):
    # In this process: an import of TFF takes longer than any of them.
    folder = self.create_tempdir().full_path
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
      stack.enter_context(contextlib.redirect_stdout(printed))
      if name == 'train_model.py':
        stack.enter_context(mock.patch('tempfile.mkdtemp', return_value=folder))
      runpy.run_path(str(_ROOT / 'examples' / name), run_name='__main__')
    self.assertIn(_PRINTS[name], printed.getvalue())
    if name == 'train_model.py':
      self.assertCountEqual(
        os.listdir(folder), ['state', 'm_training_checkpoint_round_3']
      )

  def test_runs_as_a_program(self):
    done = subprocess.run(
      [sys.executable, f'examples/{_AS_PROGRAM}'],
      capture_output=True,
      cwd=_ROOT,
      stdin=subprocess.DEVNULL,
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn(_PRINTS[_AS_PROGRAM], done.stdout)


if __name__ == '__main__':
  absltest.main()
