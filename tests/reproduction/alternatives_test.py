import math

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from reproduction import alternatives
from tests.mechanisms import plan_cases
from tvdp_tf.planner import correlated
from tvdp_tf.privacy import calibration


def _build(mechanism, **changes) -> alternatives.Aggregated:
  values = {
    'users': 16,
    'users_per_round': 16,
    'rounds': 16,
    'epsilon': 3.0,
    'delta': 1e-3,
    'seed': 3,
    **changes,
  }
  plan = plan_cases.build([20] * 16, mechanism=mechanism, **values)
  return plan.mechanism


class QueryTest(absltest.TestCase):
  def test_noise_is_correlated_over_the_rounds_as_the_matrix_says(self):
    matrix = correlated.banded_root(5, 3).noise
    query = alternatives.FactorizedSumQuery(1.0, 2.0, matrix, seed=1)
    state = query.initial_global_state()
    rows = []
    for _ in range(5):
      noised, state, _ = query.get_noised_result(
        [tf.zeros([150, 200]), tf.zeros([10_000])], state
      )
      rows.append(np.concatenate([np.ravel(part) for part in noised]))
    # Of 40,000 values: each covariance is known to .5 % of the variances.
    covariance = np.cov(rows)
    expected = 4 * matrix @ matrix.T
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(covariance / scale, expected / scale, atol=0.03)

  def test_clips_what_it_sums(self):
    query = alternatives.FactorizedSumQuery(0.5, 1.0, np.eye(2), seed=1)
    params = query.derive_sample_params(query.initial_global_state())
    record = [tf.constant([3.0]), tf.constant([4.0])]
    np.testing.assert_allclose(
      query.preprocess_record(params, record), [[0.3], [0.4]], rtol=1e-6
    )


class CalibrationTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.z_eff = calibration.equivalent_noise_multiplier(3.0, 1e-3, 'exact')

  @parameterized.parameters(
    # All nodes of a user in every round, or in one of 16.
    ({}, 16 * 31),
    ({'users_per_round': 1, 'participation': 'balanced'}, 5),
  )
  def test_of_the_tree(self, changes, squared):
    found = _build(alternatives.Tree, **changes)
    self.assertAlmostEqual(
      found.noise_multiplier, math.sqrt(squared) * self.z_eff, places=5
    )

  def test_of_the_banded_root(self):
    """As every user is in every round, a long signal is its worst one."""
    found = _build(alternatives.BandedRoot)
    factor = np.linalg.inv(np.array(found.matrix))
    self.assertAlmostEqual(
      found.noise_multiplier,
      float(np.linalg.norm(factor @ np.ones(16))) * self.z_eff,
      places=5,
    )

  def test_of_the_adaptive_clip(self):
    """Sixteen rounds of constant noise."""
    found = _build(alternatives.Adaptive)
    self.assertAlmostEqual(found.noise_multiplier, 4 * self.z_eff, places=5)


if __name__ == '__main__':
  absltest.main()
