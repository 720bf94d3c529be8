"""The bound against reference values, simulated mechanisms and itself."""

import numpy as np
from absl.testing import absltest, parameterized
from scipy import special, stats

from tvdp_tf.attacks import membership
from tvdp_tf.privacy import gaussian


def randomized_response(rng, epsilon, trials, pairs):
  """Score differences of the most telling mechanism: its guesses are B."""
  right = rng.random([trials, pairs]) < special.expit(epsilon)
  return np.where(right, 1.0, -1.0)


def gaussian_mechanism(rng, noise_multiplier, trials, pairs):
  """Each pair's coin +1/2 or -1/2, sensitivity 1, with noise: the exact LLR."""
  noise = rng.normal(scale=noise_multiplier, size=[trials, pairs])
  return (0.5 + noise) / noise_multiplier**2


def bound(differences, delta, confidence=0.95):
  half = differences / 2
  return membership.epsilon_lower_bound(half, -half, delta, confidence)


class GuessesTest(parameterized.TestCase):
  def test_printed_in_steinke_et_al(self):
    """Appendix D: 75 of 100 guesses, 1,000 coins, delta = 1e-4, 95 %."""
    found = membership.guesses_lower_bound(
      75, trials=1, guesses=100, pairs=1000, delta=1e-4, error=0.05
    )
    self.assertAlmostEqual(found, 0.673, delta=1e-3)

  @parameterized.parameters(0.0, 0.5, 3.0)
  def test_without_delta_all_guesses_are_one_binomial(self, epsilon):
    for right in (0, 150, 190, 200):
      found = membership.guesses_p_value(right, 20, 10, 10, epsilon, 0.0)
      expected = stats.binom.sf(right - 1, 200, special.expit(epsilon))
      self.assertBetween(found, expected, expected + 3e-12)

  def test_is_a_bound_where_the_transform_rounds_to_zero(self):
    trials, guesses, epsilon = 200, 2000, 0.1
    binomial = stats.binom(trials * guesses, special.expit(epsilon))
    for probability in (1e-9, 1e-12, 1e-14, 1e-16):
      right = int(binomial.isf(probability))
      found = membership.guesses_p_value(
        right, trials, guesses, guesses, epsilon, 0.0
      )
      self.assertGreaterEqual(found, binomial.sf(right - 1))

  def test_one_trial_is_the_formula(self):
    r, n, epsilon, delta = 12, 30, 0.7, 1e-3
    b = stats.binom(r, special.expit(epsilon))
    for v in range(1, r + 1):
      alpha = max((b.sf(v - i - 1) - b.sf(v - 1)) / i for i in range(1, v + 1))
      expected = min(1, b.sf(v - 1) + 2 * n * delta * alpha)
      found = membership.guesses_p_value(v, 1, r, n, epsilon, delta)
      self.assertAlmostEqual(found, expected, places=12)

  def test_grows_with_what_is_right_and_falls_with_delta(self):
    def found(right, delta):
      return membership.guesses_lower_bound(right, 50, 40, 40, delta, 0.05)

    bounds = [found(right, 1e-3) for right in range(900, 2001, 100)]
    self.assertEqual(bounds[0], 0)
    self.assertEqual(bounds, sorted(bounds))
    self.assertGreater(bounds[-1], 4)
    self.assertLess(found(2000, 1e-2), bounds[-1])
    self.assertGreater(found(2000, 1e-6), bounds[-1])

  def test_trials_that_are_apart_show_more_than_one_run(self):
    """In one run, delta can give away 200 of 2,000 coins at once."""
    apart = membership.guesses_lower_bound(1800, 50, 40, 40, 1e-3, 4e-3)
    one_run = membership.guesses_lower_bound(1800, 1, 2000, 2000, 1e-3, 4e-3)
    self.assertEqual(one_run, 0)
    self.assertBetween(apart, 1.9, special.logit(0.9))


class EpsilonTest(parameterized.TestCase):
  """A bound of 95 % may be wrong in 5 % of all trials, not more."""

  def share_wrong(self, draw, epsilon, delta, repeats=100):
    rng = np.random.default_rng(0)
    found = np.array([bound(draw(rng), delta) for _ in range(repeats)])
    return np.mean(found > epsilon), np.median(found)

  @parameterized.parameters(1.0, 3.0)
  def test_randomized_response(self, epsilon):
    wrong, median = self.share_wrong(
      lambda rng: randomized_response(rng, epsilon, 30, 20), epsilon, 1e-9
    )
    self.assertLessEqual(wrong, 0.05)
    # And it is not far below: 600 guesses.
    self.assertGreater(median, 0.75 * epsilon)

  @parameterized.parameters(0.4, 1.0, 3.0)
  def test_gaussian(self, noise_multiplier):
    delta = 1e-3
    epsilon = gaussian.epsilon_of_mu(1 / noise_multiplier, delta)
    wrong, median = self.share_wrong(
      lambda rng: gaussian_mechanism(rng, noise_multiplier, 30, 20),
      epsilon,
      delta,
    )
    self.assertLessEqual(wrong, 0.05)
    if noise_multiplier <= 1:
      self.assertGreater(median, 0.1 * epsilon)

  def test_runs_that_give_everything_away_with_probability_delta(self):
    """Then all coins of a run are known, which is (0, delta)."""
    delta = 0.02

    def draw(rng):
      differences = rng.normal(size=[30, 20])
      given_away = rng.random(30) < delta
      return np.where(given_away[:, np.newaxis], 9.0, differences)

    wrong, _ = self.share_wrong(draw, 0.0, delta, repeats=200)
    self.assertLessEqual(wrong, 0.05)

  def test_a_broken_mechanism_is_found_out(self):
    """It delivers 6, and claims 2."""
    rng = np.random.default_rng(0)
    noise_multiplier = gaussian.gaussian_noise_multiplier(6.0, 1e-3)
    differences = gaussian_mechanism(rng, noise_multiplier, 100, 40)
    self.assertGreater(bound(differences, 1e-3), 2.0)

  def test_guessing_shows_nothing(self):
    rng = np.random.default_rng(0)
    found = [bound(rng.normal(size=[50, 40]), 1e-3) for _ in range(20)]
    self.assertGreaterEqual(np.mean(np.array(found) == 0), 0.95)

  def test_ties_are_no_evidence(self):
    self.assertEqual(bound(np.zeros([50, 40]), 1e-3), 0)

  def test_evidence_in_few_trials_is_found_by_thresholds(self):
    """Guesses are made in every trial; a threshold waits for the sure ones."""
    rng = np.random.default_rng(0)
    members, others = rng.normal(size=[2, 2000, 1])
    members[rng.random(2000) < 0.05] = 9.0
    found = membership.epsilon_lower_bound(members, others, 1e-3)
    right = int(np.sum(members > others))
    by_guesses = membership.guesses_lower_bound(right, 2000, 1, 1, 1e-3, 0.05)
    self.assertLess(by_guesses, 0.3)
    self.assertGreater(found, 1.5)

  @parameterized.parameters(
    ((4, 2), 0.0, 0.95, 'delta'),
    ((4, 2), 1e-3, 1.0, 'confidence'),
    ((3, 2), 1e-3, 0.95, 'trials'),
  )
  def test_bad_arguments(self, shape, delta, confidence, name):
    with self.assertRaisesRegex(ValueError, f'^{name} must be'):
      bound(np.ones(shape), delta, confidence)


if __name__ == '__main__':
  absltest.main()
