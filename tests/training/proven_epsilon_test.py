"""What a statement calls delivered if a run did not go as planned."""

import dataclasses
import json

import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases

SMALL = {'delta': 1e-6, 'epsilon': 3.0, 'rounds': 10, 'users_per_round': 50}
CASES = (
  {'mechanism': 'gradient'},
  {'mechanism': 'central', 'participation': 'balanced'},
  {'mechanism': 'central', 'participation': 'poisson'},
)


def worst(statement):
  return statement.delivered[statement.view]


class ProvenEpsilonTest(parameterized.TestCase):
  @parameterized.parameters(*CASES)
  def test_a_run_as_planned_states_what_it_has_spent(self, **changes):
    plan = plan_cases.finished(plan_cases.build(**SMALL, **changes))
    self.assertTrue(plan.as_planned)
    statement = plan.statement()
    self.assertTrue(statement.holds)
    self.assertLessEqual(statement.epsilon, 3)
    self.assertNotIn('its first plan', ' '.join(statement.assumptions))

  @parameterized.parameters(*CASES)
  def test_a_run_that_stops_early_states_the_target(self, **changes):
    plan = plan_cases.build(**SMALL, **changes)
    plan_cases.run(plan, rounds=4)
    self.assertFalse(plan.as_planned)
    statement = plan.statement()
    self.assertTrue(statement.holds)
    # Fewer rounds have spent less; what made it stop may be the data.
    self.assertLess(plan.worst_epsilon(), 2.9)
    for view, epsilons in statement.delivered.items():
      self.assertGreaterEqual(min(epsilons.values()), 3, view)
    self.assertEqual(statement.epsilon, 3)
    self.assertIn('its first plan', ' '.join(statement.assumptions))
    json.dumps(statement.to_json_dict())

  @parameterized.parameters(*CASES[:2])
  def test_so_does_one_that_left_somebody_out(self, **changes):
    """Another run of the ledger may have spent what they had left."""
    plan = plan_cases.finished(plan_cases.build(**SMALL, **changes))
    self.assertTrue(plan.as_planned)
    *before, last = plan.history
    fewer = dataclasses.replace(
      last,
      clients=last.clients[1:],
      noise_multipliers=last.noise_multipliers[1:],
      noise_scales=last.noise_scales[1:],
    )
    plan.retake([*before, fewer])
    self.assertFalse(plan.as_planned)
    self.assertEqual(plan.statement().epsilon, 3)

  def test_a_long_secret_sample_can_be_stated(self):
    """At orders that are no integers dp_accounting's series fails."""
    plan = plan_cases.build(
      mechanism='central',
      participation='poisson',
      epsilon=3.0,
      delta=2.6e-4,
      theta=2.0,
      rounds=60,
      users=12,
      users_per_round=9,
    )
    statement = plan_cases.finished(plan).statement()
    self.assertTrue(statement.holds, statement.reason)
    for view, epsilons in statement.delivered.items():
      self.assertLessEqual(max(epsilons.values()), 3.01, view)

  @parameterized.parameters(*CASES[:2])
  def test_so_does_one_that_was_refined(self, **changes):
    plan = plan_cases.build(**SMALL, **changes, refinement='budget')
    plan_cases.run(plan, refine_at={5: 8})
    self.assertFalse(plan.as_planned)
    self.assertEqual(plan.statement().epsilon, 3)

  def test_and_one_that_repeated_a_round(self):
    plan = plan_cases.build(**SMALL, mechanism='gradient')
    plan_cases.run(plan, rounds=3)
    plan.take(plan.history[-1])
    self.assertFalse(plan.as_planned)

  def again(self, theta=0.95, rounds=10, renyi_order=None):
    """With secret samples, round 3 once more under the number of the next."""
    plan = plan_cases.build(**SMALL, mechanism='central', theta=theta)
    plan.renyi_order = renyi_order
    plan_cases.run(plan, rounds=3)
    for number in range(4, rounds + 1):
      plan.take(dataclasses.replace(plan.history[2], number=number))
    return plan

  def test_a_number_makes_no_round_the_one_planned(self):
    self.assertFalse(self.again().as_planned)
    self.assertTrue(self.again(theta=1.0).as_planned)

  @parameterized.parameters(
    ({}, False),
    ({'renyi_order': 8.0}, True),
    ({'theta': 1.0}, True),
    # All on record are the first rounds of the plan.
    ({'rounds': 3}, True),
  )
  def test_sampled_noise_that_changes_needs_its_order_in_advance(
    self, changes, holds
  ):
    plan = self.again(**{'rounds': 4} | changes)
    statement = plan.statement()
    self.assertEqual(statement.holds, holds, statement.reason)
    text = ' '.join(statement.assumptions)
    self.assertEqual('which the privacy filter guarantees' in text, holds)
    if not holds:
      self.assertIn('no Renyi order was fixed in advance', statement.reason)
      self.assertIn('is not a bound', text)

  @parameterized.parameters(
    # (theta, rounds of the plan whose noise was released)
    (0.95, [1, 2, 3], True),
    (0.95, [1, 1], False),
    (0.95, [*range(1, 11), 10], False),
    (1.0, [*range(1, 11), 10, 10], True),
  )
  def test_what_may_depend_on_what_was_released(self, theta, released, covered):
    plan = plan_cases.build(**SMALL, mechanism='central', theta=theta)
    first = plan_cases.run(plan_cases.build(**SMALL, mechanism='central'), 1)[0]
    for number, m in enumerate(released, start=1):
      stddev = plan.schedule.stddev(m)
      plan.take(plan.round(number, first.clients, stddev))
    self.assertEqual(plan.covers_changes, covered)

  def test_noise_set_anew_depends_on_what_was_released(self):
    plan = plan_cases.build(**SMALL, mechanism='central', theta=1.0)
    stddev = plan.schedule.stddev(1)
    for number, factor in enumerate([1.0, 1.0, 2.0], start=1):
      self.assertTrue(plan.covers_changes)
      plan.take(plan.round(number, np.arange(2), factor * stddev))
    self.assertFalse(plan.covers_changes)

  @parameterized.parameters('iid', 'dirichlet')
  def test_a_split_by_labels_is_said_not_to_be_covered(self, split):
    plan = plan_cases.build(**SMALL, mechanism='gradient', split=split)
    text = ' '.join(plan_cases.finished(plan).statement().assumptions)
    self.assertEqual('by their labels' in text, split == 'dirichlet')

  def test_a_seed_is_no_promise_of_the_rest(self):
    plan = plan_cases.finished(
      plan_cases.build(**SMALL, mechanism='gradient', seed=1)
    )
    self.assertEqual(plan.noise, 'continuous')
    self.assertFalse(plan.statement().holds)


class NoiseTest(parameterized.TestCase):
  @parameterized.parameters('gradient', 'central')
  def test_noise_without_a_seed_is_discrete(self, mechanism):
    plan = plan_cases.build(**SMALL, mechanism=mechanism)
    self.assertEqual((plan.noise, plan.mechanism.noise), ('discrete',) * 2)
    text = ' '.join(plan_cases.finished(plan).statement().assumptions)
    self.assertIn('needs no assumption about floating point', text)
    plan = plan_cases.build(**SMALL, mechanism=mechanism, runtime='tff')
    self.assertEqual(plan.noise, 'continuous')
    plan = plan_cases.build(**SMALL, mechanism=mechanism, noise='continuous')
    self.assertEqual((plan.noise, plan.mechanism.noise), ('continuous',) * 2)
    text = ' '.join(plan_cases.finished(plan).statement().assumptions)
    self.assertIn('added in floating point', text)

  def test_where_it_is_not_gaussian_far_enough_it_is_continuous(self):
    changes = {**SMALL, 'epsilon': 28.0, 'delta': 1e-5}
    plan = plan_cases.build(**changes, mechanism='gradient')
    self.assertEqual(plan.noise, 'continuous')
    self.assertLess(plan.delta, 1e-5)
    statement = plan_cases.finished(plan).statement()
    self.assertEqual(statement.verdict, 'HOLDS, BUT PROTECTS LITTLE')

  @parameterized.parameters(100.0, 1e9)
  def test_nothing_holds_beyond_its_reach(self, epsilon):
    changes = {**SMALL, 'epsilon': epsilon}
    plan = plan_cases.build(**changes, mechanism='gradient')
    statement = plan_cases.finished(plan).statement()
    self.assertFalse(statement.holds)
    self.assertIn('cut off too early to hide', statement.reason)

  def test_a_delta_below_what_is_drawn_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'delta must be at least'):
      plan_cases.build(**{**SMALL, 'delta': 1e-250}, mechanism='gradient')

  @parameterized.parameters(
    ('paper', 'noise must be one of continuous with'),
    ('laplace', 'noise must be one of continuous with'),
    ('none', 'noise must not be given with mechanism none'),
  )
  def test_others_have_continuous_noise_alone(self, mechanism, message):
    with self.assertRaisesRegex(ValueError, message):
      plan_cases.build(mechanism=mechanism, noise='discrete')


if __name__ == '__main__':
  absltest.main()
