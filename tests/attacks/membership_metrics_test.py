import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats
from sklearn import metrics as sklearn_metrics

from tvdp_tf.attacks import membership


class MetricsTest(parameterized.TestCase):
  @parameterized.parameters(0.3, 1.0, 3.0)
  def test_gaussian_scores(self, distance):
    """All three have closed forms for N(d, 1) against N(0, 1)."""
    rng = np.random.default_rng(0)
    members = rng.normal(distance / 2, 1, size=[100, 300])
    others = rng.normal(-distance / 2, 1, size=[100, 300])
    found = membership.measure(members, others)
    expected = {
      'success': stats.norm.cdf(distance / 2),
      'auc': stats.norm.cdf(distance / np.sqrt(2)),
      'tpr': stats.norm.sf(stats.norm.isf(1e-3) - distance),
    }
    for name, value in expected.items():
      error = getattr(found, f'{name}_stderr')
      self.assertLess(error, 0.03, name)
      self.assertLess(abs(getattr(found, name) - value), 5 * error + 1e-5, name)

  def test_ties_and_extremes(self):
    ones, zeros = np.ones([2, 3]), np.zeros([2, 3])
    self.assertEqual(membership.area_under_curve(ones, zeros), 1)
    self.assertEqual(membership.area_under_curve(ones, ones), 0.5)
    self.assertEqual(membership.area_under_curve(zeros, ones), 0)
    self.assertEqual(membership.success_rate(ones, zeros), 1)
    self.assertEqual(membership.success_rate(zeros, zeros), 0.5)
    self.assertEqual(membership.true_positive_rate(ones, zeros), 1)
    self.assertEqual(membership.true_positive_rate(ones, ones), 0)

  def test_area_is_that_of_scikit_learn(self):
    rng = np.random.default_rng(1)
    # Rounded, so that there are ties.
    members = np.round(rng.normal(0.5, 1, size=[5, 40]), 1)
    others = np.round(rng.normal(0, 1, size=[5, 40]), 1)
    self.assertAlmostEqual(
      membership.area_under_curve(members, others),
      sklearn_metrics.roc_auc_score(
        [1] * 200 + [0] * 200, [*members.ravel(), *others.ravel()]
      ),
      places=12,
    )

  def test_true_positive_rate_counts(self):
    others = np.arange(2000.0)
    members = np.array([1996.5, 1997.5, 1998.5, 3000.0])
    # Two of 2,000 may be above: 1998 and 1999.
    rate = membership.true_positive_rate(members, others)
    self.assertEqual(rate, 3 / 4)
    # Of 999 none.
    rate = membership.true_positive_rate(members, others[-999:])
    self.assertEqual(rate, 1 / 4)
    rate = membership.true_positive_rate(members, others, 1.0)
    self.assertEqual(rate, 1)

  def test_standard_errors_are_those_of_trials(self):
    """Examples of a trial that are all alike are one observation."""
    rng = np.random.default_rng(2)
    once = rng.normal(0.5, 1, size=[100, 1])
    others = rng.normal(-0.5, 1, size=[100, 1])
    alone = membership.measure(once, others)
    many = membership.measure(
      np.repeat(once, 50, axis=1), np.repeat(others, 50, axis=1)
    )
    self.assertAlmostEqual(alone.success_stderr, many.success_stderr)
    p = alone.success
    self.assertAlmostEqual(
      alone.success_stderr, np.sqrt(p * (1 - p) / 200), delta=0.01
    )

  def test_split_goes_pair_by_pair(self):
    scores = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    members = np.array([[[1, 0], [0, 1]], [[0, 1], [0, 1]]], bool)
    found, others = membership.split_scores(scores, members)
    np.testing.assert_array_equal(found, [[1, 4], [6, 8]])
    np.testing.assert_array_equal(others, [[2, 3], [5, 7]])


if __name__ == '__main__':
  absltest.main()
