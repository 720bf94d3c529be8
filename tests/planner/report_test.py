import json
import math
import os
import pathlib
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.planner import plan_cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.planner import files as planning_files
from tvdp_tf.planner import report as planning_report
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import simulation
from tvdp_tf.planner import text as planning_text
from tvdp_tf.training import settings as training_settings

_MADE: dict[tuple, planning_report.PlanReport] = {}


def _report(**values):
  """A report; most tests look at other than the best plan, found at once."""
  values = {'contraction': 0.3, **values}
  key = tuple(sorted(values.items()))
  if key not in _MADE:
    _MADE[key] = planning_report.plan(plan_cases.settings(**values))
  return _MADE[key]


class Ball(mechanisms.Mechanism):
  """A mechanism of one's own."""

  name = 'planned_ball'
  summary = 'noise on all that there is'
  unit = 'user'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._rule = privacy.projection_rule(settings.l2_norm_clip)
    schedule = privacy.calibrate(
      *(settings.epsilon, self.delta, settings.theta, settings.rounds),
      self._rule.value,
    )
    self.mechanism = mechanisms.PaperMechanism(schedule, settings.l2_norm_clip)

  @property
  def sensitivity_on_record(self):
    return '2 C', True

  def sensitivities(self):
    return np.full(self.settings.users, self._rule.value)

  def statement(self):
    return self.sound_statement(
      self.delivered_views('server', 'server, median client'),
      'server',
      why='two points of a ball are no further apart than its diameter',
      assumptions=(),
      rule=self._rule,
    )


class SettingsTest(parameterized.TestCase):
  def test_are_those_of_training(self):
    training = training_settings.TrainingSettings(rounds=3, mechanism='central')
    settings = planning_settings.PlanSettings.of(training)
    self.assertEqual(vars(settings) | vars(training), vars(settings))
    self.assertIs(planning_settings.PlanSettings.of(settings), settings)
    report = planning_report.plan(training)
    self.assertEqual(report.settings.contraction, 0.85)
    self.assertEqual(report.settings.initial_gap, math.log(10))

  def test_without_a_standard_error(self):
    with mock.patch.object(sys, 'stderr', None):
      made = planning_report.plan(
        plan_cases.settings(contraction=0.3), progress=True
      )
    self.assertGreaterEqual(made.optimal.rounds, 1)

  def test_what_is_given_is_not_assumed(self):
    settings = plan_cases.settings(given=frozenset({'contraction'}))
    self.assertNotIn('contraction', settings.assumed)
    self.assertIn('smoothness', settings.assumed)

  @parameterized.parameters(
    ({'users_per_round': 101}, 'users_per_round must be an integer from 1'),
    ({'contraction': 1.0}, 'contraction must be'),
    ({'initial_gap': -1.0}, 'initial_gap must be'),
    ({'smoothness': 0.0}, 'smoothness must be'),
    ({'examples_per_user': 0}, 'examples_per_user must be'),
    ({'dimension': 1.5}, 'dimension must be'),
    ({'rounds': 10**6}, 'rounds must be an integer from 1 to 100000'),
    ({'rounds': 10**5, 'users': 10**6}, 'users must be at most 1000'),
    ({'mechanism': 'gradient', 'calibration': 'tight'}, 'calibration must be'),
  )
  def test_bad_values(self, values, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      plan_cases.settings(**values)

  @parameterized.parameters(
    ({'users': 60001}, 'users must be at most the number of training'),
    ({'model': 'svm'}, 'model must be mlp, linear or cnn for 10 classes'),
    (
      {'dataset': 'digits', 'model': 'cnn'},
      'model must be mlp, linear or svm for',
    ),
    ({'epsilon': 1e-300}, 'epsilon must'),
    ({'theta': 1e-30, 'rounds': 1000}, 'theta must leave the noise of all'),
  )
  def test_what_does_not_fit(self, values, message):
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      planning_report.plan(plan_cases.settings(**values))


class NoiseTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.9, 0.02793),
    (0.95, 0.01633),
    (1, 0.01073),
    (1.05, 0.00787),
    (1.1, 0.00631),
  )
  def test_printed_noise_of_the_papers_settings(self, theta, stddev):
    noise = _report(theta=theta).noise[0]
    self.assertEqual(noise.calibration, 'printed')
    self.assertAlmostEqual(noise.noise_stddevs[0], stddev, delta=5.1e-6)

  def test_noise_over_printed(self):
    stddevs = {n.calibration: n.noise_stddevs[0] for n in _report().noise}
    self.assertAlmostEqual(
      stddevs['tight'] / stddevs['printed'], 1.2822, places=4
    )
    self.assertAlmostEqual(
      stddevs['exact'] / stddevs['printed'], 3.4547, places=4
    )

  def test_which_calibrations_are_unsound(self):
    for users, unsound in ((100, {'printed', 'tight'}), (10, {'printed'})):
      report = _report(users=users)
      self.assertEqual(
        {n.calibration for n in report.noise if not n.sound}, unsound
      )
      for n in report.noise:
        if n.sound:
          self.assertLessEqual(n.delivered, report.settings.epsilon)

  def test_only_what_the_mechanism_allows(self):
    for mechanism, calibrations in (
      ('gradient', ['exact', 'rdp', 'pld']),
      ('laplace', ['']),
    ):
      noise = _report(mechanism=mechanism).noise
      self.assertEqual([n.calibration for n in noise], calibrations)
      self.assertAlmostEqual(noise[0].delivered, 10, places=6)

  def test_a_calibration_out_of_reach_is_said_to_be(self):
    def run(settings, population):
      if settings.calibration == 'rdp':
        raise ValueError('epsilon must be within reach')
      return original(settings, population)

    original = simulation.run
    with mock.patch.object(simulation, 'run', run):
      report = planning_report.plan(plan_cases.settings())
    self.assertIn('within reach', planning_text.describe(report))
    json.dumps(report.to_json_dict(), allow_nan=False)


class ReportTest(parameterized.TestCase):
  @parameterized.product(
    calibration=mechanisms.Paper.calibrations('uniform'), users=(10, 100)
  )
  def test_the_paper_is_never_a_guarantee(self, calibration, users):
    report = _report(calibration=calibration, users=users)
    self.assertFalse(report.statement.holds)
    text = planning_text.describe(report)
    self.assertIn('NOT PROVEN', text)
    self.assertIn('600 times larger' if users == 100 else 'larger', text)
    self.assertIn('Verdict: NO GUARANTEE', text)
    self.assertNotIn('HOLDS', text)

  @parameterized.parameters(('gradient', 'continuous'), ('central', 'discrete'))
  def test_what_is_proven_holds(self, mechanism, noise):
    report = _report(mechanism=mechanism, users=20, rounds=6, delta=1e-6)
    self.assertTrue(report.statement.holds, report.statement.reason)
    text = planning_text.describe(report)
    self.assertIn(': PROVEN', text)
    self.assertIn('Verdict: HOLDS', text)
    self.assertRegex(text, rf'\n  noise +{noise};')

  def test_any_cohort_of_secret_draws(self):
    report = _report(mechanism='central', users=12, users_per_round=5, rounds=4)
    self.assertTrue(report.statement.holds, report.statement.reason)
    self.assertEmpty(report.correlated)  # It takes turns of everybody.
    self.assertNotIn('correlated', planning_text.describe(report))

  def test_a_seeded_run_is_a_simulation(self):
    report = _report(mechanism='gradient', seed=1)
    self.assertFalse(report.statement.holds)
    text = planning_text.describe(report)
    self.assertIn('this was a simulation', text)
    # Its cohorts are those of training.
    self.assertNotIn('training draws anew', text)
    text = planning_text.describe(_report(mechanism='gradient'))
    self.assertIn('drawn with the public seed 0', text)
    values = {'dataset': 'digits', 'users': 20, 'mechanism': 'gradient'}
    text = planning_text.describe(_report(**values, split='dirichlet'))
    self.assertIn('who takes part when and who holds how much', text)
    secret = _report(mechanism='central', users=20, rounds=6, delta=1e-6)
    self.assertNotIn('public seed 0', planning_text.describe(secret))

  def test_without_noise(self):
    report = _report(mechanism='none')
    self.assertEqual(report.asked.asked.noise, 0)
    text = planning_text.describe(report)
    self.assertIn('there is no noise to plan', text)
    self.assertIn('Verdict: NO GUARANTEE', text)
    self.assertNotIn('sigma', text)

  def test_theta_is_not_compared_where_it_does_not_matter(self):
    report = _report(mechanism='laplace')
    self.assertLen(report.plans, 1)
    text = planning_text.describe(report)
    self.assertIn('not used by this mechanism', text)
    self.assertNotIn('theta = ', text)
    self.assertRegex(text, r'\n  best: M = \d+, sigma')

  def test_a_schedule_of_ones_own(self):
    report = _report(mechanism='gradient', rounds=20, schedule=(2.0,) * 20)
    constant = _report(mechanism='gradient', rounds=20)
    np.testing.assert_allclose(
      report.asked.asked.bound, constant.asked.asked.bound
    )
    text = planning_text.describe(report)
    self.assertIn('a schedule of your own', text)
    self.assertIsNot(report.optimal, report.asked.asked)
    self.assertRegex(text, r'\n  yours .* asked')
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_a_mechanism_of_ones_own(self):
    self.addCleanup(mechanisms.MECHANISMS.pop, Ball.name, None)
    report = _report(mechanism=Ball, delta=1e-6, contraction=0.85)
    text = planning_text.describe(report)
    self.assertIn('planned_ball: noise on all that there is', text)
    self.assertIn('Verdict: HOLDS', text)
    self.assertAlmostEqual(report.optimal.theta, math.sqrt(0.85), delta=2e-3)

  def test_what_is_not_there(self):
    report = planning_report.plan(
      plan_cases.settings(
        dataset='tfds:no_such_set', examples_per_user=50, dimension=7
      )
    )
    self.assertEqual(report.population.num_parameters, 7)
    self.assertEqual(set(report.population.examples_per_user), {50})

  def test_a_hopeless_plan_is_called_out(self):
    values = {
      'mechanism': 'gradient',
      'learning_rate': 0.1,
      'epsilon': 8.0,
      'contraction': 0.9,
    }
    report = _report(**values, theta=0.95)
    self.assertEmpty(report.warnings)
    self.assertNotIn('WARNING: the plan', planning_text.describe(report))
    # The budget goes into the last rounds, and the first ones drown.
    report = _report(**values, theta=1.1, rounds=300)
    text = ' '.join(planning_text.describe(report).split())
    self.assertIn('it promises no progress', text)
    self.assertRegex(
      text,
      r'WARNING: the plan you asked for \(theta = 1.1, M = 300\) has a'
      r' bound [0-9.e+]+ times that of the best plan \(theta = 0.9\d*, M = ',
    )

  def test_one_round_may_be_the_best(self):
    """Though the search goes by blocks, here of two rounds."""
    report = _report(
      mechanism='gradient',
      participation='balanced',
      rounds=1,
      users=10,
      users_per_round=5,
      epsilon=0.02,
    )
    self.assertEqual(report.settings.block_rounds, 2)
    self.assertEqual(report.optimal, report.asked.asked)
    self.assertEqual(report.optimal.rounds, 1)

  @parameterized.parameters(
    {'theta': 0.95},
    {'theta': 1.1, 'participation': 'balanced', 'calibration': 'rdp'},
    {'mechanism': 'gradient', 'theta': 0.9, 'rounds': 34},
    {'mechanism': 'laplace', 'contraction': 0.85},
    {'mechanism': 'none'},
    {'mechanism': 'central', 'users': 20, 'rounds': 6, 'delta': 1e-6},
  )
  def test_text_fits_a_terminal(self, **values):
    text = planning_text.describe(_report(**values))
    self.assertLessEqual(max(map(len, text.splitlines())), 80)
    self.assertEndsWith(text.splitlines()[-1], text.splitlines()[-1].rstrip())

  @parameterized.parameters(*mechanisms.MECHANISMS)
  def test_infinity_is_written_as_a_word(self, mechanism):
    report = _report(
      mechanism=mechanism, local_steps=1, users=20, rounds=6, delta=1e-6
    )
    values = json.loads(json.dumps(report.to_json_dict(), allow_nan=False))
    self.assertEqual(values['settings']['mechanism'], mechanism)
    if mechanism == 'none':
      self.assertEqual(values['calibrations'][0]['delivered'], 'inf')


class FilesTest(parameterized.TestCase):
  def test_nothing_half_written(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    with (
      mock.patch.object(
        planning_files, '_draw', side_effect=OSError(28, 'full')
      ),
      self.assertRaisesRegex(
        ValueError, '^output_dir must be writable.*: full'
      ),
    ):
      planning_files.write(_report(), folder / 'plan')
    self.assertEmpty(list(folder.iterdir()))

  @parameterized.parameters('none', 'laplace', 'gradient')
  def test_of_any_mechanism(self, mechanism):
    folder = pathlib.Path(self.create_tempdir().full_path, 'plan')
    planning_files.write(_report(mechanism=mechanism), folder)
    self.assertCountEqual(
      os.listdir(folder),
      ['plan.json', 'plan.csv', 'plan.png', 'report.html'],
    )


if __name__ == '__main__':
  absltest.main()
