"""That nothing leaves a run but under the noise; see `two_worlds`.

Without noise nothing is covered, so `--mechanism=none` has no such test.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from absl.testing import absltest, parameterized

from tests import two_worlds
from tests.binaries import program_runner
from tvdp_tf import runtimes
from tvdp_tf.training import settings as settings_lib

# What the noise of a mechanism covers.
_UNITS = {
  'paper': 'user',
  'laplace': 'user',
  'gradient': 'example',
  'central': 'user',
}
_SMALL = {
  'users': two_worlds.USERS,
  'users_per_round': 2,
  'rounds': 3,
  'local_steps': 2,
}

_CONTINUOUS = {'mechanism': 'gradient', 'noise': 'continuous'}


def _settings(**changes) -> settings_lib.TrainingSettings:
  return settings_lib.TrainingSettings(**{**_SMALL, **changes})


class NonInterferenceTest(parameterized.TestCase):
  def folders(self) -> Iterator[pathlib.Path]:
    """Folders to be made, of names of one length."""
    base = pathlib.Path(self.create_tempdir().full_path)
    yield from (base / f'run{number:03}' for number in range(1000))

  def assert_same(self, runs: two_worlds.Runs, changes) -> None:
    folders = self.folders()
    expected = runs.observed(two_worlds.UNCHANGED, next(folders))
    for change in changes:
      with self.subTest(change=change):
        seen = runs.observed(change, next(folders))
        self.assertEmpty(two_worlds.differences(expected, seen))

  @parameterized.named_parameters(
    ('paper', {}),
    ('laplace', {'mechanism': 'laplace'}),
    ('gradient', {'mechanism': 'gradient'}),
    ('central', {'mechanism': 'central', 'participation': 'uniform'}),
  )
  def test_nothing_leaves_but_under_the_noise(self, changes):
    settings = _settings(**changes)
    unit = _UNITS[settings.mechanism]
    sizes = two_worlds.SIZES if settings.mechanism == 'central' else ()
    with runtimes.compiled_runtime('cpu'):
      self.assert_same(
        two_worlds.Runs(settings, unit), [*two_worlds.VALUES, *sizes]
      )

  @parameterized.named_parameters(
    ('secret_cohorts', {'mechanism': 'central', 'rounds': 2}),
    ('seed', {'mechanism': 'central', 'participation': 'balanced', 'seed': 1}),
    ('refinement', {**_CONTINUOUS, 'refinement': 'budget'}),
    ('divergence', {**_CONTINUOUS, 'learning_rate': 1e30}),
  )
  def test_nor_with_other_settings(self, changes):
    settings = _settings(**changes)
    unit = _UNITS[settings.mechanism]
    more = ['larger'] if unit == 'user' else []
    with runtimes.compiled_runtime('cpu'):
      self.assert_same(two_worlds.Runs(settings, unit), ['failing', *more])

  @parameterized.parameters('gradient', 'central')
  def test_nor_from_tffs_worker(self, mechanism):
    settings = _settings(mechanism=mechanism, rounds=2, runtime='tff')
    more = ['empty'] if mechanism == 'central' else []
    with runtimes.local_runtime():
      self.assert_same(
        two_worlds.Runs(settings, _UNITS[mechanism]), ['failing', *more]
      )

  @parameterized.parameters('gradient', 'central')
  def test_it_would_be_seen(self, mechanism):
    settings = _settings(mechanism=mechanism)
    runs = two_worlds.Runs(settings, _UNITS[mechanism], two_worlds.bare)
    folders = self.folders()
    with runtimes.compiled_runtime('cpu'):
      one = runs.observed(two_worlds.UNCHANGED, next(folders))
      again = runs.observed(two_worlds.UNCHANGED, next(folders))
      other = runs.observed('zeros', next(folders))
    self.assertEmpty(two_worlds.differences(one, again))
    self.assertContainsSubset(
      [
        *('bar', 'log', 'metrics.csv', 'result', 'saved checkpoints'),
        *('saved model', 'tensorboard/events'),
      ],
      two_worlds.differences(one, other),
    )


class ProgramTest(parameterized.TestCase):
  """Whole runs: messages, exit codes and files as users get them."""

  def seen(self, mechanism, changes, *flags) -> list[dict[str, Any]]:
    """What the program leaves in each world."""
    seen = []
    for change in changes:
      folder = pathlib.Path(self.create_tempdir().full_path)
      process = program_runner.run(
        two_worlds.PROGRAM,
        change,
        _UNITS[mechanism],
        f'--mechanism={mechanism}',
        '--output_dir=run',
        '--verbosity=0',
        '--noprogress',  # What it shows follows the clock as well.
        *(f'--{name}={value}' for name, value in _SMALL.items()),
        '--rounds=2',
        *flags,
        cwd=folder,
      )
      seen.append(
        {
          'code': process.returncode,
          'output': process.stdout,
          'errors': two_worlds.without_times(process.stderr),
          **two_worlds.files(folder / 'run'),
        }
      )
    return seen

  @parameterized.parameters(
    ('gradient', 'failing', '--runtime=compiled'),
    ('central', 'failing', '--runtime=tff', '--participation=uniform'),
  )
  def test_train(self, mechanism, change, *flags):
    one, other = self.seen(mechanism, [two_worlds.UNCHANGED, change], *flags)
    self.assertEqual(one['code'], 0, one['errors'])
    self.assertIn('HOLDS', one['output'])
    self.assertIn('test_loss=', one['errors'])
    self.assertIn('model/saved_model.pb', one)
    self.assertEmpty(two_worlds.differences(one, other))


if __name__ == '__main__':
  absltest.main()
