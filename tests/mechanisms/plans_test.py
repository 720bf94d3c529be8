"""Plans without training: what they spend, and what they say about it."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.training import settings as settings_lib


class PaperPlanTest(parameterized.TestCase):
  def test_errata_numbers_of_the_default(self):
    plan = plan_cases.build(mechanism='paper')
    self.assertAlmostEqual(
      plan.mechanism.schedule.initial_stddev, 0.0107298, places=7
    )
    statement = plan_cases.finished(plan).statement()
    views = statement.delivered
    always = views['server, a client that takes part in every round']
    self.assertAlmostEqual(always['exact'], 61.6311, delta=1e-4)
    before = views['server, a client before the cohorts are drawn']
    self.assertAlmostEqual(before['pld'], 16.4736, delta=2e-3)
    self.assertAlmostEqual(before['rdp'], 19.6256, delta=2e-3)
    self.assertFalse(statement.holds)
    self.assertEqual(statement.claimed_epsilon, 10)
    self.assertIn('is not a bound', statement.reason)

  def test_outsider_sees_the_mean(self):
    # Always drawn: K = U, equal shares. z = sqrt(K) sigma / Ds.
    plan = plan_cases.build(mechanism='paper', users_per_round=100, rounds=3)
    history = plan_cases.run(plan)
    outsider = plan.statement().delivered['outsider, worst client']
    z = history[0].noise_multipliers[0]
    self.assertAlmostEqual(
      outsider['exact'],
      privacy.delivered_epsilon([10 * z] * 3, 1e-3, 'exact'),
      places=9,
    )

  @parameterized.parameters(0.9, 1.0, 1.1)
  def test_budget_refinement_spends_what_was_planned(self, theta):
    plan = plan_cases.build(mechanism='paper', theta=theta, refinement='budget')
    history = plan_cases.run(plan, refine_at={5: 27, 11: 23, 20: 40})
    spent = sum(past.noise_stddev**-2 for past in history)
    planned = plan.mechanism.schedule.precision()
    self.assertLessEqual(spent, planned * (1 + 1e-12))
    self.assertGreater(spent, planned * (1 - 1e-9))

  def test_theorem2_overspends_below_one_and_says_so(self):
    plan = plan_cases.build(mechanism='paper', theta=0.9, refinement='theorem2')
    # The paper's own use: ceil(.9 M) each time.
    plan_cases.run(plan, refine_at={5: 27, 8: 25, 11: 23})
    statement = plan.statement()
    warning = [a for a in statement.assumptions if 'refinement theorem2' in a]
    self.assertLen(warning, 1)
    self.assertStartsWith(warning[0], 'WARNING')
    self.assertIn('1.514', warning[0])


class GradientPlanTest(parameterized.TestCase):
  @parameterized.product(
    theta=(0.5, 0.9, 1.0, 1.2), participation=('balanced', 'uniform')
  )
  def test_everyone_spends_the_target_and_no_more(self, theta, participation):
    sizes = list(range(50, 150))
    plan = plan_cases.build(
      sizes,
      mechanism='gradient',
      theta=theta,
      participation=participation,
      epsilon=3.0,
    )
    plan_cases.run(plan)
    for multipliers in map(plan.spending.noise_multipliers, range(100)):
      if not len(multipliers):
        continue  # Not drawn.
      epsilon = privacy.delivered_epsilon(multipliers, 1e-3, 'exact')
      self.assertLessEqual(epsilon, 3.0)
      self.assertGreater(epsilon, 3.0 * (1 - 1e-6))
    statement = plan.statement()
    self.assertTrue(statement.holds)
    self.assertLessEqual(statement.epsilon, 3.0)
    json.dumps(statement.to_json_dict(), allow_nan=False)

  def test_noise_is_that_of_the_sensitivity(self):
    sizes = list(range(50, 150))
    plan = plan_cases.build(
      sizes, mechanism='gradient', example_l2_norm_clip=0.7
    )
    past = plan_cases.run(plan, rounds=1)[0]
    stddev = plan.mechanism.schedule.stddev(1)
    np.testing.assert_allclose(
      past.noise_scales * stddev,
      past.noise_multipliers * 2 * 0.7 / np.array(sizes)[past.clients],
    )

  def test_no_noise_with_and_without_the_papers_projection(self):
    plain = plan_cases.build(mechanism='none', l2_norm_clip=0.5)
    projected = plan_cases.build(mechanism='algorithm1', l2_norm_clip=0.5)
    self.assertIsNone(plain.mechanism.l2_norm_clip)
    self.assertEqual(projected.mechanism.l2_norm_clip, 0.5)
    for plan in (plain, projected):
      self.assertFalse(plan_cases.finished(plan).statement().holds)

  def test_zero_out_has_half_the_noise(self):
    replaced, zeroed = (
      plan_cases.finished(
        plan_cases.build(mechanism='gradient', adjacency=adjacency)
      )
      for adjacency in ('replace-one', 'zero-out')
    )
    for one, other in zip(replaced.history, zeroed.history, strict=True):
      np.testing.assert_array_equal(
        one.noise_multipliers, other.noise_multipliers
      )
      np.testing.assert_allclose(one.noise_scales, 2 * other.noise_scales)
    statement = zeroed.statement()
    self.assertTrue(statement.holds)
    self.assertEqual(statement.adjacency, 'zero-out')
    self.assertEqual(zeroed.header.adjacency, 'zero-out')
    self.assertIn('present, or its gradient is zero', statement.describe())
    # As much rounding, of half as much.
    self.assertEqual(
      statement.sensitivity.rounding,
      2 * replaced.statement().sensitivity.rounding,
    )
    self.assertNotEqual(zeroed.graph_key(), replaced.graph_key())

  @parameterized.parameters(
    ('paper', 'zero-out'),
    ('gradient', 'add-or-remove-one'),
    ('central', 'replace-one'),
  )
  def test_adjacency_that_is_not_proven(self, mechanism, adjacency):
    with self.assertRaisesRegex(ValueError, '^adjacency must be .*, got '):
      settings_lib.TrainingSettings(mechanism=mechanism, adjacency=adjacency)

  def test_more_rounds_than_planned_do_not_hold(self):
    plan = plan_cases.build(mechanism='gradient', rounds=10)
    plan.take(plan_cases.run(plan)[-1])
    statement = plan.statement()
    self.assertFalse(statement.holds)

  @parameterized.parameters(({'theta': 0.3},), ({'schedule': (1e9,) * 29},))
  def test_noise_beyond_the_grid_is_refused_before_a_round(self, changes):
    if 'schedule' in changes:
      changes['schedule'] = (*changes['schedule'], 1.0)
    wanted = {'mechanism': 'gradient', 'participation': 'uniform', **changes}
    with self.assertRaisesRegex(
      ValueError, r"^noise must be continuous for a .*e\+\d+ .* 'discrete'$"
    ):
      plan_cases.build(**wanted, noise='discrete')
    plan_cases.build(**wanted, noise='continuous')
    plan_cases.build(mechanism='gradient', noise='discrete', theta=0.9)

  def test_nor_does_a_refinement_reach_it(self):
    """The run ends where all that is left would drown in noise."""
    plan = plan_cases.build(mechanism='gradient', noise='discrete', theta=0.6)
    plan_cases.run(plan, rounds=3)
    before = plan.mechanism
    with self.assertRaisesRegex(
      mechanisms.BudgetSpentError, '^noise must be continuous'
    ):
      plan.refine(3, 200)
    self.assertIs(plan.mechanism, before)

  @parameterized.parameters(
    ({'mechanism': 'gradient', 'noise': 'discrete'}, 64),
    ({'mechanism': 'distributed', 'local_steps': 1}, 46),
  )
  def test_rounds_that_are_over_need_no_grid(self, changes, new_rounds):
    """A refined schedule reaches back to noise that was never drawn."""
    plan = plan_cases.build(theta=0.6, **changes)
    plan_cases.run(plan, rounds=20)
    schedule = plan.refine(20, new_rounds)
    # With the rounds that are over it would not fit.
    is_gradient = changes['mechanism'] == 'gradient'
    with self.assertRaisesRegex(ValueError, '^(noise|epsilon) must'):
      plan._check_grid(schedule if is_gradient else schedule.stddevs())

  def test_a_seed_never_holds(self):
    plan = plan_cases.build(mechanism='gradient', seed=0)
    statement = plan_cases.finished(plan).statement()
    self.assertFalse(statement.holds)
    self.assertIn('reproducible', statement.reason)

  def test_random_refinements_stay_within_the_ledger(self):
    rng = np.random.default_rng(3)
    for trial in range(5):
      theta = float(rng.uniform(0.7, 1.3))
      plan = plan_cases.build(
        mechanism='gradient',
        theta=theta,
        refinement='budget',
        cohort_seed=trial,
      )
      first, second = int(rng.integers(2, 9)), int(rng.integers(10, 15))
      history = plan_cases.run(
        plan,
        refine_at={
          first: int(rng.integers(15, 40)),
          second: int(rng.integers(second + 1, 50)),
        },
      )
      path = self.create_tempdir().full_path + '/ledger.jsonl'
      with plan_cases.ledger_of(plan, path) as ledger:
        for past in history:
          finite = np.isfinite(past.noise_multipliers)
          # Whose rounds were over before the plan was made longer.
          for client in past.clients[~finite].tolist():
            self.assertGreater(ledger.epsilon(client), 9.9999)
          if not finite.any():
            continue
          ledger.record(
            past.number,
            past.clients[finite].tolist(),
            [
              ledger_lib.release_id(rng.bytes(16), b'model', b'settings')
              for _ in range(finite.sum())
            ],
            past.noise_multipliers[finite].tolist(),
            plan.releases_per_client,
          )
        self.assertLessEqual(ledger.epsilons().max(), 10.0)
        self.assertGreater(ledger.epsilons().max(), 9.9999)


class CentralPlanTest(parameterized.TestCase):
  @parameterized.parameters('balanced', 'uniform', 'poisson')
  def test_holds_for_users(self, name):
    plan = plan_cases.build(mechanism='central', participation=name)
    statement = plan_cases.finished(plan).statement()
    self.assertTrue(statement.holds)
    self.assertEqual(statement.unit, 'user')
    self.assertBetween(statement.epsilon, 0.7 * 10, 10)

  def test_secret_sampling_needs_less_noise(self):
    poisson = plan_cases.build(mechanism='central')
    balanced = plan_cases.build(mechanism='central', participation='balanced')
    self.assertLess(
      poisson.mechanism.schedule.initial_stddev,
      balanced.mechanism.schedule.initial_stddev,
    )

  def test_warns_of_the_number_of_users(self):
    plan = plan_cases.build(mechanism='central', delta=0.011)
    statement = plan_cases.finished(plan).statement()
    self.assertTrue(any('100 users' in a for a in statement.assumptions))


class LaplacePlanTest(parameterized.TestCase):
  def test_calibration(self):
    plan = plan_cases.build(mechanism='laplace', participation='balanced')
    # Everyone three times; d = 25450, L1 sensitivity sqrt(d) / 60.
    scale = 3 * math.sqrt(25450) / 60 / 10
    self.assertAlmostEqual(
      plan.mechanism.noise_stddev, math.sqrt(2) * scale, places=9
    )
    statement = plan_cases.finished(plan).statement()
    self.assertFalse(statement.holds)
    self.assertLessEqual(statement.epsilon, 10.0)
    self.assertAlmostEqual(statement.epsilon, 10.0)


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'mechanism': 'gradient'}, 'balanced', 'exact'),
    ({'mechanism': 'paper'}, 'uniform', 'printed'),
    ({'mechanism': 'central'}, 'poisson', 'rdp'),
    ({'mechanism': 'laplace'}, 'uniform', ''),
    ({'mechanism': 'none'}, 'uniform', ''),
    (
      {'mechanism': 'central', 'participation': 'uniform'},
      'uniform',
      'exact',
    ),
  )
  def test_defaults_suit_the_mechanism(self, given, participation, calibration):
    settings = settings_lib.TrainingSettings(**given)
    self.assertEqual(settings.participation, participation)
    self.assertEqual(settings.calibration, calibration)
    self.assertEqual(
      settings_lib.TrainingSettings(**dataclasses.asdict(settings)), settings
    )

  def test_defaults_of_steps_and_rate_suit_the_mechanism(self):
    class Own(mechanisms.Noiseless):
      name = 'own_defaults'
      defaults: ClassVar[Mapping[str, Any]] = {'local_steps': 3}

    self.enter_context(mock.patch.dict(mechanisms.MECHANISMS))
    found = {}
    for mechanism in (*mechanisms.MECHANISMS, Own):
      settings = settings_lib.TrainingSettings(mechanism=mechanism)
      given = settings_lib.TrainingSettings(
        mechanism=mechanism, local_steps=1, learning_rate=0.25
      )
      self.assertEqual((given.local_steps, given.learning_rate), (1, 0.25))
      found[settings.mechanism] = settings.local_steps, settings.learning_rate
    others = dict.fromkeys(found, (10, 1.0))
    self.assertEqual(
      found,
      {
        **others,
        'none': (10, 0.5),
        'distributed': (1, 1.0),
        'own_defaults': (3, 1.0),
      },
    )

  @parameterized.parameters(
    ({'participation': 'poisson'}, 'participation must be one of uniform'),
    (
      {'mechanism': 'gradient', 'calibration': 'printed'},
      'calibration must be one of exact, rdp, pld with mechanism gradient',
    ),
    (
      {'mechanism': 'central', 'calibration': 'exact'},
      'calibration must be one of rdp with mechanism central',
    ),
    (
      {'mechanism': 'none', 'calibration': 'exact'},
      'calibration must not be given with mechanism none',
    ),
    (
      {'mechanism': 'gradient', 'refinement': 'theorem2'},
      'refinement must be one of none, budget with mechanism gradient',
    ),
    (
      {'mechanism': 'central', 'refinement': 'budget'},
      'refinement must be one of none with mechanism central',
    ),
    ({'alpha_d': 1.5}, 'alpha_d must be a number in'),
    ({'example_l2_norm_clip': 0.0}, 'example_l2_norm_clip must be'),
  )
  def test_refuses_what_does_not_go_together(self, given, message):
    with self.assertRaisesRegex(ValueError, message):
      settings_lib.TrainingSettings(**given)


if __name__ == '__main__':
  absltest.main()
