import decimal
import fractions
import itertools
import math

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tvdp_tf import privacy

SETTINGS = hypothesis.settings(
  derandomize=True, deadline=None, max_examples=150, database=None
)
UNIT_CLAIM = {'delta': 1e-3, 'sampling_rate': 1.0, 'sensitivity': 1.0}
# sigma of Theorem 1 for one round at epsilon = 1.
UNIT_STDDEV = privacy.theorem1_stddev(1.0, 1, 1.0, **UNIT_CLAIM)


def precision(theta, first, last):
  """Sum of theta^(1-n), n = first..last."""
  return math.fsum(theta ** (1.0 - n) for n in range(first, last + 1))


def printed_spending(theta, rounds, done, new_rounds):
  """What Theorem 2 spends of the budget of Theorem 1, as a fraction."""
  claim = {'epsilon': 1.0, **UNIT_CLAIM}
  initial = privacy.theorem1_stddev(theta, rounds, **claim)
  refined = privacy.theorem2_stddev(theta, done, new_rounds, **claim)
  spent = precision(theta, 1, done) / initial**2
  spent += precision(theta, done + 1, new_rounds) / refined**2
  return spent * UNIT_STDDEV**2


class PrintedRuleTest(parameterized.TestCase):
  """Theorem 2: what it spends, and where it is unsafe."""

  @parameterized.parameters(
    # theta, M, m, M', true sum, spent, sigma'/sigma printed, exact
    (0.5, 30, 10, 24, 16776192, 496, 0.0056, 0.1250),
    (0.8, 30, 10, 24, 809.8, 5.52, 0.2134, 0.5035),
    (0.9, 30, 10, 24, 87.018, 1.5204, 0.5456, 0.6831),
    (0.9, 30, 15, 27, 111.06, 1.7546, 0.5873, 0.8116),
    (0.95, 30, 10, 24, 33.34, 0.8035, 0.8792, 0.7662),
    (0.99, 30, 10, 24, 16.54, 0.4322, 1.8986, 0.8238),
    (1.0, 30, 10, 24, 14, 0.9167, 0.8944, 0.8367),
    (1.05, 30, 10, 24, 6.381, 0.7909, 1.1703, 0.8912),
    (1.1, 30, 10, 24, 3.124, 0.8023, 1.4149, 0.9302),
    (2.0, 30, 10, 24, 0.00195, 0.9991, 2.8283, 1.0000),
  )
  def test_examples(
    self, theta, rounds, done, new, future, spent, printed, exact
  ):
    self.assertAlmostEqual(
      precision(theta, done + 1, new) / future, 1, delta=3e-3
    )
    spending = printed_spending(theta, rounds, done, new)
    self.assertAlmostEqual(spending / spent, 1, delta=1e-3)
    claim = {'epsilon': 1.0, **UNIT_CLAIM}
    initial = privacy.theorem1_stddev(theta, rounds, **claim)
    schedule = privacy.GeometricSchedule(theta, rounds, initial)
    refined = privacy.theorem2_stddev(theta, done, new, **claim)
    self.assertAlmostEqual(refined / initial, printed, delta=1e-4)
    refined = privacy.refine_stddev(
      theta, schedule.stddevs()[:done], new, schedule.precision()
    )
    self.assertAlmostEqual(refined / initial, exact, delta=6e-5)

  @parameterized.parameters(
    *zip(
      (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.05, 1.1, 2.0),
      (95, 88, 77, 56, 14, 0, 0, 0, 0, 0),
      strict=True,
    )
  )
  def test_how_often_it_overspends(self, theta, percent):
    overspends = [
      printed_spending(theta, rounds, done, new) > 1 + 1e-9
      for rounds in (5, 10, 20, 30, 50, 100)
      for new in range(2, rounds)
      for done in range(1, new)
    ]
    share = sum(overspends) / len(overspends)
    self.assertEqual(round(100 * share), percent)

  @SETTINGS
  @hypothesis.given(
    st.floats(1.0, 3.0),
    st.integers(3, 60),
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5),
  )
  def test_is_safe_from_theta_one_on_also_if_repeated(
    self, theta, rounds, shares
  ):
    claim = {'epsilon': 1.0, **UNIT_CLAIM}
    stddev = privacy.theorem1_stddev(theta, rounds, **claim)
    spent, done, last = 0.0, 0, rounds
    for share in sorted(shares):
      new, until = last - 1, max(done + 1, int(share * last))
      if not until < new:
        break
      spent += precision(theta, done + 1, until) / stddev**2
      done, last = until, new
      stddev = privacy.theorem2_stddev(theta, done, last, **claim)
    spent += precision(theta, done + 1, last) / stddev**2
    self.assertLessEqual(spent * UNIT_STDDEV**2, 1 + 1e-12)


class ExactRuleTest(parameterized.TestCase):
  @SETTINGS
  @hypothesis.given(
    st.floats(0.5, 2.0),
    st.lists(st.floats(0.5, 2.0), max_size=20),
    st.integers(1, 200),
    st.floats(1.01, 50.0),
  )
  def test_spends_what_is_left_and_no_more(self, theta, past, more, factor):
    spent = sum(fractions.Fraction(stddev) ** -2 for stddev in past)
    budget = float(spent) * factor + 1e-3
    last = len(past) + more
    refined = privacy.refine_stddev(theta, past, last, budget)
    # In exact arithmetic, each round's noise as the series defines it.
    ratio = fractions.Fraction(theta)
    future = sum(ratio ** (1 - n) for n in range(len(past) + 1, last + 1)) / (
      fractions.Fraction(refined) ** 2
    )
    total = (spent + future) / fractions.Fraction(budget)
    self.assertLessEqual(total, 1)
    self.assertGreater(total, 1 - fractions.Fraction(1e-11))

  @SETTINGS
  @hypothesis.given(
    st.floats(0.5, 1.25),
    st.integers(10, 40),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1.5)), max_size=5),
  )
  def test_any_number_of_refinements_up_or_down(self, theta, rounds, changes):
    schedule = privacy.GeometricSchedule(theta, rounds, 1.0)
    budget = schedule.precision()
    past: list[float] = []
    for share, factor in changes:
      until = len(past) + int(share * (schedule.rounds - len(past)))
      if until == schedule.rounds:
        break
      past += [schedule.stddev(n) for n in range(len(past) + 1, until + 1)]
      last = max(until + 1, int(factor * schedule.rounds))
      stddev = privacy.refine_stddev(theta, past, last, budget)
      schedule = privacy.GeometricSchedule(theta, last, stddev)
    past += [
      schedule.stddev(n) for n in range(len(past) + 1, schedule.rounds + 1)
    ]
    self.assertAlmostEqual(
      math.fsum(stddev**-2 for stddev in past) / budget, 1, delta=1e-10
    )

  @parameterized.parameters(
    *itertools.product((0.5, 0.9, 1.0, 1.1, 2.0), (0, 1, 10, 29))
  )
  def test_less_noise_for_fewer_rounds_and_more_for_more(self, theta, done):
    schedule = privacy.GeometricSchedule(theta, 30, 1.0)
    past, budget = schedule.stddevs()[:done], schedule.precision()
    same = privacy.refine_stddev(theta, past, 30, budget)
    # At theta = 2 only 2^-29 of the budget is left after 29 rounds.
    self.assertAlmostEqual(same, 1.0, delta=1e-6)
    for new in (done + 1, 29, 31, 60):
      if new > done and new != 30:
        refined = privacy.refine_stddev(theta, past, new, budget)
        if new < 30:
          self.assertLess(refined, same)
        else:
          self.assertGreater(refined, same)

  def test_without_a_past_it_is_the_schedule_of_the_budget(self):
    schedule = privacy.GeometricSchedule(1.1, 20, 0.7)
    refined = privacy.refine_stddev(1.1, [], 20, schedule.precision())
    self.assertAlmostEqual(refined, 0.7, places=14)

  def test_takes_the_noise_that_was_not_the_one_planned(self):
    past = np.array([1.0, 5.0, 0.6])
    refined = privacy.refine_stddev(0.9, past, 7, 10.0)
    future = privacy.GeometricSchedule(0.9, 7, refined).stddevs()[3:]
    spent = math.fsum(past**-2.0) + math.fsum(future**-2.0)
    self.assertAlmostEqual(spent, 10.0, places=12)

  @parameterized.parameters(3, 2, 1)
  def test_stops_where_no_round_is_left(self, new):
    with self.assertRaisesRegex(
      ValueError, '^new_rounds must exceed the 3 rounds already released'
    ):
      privacy.refine_stddev(0.9, [1.0, 1.0, 1.0], new, 10.0)

  @parameterized.parameters(3.0, 2.9)
  def test_stops_where_the_budget_is_spent(self, budget):
    with self.assertRaisesRegex(
      ValueError, '^budget must exceed the 3 already'
    ):
      privacy.refine_stddev(0.9, [1.0, 1.0, 1.0], 5, budget)

  def test_delivers_the_target_epsilon(self):
    budget = privacy.gaussian_noise_multiplier(2.0, 1e-5) ** -2
    schedule = privacy.calibrate(2.0, 1e-5, 0.9, 30)
    past = schedule.stddevs()[:10]
    refined = privacy.refine_stddev(0.9, past, 24, budget)
    future = privacy.GeometricSchedule(0.9, 24, refined).stddevs()[10:]
    delivered = privacy.delivered_epsilon([*past, *future], 1e-5, 'exact')
    self.assertLessEqual(delivered, 2.0 * (1 + 1e-12))
    self.assertGreater(delivered, 2.0 * (1 - 1e-9))


class NewMaximumTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.55, 100, 55),  # ceil(0.55 * 100) is 56 in binary64
    (0.7, 10, 7),
    (0.8, 30, 24),
    (0.9, 27, 25),
    (1, 7, 7),
    (1.0, 7, 7),
    (1e-9, 7, 1),
    ('0.55', 100, 55),
    ('9/10', 27, 25),
    (decimal.Decimal('0.1'), 30, 3),
    (fractions.Fraction(1, 3), 30, 10),
    (np.float64(0.55), 100, 55),
  )
  def test_is_the_exact_ceiling(self, alpha_d, rounds, expected):
    self.assertEqual(privacy.new_maximum_rounds(alpha_d, rounds), expected)

  def test_no_hundredth_of_hundred_is_rounded_up(self):
    for percent in range(1, 101):
      self.assertEqual(privacy.new_maximum_rounds(percent / 100, 100), percent)


if __name__ == '__main__':
  absltest.main()
