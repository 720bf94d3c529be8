"""`distributed` through Flower's SecAgg+, in an environment that has Flower."""

import dataclasses
import importlib.util
import unittest
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest
from scipy import stats

from tvdp_tf import privacy
from tvdp_tf.learning import discrete_gaussian
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import settings as settings_lib

_HAS_FLOWER = importlib.util.find_spec('flwr') is not None
if _HAS_FLOWER:
  from flwr.common.secure_aggregation import secaggplus_utils

  from tools import secagg_round


@unittest.skipUnless(_HAS_FLOWER, 'needs Flower: make check-secagg')
class SecAggTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.steps = secagg_round.Steps(
      settings_lib.TrainingSettings(
        mechanism='distributed',
        model='linear',
        users=6,
        users_per_round=6,
        dropouts=1,
        rounds=1,
        local_steps=1,
        epsilon=3.0,
        delta=1e-5,
      )
    )
    cls.lost_one = secagg_round.run(cls.steps, lost=frozenset([2]))

  def test_the_sum_is_that_of_those_who_are_left(self):
    outcome = self.lost_one
    assert outcome.total is not None
    self.assertCountEqual(outcome.uploads, [0, 1, 3, 4, 5])
    np.testing.assert_array_equal(outcome.total, sum(outcome.uploads.values()))

  def test_as_many_shares_as_are_accounted_for(self):
    mechanism = self.steps.plan.mechanism
    self.assertLen(self.lost_one.uploads, mechanism.honest_clients)
    shares = self.steps.share_stddev * np.sqrt(len(self.lost_one.uploads))
    # Of delta, for all that is not Gaussian; see `discrete_gaussian`.
    values = self.steps.fed.num_parameters
    distance = values / (48 * secagg_round.COARSE_STDDEV**2)
    taken = noise_distance.share_of_distance(3.0, distance)
    self.assertLess(taken, 1e-9)
    epsilon = privacy.delivered_epsilon(
      [shares / mechanism.sensitivity().value], 1e-5 - taken, 'exact'
    )
    self.assertBetween(epsilon, 2.999, 3.0001)

  def test_with_everyone(self):
    outcome = secagg_round.run(self.steps)
    assert outcome.total is not None
    self.assertLen(outcome.uploads, 6)
    np.testing.assert_array_equal(outcome.total, sum(outcome.uploads.values()))

  def test_no_sum_of_fewer_than_are_accounted_for(self):
    outcome = secagg_round.run(self.steps, lost=frozenset([0, 4]))
    self.assertIsNone(outcome.total)
    self.assertLen(outcome.uploads, 4)

  def test_the_server_sees_masks(self):
    """Uniform on 2^32, whatever the upload. False alarm 1e-9 each."""
    for user, vector in self.lost_one.masked.items():
      self.assertLen(vector, len(self.lost_one.uploads[user]))
      share = stats.kstest(vector / 2**32, 'uniform').pvalue
      self.assertGreater(share, 1e-9)
      shifted = self.lost_one.uploads[user] + secagg_round.RANGE // 2
      self.assertFalse(np.any(vector == shifted))

  def test_masks_have_32_bits(self):
    """As docs/DISTRIBUTED.md warns: all of a seed's 32 bytes are folded."""
    seed = bytes(range(32))
    turned = seed[4:] + seed[:4]
    masks = [
      secaggplus_utils.pseudo_rand_gen(each, 2**32, [(100,)])[0]
      for each in (seed, turned, bytes([1, *seed[1:]]))
    ]
    np.testing.assert_array_equal(masks[0], masks[1])
    self.assertFalse(np.any(masks[0] == masks[2]))

  def test_refuses_what_does_not_fit(self):
    cases: list[tuple[dict[str, Any], str]] = [
      ({'users': 8, 'users_per_round': 8}, 'sums must fit'),
      ({'epsilon': 14.0}, 'sums must fit'),
      ({'epsilon': 1e-3}, 'the grid must be finer'),
    ]
    for changes, message in cases:
      settings = dataclasses.replace(self.steps.plan.settings, **changes)
      with self.assertRaisesRegex(ValueError, message):
        secagg_round.Steps(settings)

  def test_an_integer_that_flower_would_cut_off(self):
    steps = mock.create_autospec(secagg_round.Steps, instance=True)
    for value in (secagg_round.RANGE, -secagg_round.RANGE):
      steps.integers.return_value = np.array([0, value])
      with self.assertRaisesRegex(ValueError, 'has changed an integer'):
        secagg_round.Client(steps, 0, {}).fit([], {})

  def test_noise_of_the_coarse_grid(self):
    """Chi-square and Kolmogorov and Smirnov's test; false alarm 1e-9 each."""
    stddev = secagg_round.COARSE_STDDEV
    drawn = secagg_round.coarse_noise(np.array([5, 6]), 3000)
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], len(drawn))
    self.assertBetween(np.sum((drawn / stddev) ** 2), low, high)
    self.assertGreater(stats.kstest(drawn / stddev, 'norm').pvalue, 1e-9)
    self.assertLess(
      np.abs(drawn).max(), noise_distance.LARGEST_DISCRETE * stddev
    )
    # They are draws on the fine grid, not parts of them.
    fine = discrete_gaussian.discrete_gaussian(np.array([5, 6]), 2**20, 0)
    self.assertContainsSubset((drawn[:100] * 2**11).tolist(), fine.numpy())
    # Any residue, not those alone that a finer grid would leave.
    self.assertGreater(len(np.unique(drawn % 16)), 15)


if __name__ == '__main__':
  absltest.main()
