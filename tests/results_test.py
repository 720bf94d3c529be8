"""The committed results agree with each other."""

import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import image

from reproduction import catalogue, document, result_tables, verdicts
from reproduction import runner as reproduction

_RESULTS = pathlib.Path(__file__).resolve().parents[1] / 'results/experiments'
_REPRODUCED = sorted(path.parent.name for path in _RESULTS.glob('*/points.csv'))
_RUNS = [
  name for name in _REPRODUCED if catalogue.EXPERIMENTS[name].game is None
]


class ReproductionTest(parameterized.TestCase):
  def test_every_experiment_was_run(self):
    self.assertCountEqual(_REPRODUCED, catalogue.EXPERIMENTS)

  @parameterized.parameters(*_REPRODUCED)
  def test_points_summary_and_report_agree(self, name):
    folder = _RESULTS / name
    experiment = catalogue.EXPERIMENTS[name]
    rows = reproduction.read_points(folder / reproduction.POINTS, experiment)
    summary = json.loads((folder / reproduction.SUMMARY).read_text())
    self.assertEqual(summary['settings'], dict(experiment.base))
    self.assertEqual(set(summary['curves']), set(experiment.curves))
    done = {(row['curve'], row['seed'], row['planned_rounds']) for row in rows}
    wanted = reproduction.points(experiment, experiment.seeds)
    self.assertEqual(done, {point.key for point in wanted})
    # All of them in calls that were timed.
    self.assertEqual(summary['ran']['points'], len(wanted))
    self.assertGreater(summary['ran']['seconds'], 0)
    decisions = verdicts.decide(experiment, rows)
    self.assertLen(decisions, len(experiment.claims))
    self.assertEqual(summary['claims'], verdicts.to_json(decisions))
    self.assertIn(
      verdicts.table(decisions) if decisions else name,
      (folder / reproduction.REPORT).read_text(),
    )

  @parameterized.parameters(*_RUNS)
  def test_best_points(self, name):
    experiment = catalogue.EXPERIMENTS[name]
    rows = reproduction.read_points(_RESULTS / name / reproduction.POINTS)
    summary = json.loads((_RESULTS / name / reproduction.SUMMARY).read_text())
    x_name = 'round' if experiment.against == 'round' else 'planned_rounds'
    for curve, best in summary['curves'].items():
      losses = [
        float(row['test_loss'])
        for row in rows
        if row['curve'] == curve and int(row[x_name]) == best['best_at']
      ]
      self.assertLen(losses, experiment.seeds)
      if best['test_loss'] is not None:
        self.assertAlmostEqual(np.mean(losses), best['test_loss'], places=9)

  @parameterized.parameters(*_REPRODUCED)
  def test_gradient_delivers_what_it_claims(self, name):
    experiment = catalogue.EXPERIMENTS[name]
    for row in reproduction.read_points(_RESULTS / name / reproduction.POINTS):
      settings = {**experiment.base, **experiment.curves[row['curve']]}
      if settings['mechanism'] == 'gradient':
        self.assertLessEqual(
          float(row['delivered_epsilon']), settings['epsilon']
        )

  def test_picture_of_the_frontier(self):
    path = pathlib.Path(self.create_tempdir().full_path) / 'frontier.png'
    result_tables.draw_frontier(path)
    drawn, committed = image.imread(path), image.imread(document.FRONTIER)
    self.assertEqual(drawn.shape, committed.shape)
    self.assertLess(np.mean(np.abs(drawn - committed) > 0.1), 1e-4)

  @parameterized.parameters(*_REPRODUCED)
  def test_picture_is_that_of_the_points(self, name):
    committed = image.imread(_RESULTS / name / reproduction.PICTURE)
    folder = pathlib.Path(self.create_tempdir().full_path)
    points = (_RESULTS / name / reproduction.POINTS).read_bytes()
    (folder / reproduction.POINTS).write_bytes(points)
    reproduction.draw(catalogue.EXPERIMENTS[name], folder)
    drawn = image.imread(folder / reproduction.PICTURE)
    self.assertEqual(drawn.shape, committed.shape)
    # Rounding may move an edge on another processor, a value would move more.
    self.assertLess(np.mean(np.abs(drawn - committed) > 0.1), 1e-4)


class PrototypeTest(parameterized.TestCase):
  """An independent prototype's losses: other code, weights and cohorts."""

  def loss(self, curve, rounds):
    name = 'step_size'
    rows = reproduction.read_points(_RESULTS / name / reproduction.POINTS)
    losses = [
      float(row['test_loss'])
      for row in rows
      if row['curve'] == curve and row['planned_rounds'] == str(rounds)
    ]
    self.assertLen(losses, 3)
    return np.mean(losses)

  @parameterized.parameters(
    (3, 0.1, 30, (1.064, 1.032, 1.060, 1.123, 1.380, 1.828)),
    (3, 0.1, 20, (0.997, 0.981, 0.990, 1.010, 1.087, 1.224)),
    (10, 0.05, 40, (0.897, 0.802, 0.795, 0.807, 0.915, 1.279)),
  )
  def test_of_three_seeds(self, epsilon, eta, rounds, losses):
    thetas = (0.9, 0.95, 0.975, 1, 1.05, 1.1)
    for theta, loss in zip(thetas, losses, strict=True):
      curve = f'epsilon = {epsilon}, eta = {eta:g}, theta = {theta:g}'
      np.testing.assert_allclose(self.loss(curve, rounds), loss, rtol=0.02)

  @parameterized.parameters(
    (0.05, 0.9, (1.376, 0.994, 0.887, 0.903)),
    (0.05, 1, (1.375, 0.983, 0.851, 0.807)),
    (0.05, 1.1, (1.376, 1.007, 0.985, 1.273)),
    (0.2, 1, (0.681, 0.557, 0.535, 0.538)),
    (0.5, 1, (0.516, 0.483, 0.483, 0.513)),
  )
  def test_of_one_seed(self, eta, theta, losses):
    for rounds, loss in zip((10, 20, 30, 40), losses, strict=True):
      curve = f'epsilon = 10, eta = {eta:g}, theta = {theta:g}'
      np.testing.assert_allclose(self.loss(curve, rounds), loss, rtol=0.05)

  @parameterized.parameters((0.05, 0.670), (0.2, 0.473), (0.5, 0.463))
  def test_without_noise(self, eta, loss):
    curve = f'no noise, eta = {eta:g}'
    np.testing.assert_allclose(self.loss(curve, 40), loss, rtol=0.02)


if __name__ == '__main__':
  absltest.main()
