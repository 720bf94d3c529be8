"""Runs on both runtimes: one ledger, one statement, and no file left open."""

import collections
import csv
import json
import pathlib
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.runtimes.worker import worker_checks
from tvdp_tf import errors, privacy
from tvdp_tf.federated import schedule_state
from tvdp_tf.training import rounds, run_folder, settings
from tvdp_tf.training import train as training

# What depends on the runtime: its name is in the configuration, and the last
# bits of the model are those of its kernels. A round's input digests are of
# both, and so is a seeded run's id; the lines' hashes are of all.
_DEPENDENT = ('input_digests', 'settings_digest', 'run_id', 'hash')


def ledger(folder: pathlib.Path) -> list[dict]:
  lines = (folder / run_folder.LEDGER).read_text().splitlines()
  return [json.loads(line) for line in lines]


def without(line: dict, names: tuple[str, ...]) -> dict:
  return {name: value for name, value in line.items() if name not in names}


def metrics(folder: pathlib.Path) -> dict[str, list[float]]:
  with open(folder / run_folder.METRICS, newline='') as file:
    rows = list(csv.DictReader(file))
  return {name: [float(row[name]) for row in rows] for name in rows[0]}


class WithoutARoundTest(parameterized.TestCase):
  @parameterized.parameters(
    privacy.GeometricSchedule(0.9, 3, 2.0),
    privacy.ListedSchedule((2.0, 1.0, 3.0)),
  )
  def test_is_the_next_round(self, schedule):
    of_state = collections.namedtuple('of_state', ['client_work'])
    initial = {
      name: value.numpy()
      for name, value in schedule_state.initial(schedule).items()
    }
    after = rounds.without_a_round(of_state(initial)).client_work
    self.assertEqual(after['round'], 1)
    self.assertAlmostEqual(after['variance'], schedule.variance(2))
    # TFF's worker takes Python's numbers, and NumPy's of the same type.
    self.assertIs(type(after['round']), int)
    self.assertIs(type(after['variance']), float)
    for name in initial.keys() - {'round', 'variance'}:
      self.assertIs(after[name], initial[name])
    self.assertEqual([*after], [*initial])


class BothRuntimesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.temporary = self.create_tempdir().full_path
    self.enter_context(mock.patch.object(tempfile, 'tempdir', self.temporary))

  def train(self, runtime, **kwargs):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    training.train(
      settings.TrainingSettings(runtime=runtime, seed=1, **kwargs), folder
    )
    return folder

  @parameterized.parameters(
    {'mechanism': 'gradient', 'split': 'dirichlet'},
    # With so little noise that the training converges: where it does not, it
    # blows up what the kernels round differently.
    {'mechanism': 'central', 'participation': 'poisson', 'epsilon': 500.0},
  )
  def test_same_privacy(self, **kwargs):
    worker, compiled = (
      self.train(runtime, rounds=3, local_steps=2, **kwargs)
      for runtime in ('tff', 'compiled')
    )
    self.assertEmpty(worker_checks.open_files(self.temporary))
    lines, expected_lines = ledger(worker), ledger(compiled)
    self.assertLen(lines, 5)
    for line, expected in zip(lines, expected_lines, strict=True):
      self.assertEqual(line.keys(), expected.keys())
      self.assertEqual(without(line, _DEPENDENT), without(expected, _DEPENDENT))
    # The header is the same with its hash.
    self.assertEqual(lines[0], expected_lines[0])
    statement, expected = (
      json.loads((folder / run_folder.PRIVACY).read_text())
      for folder in (worker, compiled)
    )
    self.assertEqual(
      without(statement, ('ledger_head',)), without(expected, ('ledger_head',))
    )
    rows, expected_rows = metrics(worker), metrics(compiled)
    for name in ('round', 'noise_stddev', 'delivered_epsilon'):
      self.assertEqual(rows[name], expected_rows[name])
    np.testing.assert_allclose(
      rows['test_loss'], expected_rows['test_loss'], rtol=1e-4
    )

  def test_a_failed_run_closes_its_files(self):
    try:
      self.train('tff', mechanism='paper', l2_norm_clip=1e30, rounds=1)
    except errors.TrainingFailedError as error:
      # Here it still holds the frames of the run, and what is in them.
      self.assertIn('round 1 is nan', str(error))
      self.assertEmpty(worker_checks.open_files(self.temporary))
    else:
      self.fail('the run has not failed')


if __name__ == '__main__':
  absltest.main()
