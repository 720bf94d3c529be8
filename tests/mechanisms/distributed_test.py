import math
import pathlib
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases
from tests.training import resume_cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.federated import client_work, learning_process
from tvdp_tf.mechanisms import distributed
from tvdp_tf.training import federation, train
from tvdp_tf.training import settings as settings_lib

_EVERYONE: dict[str, Any] = {
  'users': 10,
  'users_per_round': 10,
  'rounds': 4,
  'local_steps': 1,
  'epsilon': 3.0,
  'delta': 1e-5,
}


def build(sizes=None, **changes):
  values = {'mechanism': 'distributed', **_EVERYONE, **changes}
  return plan_cases.build(sizes or [60] * values['users'], **values)


class CalibrationTest(parameterized.TestCase):
  @parameterized.product(
    mechanism=('distributed', 'distributed_users'),
    adjacency=('replace-one', 'zero-out'),
    missing=((0, 0), (2, 0), (1, 3)),
    theta=(1.0, 0.8),
  )
  def test_the_shares_that_are_left_deliver_the_target(
    self, mechanism, adjacency, missing, theta
  ):
    dropouts, colluders = missing
    plan = build(
      mechanism=mechanism,
      adjacency=adjacency,
      dropouts=dropouts,
      colluders=colluders,
      theta=theta,
      example_l2_norm_clip=0.3,
      l2_norm_clip=0.3,
    )
    plan_cases.run(plan)
    # In the plainest way: the noise of the honest shares over the sensitivity.
    moved = 0.3 * (2 if adjacency == 'replace-one' else 1)
    honest = 10 - dropouts - colluders
    shares = [
      z * plan.mechanism.sensitivity().value / math.sqrt(honest)
      for z in plan.mechanism.schedule.stddevs()
    ]
    multipliers = [math.sqrt(honest) * share / moved for share in shares]
    epsilon = privacy.delivered_epsilon(multipliers, 1e-5, 'exact')
    self.assertBetween(epsilon, 3.0 * (1 - 1e-6), 3.0)
    self.assertAlmostEqual(plan.worst_epsilon(), epsilon, places=6)
    statement = plan.statement()
    self.assertTrue(statement.holds, statement.reason)
    text = '\n'.join(statement.assumptions)
    self.assertIn('SIMULATED', text)
    self.assertIn(f'at most {dropouts} drop out', text)
    self.assertIn(f'at most {colluders} tell the server', text)
    self.assertEqual(statement.adjacency, adjacency)

  def test_much_less_noise_than_where_uploads_are_seen(self):
    alone = build(mechanism='gradient')
    together = build()
    ratio = [
      plan.mean_noise_stddev(plan_cases.run(plan, rounds=1)[0])
      for plan in (alone, together)
    ]
    self.assertAlmostEqual(ratio[0] / ratio[1], math.sqrt(10), places=3)

  def test_fewer_clients_than_planned_hide_less(self):
    plan = build(dropouts=1, colluders=1)
    full = plan.round(1, np.arange(10), plan.schedule.stddev(1))
    fewer = plan.round(1, np.arange(6), plan.schedule.stddev(1))
    np.testing.assert_allclose(
      fewer.noise_multipliers / full.noise_multipliers[:6], math.sqrt(4 / 8)
    )
    none = plan.round(1, np.arange(2), plan.schedule.stddev(1))
    np.testing.assert_array_equal(none.noise_multipliers, 0)
    plan.take(fewer)
    plan_cases.run(plan)
    self.assertGreater(plan.worst_epsilon(), 3.0)
    self.assertFalse(plan.statement().holds)

  @parameterized.parameters(
    ({'dropouts': 6, 'colluders': 4}, 'dropouts and colluders must leave at'),
    ({'dropouts': -1}, 'dropouts must be an integer >= 0'),
    ({'colluders': 1.5}, 'colluders must be an integer >= 0'),
    ({'local_steps': 2}, 'local_steps must be 1 with mechanism distributed'),
    ({'noise': 'continuous'}, 'noise must be one of discrete'),
    ({'adjacency': 'add-or-remove-one'}, 'adjacency must be replace-one or'),
    ({'refinement': 'budget'}, 'refinement must be one of none'),
    ({'participation': 'poisson'}, 'participation must be one of'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      build(**changes)

  def test_noise_that_leaves_no_room_on_the_grid(self):
    with self.assertRaisesRegex(ValueError, 'epsilon must keep the rounding'):
      build(epsilon=1e-5, users_per_round=1, participation='uniform')

  def test_the_clip_makes_room_for_rounding(self):
    plan = build(example_l2_norm_clip=0.3)
    with mock.patch.object(client_work, 'build_gradient_sum') as build_work:
      plan.mechanism.parts(
        learning_process.Build(
          None,
          {'local_steps': 1, 'learning_rate': 2.0, 'l2_regularization': 0.0},
          None,
          None,
        )
      )
    clip = build_work.call_args.kwargs['example_l2_norm_clip']
    self.assertEqual(clip, 0.3 * (1 - 2.0**-12))
    # Half a step each, of two neighbours, in every value.
    share = plan.schedule.stddev(1) * 0.6 / math.sqrt(10) / 2.0**31
    self.assertLess(math.sqrt(plan.fed.num_parameters) * share, 0.6 * 2.0**-12)

  def test_no_sum_wraps_around(self):
    plan = build(sizes=[1000] * 10, example_l2_norm_clip=7.0)
    share = plan.schedule.stddev(1) * 14.0 / math.sqrt(10)
    longest = 10 * (1000 * 7.0 / (share / 2.0**31) + 14 * 2.0**31)
    self.assertGreater(plan.mechanism.modulus, 2 * longest)
    self.assertLess(plan.mechanism.modulus, 5 * longest)

  def test_a_model_with_regularization_is_refused(self):
    settings = settings_lib.TrainingSettings(
      **_EVERYONE,
      mechanism='distributed',
      model='svm',
      dataset='generated_adult',
    )
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    with self.assertRaisesRegex(Exception, 'model must have no l2 regular'):
      train.train(settings, folder)
    self.assertFalse(folder.exists())


class TrainingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('distributed', 'compiled', {}),
    ('distributed', 'tff', {'users_per_round': 5, 'rounds': 3}),
    ('distributed_users', 'compiled', {'local_steps': 2, 'epsilon': 20.0}),
  )
  def test_trains_under_a_guarantee(self, mechanism, runtime, changes):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    settings = settings_lib.TrainingSettings(
      **{
        **_EVERYONE,
        'mechanism': mechanism,
        'runtime': runtime,
        'dropouts': 1,
        'colluders': 1,
        **changes,
      }
    )
    with resume_cases.without_exports():
      result = train.train(settings, folder)
    self.assertTrue(result.statement.holds, result.statement.reason)
    audit = privacy.audit_ledger(folder / 'ledger.jsonl')
    self.assertTrue(audit.holds, audit.reason)
    target = settings.epsilon
    self.assertBetween(audit.worst_epsilon, 0.99 * target, target)
    self.assertEqual(audit.runs[0].run.noise, 'discrete')

  def test_equals_plain_gradient_descent_where_there_is_hardly_any_noise(self):
    """The same model as full-batch descent on all users' examples at once."""
    values = {**_EVERYONE, 'epsilon': 15.0, 'rounds': 1, 'learning_rate': 0.5}
    settings = settings_lib.TrainingSettings(
      **values, mechanism='distributed', seed=1, example_l2_norm_clip=1e3
    )
    plan = mechanisms.build(settings, federation.assemble(settings))
    self.assertIsInstance(plan, distributed.Distributed)
    noise = plan.mean_noise_stddev(plan_cases.run(plan, rounds=1)[0])
    self.assertLess(noise, 1.0)
    plain = settings_lib.TrainingSettings(
      **values, mechanism='none', seed=1, l2_norm_clip=1e6
    )
    folder = pathlib.Path(self.create_tempdir().full_path)
    with resume_cases.without_exports():
      results = [
        train.train(one, folder / one.mechanism) for one in (settings, plain)
      ]
    found, expected = (
      np.concatenate([np.ravel(w) for w in result.weights])
      for result in results
    )
    difference = (found - expected) / noise
    self.assertLess(abs(difference.std() - 1), 0.1)
    self.assertLess(abs(difference.mean()), 0.2)


if __name__ == '__main__':
  absltest.main()
