"""Table III: the committed results, and the files of the two kinds."""

import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from reproduction import catalogue, membership_table
from reproduction import runner as reproduction
from tvdp_tf import errors
from tvdp_tf.attacks import membership

_RESULTS = pathlib.Path(__file__).resolve().parents[2] / 'results/experiments'
_TABLE3 = catalogue.EXPERIMENTS['table3']


class ResultsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.rows = reproduction.read_points(
      _RESULTS / 'table3' / 'points.csv', _TABLE3
    )
    self.summary = json.loads(
      (_RESULTS / 'table3' / 'summary.json').read_text()
    )

  def column(self, curve, name) -> np.ndarray:
    found = [float(row[name]) for row in self.rows if row['curve'] == curve]
    self.assertLen(found, 3)
    return np.array(found)

  def test_summary_is_that_of_the_points(self):
    self.assertEqual(self.summary['game'], _TABLE3.game)
    for curve, values in self.summary['curves'].items():
      for attack in membership.ATTACKS:
        for metric in ('success', 'auc', 'tpr'):
          name = f'{attack}_{metric}'
          self.assertAlmostEqual(
            values[name], self.column(curve, name).mean(), places=9
          )
        self.assertEqual(
          values['epsilon_lower_bounds'][attack],
          self.column(curve, f'{attack}_epsilon_lower_bound').tolist(),
        )

  def test_the_target_without_noise_overfits_and_gives_its_members_away(self):
    np.testing.assert_array_equal(self.column('no DP', 'member_accuracy'), 1)
    self.assertGreater(self.column('no DP', 'lira_success').min(), 0.9)

  def test_no_attack_shows_more_than_is_delivered(self):
    for curve in _TABLE3.curves:
      delivered = self.column(curve, 'delivered_epsilon')
      for attack in membership.ATTACKS:
        shown = self.column(curve, f'{attack}_epsilon_lower_bound')
        self.assertTrue((shown <= delivered).all(), (curve, attack))

  @parameterized.parameters(1, 3)
  def test_what_holds_delivers_its_target(self, epsilon):
    delivered = self.column(
      f'gradient, epsilon = {epsilon}', 'delivered_epsilon'
    )
    self.assertTrue((delivered <= epsilon).all())
    self.assertTrue((delivered >= 0.99 * epsilon).all())


class FilesTest(absltest.TestCase):
  def test_points_of_the_other_kind_are_refused(self):
    fig7 = catalogue.EXPERIMENTS['fig7']
    for folder, experiment in (('fig7', _TABLE3), ('table3', fig7)):
      path = _RESULTS / folder / 'points.csv'
      self.assertNotEmpty(reproduction.read_points(path))
      with self.assertRaisesRegex(errors.UsageError, 'of this program'):
        reproduction.read_points(path, experiment)

  def test_columns(self):
    self.assertLen(set(membership_table.COLUMNS), len(membership_table.COLUMNS))
    self.assertIn('lira_all_rounds_success', membership_table.COLUMNS)


if __name__ == '__main__':
  absltest.main()
