import csv
import dataclasses
import json
import math
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tests.planner import plan_cases
from tvdp_tf.planner import files as planning_files
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import report as planning_report
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import text as planning_text

_settings = plan_cases.settings
HEADER = 'round,noise_stddev,test_loss,test_accuracy\r\n'
# Enough scatter to give the estimate a visible interval.
LOSSES = (
  0.4
  + 2.3 * 0.85 ** np.arange(1, 31)
  + 0.01 * np.random.default_rng(0).normal(size=30)
)


def metrics_text(losses=LOSSES, header=HEADER):
  rows = [f'{m},0.0,{x!r},0.5\r\n' for m, x in enumerate(losses.tolist(), 1)]
  return header + ''.join(rows)


class PilotTestCase(parameterized.TestCase):
  def folder(self, metrics=None, config=None):
    folder = pathlib.Path(self.create_tempdir().full_path)
    text = metrics_text() if metrics is None else metrics
    data = text if isinstance(text, bytes) else text.encode()
    (folder / 'metrics.csv').write_bytes(data)
    if config is not None:
      (folder / 'config.json').write_text(config)
    return folder

  def pilot(self, **settings):
    config = json.dumps({'settings': settings}) if settings else None
    return planning_pilot.read(str(self.folder(config=config)))


class ReadTest(PilotTestCase):
  def test_folder_and_file_are_the_same(self):
    folder = self.folder()
    path = str(folder / 'metrics.csv')
    pilot = planning_pilot.read(str(folder))
    self.assertEqual(pilot, planning_pilot.read(path))
    self.assertEqual(pilot.path, path)
    self.assertEqual(pilot.rounds, tuple(range(1, 31)))
    self.assertEqual(pilot.losses, tuple(LOSSES))
    self.assertAlmostEqual(pilot.estimate.contraction, 0.85, delta=0.005)
    self.assertIsNone(pilot.settings)

  @parameterized.parameters(
    ('test_loss,round,noise_stddev', '{x},{m},0'),
    ('\ufeffround,noise_stddev,test_loss', '{m},0.0,{x}'),
    ('round,noise_stddev,test_loss,"a,b"', '{m},0.0,{x},"1,""2"'),
  )
  def test_other_forms_of_the_file(self, header, row):
    rows = [row.format(m=m, x=x) for m, x in enumerate(LOSSES.tolist(), 1)]
    pilot = planning_pilot.read(
      str(self.folder('\n'.join([header, *rows, ''])))
    )
    self.assertEqual(pilot.losses, tuple(LOSSES))

  @parameterized.named_parameters(
    ('empty', '', 'line 1: round, noise_stddev, test_loss must each be'),
    ('columns', 'round,test_loss\n1,2\n', 'line 1: noise_stddev must each'),
    (
      'twice',
      'round,' + metrics_text(),
      'line 1: round must each be the name of',
    ),
    ('no_rounds', HEADER, 'rounds must have at least 5 entries, got 0'),
    (
      'few',
      metrics_text(LOSSES[:4]),
      'rounds must have at least 5 entries, got 4',
    ),
    ('rising', metrics_text(3 - LOSSES), 'losses must fall by more'),
    (
      'noise',
      metrics_text().replace('3,0.0,', '3,0.25,', 1),
      'noise_stddev must be 0 in a pilot, got 0.25 in round 3',
    ),
    (
      'nan_noise',
      HEADER + '1,nan,2,3\n',
      'noise_stddev must be 0 in a pilot, got nan in round 1',
    ),
    (
      'no_number',
      HEADER + '1,0,2,3\n2,0,loss,3\n',
      "line 3: test_loss is 'loss', not a number",
    ),
    ('infinite', metrics_text(LOSSES * math.inf), 'finite numbers, got inf'),
    ('no_loss', HEADER + '1,0,,3\n', "line 2: test_loss is '', not a number"),
    ('short_line', HEADER + '1,0,2\n', 'line 2: there must be 4 fields'),
    ('long_line', HEADER + '1,0,2,3,4\n', 'line 2: there must be 4 fields'),
    (
      'no_round',
      HEADER + '1.5,0,2,3\n',
      "line 2: round is '1.5', not an integer above 0",
    ),
    (
      'round_again',
      HEADER + '1,0,2,3\n1,0,2,3\n',
      "line 3: round is '1', not an integer above 1",
    ),
    ('open_quote', HEADER + '1,0,"2,3\n', 'unexpected end of data'),
    ('huge_field', HEADER + '1,0,' + '2' * 200_000, 'field larger than'),
    ('binary', b'\x89PNG\r\n\x1a\n\xff', 'it is not text in UTF-8'),
    ('nul', metrics_text().replace('2,0.0', '\0,0.0', 1), "round is '"),
  )
  def test_refusal_is_one_clear_line(self, metrics, message):
    folder = str(self.folder(metrics))
    with self.assertRaises(ValueError) as caught:
      planning_pilot.read(folder)
    text = str(caught.exception)
    self.assertStartsWith(
      text,
      'estimate_contraction must be the folder or metrics.csv of a run without'
      f' noise, got {folder!r}: ',
    )
    self.assertIn(message, text)
    self.assertLen(text.splitlines(), 1)
    self.assertLess(len(text), 300)

  def test_missing_files(self):
    empty = self.create_tempdir().full_path
    for path in (empty, f'{empty}/metrics.csv', f'{empty}/no\nfile'):
      with self.assertRaisesRegex(ValueError, 'No such file') as caught:
        planning_pilot.read(path)
      self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters('', '[]', '{"settings": 1}', '{}', '{"settings')
  def test_settings_are_a_help_only(self, config):
    pilot = planning_pilot.read(str(self.folder(config=config)))
    self.assertIsNone(pilot.settings)
    self.assertEmpty(pilot.differences(_settings()))

  def test_differences(self):
    pilot = self.pilot(
      users=100, users_per_round=5, local_steps=5, learning_rate=0.1, rounds=9
    )
    self.assertEqual(
      pilot.differences(_settings()),
      {'users_per_round': (5, 10), 'learning_rate': (0.1, 0.5)},
    )


class MeasuredReportTest(PilotTestCase):
  @parameterized.parameters('exact', 'printed')
  def test_the_plan_is_that_of_the_measurement(self, calibration):
    pilot = self.pilot()
    estimate = pilot.estimate
    report = planning_report.plan(_settings(calibration=calibration), pilot)
    given = planning_report.plan(
      _settings(
        calibration=calibration,
        contraction=estimate.contraction,
        initial_gap=estimate.initial_gap,
      )
    )
    self.assertEqual(report.optimal, given.optimal)
    self.assertAlmostEqual(
      report.optimal.theta, math.sqrt(estimate.contraction), delta=2e-3
    )
    # What is proposed is what that plan is calibrated to.
    proposed = planning_report.plan(
      _settings(
        calibration=calibration,
        theta=report.optimal.theta,
        rounds=report.optimal.rounds,
      )
    )
    sim = proposed.simulation
    self.assertEqual(sim.mean_noise_stddevs[0], report.optimal.sigma)
    self.assertEqual(sim.mean_noise_stddevs[-1], report.optimal.last_sigma)

  def test_blocks_are_whole(self):
    report = planning_report.plan(
      _settings(mechanism='gradient', users_per_round=50), self.pilot()
    )
    self.assertEqual(report.objective.block_rounds, 2)
    self.assertEqual(report.optimal.rounds % 2, 0)

  def test_measured_is_neither_assumed_nor_given(self):
    pilot = self.pilot()
    report = planning_report.plan(_settings(), pilot)
    self.assertEqual(report.settings.assumed, ('smoothness',))
    text = planning_text.describe(report)
    rows = [line.split() for line in text.splitlines()]
    for name in planning_settings.MEASURED:
      row = next(row for row in rows if row[:1] == [f'--{name}'])
      self.assertEqual(row[1], f'{getattr(report.settings, name):g}')
      self.assertEqual(row[2], 'measured')
    self.assertIn(f'measured from {pilot.path}', ' '.join(text.split()))
    self.assertIn(
      f'--theta={report.optimal.theta:.6g} --rounds={report.optimal.rounds}',
      text,
    )

  @parameterized.parameters(*planning_settings.MEASURED)
  def test_measured_and_given(self, name):
    with self.assertRaisesRegex(
      ValueError, f'^{name} must not be given if a pilot measures it, got'
    ):
      planning_report.plan(_settings(given=frozenset({name})), self.pilot())

  def test_what_uncertainty_costs(self):
    pilot = self.pilot()
    report = planning_report.plan(
      _settings(calibration='exact', epsilon=50.0), pilot
    )
    estimate, objective = pilot.estimate, report.objective
    self.assertLen(report.alternatives, 2)
    for alternative, contraction in zip(
      report.alternatives, estimate.contraction_interval, strict=True
    ):
      self.assertEqual(alternative.contraction, contraction)
      theta, rounds = report.optimal.theta, report.optimal.rounds
      m = np.arange(1, rounds + 1)
      variances = report.optimal.sigma**2 * theta ** (m - 1.0)
      bound = contraction**rounds * alternative.initial_gap
      bound += objective.noise_weight * np.sum(
        contraction ** (rounds - m) * variances
      )
      self.assertAlmostEqual(alternative.bound / bound, 1, places=9)
      self.assertLessEqual(alternative.best.bound, alternative.bound * 1.001)
      self.assertAlmostEqual(
        alternative.best.theta, math.sqrt(contraction), delta=2e-3
      )

  def test_warnings(self):
    # A straight start, a pilot that is short, and other rounds than planned.
    config = json.dumps({'settings': {'local_steps': 7}})
    m = np.arange(1, 16)
    smooth = 0.4 + 1.5 * 0.93**m - 0.05 * 0.6**m
    pilot = planning_pilot.read(str(self.folder(metrics_text(smooth), config)))
    report = planning_report.plan(_settings(), pilot)
    text = ' '.join(planning_text.describe(report).split())
    self.assertIn('WARNING: the residuals are correlated', text)
    self.assertIn('% of the gap left', text)
    self.assertIn(
      'WARNING: A was measured in rounds with --local_steps=7', text
    )
    text = planning_text.describe(
      planning_report.plan(
        _settings(local_steps=7, learning_rate=0.5), self.pilot()
      )
    )
    self.assertNotIn('WARNING: the residuals', text)
    self.assertNotIn('of the gap left', text)
    self.assertNotIn('WARNING: A was', text)

  @parameterized.parameters(('paper', True), ('gradient', False))
  def test_a_proposal_is_no_guarantee_by_itself(self, mechanism, warned):
    report = planning_report.plan(_settings(mechanism=mechanism), self.pilot())
    proposed = planning_text.describe(report).partition('\nProposed\n')[2]
    self.assertNotEmpty(proposed)
    self.assertEqual('no guarantee' in proposed, warned)

  def test_a_plan_that_is_worse_than_none(self):
    report = planning_report.plan(
      _settings(calibration='exact', epsilon=0.1), self.pilot()
    )
    self.assertGreater(report.optimal.bound, report.settings.initial_gap)
    text = ' '.join(planning_text.describe(report).split())
    self.assertIn('the bound promises no progress', text)
    # A target is a number that was given, not a bound to be rounded up.
    self.assertIn('target epsilon = 0.1, delta = 0.001', text)

  @parameterized.parameters('paper', 'gradient')
  def test_text_fits_a_terminal(self, mechanism):
    pilot = dataclasses.replace(
      self.pilot(users=7, local_steps=3, l2_norm_clip=1.0), path='metrics.csv'
    )
    text = planning_text.describe(
      planning_report.plan(_settings(mechanism=mechanism), pilot)
    )
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_files(self):
    pilot = self.pilot(users=100)
    report = planning_report.plan(_settings(), pilot)
    folder = pathlib.Path(self.create_tempdir().full_path) / 'plan'
    planning_files.write(report, folder)
    self.assertCountEqual(
      [path.name for path in folder.iterdir()],
      [
        *('plan.json', 'plan.csv', 'plan.png', 'contraction.png'),
        'report.html',
      ],
    )
    self.assertEqual(
      (folder / 'contraction.png').read_bytes()[:8], b'\x89PNG\r\n\x1a\n'
    )
    plan = json.loads((folder / 'plan.json').read_text())
    estimate = pilot.estimate
    measured = plan['measured']
    self.assertEqual(measured['source'], pilot.path)
    self.assertEqual(measured['contraction'], estimate.contraction)
    self.assertEqual(
      measured['contraction_interval'], list(estimate.contraction_interval)
    )
    self.assertEqual(measured['pilot_settings'], {'users': 100})
    self.assertEqual(plan['settings']['contraction'], estimate.contraction)
    self.assertEqual(plan['settings']['measured_from'], pilot.path)
    self.assertLen(plan['plan']['alternatives'], 2)
    with open(folder / 'plan.csv', newline='') as file:
      self.assertLen(list(csv.DictReader(file)), len(report.curve))


if __name__ == '__main__':
  absltest.main()
