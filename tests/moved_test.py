"""Names of the last release are importable, with a warning, where they were."""

import importlib
import subprocess
import sys
import warnings

from absl.testing import absltest, parameterized

# What the documents of the last release have named, and where it is now.
MODULES = (
  ('tvdp_tf.experiments.federation', 'tvdp_tf.training.federation'),
  ('tvdp_tf.experiments.planning.report', 'tvdp_tf.planner.report'),
  ('tvdp_tf.experiments.plans', 'tvdp_tf.mechanisms'),
  ('tvdp_tf.experiments.rounds', 'tvdp_tf.training.rounds'),
  ('tvdp_tf.experiments.settings', 'tvdp_tf.training.settings'),
  ('tvdp_tf.experiments.training', 'tvdp_tf.training.train'),
  ('tvdp_tf.privacy.mechanisms', 'tvdp_tf.mechanisms'),
  ('tvdp_tf.simulation', 'tvdp_tf.runtimes'),
)
NAMES = (
  'ClientFiles',
  'local_runtime',
  'program_context',
  'read_in_worker',
  'remote_runtime',
  'tls_credentials',
)


class MovedTest(parameterized.TestCase):
  @parameterized.parameters(*MODULES)
  def test_a_module(self, old, new):
    sys.modules.pop(old, None)
    with self.assertWarnsRegex(
      DeprecationWarning, f'{old} was renamed to {new}'
    ):
      found = importlib.import_module(old)
    self.assertIs(found, importlib.import_module(new))
    # The new module is still itself.
    # Other tests hold what is in it now.
    self.addCleanup(vars(found).update, dict(vars(found)))
    self.assertEqual(importlib.reload(found).__name__, new)

  @parameterized.parameters(*NAMES)
  def test_a_name(self, name):
    from tvdp_tf import federated, runtimes  # noqa: PLC0415

    with self.assertWarnsRegex(DeprecationWarning, f'tvdp_tf.runtimes.{name}'):
      found = getattr(federated, name)
    self.assertIs(found, getattr(runtimes, name))

  def test_the_warning_is_about_the_caller(self):
    code = 'from tvdp_tf.privacy import mechanisms; mechanisms.PaperMechanism'
    done = subprocess.run(
      [sys.executable, '-W', 'error::DeprecationWarning:__main__', '-c', code],
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 1)
    self.assertIn(
      'tvdp_tf.privacy.mechanisms was renamed to tvdp_tf.mechanisms',
      done.stderr,
    )

  def test_nothing_of_ours_uses_an_old_name(self):
    with warnings.catch_warnings():
      warnings.simplefilter('error', DeprecationWarning)
      with self.assertRaisesRegex(AttributeError, 'no attribute'):
        from tvdp_tf import federated  # noqa: PLC0415

        federated.nothing  # noqa: B018


if __name__ == '__main__':
  absltest.main()
