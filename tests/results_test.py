"""The committed results agree with each other."""

import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.experiments import catalogue, reproduction

_RESULTS = pathlib.Path(__file__).resolve().parents[1] / 'results'
_REPRODUCED = sorted(
  path.parent.name for path in _RESULTS.glob('experiments/*/points.csv')
)


class ReproductionTest(parameterized.TestCase):
  @parameterized.parameters(*_REPRODUCED)
  def test_points_summary_and_experiment_agree(self, name):
    folder = _RESULTS / 'experiments' / name
    experiment = catalogue.EXPERIMENTS[name]
    rows = reproduction.read_points(folder / 'points.csv')
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['claim'], experiment.claim)
    self.assertEqual(summary['settings'], dict(experiment.base))
    self.assertEqual(set(summary['curves']), set(experiment.curves))
    done = {(row['curve'], row['seed'], row['planned_rounds']) for row in rows}
    wanted = reproduction.points(experiment, experiment.seeds)
    self.assertEqual(done, {point.key for point in wanted})
    x_name = 'round' if experiment.against == 'round' else 'planned_rounds'
    for curve, best in summary['curves'].items():
      losses = [
        float(row['test_loss'])
        for row in rows
        if row['curve'] == curve and int(row[x_name]) == best['best_at']
      ]
      self.assertLen(losses, 3)
      self.assertAlmostEqual(np.mean(losses), best['test_loss'], places=9)
    self.assertGreater((folder / 'figure.png').stat().st_size, 10_000)


class GuaranteeTest(absltest.TestCase):
  def test_the_headline_is_in_the_runs(self):
    rows = reproduction.read_points(
      _RESULTS / 'experiments' / 'guarantee' / 'points.csv'
    )
    readme = (_RESULTS.parent / 'README.md').read_text()
    for curve, target in (
      ('gradient, epsilon = 1', 1),
      ('gradient, epsilon = 3', 3),
      ('paper, claimed epsilon = 10', None),
    ):
      own = [
        row for row in rows if row['curve'] == curve and row['round'] == '30'
      ]
      self.assertLen(own, 3)
      loss = np.mean([float(row['test_loss']) for row in own])
      accuracy = np.mean([float(row['test_accuracy']) for row in own])
      self.assertIn(f'{loss:.3f}'.lstrip('0'), readme)
      self.assertIn(f'{accuracy:.3f}'.lstrip('0'), readme)
      for row in own:
        if target is not None:
          self.assertLessEqual(float(row['delivered_epsilon']), target)


if __name__ == '__main__':
  absltest.main()
