import itertools

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from tensorflow_privacy.privacy.dp_query import tree_aggregation

from tests.planner import plan_cases
from tvdp_tf import privacy
from tvdp_tf.learning import server_optimizer
from tvdp_tf.planner import best_schedule, correlated
from tvdp_tf.planner import report as report_lib

_EVERYONE = np.ones([1, 16], bool)
_CONSTANT = privacy.GeometricShape(1.0)


class _Basis(tree_aggregation.ValueGenerator):
  """The i-th node's noise is the i-th unit vector."""

  def initialize(self):
    return tf.constant(0)

  def next(self, state):
    return tf.one_hot(state, 40), state + 1


def _response(contraction, rounds=16):
  return best_schedule.impulse_response(
    server_optimizer.ServerOptimizer(), contraction, rounds
  )


def _report(**values) -> report_lib.PlanReport:
  return report_lib.plan(plan_cases.settings(**values))


class FactorizationTest(parameterized.TestCase):
  @parameterized.product(
    rounds=(1, 2, 7, 16),
    make=(
      correlated.tree,
      lambda rounds: correlated.banded_root(rounds, min(3, rounds)),
      lambda rounds: correlated.independent(
        '', privacy.GeometricShape(0.8), rounds
      ),
    ),
  )
  def test_reads_what_was_released(self, rounds, make):
    """L C = 1: the noise is all that is added."""
    found = make(rounds)
    np.testing.assert_allclose(
      found.noise @ found.factor, np.eye(rounds), atol=1e-9
    )

  def test_tree_has_the_noise_of_the_library(self):
    aggregator = tree_aggregation.EfficientTreeAggregator(_Basis())
    state = aggregator.init_state()
    prefixes = []
    for _ in range(13):
      noise, state = aggregator.get_cumsum_and_update(state)
      prefixes.append(noise.numpy())
    theirs = np.diff(prefixes, axis=0, prepend=0)
    ours = correlated.tree(13).noise
    np.testing.assert_allclose(theirs @ theirs.T, ours @ ours.T, atol=1e-5)

  def test_a_user_in_many_rounds_moves_all_its_columns(self):
    """By signs of the user's choice, in one dimension: all are tried."""
    planned = np.zeros([2, 6], bool)
    planned[0, [0, 3]] = planned[1, [1, 2, 4]] = True
    for found in (
      *(correlated.tree(6), correlated.banded_root(6, 3)),
      correlated.independent('', privacy.GeometricShape(0.5), 6),
    ):
      most = max(
        np.sum((found.factor @ (user * signs)) ** 2)
        for user in planned
        for signs in itertools.product([-1.0, 1.0], repeat=6)
      )
      self.assertAlmostEqual(found.squared_sensitivity(planned), most)

  def test_of_a_tree(self):
    """log2 M + 1 nodes for a user in one round, M (2 M - 1) for one in all."""
    tree = correlated.tree(16)
    self.assertEqual(tree.squared_sensitivity(np.eye(16, dtype=bool)), 5)
    self.assertEqual(tree.squared_sensitivity(_EVERYONE), 16 * 31)

  @parameterized.parameters(0.3, 0.8, 0.99)
  def test_none_is_better_for_a_user_in_every_round(self, contraction):
    response = _response(contraction)
    least = np.sum(np.abs(response)) ** 2
    for found in (
      correlated.tree(16),
      *(correlated.banded_root(16, bands) for bands in range(1, 17)),
    ):
      self.assertGreater(
        found.variance(response, _EVERYONE), least * (1 - 1e-9)
      )
    best = privacy.ListedShape(
      best_schedule.advise(response, _CONSTANT).schedule
    )
    self.assertAlmostEqual(
      correlated.independent('', best, 16).variance(response, _EVERYONE)
      / least,
      1,
    )

  def test_is_better_for_a_user_in_one_round(self):
    response = np.ones(16)
    planned = np.eye(16, dtype=bool)
    constant = correlated.independent('', _CONSTANT, 16)
    self.assertAlmostEqual(constant.variance(response, planned), 16)
    self.assertLess(correlated.tree(16).variance(response, planned), 3)
    banded = correlated.best_banded_root(response, planned)
    self.assertLess(banded.variance(response, planned), 4)


class ReportTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'users_per_round': 100, 'participation': 'uniform'}, 'as planned'),
    ({'users_per_round': 1, 'participation': 'balanced'}, 'tree'),
  )
  def test_says_what_is_predicted_best(self, changes, best):
    report = _report(
      mechanism='central', theta=1.0, rounds=16, contraction=0.999, **changes
    )
    name, stddev = report.correlated[0]
    self.assertStartsWith(name, best)
    self.assertLessEqual(stddev, 1)
    self.assertEqual(dict(report.correlated)['as planned'], 1)
    # The plan is constant noise.
    self.assertAlmostEqual(
      dict(report.correlated)['independent, constant'], 1, places=3
    )

  def test_nothing_of_noise_that_clients_add(self):
    self.assertEmpty(_report(mechanism='gradient').correlated)
    self.assertEmpty(_report(mechanism='distributed', local_steps=1).correlated)


if __name__ == '__main__':
  absltest.main()
