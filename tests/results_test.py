"""The committed results agree with each other."""

import csv
import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.experiments import paper_experiments, reproduction

_RESULTS = pathlib.Path(__file__).resolve().parents[1] / 'results'
_REPRODUCED = sorted(
  path.parent.name for path in _RESULTS.glob('reproduction/*/points.csv')
)


class ReproductionTest(parameterized.TestCase):
  @parameterized.parameters(*_REPRODUCED)
  def test_points_summary_and_experiment_agree(self, name):
    folder = _RESULTS / 'reproduction' / name
    experiment = paper_experiments.EXPERIMENTS[name]
    rows = reproduction.read_points(folder / 'points.csv')
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['claim'], experiment.claim)
    self.assertEqual(summary['settings'], dict(experiment.base))
    self.assertEqual(set(summary['curves']), set(experiment.curves))
    done = {(row['curve'], row['seed'], row['planned_rounds']) for row in rows}
    wanted = reproduction.points(experiment, seeds=3)
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
    with open(_RESULTS / 'guarantee_mnist' / 'summary.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    readme = (_RESULTS.parent / 'README.md').read_text()
    for run, target in (
      ('gradient, target 1', 1),
      ('gradient, target 3', 3),
      ('paper, claimed 10', None),
    ):
      own = [row for row in rows if row['run'] == run]
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
