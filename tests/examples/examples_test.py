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

from tvdp_tf import mechanisms

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# What each of them prints.
_PRINTS = {
  'central_noise.py': 'A user has spent epsilon = 8.0',
  'clipping_and_zeroing.py': 'zeroed_count -1',
  'hand_over.py': 'accumulate',
  'keras_loop.py': 'end of budget: client 0 would reach epsilon 3.00',
  'local_noise.py': 'Round 3 of 3: noise 1.976, mean of 2 clients.',
  'own_mechanism.py': 'Privacy statement: epsilon = 8 at delta = 0.0001 HOLDS.',
  'own_loop.py': "Round 3: {'delivered_epsilon': 3.7",
  'secure_aggregation.py': 'range of the sum: 0',
  'train_model.py': 'training_checkpoint_round_3',
  'train_model_budget.py': "3 {'delivered_epsilon': 3.7",
  'without_tff.py': 'epsilon = 8 HOLDS: accuracy 0.',
}
# Lines, at most.
_LENGTH = 45
_LONGER = {
  'keras_loop.py': 65,
  'own_mechanism.py': 100,
  'train_model_budget.py': 100,
}
# How many rounds their budget pays for; `make check-examples` says where their
# environments are.
_OTHER_TOOLS = {'flower': 4, 'pfl': 4}
_PEERS = os.environ.get('PEERS')
_AS_PROGRAM = 'local_noise.py'


class ExamplesTest(parameterized.TestCase):
  def test_all_are_known(self):
    names = [path.name for path in (_ROOT / 'examples').glob('*.py')]
    self.assertCountEqual(names, _PRINTS)

  @parameterized.parameters(*_PRINTS)
  def test_is_short(self, name):
    lines = (_ROOT / 'examples' / name).read_text().splitlines()
    self.assertLessEqual(len(lines), _LONGER.get(name, _LENGTH))
    command = f'  TF_CPP_MIN_LOG_LEVEL=3 python examples/{name}'
    self.assertIn(command, lines)

  @parameterized.parameters(*sorted(_PRINTS.keys() - {_AS_PROGRAM}))
  def test_runs(self, name):
    # In this process: an import of TFF takes longer than any of them.
    folder = self.create_tempdir().full_path
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
      stack.enter_context(contextlib.redirect_stdout(printed))
      # Another test may have loaded the same example as a module.
      stack.enter_context(mock.patch.dict(mechanisms.MECHANISMS))
      mechanisms.MECHANISMS.pop('local_users', None)
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


class OtherToolsTest(parameterized.TestCase):
  def test_all_are_known(self):
    programs = (_ROOT / 'examples').glob('*/*.py')
    self.assertCountEqual(
      [path.relative_to(_ROOT / 'examples').as_posix() for path in programs],
      [f'{tool}/budget.py' for tool in _OTHER_TOOLS],
    )

  @parameterized.parameters(*_OTHER_TOOLS.items())
  @absltest.skipUnless(_PEERS, 'make check-examples')
  def test_trains_until_the_budget_ends(self, tool, rounds):
    done = subprocess.run(
      [
        f'{_PEERS}/{tool}/bin/python',
        _ROOT / 'examples' / tool / 'budget.py',
      ],
      # The wheel, and nothing of the checkout.
      cwd=self.create_tempdir().full_path,
      env={key: os.environ[key] for key in os.environ if key != 'PYTHONPATH'},
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    lines = done.stdout.splitlines()
    spent = [line for line in lines if "'delivered_epsilon'" in line]
    self.assertLen(spent, rounds)
    for m, line in enumerate(spent, 1):
      self.assertStartsWith(line, f"{m} {{'delivered_epsilon': ")
    ends = [line for line in lines if line.startswith('end of budget: ')]
    self.assertLen(ends, 1)
    self.assertNotIn('Traceback', done.stderr)


if __name__ == '__main__':
  absltest.main()
