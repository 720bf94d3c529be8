import collections
import csv
import math
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import mechanisms, runtimes
from tvdp_tf.output import report
from tvdp_tf.training import federation, rounds, run_folder
from tvdp_tf.training import metrics as round_metrics


def make_row(loss, participants=2):
  return collections.OrderedDict(
    noise_stddev=0.1,
    test_loss=loss,
    test_accuracy=1 / 3,
    delivered_epsilon=math.inf,
    participants=participants,
    seconds=0.5,
    rounds=4,
  )


class SignalToNoiseTest(parameterized.TestCase):
  def test_of_known_lengths(self):
    # ||u||^2 = 25 + 144, d s^2 = 4.
    ratio = round_metrics.signal_to_noise(
      [np.array([3.0, 4.0]), np.array([[0.0, 12.0]])],
      1.0,
    )
    self.assertAlmostEqual(ratio, math.sqrt(165 / 4))

  def test_noise_alone_is_zero_or_little(self):
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, 100_000)
    ratio = round_metrics.signal_to_noise([noise], 0.3)
    self.assertLess(ratio, 0.1)
    self.assertEqual(round_metrics.signal_to_noise([noise], 0.31), 0)

  @parameterized.parameters(0.5, 1.0, 3.0)
  def test_estimates_the_length_of_the_update_without_noise(self, expected):
    rng = np.random.default_rng(1)
    update = rng.normal(0, expected * 0.3, 100_000)
    noisy = update + rng.normal(0, 0.3, 100_000)
    ratio = round_metrics.signal_to_noise([noisy], 0.3)
    self.assertAlmostEqual(ratio, expected, delta=0.02 * expected + 0.02)

  @parameterized.parameters(
    {'mechanism': 'paper'},
    {'mechanism': 'laplace'},
    {'mechanism': 'gradient', 'participation': 'uniform'},
    {'mechanism': 'central', 'participation': 'uniform'},
    {'mechanism': 'central'},
  )
  def test_noise_of_a_real_round_is_as_long_as_expected(self, **changes):
    """With a tiny step the update of a round is noise and nothing else."""
    settings = resume_cases.small(
      split='dirichlet',
      epsilon=1e-3,
      learning_rate=1e-3,
      local_steps=3,
      seed=0,
      **changes,
    )
    fed = federation.assemble(settings)
    plan = mechanisms.build(settings, fed)
    one = rounds.Rounds(plan, fed, rounds.build_process(plan, fed))
    with runtimes.compiled_runtime('cpu'):
      state = one.process.initialize()
      before = state.global_model_weights.trainable
      releases = one.releases(state, 1, one.cohort(1))
      state = one.run(state, releases, one.noise_keys(releases))
    square = sum(
      float(np.sum(np.square(np.asarray(new) - np.asarray(old))))
      for new, old in zip(
        state.global_model_weights.trainable, before, strict=True
      )
    )
    dimension = sum(np.asarray(old).size for old in before)
    ratio = square / dimension / plan.mean_noise_stddev(releases) ** 2
    # Laplace noise has the larger fourth moment: 6, not 3.
    deviation = math.sqrt(5 / dimension)
    self.assertAlmostEqual(ratio, 1.0, delta=4 * deviation)


class RowTest(parameterized.TestCase):
  def row(self, **changes):
    settings = resume_cases.small(seed=0, **changes)
    plan = mechanisms.build(settings, federation.assemble(settings))
    cohort = plan.fed.participation.cohort(1)
    schedule = plan.schedule
    releases = plan.round(1, cohort, schedule.stddev(1) if schedule else 0.0)
    plan.take(releases)
    update = [np.full(100, 3 * plan.mean_noise_stddev(releases))]
    return plan, round_metrics.row(
      plan, releases, 1, update, seconds=0.5, rounds=4
    )

  @parameterized.parameters('paper', 'gradient', 'laplace')
  def test_columns(self, mechanism):
    plan, row = self.row(mechanism=mechanism, epsilon=2.0)
    self.assertEqual((row['participants'], row['dropped']), (2, 1))
    self.assertAlmostEqual(row['signal_to_noise'], math.sqrt(8))
    self.assertEqual(row['delivered_epsilon'], plan.worst_epsilon())
    self.assertEqual(row['remaining_budget'], 2.0 - plan.worst_epsilon())
    self.assertTrue(math.isnan(row['test_loss']))
    self.assertEqual((row['seconds'], row['rounds']), (0.5, 4))

  def test_overspending_shows(self):
    _, row = self.row(epsilon=10.0, rounds=1, users_per_round=1)
    self.assertLess(row['remaining_budget'], 0)

  def test_size_of_a_secret_cohort_is_not_shown(self):
    _, row = self.row(mechanism='central')
    # A round of many users takes longer.
    self.assertNoCommonElements(row, ['participants', 'dropped', 'seconds'])
    self.assertContainsSubset(['signal_to_noise', 'rounds'], row)

  @parameterized.parameters('balanced', 'uniform')
  def test_what_users_failed_is_not_shown(self, participation):
    _, row = self.row(mechanism='central', participation=participation)
    self.assertEqual(row['participants'], 2)
    self.assertNotIn('dropped', row)

  def test_without_noise(self):
    _, row = self.row(mechanism='none')
    self.assertNoCommonElements(row, ['signal_to_noise', 'remaining_budget'])
    self.assertEqual(row['delivered_epsilon'], math.inf)


class RoundedTest(parameterized.TestCase):
  @parameterized.parameters(2.0000004, 1 / 3, 61.63114630234804)
  def test_what_is_spent_is_rounded_up(self, spent):
    name = 'delivered_epsilon'
    for shown in (
      float(round_metrics._text(name, spent)),
      round_metrics._float32(name, spent),
    ):
      self.assertBetween(shown, spent, spent * (1 + 1e-5))
    name = 'remaining_budget'
    for shown in (
      float(round_metrics._text(name, spent)),
      round_metrics._float32(name, spent),
    ):
      self.assertBetween(shown, spent * (1 - 1e-6), spent)
    self.assertEqual(report._cell('test_loss', spent), f'{spent:.6g}')
    self.assertGreaterEqual(
      float(report._cell('delivered_epsilon', spent)), spent
    )


class RowsTest(absltest.TestCase):
  def test_round_trip(self):
    rows = [make_row(0.1), make_row(math.nan, participants=3)]
    columns = round_metrics.columns(rows)
    self.assertEqual(columns['participants'].dtype, np.int64)
    again = round_metrics.rows(columns, 2)
    self.assertEqual(
      [sorted(row.items())[:4] for row in again],
      [sorted(row.items())[:4] for row in rows],
    )
    self.assertIsInstance(again[1]['participants'], int)
    self.assertTrue(math.isnan(again[1]['test_loss']))

  def test_other_columns_are_refused(self):
    columns = round_metrics.columns([make_row(0.1), make_row(0.2)])
    for wrong, count in (
      (columns, 3),
      (columns, 1),
      ({**columns, 'rounds': np.array([b'1', b'2'])}, 2),
      ({**columns, 'rounds': np.ones([2, 2])}, 2),
      ({k: v for k, v in columns.items() if k != 'test_loss'}, 2),
      ({}, 0),
    ):
      with self.assertRaisesRegex(ValueError, 'must hold the metrics of'):
        round_metrics.rows(wrong, count)

  def test_file_is_the_same_however_it_came_about(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    rows = [make_row(loss) for loss in (0.1, 1e-17, 0.3)]
    texts = []
    for start in (0, 2):
      path = folder / run_folder.METRICS
      path.write_text('whatever')
      releaser = round_metrics.Releaser(folder, rows[:start])
      for number in range(start, 3):
        with self.assertLogs('absl', 'INFO') as logs:
          releaser.release(number + 1, rows[number])
        self.assertIn(
          f'round={number + 1} noise_stddev=0.1 test_loss=', logs.output[-1]
        )
      texts.append(path.read_bytes())
    self.assertEqual(texts[0], texts[1])
    read = list(csv.DictReader(texts[0].decode().splitlines()))
    self.assertEqual([row['round'] for row in read], ['1', '2', '3'])
    self.assertEqual(float(read[1]['test_loss']), 1e-17)
    self.assertEqual(
      tuple(read[0])[:6], (*run_folder.METRICS_COLUMNS, 'seconds')
    )
    seen = {}
    for path in folder.glob('tensorboard/*tfevents*'):
      for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
          self.assertEqual(value.metadata.plugin_data.plugin_name, 'scalars')
          seen[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    self.assertEqual(
      seen,
      {
        (name, number): float(np.float32(value))
        for number, row in enumerate(rows, start=1)
        for name, value in row.items()
      },
    )


if __name__ == '__main__':
  absltest.main()
