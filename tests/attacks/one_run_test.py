import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize, special, stats

from tvdp_tf.attacks import membership, one_run
from tvdp_tf.privacy import gaussian


def _largest_tail(right, guesses, canaries, pieces) -> float:
  """The largest P[C >= right] that is allowed, by linear programming.

  Args:
    right: c.
    guesses: g.
    canaries: m.
    pieces: f(p) is the maximum of slope p + offset over these.
  """
  counts = np.arange(guesses + 1)
  rows, limits = [], []
  for i in range(guesses):
    is_right = np.where(counts >= i + 1, counts, 0) / canaries
    is_wrong = np.where(counts >= i, guesses - counts, 0) / canaries
    for slope, offset in pieces:
      rows.append(slope * is_right - is_wrong)
      limits.append(-offset)
  found = optimize.linprog(
    -(counts >= right).astype(float),
    A_ub=rows,
    b_ub=limits,
    A_eq=np.ones([1, guesses + 1]),
    b_eq=[1],
  )
  assert found.success, found.message
  return -found.fun


def _tail_of_recursion(right, guesses, canaries, trade_off) -> float:
  """The largest probability that the recursion does not exclude."""
  low, high = 0.0, 1.0
  while high - low > 1e-9:
    middle = (low + high) / 2
    if one_run.is_refuted(right, guesses, canaries, middle, trade_off):
      high = middle
    else:
      low = middle
  return high


class RecursionTest(parameterized.TestCase):
  @parameterized.product(
    epsilon=(0.5, 2.0), delta=(0.0, 1e-3, 0.05), right=(4, 6, 8)
  )
  def test_is_the_optimum(self, epsilon, delta, right):
    guesses, canaries = 8, 20
    grown = np.exp(epsilon)
    pieces = [
      (0, 0),
      (1 / grown, -delta / grown),
      (grown, 1 - delta - grown),
    ]
    wanted = _largest_tail(right, guesses, canaries, pieces)
    found = _tail_of_recursion(
      right, guesses, canaries, one_run.epsilon_trade_off(epsilon, delta)
    )
    self.assertAlmostEqual(found, min(wanted, 1), places=6)
    self.assertBetween(wanted, 1e-6, 1 + 1e-9)

  @parameterized.parameters(5, 7, 8)
  def test_is_the_optimum_of_a_gaussian(self, right):
    guesses, canaries, mu = 8, 20, 1.0
    points = special.ndtri(np.linspace(1e-4, 0.45, 3000))
    # Tangents of Phi(x - mu) over p = Phi(x).
    slopes = np.exp(-((points - mu) ** 2 - points**2) / 2)
    pieces = [
      (s, special.ndtr(x - mu) - s * special.ndtr(x))
      for s, x in zip(slopes, points, strict=True)
    ]
    wanted = _largest_tail(right, guesses, canaries, [(0, 0), *pieces])
    found = _tail_of_recursion(
      right, guesses, canaries, one_run.gaussian_trade_off(mu)
    )
    self.assertAlmostEqual(found, wanted, places=4)

  def test_binomial_without_delta(self):
    """Randomised response is the worst there is: its tail is nearly reached."""
    for right in (60, 70, 80):
      found = _tail_of_recursion(
        right, 80, 80, one_run.epsilon_trade_off(1.0, 0.0)
      )
      binomial = stats.binom.sf(right - 1, 80, special.expit(1.0))
      self.assertGreaterEqual(found, binomial * (1 - 1e-6))
      self.assertLess(found, 4 * binomial + 1e-8)

  @parameterized.parameters((0, 1e-3), (3, 0.1), (0.5, 0))
  def test_trade_off_of_epsilon(self, epsilon, delta):
    trade_off = one_run.epsilon_trade_off(epsilon, delta)
    for p in np.linspace(0, 1, 21):
      q = trade_off(p)
      self.assertBetween(q, 0, p)
      self.assertLessEqual(p, np.exp(epsilon) * q + delta + 1e-12)
      self.assertLessEqual(1 - q, np.exp(epsilon) * (1 - p) + delta + 1e-12)


class LowerBoundTest(parameterized.TestCase):
  @parameterized.product(
    epsilon=(0.5, 2.0, 4.0), delta=(1e-5, 1e-2), guesses=(30, 200)
  )
  def test_holds_as_often_as_it_says(self, epsilon, delta, guesses):
    """Coins are shown with probability delta, else randomised: exactly that."""
    p = delta + (1 - delta) * special.expit(epsilon)
    counts = np.arange(guesses + 1)
    refuted = [
      one_run.refutes_epsilon(int(c), guesses, guesses, 0.05, epsilon, delta)
      for c in counts
    ]
    too_often = stats.binom.pmf(counts, guesses, p)[refuted].sum()
    self.assertLessEqual(too_often, 0.05)
    # It is a threshold, and not one that is never reached, where there is one.
    self.assertEqual(refuted, sorted(refuted))
    if stats.binom.pmf(guesses, guesses, p) < 0.01:
      self.assertGreater(too_often, 1e-4)

  def test_holds_for_gaussian_scores(self):
    epsilon, delta, canaries = 4.0, 1e-5, 1000
    mu = 1 / gaussian.gaussian_noise_multiplier(epsilon, delta)
    guesses, _ = one_run.planned_guesses(np.full(canaries, mu), delta)
    rng = np.random.default_rng(0)
    wrong = wrong_if_gaussian = 0
    for _ in range(300):
      coins = rng.random(canaries) < 0.5
      scores = rng.normal(size=canaries) + np.where(coins, mu / 2, -mu / 2)
      right, _ = one_run.count_right(scores, coins, guesses)
      arguments = (right, guesses, canaries, 0.05)
      wrong += one_run.refutes_epsilon(*arguments, epsilon, delta)
      wrong_if_gaussian += one_run.is_refuted(
        *arguments, one_run.gaussian_trade_off(mu)
      )
    # 15 of 300 are allowed, and 28 have a probability of 1e-3 even then.
    self.assertLess(wrong, 28)
    self.assertLess(wrong_if_gaussian, 28)

  def test_shows_half_of_a_gaussian(self):
    epsilon, delta, canaries = 4.0, 1e-5, 30_000
    mu = 1 / gaussian.gaussian_noise_multiplier(epsilon, delta)
    rng = np.random.default_rng(1)
    guesses, counted_on = one_run.planned_guesses(np.full(canaries, mu), delta)
    coins = rng.random(canaries) < 0.5
    scores = rng.normal(size=canaries) + np.where(coins, mu / 2, -mu / 2)
    right, _ = one_run.count_right(scores, coins, guesses)
    found = one_run.epsilon_lower_bound(right, guesses, canaries, delta)
    self.assertBetween(found.epsilon_lower_bound, 2, epsilon)
    self.assertGreater(counted_on.epsilon_lower_bound, 2)
    if_gaussian = one_run.gaussian_lower_bound(right, guesses, canaries, delta)
    self.assertBetween(
      if_gaussian.epsilon_lower_bound, found.epsilon_lower_bound, epsilon
    )

  @parameterized.parameters(
    (90, 100, 2000, 1e-5), (38, 41, 500, 1e-3), (900, 1000, 30_000, 1e-5)
  )
  def test_shows_as_much_as_either_analysis(self, right, guesses, m, delta):
    binomial = membership.guesses_lower_bound(right, 1, guesses, m, delta, 0.05)
    found = one_run.epsilon_lower_bound(right, guesses, m, delta)
    self.assertGreater(found.epsilon_lower_bound, binomial - 1e-3)
    epsilon = found.epsilon_lower_bound + 1e-3
    self.assertFalse(
      one_run.is_refuted(
        *(right, guesses, m, 0.05), one_run.epsilon_trade_off(epsilon, delta)
      )
    )
    p_value = membership.guesses_p_value(right, 1, guesses, m, epsilon, delta)
    self.assertGreater(p_value, 0.05)

  def test_nothing_is_shown_by_chance(self):
    found = one_run.epsilon_lower_bound(52, 100, 200, 1e-5)
    self.assertEqual(found.epsilon_lower_bound, 0)
    found = one_run.gaussian_lower_bound(52, 100, 200, 1e-5)
    self.assertEqual(found.epsilon_lower_bound, 0)

  def test_more_right_shows_more(self):
    shown = [
      one_run.epsilon_lower_bound(c, 100, 200, 1e-5).epsilon_lower_bound
      for c in (60, 80, 95, 100)
    ]
    self.assertEqual(shown, sorted(set(shown)))

  @parameterized.parameters(
    ((5, 4, 10, 0.1), 'right must be an integer from 0 to 4, got 5'),
    ((1, 11, 10, 0.1), 'guesses must be an integer from 1 to 10, got 11'),
    ((1, 1, 0, 0.1), 'canaries must be an integer >= 1, got 0'),
    ((1, 1, 1, 0.0), 'delta must be a number strictly between 0 and 1'),
    ((1, 1, 1, 0.1, 1.0), 'confidence must be a number strictly between'),
  )
  def test_bad_arguments(self, arguments, message):
    for bound in (one_run.epsilon_lower_bound, one_run.gaussian_lower_bound):
      with self.assertRaisesRegex(ValueError, message):
        bound(*arguments)


class GuessesTest(absltest.TestCase):
  def test_expected_are_those_of_many(self):
    rng = np.random.default_rng(0)
    mu = np.repeat([0.5, 2.0], 50_000)
    scores = mu**2 / 2 + mu * rng.normal(size=len(mu))
    for threshold in (0.0, 0.5, 2.0):
      guesses, right = one_run.expected_guesses(mu, np.array([threshold]))
      seen = np.abs(scores) > threshold
      self.assertAlmostEqual(guesses[0] / seen.sum(), 1, delta=0.02)
      self.assertAlmostEqual(
        right[0] / (seen & (scores > 0)).sum(), 1, delta=0.02
      )

  def test_only_what_is_told_apart_is_guessed(self):
    mu = np.concatenate([np.full(100, 6.0), np.zeros(900)])
    guesses, found = one_run.planned_guesses(mu, 1e-5)
    self.assertBetween(guesses, 60, 110)
    self.assertGreater(found.epsilon_lower_bound, 2.5)

  def test_surest_first_and_ties_are_wrong(self):
    scores = np.array([0.0, -3.0, 1.0, 2.0])
    coins = np.array([True, False, False, True])
    right, in_order = one_run.count_right(scores, coins, 2)
    self.assertEqual(right, 2)
    self.assertEqual(in_order.tolist(), [True, True, False, False])


if __name__ == '__main__':
  absltest.main()
