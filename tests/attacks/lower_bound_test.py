import dataclasses
import json
import math

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from tvdp_tf import privacy
from tvdp_tf.attacks import lower_bound

_DELTA = 1e-3
_BOUNDS = {
  'empirical': lower_bound.empirical_lower_bound,
  'gaussian': lower_bound.gaussian_lower_bound,
}


def _gaussian_scores(rng, mu, trials):
  return rng.normal(mu, 1, trials), rng.normal(0, 1, trials)


def _false_bounds(bound, mu, trials, confidence, epsilon, repetitions=400):
  """How many of the repetitions' bounds exceed epsilon."""
  rng = np.random.default_rng(1)
  return sum(
    bound(
      *_gaussian_scores(rng, mu, trials), _DELTA, confidence
    ).epsilon_lower_bound
    > epsilon
    for _ in range(repetitions)
  )


class RateLimitsTest(parameterized.TestCase):
  @parameterized.parameters((1, 20), (7, 20), (19, 20), (3, 5000))
  def test_solves_the_defining_equations(self, successes, trials):
    lower, upper = lower_bound.rate_limits(successes, trials, 0.025)
    self.assertAlmostEqual(stats.binom.sf(successes - 1, trials, lower), 0.025)
    self.assertAlmostEqual(stats.binom.cdf(successes, trials, upper), 0.025)

  def test_no_and_all_successes(self):
    lower, upper = lower_bound.rate_limits(np.array([0, 10]), 10, 0.05)
    np.testing.assert_allclose(lower, [0, 0.05**0.1])
    np.testing.assert_allclose(upper, [1 - 0.05**0.1, 1])


class LowerBoundTest(parameterized.TestCase):
  @parameterized.product(
    name=('empirical', 'gaussian'),
    case=((1.0, 1000, 0.95), (3.0, 200, 0.95), (1.0, 1000, 0.5)),
  )
  def test_true_with_the_confidence(self, name, case):
    mu, trials, confidence = case
    truth = privacy.gaussian_epsilon(1 / mu, _DELTA)
    found = _false_bounds(_BOUNDS[name], mu, trials, confidence, truth)
    # A bound that is false just as often as allowed exceeds this once in 10^5.
    self.assertLessEqual(found, stats.binom.isf(1e-5, 400, 1 - confidence))

  @parameterized.parameters('empirical', 'gaussian')
  def test_a_smaller_epsilon_would_be_noticed(self, name):
    smaller = 0.5 * privacy.gaussian_epsilon(1 / 2, _DELTA)
    found = _false_bounds(_BOUNDS[name], 2.0, 20_000, 0.95, smaller, 50)
    self.assertGreater(found, stats.binom.isf(1e-5, 50, 0.05))

  @parameterized.parameters(0.3, 1.0)
  def test_approaches_the_truth(self, mu):
    truth = privacy.gaussian_epsilon(1 / mu, _DELTA)
    rng = np.random.default_rng(2)
    ratios: dict[str, list[float]] = {name: [] for name in _BOUNDS}
    for trials in (10_000, 100_000, 1_000_000):
      scores, alternative = _gaussian_scores(rng, mu, trials)
      for name, bound in _BOUNDS.items():
        found = bound(scores, alternative, _DELTA).epsilon_lower_bound
        ratios[name].append(found / truth)
    for name, enough in (('empirical', 0.85), ('gaussian', 0.93)):
      self.assertGreater(ratios[name][-1], ratios[name][0])
      self.assertBetween(ratios[name][-1], enough, 1)

  def test_by_hand(self):
    # The first half separates the data sets at 0.5; in the second, 30 of 40 are
    # above it under D, and 2 of 40 under D'.
    def half(above):
      return np.repeat([1.0, 0.0], [above, 40 - above])

    scores = np.concatenate([np.ones(40), half(30)])
    alternative = np.concatenate([np.zeros(40), half(2)])
    bound = lower_bound.empirical_lower_bound(scores, alternative, 0.01, 0.9)
    # Two-sided intervals of 90 % have limits of 95 % each.
    tpr = stats.binomtest(30, 40).proportion_ci(0.9, 'exact').low
    fpr = stats.binomtest(2, 40).proportion_ci(0.9, 'exact').high
    self.assertAlmostEqual(bound.tpr_lower_limit, tpr)
    self.assertAlmostEqual(bound.fpr_upper_limit, fpr)
    self.assertAlmostEqual(
      bound.epsilon_lower_bound, math.log((tpr - 0.01) / fpr)
    )
    expected = {
      'threshold': 0.5,
      'tpr': 0.75,
      'fpr': 0.05,
      'trials': 80,
      'delta': 0.01,
      'confidence': 0.9,
      'assumption': lower_bound.NO_ASSUMPTION,
    }
    found = dataclasses.asdict(bound)
    self.assertEqual(expected, {name: found[name] for name in expected})
    self.assertEqual(json.loads(json.dumps(bound.to_json_dict())), found)

  def test_gaussian_by_hand(self):
    scores = np.concatenate([np.ones(40), np.repeat([1.0, 0.0], [30, 10])])
    alternative = np.concatenate([np.zeros(40), np.repeat([1.0, 0.0], [2, 38])])
    bound = lower_bound.gaussian_lower_bound(scores, alternative, 0.01, 0.9)
    tpr = stats.binomtest(30, 40).proportion_ci(0.9, 'exact').low
    fpr = stats.binomtest(2, 40).proportion_ci(0.9, 'exact').high
    mu = stats.norm.ppf(tpr) - stats.norm.ppf(fpr)
    self.assertAlmostEqual(
      bound.epsilon_lower_bound, privacy.gaussian_epsilon(1 / mu, 0.01)
    )
    self.assertEqual(bound.assumption, lower_bound.GAUSSIAN_ASSUMPTION)

  def test_both_directions(self):
    # Under D' a tenth of the runs give away that it is not D.
    def half(zeros):
      return np.repeat([0.0, 1.0], [zeros, 1000 - zeros])

    scores = np.ones(2000)
    alternative = np.concatenate([half(100), half(100)])
    bound = lower_bound.empirical_lower_bound(scores, alternative, _DELTA)
    fnr = 1 - bound.tpr_lower_limit
    self.assertAlmostEqual(fnr, 1 - 0.025**0.001)
    self.assertAlmostEqual(
      bound.epsilon_lower_bound,
      math.log((1 - bound.fpr_upper_limit - _DELTA) / fnr),
    )
    # Not by the other direction, which shows ln(1 / 0.9) at most.
    self.assertGreater(bound.epsilon_lower_bound, 2)

  def test_the_threshold_is_not_chosen_on_what_it_is_evaluated_on(self):
    rng = np.random.default_rng(3)
    scores, alternative = _gaussian_scores(rng, 1.0, 1000)
    first = lower_bound.empirical_lower_bound(scores, alternative, _DELTA)
    scores[500:] += 5
    alternative[500:] -= 5
    second = lower_bound.empirical_lower_bound(scores, alternative, _DELTA)
    self.assertEqual(second.threshold, first.threshold)
    self.assertGreater(second.epsilon_lower_bound, first.epsilon_lower_bound)

  @parameterized.parameters('empirical', 'gaussian')
  def test_nothing_is_shown_by_scores_that_are_the_same(self, name):
    for scores in (np.zeros(100), np.random.default_rng(4).normal(size=100)):
      bound = _BOUNDS[name](scores, scores, _DELTA)
      self.assertEqual(bound.epsilon_lower_bound, 0)

  @parameterized.parameters(4, 11, 10_000)
  def test_no_error_shows_the_most(self, trials):
    rng = np.random.default_rng(5)
    scores, alternative = _gaussian_scores(rng, 1e6, trials)
    bound = lower_bound.empirical_lower_bound(scores, alternative, _DELTA)
    self.assertEqual(
      bound.epsilon_lower_bound,
      lower_bound.largest_lower_bound(trials, _DELTA),
    )

  def test_gaussian_assumption_matters(self):
    # Randomised response is (1, 0)-DP and its trade-off is not Gaussian.
    rng = np.random.default_rng(6)
    truth_told = 1 / (1 + math.exp(-1))
    scores = (rng.random(100_000) < truth_told).astype(float)
    alternative = (rng.random(100_000) > truth_told).astype(float)
    empirical = lower_bound.empirical_lower_bound(scores, alternative, 1e-5)
    self.assertBetween(empirical.epsilon_lower_bound, 0.95, 1)
    assumed = lower_bound.gaussian_lower_bound(scores, alternative, 1e-5)
    self.assertGreater(assumed.epsilon_lower_bound, 4)

  @parameterized.parameters(
    ([1.0, 2, 3], [1.0, 2, 3], 0.1, 0.9, r'scores must be .* shape \(3,\)'),
    ([[1.0] * 4], [1.0] * 4, 0.1, 0.9, r'scores must be .* shape \(1, 4\)'),
    ([1.0, 2, 3, math.nan], [1.0] * 4, 0.1, 0.9, 'scores must be .* got nan'),
    ([1.0] * 4, [1.0, 2, 3, math.inf], 0.1, 0.9, 'alternative_scores .* inf'),
    ([1.0] * 4, [1.0] * 5, 0.1, 0.9, 'as long as scores, got 5 and 4'),
    ([1.0] * 4, [1.0] * 4, 0, 0.9, 'delta must be'),
    ([1.0] * 4, [1.0] * 4, 0.1, 1, 'confidence must be'),
  )
  def test_bad_arguments(self, scores, alternative, delta, confidence, message):
    for bound in _BOUNDS.values():
      with self.assertRaisesRegex(ValueError, message):
        bound(np.array(scores), np.array(alternative), delta, confidence)


class TrialsTest(parameterized.TestCase):
  @parameterized.parameters((1.0, 0.95), (10.0, 0.95), (5.0, 0.6))
  def test_trials_to_show_is_the_fewest(self, epsilon, confidence):
    trials = lower_bound.trials_to_show(epsilon, _DELTA, confidence)
    for count, above in ((trials, True), (trials - 2, False)):
      largest = lower_bound.largest_lower_bound(count, _DELTA, confidence)
      self.assertEqual(largest > epsilon, above)

  def test_a_delta_that_hides_everything(self):
    self.assertEqual(lower_bound.largest_lower_bound(10, 0.5), 0)

  def test_no_number_is_large_enough(self):
    with self.assertRaisesRegex(ValueError, 'epsilon must .* got 800'):
      lower_bound.trials_to_show(800, _DELTA)


class RocCurveTest(absltest.TestCase):
  def test_few_scores(self):
    curve = lower_bound.roc_curve(np.array([3.0, 1, 3, 4]), np.array([0.0, 3]))
    expected = [
      (4, 0, 0),
      (3.5, 0, 0.25),
      (2, 0.5, 0.75),
      (0.5, 0.5, 1),
    ]
    np.testing.assert_allclose(curve, expected)

  def test_many_scores(self):
    scores, alternative = _gaussian_scores(np.random.default_rng(7), 2, 30_000)
    curve = lower_bound.roc_curve(scores, alternative)
    self.assertBetween(len(curve), 200, 1000)
    for threshold, fpr, tpr in curve[:: len(curve) // 20]:
      self.assertEqual(fpr, np.mean(alternative > threshold))
      self.assertEqual(tpr, np.mean(scores > threshold))
    for column, sign in zip(curve.T, (-1, 1, 1), strict=True):
      self.assertTrue(np.all(sign * np.diff(column) >= 0))
    # Every error of the first hundred is seen.
    self.assertTrue(
      np.all(np.diff(curve[curve[:, 1] < 100 / 30_000, 1]) < 5e-4)
    )


if __name__ == '__main__':
  absltest.main()
