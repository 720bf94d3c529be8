import dataclasses
import itertools
import json
import math
import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.planner import files as planning_files
from tvdp_tf.planner import noise as planning_noise
from tvdp_tf.planner import report as planning_report
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import text as planning_text
from tvdp_tf.training import settings as training_settings

Settings = planning_settings.PlanSettings
GRADIENT = Settings(mechanism='gradient')


def _schedule(settings):
  return planning_noise.calibrated_schedule(settings, settings.calibration)


def _views(settings):
  views = planning_noise.delivered_views(settings, _schedule(settings))
  return {view.name: view for view in views}


def _possible_rounds(rounds, block):
  """Every way to take part once in each block."""
  starts = range(1, rounds + 1, block)
  blocks = [range(s, min(s + block, rounds + 1)) for s in starts]
  return [np.array(chosen) for chosen in itertools.product(*blocks)]


class SettingsTest(parameterized.TestCase):
  def test_words_are_those_of_training(self):
    self.assertEqual(
      planning_settings.CALIBRATIONS['paper'], training_settings.CALIBRATIONS
    )
    self.assertContainsSubset(
      training_settings.PARTICIPATIONS, planning_settings.PARTICIPATIONS
    )

  def test_defaults_depend_on_the_mechanism(self):
    self.assertEqual(Settings().participation, 'uniform')
    self.assertEqual(Settings().calibration, 'printed')
    self.assertEqual(GRADIENT.participation, 'balanced')
    self.assertEqual(GRADIENT.calibration, 'exact')

  def test_what_is_given_is_not_assumed(self):
    settings = Settings(given=frozenset({'contraction', 'learning_rate'}))
    self.assertNotIn('contraction', settings.assumed)
    self.assertIn('dimension', settings.assumed)
    self.assertEqual(settings.unused, ('learning_rate',))

  @parameterized.parameters(
    ({'users_per_round': 101}, 'users_per_round must be an integer from 1'),
    ({'delta': 1e-310}, 'delta must be a number >= 1e-300'),
    ({'l2_norm_clip': 1e308}, 'l2_norm_clip must leave'),
    ({'mechanism': 'none'}, 'mechanism must be one of'),
    ({'participation': 'once'}, 'participation must be one of'),
    ({'calibration': 'guess'}, 'calibration must be one of'),
    ({'mechanism': 'gradient', 'calibration': 'tight'}, 'calibration must be'),
  )
  def test_bad_values(self, values, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      Settings(**values)


class NoiseTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.9, 0.02793),
    (0.95, 0.01633),
    (1, 0.01073),
    (1.05, 0.00787),
    (1.1, 0.00631),
  )
  def test_printed_noise_of_the_papers_settings(self, theta, stddev):
    schedule = _schedule(Settings(theta=theta))
    self.assertAlmostEqual(schedule.initial_stddev, stddev, delta=5.1e-6)

  @parameterized.parameters(('tight', 1.2822), ('exact', 3.4547))
  def test_noise_over_printed(self, calibration, ratio):
    for theta in (0.9, 1, 1.1):
      printed = _schedule(Settings(theta=theta))
      other = _schedule(Settings(theta=theta, calibration=calibration))
      self.assertAlmostEqual(
        other.initial_stddev / printed.initial_stddev, ratio, places=4
      )

  def test_which_calibrations_are_unsound(self):
    for users, unsound in ((100, {'printed', 'tight'}), (10, {'printed'})):
      settings = Settings(users=users)
      noise = [
        planning_noise.calibrated_noise(settings, name)
        for name in planning_settings.CALIBRATIONS['paper']
      ]
      self.assertEqual({n.calibration for n in noise if not n.sound}, unsound)
      for n in noise:
        if n.sound:
          self.assertLessEqual(n.delivered, settings.epsilon)

  @parameterized.parameters(0.8, 0.95, 1.0, 1.1)
  def test_nobody_pays_more_than_the_worst_user(self, theta):
    for rounds, block in ((1, 3), (3, 3), (7, 3), (9, 3), (5, 1)):
      worst = planning_noise.worst_rounds(theta, rounds, block)
      possible = _possible_rounds(rounds, block)
      spent = [np.sum(theta ** (1.0 - taken)) for taken in possible]
      self.assertAlmostEqual(np.sum(theta ** (1.0 - worst)), max(spent))
      self.assertIn(worst.tolist(), [taken.tolist() for taken in possible])

  @parameterized.product(
    theta=(0.9, 1.0, 1.05),
    rounds=(20, 34),
    calibration=('exact', 'rdp', 'pld'),
  )
  def test_the_worst_user_of_gradient_meets_the_target(
    self, theta, rounds, calibration
  ):
    settings = dataclasses.replace(
      GRADIENT, theta=theta, rounds=rounds, calibration=calibration, epsilon=2.0
    )
    schedule = _schedule(settings)
    multipliers = schedule.noise_multipliers(2 * 1.0 / 600)
    taken = planning_noise.worst_rounds(theta, rounds, 10)
    # Every local step is a release.
    released = np.repeat(multipliers[taken - 1], settings.local_steps)
    delivered = privacy.delivered_epsilon(released, settings.delta, calibration)
    self.assertBetween(delivered, 0.99 * 2.0, 2.0 * (1 + 1e-12))
    if calibration == 'exact':
      self.assertAlmostEqual(delivered, 2.0, places=9)
      z = privacy.gaussian_noise_multiplier(2.0, settings.delta)
      self.assertAlmostEqual(np.sum(released**-2.0) * z * z, 1, places=9)

  @parameterized.parameters('uniform', 'poisson')
  def test_luck_is_not_counted_as_privacy(self, participation):
    settings = dataclasses.replace(
      GRADIENT, theta=0.95, participation=participation
    )
    multipliers = _schedule(settings).noise_multipliers(1 / 300)
    released = np.repeat(multipliers, settings.local_steps)
    self.assertAlmostEqual(
      privacy.delivered_epsilon(released, 1e-3, 'exact'), 10, places=9
    )

  @parameterized.parameters(
    {'epsilon': 1e-300}, {'theta': 1e-30, 'rounds': 1000}
  )
  def test_noise_that_is_no_number(self, **values):
    with self.assertRaisesRegex(
      ValueError, f'^{next(iter(values))} must leave'
    ):
      _schedule(Settings(**values))


class DeliveredTest(parameterized.TestCase):
  def test_papers_settings(self):
    views = _views(Settings())
    none, visible = views['none'].epsilons, views['visible'].epsilons
    poisson = views['poisson'].epsilons
    self.assertAlmostEqual(none['exact'], 61.6311, delta=1e-4)
    self.assertAlmostEqual(none['pld'], 61.6311, delta=1e-3)
    self.assertAlmostEqual(none['rdp'], 65.843, delta=0.01)
    self.assertAlmostEqual(visible['exact'], 16.4736, delta=1e-4)
    self.assertAlmostEqual(visible['pld'], 16.4736, delta=1e-3)
    self.assertAlmostEqual(visible['rdp'], 19.6256, delta=0.01)
    self.assertAlmostEqual(poisson['pld'], 6.6752, delta=2e-3)
    self.assertAlmostEqual(poisson['rdp'], 8.2929, delta=0.01)
    self.assertIsNone(poisson['exact'])

  @parameterized.parameters(
    (0.9, 15.2), (0.95, 13.1), (1, 11.3), (1.05, 13.0), (1.1, 14.8)
  )
  def test_worst_user_of_balanced_participation(self, theta, epsilon):
    view = _views(Settings(theta=theta, participation='balanced'))['balanced']
    self.assertAlmostEqual(view.epsilons['exact'], epsilon, delta=0.06)

  def test_unequal_noise_has_no_exact_visible_accountant(self):
    view = _views(Settings(theta=0.9))['visible']
    self.assertIsNone(view.epsilons['exact'])
    self.assertAlmostEqual(view.epsilons['pld'], 19.3947, delta=5e-3)

  def test_every_local_step_counts(self):
    settings = dataclasses.replace(GRADIENT, theta=0.95, rounds=20)
    multipliers = _schedule(settings).noise_multipliers(1 / 300)
    views = _views(settings)
    for name, rounds in (('none', slice(None)), ('balanced', [9, 19])):
      released = np.repeat(multipliers[rounds], settings.local_steps)
      for accountant, epsilon in views[name].epsilons.items():
        self.assertAlmostEqual(
          epsilon / privacy.delivered_epsilon(released, 1e-3, accountant), 1
        )
    self.assertAlmostEqual(views['balanced'].epsilons['exact'], 10)

  def test_slow_accountants_are_left_out(self):
    views = _views(Settings(theta=0.999, rounds=201))
    self.assertIsNone(views['visible'].epsilons['pld'])
    self.assertIsNotNone(views['visible'].epsilons['rdp'])
    self.assertIsNotNone(views['none'].epsilons['pld'])

  def test_everybody_in_every_round_has_one_view(self):
    self.assertEqual(list(_views(Settings(users=10))), ['none'])

  @parameterized.product(
    mechanism=planning_settings.MECHANISMS,
    participation=planning_settings.PARTICIPATIONS,
  )
  def test_only_what_is_proven_and_happens_is_guaranteed(
    self, mechanism, participation
  ):
    settings = Settings(mechanism=mechanism, participation=participation)
    guaranteed = {
      name
      for name, view in _views(settings).items()
      if view.promise.startswith(planning_noise.GUARANTEED)
    }
    allowed = {
      'paper': set(),
      'gradient': {
        'none',
        'balanced' if participation == 'balanced' else 'visible',
      },
    }
    self.assertEqual(guaranteed, allowed[mechanism])


class ReportTest(parameterized.TestCase):
  @parameterized.product(
    calibration=planning_settings.CALIBRATIONS['paper'], users=(10, 100)
  )
  def test_the_paper_is_never_a_guarantee(self, calibration, users):
    report = planning_report.make_report(
      Settings(calibration=calibration, users=users)
    )
    self.assertFalse(report.statement.holds)
    text = planning_text.describe(report)
    self.assertIn('NOT PROVEN', text)
    self.assertNotIn('HOLDS', text)
    self.assertNotIn('guaranteed', text)

  def test_gradient_is(self):
    report = planning_report.make_report(GRADIENT)
    self.assertTrue(report.statement.holds)
    self.assertEqual(report.statement.view, 'balanced')
    self.assertIsNone(report.moment_claim)
    self.assertIn('Verdict: HOLDS', planning_text.describe(report))

  @parameterized.parameters(
    Settings(theta=0.95),
    Settings(theta=1.1, participation='balanced', calibration='rdp'),
    dataclasses.replace(GRADIENT, theta=0.9, rounds=34),
  )
  def test_text_fits_a_terminal(self, settings):
    text = planning_text.describe(planning_report.make_report(settings))
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_a_calibration_out_of_reach_is_said_to_be(self):
    def calibrated(settings, calibration):
      if calibration == 'rdp':
        raise ValueError('epsilon must be within reach')
      return original(settings, calibration)

    original = planning_noise.calibrated_schedule
    with mock.patch.object(planning_noise, 'calibrated_schedule', calibrated):
      report = planning_report.make_report(Settings())
    self.assertIn('within reach', planning_text.describe(report))
    json.dumps(report.to_json_dict(), allow_nan=False)

  def test_infinity_is_written_as_a_word(self):
    report = planning_report.make_report(Settings(theta=1e-6, rounds=50))
    values = json.loads(json.dumps(report.to_json_dict(), allow_nan=False))
    asked = next(
      t['asked'] for t in values['plan']['thetas'] if t['asked']['theta'] < 0.1
    )
    self.assertGreater(asked['noise'], 1e100)
    infinite = dataclasses.replace(report, moment_claim=math.inf)
    self.assertEqual(infinite.to_json_dict()['moment_claim'], 'inf')


class FilesTest(parameterized.TestCase):
  def test_nothing_half_written(self):
    report = planning_report.make_report(Settings())
    folder = pathlib.Path(self.create_tempdir().full_path)
    with (
      mock.patch.object(
        planning_files, '_draw', side_effect=OSError(28, 'full')
      ),
      self.assertRaisesRegex(
        ValueError, '^output_dir must be writable.*: full'
      ),
    ):
      planning_files.write(report, folder / 'plan')
    self.assertEmpty(list(folder.iterdir()))


if __name__ == '__main__':
  absltest.main()
