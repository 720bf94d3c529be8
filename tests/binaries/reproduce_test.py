"""Experiments at smoke scale, one of each kind and model; all have points."""

import csv
import functools
import json
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from reproduction import catalogue, curves, runner
from tests.binaries import program_runner
from tvdp_tf import errors, runtimes
from tvdp_tf.training import sweep


def read(folder: pathlib.Path) -> list[dict[str, str]]:
  with open(folder / 'points.csv', newline='') as file:
    return list(csv.DictReader(file))


def reproduce(folder, *arguments):
  return program_runner.run(
    'reproduce.py',
    f'--output_dir={folder}',
    '--scale=smoke',
    '--noprogress',
    *arguments,
  )


_AS_PROGRAM = ('fig2', 'table3')
# In this process. The others differ in numbers and names alone.
_HERE = (
  *('fig7', 'learning_rates_cnn', 'equal_skewed', 'frontier_adult'),
  'central_mnist_rarely',
)


class SmokeTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # What one experiment has compiled, others use: most have the same graphs.
    cls.context = runtimes.CompiledContext('cpu')
    cls.addClassCleanup(cls.context.close)
    new_sweep = sweep.Sweep
    cls.sweep = staticmethod(
      functools.cache(lambda part: new_sweep(cls.context, part))
    )

  def run_here(self, experiment, folder) -> str:
    """Runs it as the program does; returns its report."""
    with (
      mock.patch.object(
        runtimes,
        'compiled_runtime',
        lambda device: tff.framework.get_context_stack().install(self.context),
      ),
      mock.patch.object(sweep, 'Sweep', lambda _, part: self.sweep(part)),
    ):
      points = runner.points(experiment, seeds=1, smoke=True)
      generated = experiment.on_generated_data()
      runner.run(generated, points, folder, 'cpu', progress=False)
    return (folder / 'report.md').read_text()

  def run_program(self, experiment, folder) -> str:
    """Returns what the program prints."""
    result = reproduce(folder, f'--experiment={experiment.name}', '--seeds=1')
    self.assertEqual(result.returncode, 0, result.stderr)
    return result.stdout

  @parameterized.parameters(*catalogue.EXPERIMENTS)
  def test_has_points(self, name):
    experiment = catalogue.EXPERIMENTS[name]
    for smoke in (False, True):
      points = runner.points(experiment, seeds=2, smoke=smoke)
      keys = {point.key for point in points}
      self.assertLen(points, len(keys))
      self.assertEqual({seed for _, seed, _ in keys}, {'0', '1'})
      curves = {curve for curve, _, _ in keys}
      self.assertLessEqual(curves, set(experiment.curves))

  def test_every_kind_and_model_is_run(self):
    def kinds(names):
      return {
        word
        for name in names
        for point in runner.points(catalogue.EXPERIMENTS[name], seeds=1)
        for word in (
          point.settings.model,
          catalogue.EXPERIMENTS[name].against,
          catalogue.EXPERIMENTS[name].game is None,
        )
      }

    run = kinds((*_AS_PROGRAM, *_HERE))
    self.assertEqual(run, kinds(catalogue.EXPERIMENTS))

  @parameterized.parameters(*_AS_PROGRAM, *_HERE)
  def test_csv_picture_and_summary_agree(self, name):
    experiment = catalogue.EXPERIMENTS[name]
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    run = self.run_program if name in _AS_PROGRAM else self.run_here
    printed = run(experiment, folder)
    self.assertCountEqual(
      os.listdir(folder),
      ['points.csv', 'figure.png', 'summary.json', 'report.md'],
    )
    rows = read(folder)
    summary = json.loads((folder / 'summary.json').read_text())
    curves = {row['curve'] for row in rows}
    self.assertLessEqual(curves, set(experiment.curves))
    self.assertLen(curves, len(set(summary['curves'])))
    self.assertBetween(len(curves), min(2, len(experiment.curves)), 3)
    self.assertEqual({row['seed'] for row in rows}, {'0'})
    self.assertEqual(summary['experiment'], name)
    for curve, best in summary['curves'].items():
      x_name = 'round' if experiment.against == 'round' else 'planned_rounds'
      losses = [
        float(row['test_loss'])
        for row in rows
        if row['curve'] == curve and int(row[x_name]) == best['best_at']
      ]
      self.assertLen(losses, 1)
      self.assertAlmostEqual(np.mean(losses), best['test_loss'], places=9)
    picture = (folder / 'figure.png').read_bytes()
    self.assertStartsWith(picture, b'\x89PNG')
    report = (folder / 'report.md').read_text()
    self.assertIn(report, printed)
    self.assertEqual(printed.count(experiment.title), 1)
    self.assertIn(f'--experiment={name} --scale=smoke\n', report)
    for decided in summary['claims']:
      self.assertIn(decided['claim'], report)
      self.assertIn(f'**{decided["verdict"]}**', report)


class ContinueTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def run_one(self, name, *arguments):
    result = reproduce(
      self.folder / name, '--experiment=fig7', '--seeds=1', *arguments
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    return read(self.folder / name)

  def test_resume_and_shards_give_the_same_points(self):
    whole = self.run_one('whole')
    halves = [self.run_one(f'part{i}', f'--shard={i}/2') for i in (1, 2)]
    self.assertLen(whole, len(halves[0]) + len(halves[1]))
    merged = self.run_one(
      'merged', f'--merge={self.folder}/part1,{self.folder}/part2'
    )

    def key(row):
      return sorted(row.items())

    self.assertEqual(sorted(merged, key=key), sorted(whole, key=key))
    one, *parts = (
      json.loads((self.folder / name / 'summary.json').read_text())
      for name in ('merged', 'part1', 'part2')
    )
    self.assertEqual(
      one['ran']['seconds'], sum(part['ran']['seconds'] for part in parts)
    )
    self.assertEqual(one['ran']['points'], len(merged))
    # Nor is a part taken for the whole, or for another experiment's.
    one_part, fig8 = f'--merge={self.folder}/part1', '--experiment=fig8'
    both = f'{one_part},{self.folder}/part2'
    for arguments, message in (
      (
        ['--experiment=fig7', one_part],
        '--merge must name the folders of all ',
      ),
      (
        ['--experiment=fig7', f'{one_part},{self.folder}/part1'],
        'other points',
      ),
      (
        ['--experiment=fig7', f'{one_part},nowhere'],
        '--merge must hold a read',
      ),
      ([fig8, both], '--merge must hold points of fig8, .* of fig7, '),
    ):
      result = reproduce(self.folder / 'no', '--seeds=1', *arguments)
      self.assertEqual(result.returncode, 2)
      self.assertRegex(result.stderr, message)
      self.assertFalse((self.folder / 'no').exists())
    result = reproduce(self.folder / 'whole', fig8, '--seeds=1', '--resume')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--output_dir must hold points of fig8, ', result.stderr)
    del parts[0]['machine']['load_average']
    self.assertEqual(one['machine'], parts[0]['machine'])
    # Half of the points are there; the rest are run.
    resumed = self.run_one('part1', '--resume')
    self.assertEqual(sorted(resumed, key=key), sorted(whole, key=key))
    again = self.run_one('part1', '--resume')
    self.assertEqual(again, resumed)

  def test_a_file_of_something_else_is_refused(self):
    folder = self.folder / 'other'
    folder.mkdir()
    for content in ('', 'a,b\n1,2\n', '\x00'):
      (folder / 'points.csv').write_text(content)
      result = reproduce(folder, '--experiment=fig7', '--resume')
      self.assertEqual(result.returncode, 2)
      self.assertLen(result.stderr.splitlines(), 1)
      self.assertIn('points.csv', result.stderr)


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    ([], '--experiment must be one of fig2, '),
    (['--experiment=fig99'], '--experiment must be one of fig2, '),
    (['--experiment=fig2', '--shard=3/2'], '--shard must be i/n'),
    (['--experiment=fig2', '--shard=half'], '--shard must be i/n'),
    (['--experiment=fig2', '--seeds=0'], '--seeds must be an integer >= 1'),
  )
  def test_one_line(self, arguments, line):
    folder = self.create_tempdir().full_path + '/out'
    result = reproduce(folder, *arguments)
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(line, result.stderr)
    self.assertFalse(os.path.lexists(folder))

  def test_data_that_are_missing_leave_no_folder(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    experiment = catalogue.EXPERIMENTS['fig7']
    missing = errors.DatasetUnavailableError('no data')
    with (
      mock.patch.object(curves.Runner, 'run', side_effect=missing),
      self.assertRaises(errors.DatasetUnavailableError),
    ):
      points = runner.points(experiment, seeds=1, smoke=True)
      runner.run(experiment, points, folder, 'cpu')
    self.assertFalse(folder.exists())

  def test_one_line_of_a_new_process(self):
    """Of no other library, at the start or at the end."""
    with mock.patch.dict(os.environ):
      os.environ.pop('TF_CPP_MIN_LOG_LEVEL', None)
      result = program_runner.run(
        'reproduce.py', '--experiment=fig99', fresh=True
      )
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)

  def test_existing_folder(self):
    folder = self.create_tempdir().full_path
    pathlib.Path(folder, 'mine').touch()
    result = reproduce(folder, '--experiment=fig7')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--output_dir must be a new', result.stderr)


if __name__ == '__main__':
  absltest.main()
