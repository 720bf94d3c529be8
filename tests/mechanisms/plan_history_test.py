"""What a plan has on record, and how it is restored."""

import os

import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.privacy import ledger as ledger_lib


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
    plan = plan_cases.build(
      sizes=range(50, 150),
      mechanism=mechanism,
      participation=participation,
      theta=theta,
      rounds=12,
    )
    multipliers: list[list[float]] = [[] for _ in range(100)]
    spent = np.zeros(100)
    for m in range(1, 13):
      cohort = plan.fed.participation.cohort(m)
      past = plan.round(m, cohort, plan.mechanism.schedule.stddev(m))
      plan.take(past)
      for client, z in zip(cohort, past.noise_multipliers, strict=True):
        own = multipliers[client]
        own += [z] * plan.releases_per_client
        if mechanism == 'laplace':
          spent[client] = sum(1 / z for z in own)
        else:
          spent[client] = privacy.delivered_epsilon(own, plan.delta, 'exact')
      # Clients that tie differ in the last place.
      np.testing.assert_allclose(plan.worst_epsilon(), spent.max(), rtol=1e-12)

  @parameterized.parameters(1.0, 0.9)
  def test_secret_sampling_is_that_of_the_whole_list(self, theta):
    plan = plan_cases.build(mechanism='central', theta=theta, rounds=6)
    multipliers = []
    for m in range(1, 7):
      past = plan.round(m, np.arange(m), plan.mechanism.schedule.stddev(m))
      plan.take(past)
      multipliers.append(past.noise_multipliers[0])
      expected = privacy.delivered_epsilon(
        multipliers, plan.delta, 'rdp', 'poisson', 0.1
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
    plan = plan_cases.build(**changes, epsilon=30.0, rounds=6)
    path = self.create_tempdir().full_path + '/ledger.jsonl'
    with plan_cases.ledger_of(plan, path) as ledger:
      plan_cases.run(
        plan, refine_at={3: 5} if 'refinement' in changes else None
      )
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
    again = plan_cases.build(**changes, epsilon=30.0, rounds=6)
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
    plan = plan_cases.build(mechanism=mechanism)
    with self.assertRaisesRegex(ValueError, 'snapshot must'):
      plan.restore(snapshot, 30)

  def test_release_in_vain_counts_in_the_refinement(self):
    plan = plan_cases.build(
      mechanism='paper', refinement='budget', theta=1.0, rounds=10
    )
    budget = plan.mechanism.schedule.precision()
    plan_cases.run(plan, rounds=4)
    plan.take(plan.history[3])
    schedule = plan.refine(4, 10)
    spent = 5 * plan.history[0].noise_stddev ** -2
    self.assertAlmostEqual(
      6 * schedule.initial_stddev**-2 + spent, budget, delta=1e-9 * budget
    )
    for _ in range(5):
      plan.take(plan.history[3])
    with self.assertRaisesRegex(mechanisms.BudgetSpentError, 'after 4 rounds'):
      plan.refine(4, 10)

  @parameterized.parameters('gradient', 'central')
  def test_who_has_nothing_left_gets_no_noise_that_is_finite(self, mechanism):
    plan = plan_cases.build(
      mechanism=mechanism,
      participation='balanced',
      users_per_round=100,
      rounds=2,
    )
    plan_cases.run(plan)
    schedule = plan.refine(1, 2)
    if mechanism == 'central':  # Noise that the ledger will refuse.
      self.assertEqual(schedule.initial_stddev, 1)
      return
    multipliers = plan.round(2, np.arange(100), 1.0).noise_multipliers
    self.assertTrue(np.isinf(multipliers).all())


if __name__ == '__main__':
  absltest.main()
