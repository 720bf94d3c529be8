"""Plans without training: what they spend, and what they say about it."""

import dataclasses
import json
import math
import os

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.experiments import federation, plans
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.learning import datasets, models, participation
from tvdp_tf.privacy import ledger as ledger_lib

PAPER = {
  'users': 100,
  'users_per_round': 10,
  'local_steps': 5,
  'rounds': 30,
  'theta': 1.0,
}


def make_federation(settings, sizes=None, seed=0):
  """As many examples as in the paper, without their features."""
  sizes = sizes or [600] * settings.users
  blank = np.zeros([1, 28, 28, 1], np.float32)
  label = np.zeros([1], np.int32)
  return federation.Federation(
    dataset=datasets.Dataset('blank', blank, label, blank, label, 10),
    spec=models.MODELS['mlp'],
    examples=[np.arange(size) for size in sizes],
    participation=participation.PARTICIPATIONS[settings.participation](
      settings.users, settings.users_per_round, seed
    ),
    public_seed=seed,
  )


def run(plan, rounds=None, refine_at=None):
  """The rounds of a run, with the noise that the server's state would have."""
  schedule = getattr(plan.mechanism, 'schedule', None)
  last = rounds or plan.settings.rounds
  while len(plan.history) < last:
    m = len(plan.history) + 1
    cohort = plan.fed.participation.cohort(m)
    stddev = schedule.stddev(m) if schedule else 0.0
    plan.take(plan.round(m, cohort, stddev))
    if refine_at and m in refine_at:
      last = refine_at[m]
      schedule = plan.refine(m, last)
  return plan.history


def finished(plan):
  run(plan)
  return plan


def build(sizes=None, cohort_seed=0, **kwargs):
  settings = settings_lib.TrainingSettings(**{**PAPER, **kwargs})
  return plans.build(settings, make_federation(settings, sizes, cohort_seed))


class PaperPlanTest(parameterized.TestCase):
  def test_errata_numbers_of_the_default(self):
    plan = build(mechanism='paper')
    self.assertAlmostEqual(
      plan.mechanism.schedule.initial_stddev, 0.0107298, places=7
    )
    statement = finished(plan).statement()
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
    plan = build(mechanism='paper', users_per_round=100, rounds=3)
    history = run(plan)
    outsider = plan.statement().delivered['outsider, worst client']
    z = history[0].noise_multipliers[0]
    self.assertAlmostEqual(
      outsider['exact'],
      privacy.delivered_epsilon([10 * z] * 3, 1e-3, 'exact'),
      places=9,
    )

  @parameterized.parameters(0.9, 1.0, 1.1)
  def test_budget_refinement_spends_what_was_planned(self, theta):
    plan = build(mechanism='paper', theta=theta, refinement='budget')
    history = run(plan, refine_at={5: 27, 11: 23, 20: 40})
    spent = sum(past.noise_stddev**-2 for past in history)
    planned = plan.mechanism.schedule.precision()
    self.assertLessEqual(spent, planned * (1 + 1e-12))
    self.assertGreater(spent, planned * (1 - 1e-9))

  def test_theorem2_overspends_below_one_and_says_so(self):
    plan = build(mechanism='paper', theta=0.9, refinement='theorem2')
    # The paper's own use: ceil(.9 M) each time.
    run(plan, refine_at={5: 27, 8: 25, 11: 23})
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
    plan = build(
      sizes,
      mechanism='gradient',
      theta=theta,
      participation=participation,
      epsilon=3.0,
    )
    run(plan)
    for multipliers in map(plan._multipliers, range(100)):
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
    plan = build(sizes, mechanism='gradient', example_l2_norm_clip=0.7)
    past = run(plan, rounds=1)[0]
    stddev = plan.mechanism.schedule.stddev(1)
    np.testing.assert_allclose(
      past.noise_scales * stddev,
      past.noise_multipliers * 2 * 0.7 / np.array(sizes)[past.clients],
    )

  def test_more_rounds_than_planned_do_not_hold(self):
    plan = build(mechanism='gradient', rounds=10)
    plan.take(run(plan)[-1])
    statement = plan.statement()
    self.assertFalse(statement.holds)

  def test_a_seed_never_holds(self):
    plan = build(mechanism='gradient', seed=0)
    statement = finished(plan).statement()
    self.assertFalse(statement.holds)
    self.assertIn('reproducible', statement.reason)

  def test_random_refinements_stay_within_the_ledger(self):
    rng = np.random.default_rng(3)
    for trial in range(5):
      theta = float(rng.uniform(0.7, 1.3))
      plan = build(
        mechanism='gradient',
        theta=theta,
        refinement='budget',
        cohort_seed=trial,
      )
      first, second = int(rng.integers(2, 9)), int(rng.integers(10, 15))
      history = run(
        plan,
        refine_at={
          first: int(rng.integers(15, 40)),
          second: int(rng.integers(second + 1, 50)),
        },
      )
      path = self.create_tempdir().full_path + '/ledger.jsonl'
      with ledger_lib.PrivacyLedger.create(path, plan.header) as ledger:
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
    plan = build(mechanism='central', participation=name)
    statement = finished(plan).statement()
    self.assertTrue(statement.holds)
    self.assertEqual(statement.unit, 'user')
    self.assertBetween(statement.epsilon, 0.7 * 10, 10)

  def test_secret_sampling_needs_less_noise(self):
    poisson = build(mechanism='central')
    balanced = build(mechanism='central', participation='balanced')
    self.assertLess(
      poisson.mechanism.schedule.initial_stddev,
      balanced.mechanism.schedule.initial_stddev,
    )

  def test_warns_of_the_number_of_users(self):
    plan = build(mechanism='central', delta=0.011)
    statement = finished(plan).statement()
    self.assertTrue(any('100 users' in a for a in statement.assumptions))


class HistoryTest(parameterized.TestCase):
  """What a plan adds up round by round, against the whole list."""

  @parameterized.product(
    mechanism=('paper', 'gradient', 'central', 'laplace'),
    participation=('uniform', 'balanced'),
    theta=(0.9, 1.0),
  )
  def test_worst_client_is_that_of_the_whole_list(
    self, mechanism, participation, theta
  ):
    plan = build(
      sizes=range(50, 150),
      mechanism=mechanism,
      participation=participation,
      theta=theta,
      rounds=12,
    )
    multipliers: list[list[float]] = [[] for _ in range(100)]
    for m in range(1, 13):
      cohort = plan.fed.participation.cohort(m)
      past = plan.round(m, cohort, plan.mechanism.schedule.stddev(m))
      plan.take(past)
      for client, z in zip(cohort, past.noise_multipliers, strict=True):
        multipliers[client] += [z] * plan.releases_per_client
      if mechanism == 'laplace':
        expected = max(sum(1 / z for z in own) for own in multipliers)
      else:
        expected = max(
          privacy.delivered_epsilon(own, 1e-3, 'exact') for own in multipliers
        )
      # Clients that tie differ in the last place.
      np.testing.assert_allclose(plan.worst_epsilon(), expected, rtol=1e-12)

  @parameterized.parameters(1.0, 0.9)
  def test_secret_sampling_is_that_of_the_whole_list(self, theta):
    plan = build(mechanism='central', theta=theta, rounds=6)
    multipliers = []
    for m in range(1, 7):
      past = plan.round(m, np.arange(m), plan.mechanism.schedule.stddev(m))
      plan.take(past)
      multipliers.append(past.noise_multipliers[0])
      expected = privacy.delivered_epsilon(
        multipliers, 1e-3, 'rdp', 'poisson', 0.1
      )
      np.testing.assert_allclose(plan.worst_epsilon(), expected, rtol=1e-12)

  @parameterized.parameters(
    {'mechanism': 'paper', 'refinement': 'budget'},
    {'mechanism': 'gradient', 'refinement': 'budget', 'theta': 0.9},
    {'mechanism': 'central', 'participation': 'balanced', 'theta': 1.1},
    {'mechanism': 'central'},
    {'mechanism': 'laplace'},
    {'mechanism': 'none'},
  )
  def test_ledger_brings_back_the_history(self, **changes):
    """As after a restart: a new plan, the ledger and a snapshot."""
    plan = build(**changes, epsilon=30.0, rounds=6)
    path = self.create_tempdir().full_path + '/ledger.jsonl'
    with ledger_lib.PrivacyLedger.create(path, plan.header) as ledger:
      run(plan, refine_at={3: 5} if 'refinement' in changes else None)
      for past in plan.history:
        keys = 1 if plan.shares_noise else len(past.clients)
        ledger.record(
          past.number,
          release_ids=[
            ledger_lib.release_id(os.urandom(16), b'model', b'settings')
            for _ in range(keys)
          ],
          **plan.entry(past),
        )
    again = build(**changes, epsilon=30.0, rounds=6)
    again.restore(plan.snapshot(), len(plan.history))
    with ledger_lib.PrivacyLedger.open(path) as ledger:
      for record in ledger.charged:
        again.take(again.recorded(record))
    self.assertEqual(again.worst_epsilon(), plan.worst_epsilon())
    self.assertEqual(
      again.statement().to_json_dict(), plan.statement().to_json_dict()
    )
    if plan.replans:
      # Both go on alike, to the last bit.
      self.assertEqual(again.refine(5, 9), plan.refine(5, 9))
      cohort = plan.fed.participation.cohort(6)
      np.testing.assert_array_equal(
        again.round(6, cohort, 1.0).noise_multipliers,
        plan.round(6, cohort, 1.0).noise_multipliers,
      )

  @parameterized.parameters(
    ('gradient', {}),
    ('gradient', {'initial': np.ones(99)}),
    ('gradient', {'initial': np.full(100, np.nan)}),
    ('gradient', {'initial': np.zeros(100)}),
    ('central', {}),
    ('central', {'events': np.ones([2, 2])}),
    ('central', {'events': np.array([-1.0])}),
    ('paper', {'initial': np.ones(100)}),
  )
  def test_snapshot_that_is_none(self, mechanism, snapshot):
    plan = build(mechanism=mechanism)
    with self.assertRaisesRegex(ValueError, 'snapshot must'):
      plan.restore(snapshot, 30)

  def test_release_in_vain_counts_in_the_refinement(self):
    plan = build(mechanism='paper', refinement='budget', theta=1.0, rounds=10)
    budget = plan.mechanism.schedule.precision()
    run(plan, rounds=4)
    plan.take(plan.history[3])
    schedule = plan.refine(4, 10)
    spent = 5 * plan.history[0].noise_stddev ** -2
    self.assertAlmostEqual(
      6 * schedule.initial_stddev**-2 + spent, budget, delta=1e-9 * budget
    )
    for _ in range(5):
      plan.take(plan.history[3])
    with self.assertRaisesRegex(plans.BudgetSpentError, 'after 4 rounds'):
      plan.refine(4, 10)

  @parameterized.parameters('gradient', 'central')
  def test_who_has_nothing_left_gets_no_noise_that_is_finite(self, mechanism):
    plan = build(
      mechanism=mechanism,
      participation='balanced',
      users_per_round=100,
      rounds=2,
    )
    run(plan)
    schedule = plan.refine(1, 2)
    if mechanism == 'central':  # Noise that the ledger will refuse.
      self.assertEqual(schedule.initial_stddev, 1)
      return
    multipliers = plan.round(2, np.arange(100), 1.0).noise_multipliers
    self.assertTrue(np.isinf(multipliers).all())


class LaplacePlanTest(parameterized.TestCase):
  def test_calibration(self):
    plan = build(mechanism='laplace', participation='balanced')
    # Everyone three times; d = 25450, L1 sensitivity sqrt(d) / 60.
    scale = 3 * math.sqrt(25450) / 60 / 10
    self.assertAlmostEqual(
      plan.mechanism.noise_stddev, math.sqrt(2) * scale, places=9
    )
    statement = finished(plan).statement()
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
      settings_lib.TrainingSettings.from_dict(dataclasses.asdict(settings)),
      settings,
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

  def test_from_dict_wants_exactly_the_fields(self):
    values = dataclasses.asdict(settings_lib.TrainingSettings())
    with self.assertRaisesRegex(ValueError, 'extra is unknown'):
      settings_lib.TrainingSettings.from_dict({**values, 'extra': 1})
    del values['theta']
    with self.assertRaisesRegex(ValueError, 'theta is missing'):
      settings_lib.TrainingSettings.from_dict(values)


if __name__ == '__main__':
  absltest.main()
