"""The names for users: these and no others, imported when they are used."""

import ast
import importlib
import pathlib
import subprocess
import sys

from absl.testing import absltest, parameterized

import tvdp_tf
from tvdp_tf import errors

# Removing or renaming one breaks programs of others.
NAMES = (
  *('Budget', 'GeometricSchedule', 'Mechanism', 'PlanSettings'),
  'PrivacyLedger',
  *('TrainingSettings', 'audit_ledger', 'calibrate', 'central_noise'),
  *('check_claim', 'check_nesting', 'compiled_runtime', 'delivered_epsilon'),
  *('fit', 'functional_model', 'local_noise', 'local_runtime', 'plan', 'train'),
  'withheld_metrics',
)
_HEAVY = {'tensorflow', 'tensorflow_federated', 'scipy', 'matplotlib'}


def _loaded_after(code: str) -> set[str]:
  done = subprocess.run(
    [sys.executable, '-c', f'import sys; {code}; print(*sys.modules)'],
    capture_output=True,
    text=True,
    check=True,
  )
  return {name.partition('.')[0] for name in done.stdout.split()}


class PublicNamesTest(parameterized.TestCase):
  def test_these_and_no_others(self):
    self.assertCountEqual(tvdp_tf.__all__, NAMES)
    self.assertContainsSubset(NAMES, dir(tvdp_tf))
    self.assertNoCommonElements(['TYPE_CHECKING', 'importlib'], dir(tvdp_tf))

  @parameterized.parameters(*NAMES)
  def test_is_documented(self, name):
    self.assertIn(f'`{name}`', tvdp_tf.__doc__)
    self.assertGreater(len(getattr(tvdp_tf, name).__doc__), 40)

  def test_types_are_those_of_the_values(self):
    """What a type checker is told, and what is imported, are the same."""
    tree = ast.parse(pathlib.Path(tvdp_tf.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
      alias.asname or alias.name: (node.module or '', alias.name)
      for node in block.body
      if isinstance(node, ast.ImportFrom)
      for alias in node.names
    }
    self.assertCountEqual(told, NAMES)
    for name, (module, there) in told.items():
      self.assertIs(
        getattr(tvdp_tf, name), getattr(importlib.import_module(module), there)
      )

  def test_nothing_is_imported_before_it_is_used(self):
    self.assertEmpty(_loaded_after('import tvdp_tf') & _HEAVY)
    used = _loaded_after('import tvdp_tf; tvdp_tf.calibrate')
    self.assertIn('scipy', used)
    used = _loaded_after(
      'import tvdp_tf; tvdp_tf.plan(tvdp_tf.PlanSettings()); tvdp_tf.Mechanism'
    )
    self.assertNotIn('tensorflow', used)

  @parameterized.parameters(
    ('fit', 'tensorflow', 'requirements.lock'),
    ('local_noise', 'tensorflow_federated', 'requirements.lock'),
    ('plan', 'tqdm', r"run pip install '.\[plan\]' in"),
  )
  def test_what_is_missing_is_named_in_one_line(self, name, module, cure):
    code = f'sys.modules[{module!r}] = None; import tvdp_tf; tvdp_tf.{name}'
    done = subprocess.run(
      [sys.executable, '-c', f'import sys; {code}'],
      capture_output=True,
      text=True,
      check=False,
    )
    last = done.stderr.splitlines()[-1]
    self.assertRegex(
      last, f'^ImportError: tvdp_tf.{name} needs {module}, .*{cure}'
    )

  def test_a_program_names_what_is_missing_in_one_line(self):
    code = (
      "import runpy, sys; sys.modules['tqdm'] = None;"
      " sys.argv = ['binaries/plan.py']; sys.path.insert(0, 'binaries');"
      " runpy.run_path('binaries/plan.py', run_name='__main__')"
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=pathlib.Path(__file__).parents[1],
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertRegex(
      done.stderr,
      r"^plan.py: error: plan.py needs tqdm, .*run pip install '.\[plan\]' in"
      ' its source folder\n$',
    )
    self.assertEqual(done.returncode, 1)

  @parameterized.parameters(
    ('train', ('x', 'y'), "settings must be TrainingSettings, got 'x'"),
    (
      'plan',
      ('x',),
      "settings must be PlanSettings or TrainingSettings, .*'x'",
    ),
    ('audit_ledger', (3,), 'path must be a path, got 3'),
  )
  def test_what_is_something_else_is_refused(self, name, arguments, message):
    with self.assertRaisesRegex(
      (ValueError, errors.UsageError), f'^{message}$'
    ):
      getattr(tvdp_tf, name)(*arguments)

  def test_settings_with_no_path(self):
    settings = tvdp_tf.TrainingSettings()
    with self.assertRaisesRegex(
      errors.UsageError, '^output_dir must be a path, got None$'
    ):
      tvdp_tf.train(settings, None)  # type: ignore[arg-type]

  def test_what_was_planned_is_trained(self):
    asked = tvdp_tf.PlanSettings(
      rounds=1, local_steps=1, users=4, users_per_round=2
    )
    folder = self.create_tempdir().full_path + '/run'
    result = tvdp_tf.train(tvdp_tf.plan(asked).settings, folder)
    self.assertTrue(result.statement.holds)

  def test_other_names(self):
    with self.assertRaisesRegex(AttributeError, "no attribute 'nothing'"):
      tvdp_tf.nothing  # noqa: B018
    self.assertEqual(tvdp_tf.privacy.ACCOUNTANTS[0], 'exact')


if __name__ == '__main__':
  absltest.main()
