"""The attacks, on outputs whose distribution is known."""

import numpy as np
from absl.testing import absltest, parameterized
from scipy import special, stats

from tvdp_tf.attacks import membership


def fair_coins(rng, shape) -> np.ndarray:
  coins = rng.integers(2, size=shape)
  return coins[..., np.newaxis] == np.arange(2)


def simulated_models(rng, models, pairs, distance, rounds=1):
  """Two-class models; the label's log-odds are N(distance or 0, 1)."""
  members = fair_coins(rng, [models, pairs])
  odds = rng.normal(size=[models, rounds, pairs, 2])
  odds += np.where(members, distance, 0)[:, np.newaxis]
  labels = rng.integers(2, size=[pairs, 2])
  # The score is of the second class.
  outputs = np.where(labels == 1, odds, -odds)[..., np.newaxis]
  return membership.Models(outputs, labels, members)


class ModelsTest(absltest.TestCase):
  def test_both_of_a_pair_cannot_be_members(self):
    with self.assertRaisesRegex(ValueError, 'exactly one member in each pair'):
      membership.Models(
        np.zeros([1, 1, 1, 2, 1]), np.zeros([1, 2]), np.ones([1, 1, 2], bool)
      )

  def test_outputs_that_are_not_finite(self):
    members = np.array([[[True, False]]])
    with self.assertRaisesRegex(ValueError, 'outputs must be finite'):
      membership.Models(
        np.full([1, 1, 1, 2, 1], np.nan), np.zeros([1, 2]), members
      )


class LogOddsTest(absltest.TestCase):
  def test_is_that_of_the_softmax(self):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=[4, 7, 5])
    labels = rng.integers(5, size=7)
    p = special.softmax(logits, axis=-1)[:, np.arange(7), labels]
    np.testing.assert_allclose(
      membership.log_odds(logits, labels), np.log(p / (1 - p)), rtol=1e-10
    )

  def test_where_the_probability_rounds_to_one(self):
    logits = np.array([[0.0, 100.0, -3.0]], np.float32)
    odds = membership.log_odds(logits, np.array([1]))
    np.testing.assert_allclose(odds, 100 - np.log1p(np.exp(-3)), rtol=1e-12)

  def test_the_score_of_the_second_of_two_classes(self):
    scores = np.array([[2.0], [2.0]])
    odds = membership.log_odds(scores, np.array([0, 1]))
    np.testing.assert_allclose(odds, [-2, 2])


class LikelihoodRatioTest(parameterized.TestCase):
  def test_tends_to_the_analytic_ratio(self):
    """Each example has its own means and, with and without, variances."""
    rng = np.random.default_rng(0)
    examples = 30
    mean = rng.normal(scale=3, size=examples)
    distance = rng.uniform(0.5, 3, size=examples)
    stddev_in, stddev_out = rng.uniform(0.5, 2, size=[2, examples])

    def draw(members):
      return np.where(
        members,
        mean + distance + stddev_in * rng.normal(size=members.shape),
        mean + stddev_out * rng.normal(size=members.shape),
      )

    shadow_members = rng.integers(2, size=[20_000, examples]) == 1
    targets = draw(rng.integers(2, size=[200, examples]) == 1)
    expected = stats.norm.logpdf(
      targets, mean + distance, stddev_in
    ) - stats.norm.logpdf(targets, mean, stddev_out)
    found = membership.likelihood_ratios(
      draw(shadow_members), shadow_members, targets
    )
    # Errors of means and variances are of 1 / sqrt(10,000) of a variance.
    np.testing.assert_allclose(found, expected, atol=0.2, rtol=0.1)

  @parameterized.parameters(0.5, 1.5)
  def test_success_is_that_of_the_best_test(self, distance):
    """No test of N(d, 1) against N(0, 1) is better than Phi(d / 2)."""
    rng = np.random.default_rng(1)
    shadows = simulated_models(rng, 64, 500, distance)
    labels = shadows.labels
    targets = simulated_models(rng, 40, 500, distance)
    values = membership.log_odds(shadows.outputs, labels)[:, 0]
    attacked = membership.log_odds(targets.outputs, targets.labels)[:, 0]
    scores = membership.likelihood_ratios(values, shadows.members, attacked)
    found = membership.success_rate(
      *membership.split_scores(scores, targets.members)
    )
    best = stats.norm.cdf(distance / 2)
    # 20,000 pairs: the standard error is below .0025.
    self.assertLess(found, best + 0.01)
    self.assertGreater(found, best - 0.02)

  def test_examples_that_differ_are_told_apart(self):
    """Where one threshold for all is at a loss, LiRA is not."""
    rng = np.random.default_rng(2)
    hardness = rng.normal(scale=30, size=[100, 2])

    def draw(models):
      members = fair_coins(rng, [models, 100])
      noise = rng.normal(size=members.shape)
      return hardness + np.where(members, 4, 0) + noise, members

    values, members = draw(64)
    attacked, target_members = draw(50)
    lira, one_threshold = (
      membership.success_rate(*membership.split_scores(scores, target_members))
      for scores in (
        membership.likelihood_ratios(values, members, attacked),
        attacked - np.median(values),
      )
    )
    self.assertGreater(lira, 0.95)
    self.assertLess(one_threshold, 0.6)

  def test_all_values_equal(self):
    members = np.arange(8)[:, np.newaxis] % 2 == np.arange(2)
    scores = membership.likelihood_ratios(
      np.ones([8, 2]), members, np.ones([3, 2])
    )
    np.testing.assert_array_equal(scores, np.zeros([3, 2]))

  def test_an_example_that_is_in_all_shadow_models(self):
    members = np.array([[True, False], [True, True]])
    with self.assertRaisesRegex(ValueError, 'shadow_members must have'):
      membership.likelihood_ratios(np.zeros([2, 2]), members, np.zeros([1, 2]))


class AttacksTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(3)
    self.shadows = simulated_models(rng, 32, 200, 1.5, rounds=4)
    self.targets = simulated_models(rng, 20, 200, 1.5, rounds=4)
    self.targets = membership.Models(
      # Of the same examples.
      np.where(
        (self.targets.labels == self.shadows.labels)[..., np.newaxis],
        self.targets.outputs,
        -self.targets.outputs,
      ),
      self.shadows.labels,
      self.targets.members,
    )

  def success(self, targets) -> dict[str, float]:
    scores = membership.scores(self.shadows, targets)
    self.assertEqual(tuple(scores), membership.ATTACKS)
    return {
      name: membership.success_rate(
        *membership.split_scores(values, targets.members)
      )
      for name, values in scores.items()
    }

  def test_find_members(self):
    success = self.success(self.targets)
    self.assertAlmostEqual(success['shadow'], stats.norm.cdf(0.75), delta=0.02)
    self.assertAlmostEqual(success['lira'], stats.norm.cdf(0.75), delta=0.02)
    # The mean of four independent rounds has half the standard deviation.
    self.assertAlmostEqual(
      success['lira_all_rounds'], stats.norm.cdf(1.5), delta=0.02
    )

  def test_find_nothing_when_membership_is_shuffled(self):
    shuffled = fair_coins(
      np.random.default_rng(4), self.targets.members.shape[:2]
    )
    targets = membership.Models(
      self.targets.outputs, self.targets.labels, shuffled
    )
    for name, success in self.success(targets).items():
      # 4,000 pairs: 5 standard errors.
      self.assertAlmostEqual(success, 0.5, delta=0.04, msg=name)

  def test_do_not_look_at_who_is_a_member(self):
    targets = membership.Models(
      self.targets.outputs, self.targets.labels, ~self.targets.members
    )
    for name, values in membership.scores(self.shadows, targets).items():
      np.testing.assert_array_equal(
        values,
        membership.scores(self.shadows, self.targets)[name],
      )


if __name__ == '__main__':
  absltest.main()
