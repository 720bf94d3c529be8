import dataclasses
import fractions
import itertools
import math

import hypothesis
import mpmath
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st
from scipy import optimize

from tests.privacy import high_precision
from tvdp_tf import privacy

SETTINGS = hypothesis.settings(
  derandomize=True, deadline=None, max_examples=150, database=None
)
# Numbers for which k = q L Ds^2 ln(1/delta) d sum p^2 / eps^2 is Ds^2.
UNIT = privacy.ConvergenceSetting(
  contraction=0.5,
  initial_gap=0.01,
  theta=0.9,
  smoothness=1.0,
  sensitivity=1.0,
  epsilon=1.0,
  delta=math.exp(-1),
  users=2,
  dimension=1,
  sum_squared_weights=1.0,
  lipschitz=0.2,
  gradient_divergence=0.4,
  learning_rate=0.05,
)


def setting_of(contraction, gap, theta, noise):
  return dataclasses.replace(
    UNIT,
    contraction=contraction,
    initial_gap=gap,
    theta=theta,
    sensitivity=math.sqrt(noise),
  )


def exponential(low, high):
  return st.floats(low, high).map(lambda x: 10**x)


contractions = st.floats(0.05, 0.98)
thetas = st.one_of(st.floats(0.3, 2.5), st.just(1.0))
gaps, noises = exponential(-2, 2), exponential(-6, 1)


@high_precision.workdps
def exact_bound(setting, rounds, coefficient):
  """A^M Theta + coefficient S R at a real M."""
  mpf = mpmath.mpf
  contraction, theta, rounds = (
    mpf(setting.contraction),
    mpf(setting.theta),
    mpf(rounds),
  )

  def power_sum(ratio):
    return rounds if ratio == 1 else (ratio**rounds - 1) / (ratio - 1)

  noise = contraction ** (rounds - 1) * power_sum(theta / contraction)
  return contraction**rounds * mpf(setting.initial_gap) + mpf(
    coefficient
  ) * noise * power_sum(1 / theta)


class DerivativeTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      (0.5, 0.5 * (1 + 1e-12), 0.9, 1 - 1e-12, 1.0, 1.1), (0.5, 3.0, 40.0)
    )
  )
  def test_is_the_derivative(self, theta, rounds):
    setting = setting_of(0.5, 2.0, theta, 0.01)
    for form in ('printed', 'corrected'):
      coefficient = setting.noise_coefficient(form)
      with mpmath.workdps(high_precision.DIGITS):
        step = mpmath.mpf(10) ** -15
        rise = exact_bound(setting, rounds + step, coefficient)
        rise -= exact_bound(setting, rounds - step, coefficient)
        reference = float(rise / (2 * step))
      slope = privacy.bound_derivative(setting, rounds, form)
      self.assertAlmostEqual(slope, reference, delta=1e-11 * abs(reference))

  def test_fixed_steps_add_the_drift(self):
    setting = setting_of(0.85, 2.0, 1.05, 0.01)
    for form in ('printed', 'corrected'):
      drift = privacy.divergence_gap_derivative(150, 30, 0.4, 0.05, 1.0, form)
      difference = privacy.bound_derivative(
        setting, 30, form, 150
      ) - privacy.bound_derivative(setting, 30, form)
      self.assertAlmostEqual(difference / (0.2 * drift), 1, places=10)

  def test_bound_is_not_convex(self):
    def second(setting, rounds, form):
      step = 1e-4
      rise = privacy.bound_derivative(setting, rounds + step, form)
      rise -= privacy.bound_derivative(setting, rounds - step, form)
      return rise / (2 * step)

    printed = second(setting_of(0.5, 0.01, 0.9, 1.0), 1, 'printed')
    self.assertAlmostEqual(printed, -0.0838, delta=5e-5)
    for rounds, sign in ((5, 1), (60, -1)):
      corrected = second(setting_of(0.85, 2.3, 0.95, 0.01), rounds, 'corrected')
      self.assertEqual(math.copysign(1, corrected), sign)


class OptimalRoundsTest(parameterized.TestCase):
  @SETTINGS
  @hypothesis.given(contractions, gaps, thetas, noises)
  def test_one_minimum_and_no_other_stationary_point(
    self, contraction, gap, theta, noise
  ):
    setting = setting_of(contraction, gap, theta, noise)
    best = privacy.optimal_rounds(setting)
    self.assertTrue(best.is_minimum)
    self.assertGreater(best.real, 0)
    for factor in (0.01, 0.2, 0.7, 0.95, 0.999):
      below = privacy.bound_derivative(setting, best.real * factor)
      self.assertLess(below, 0)
    for factor in (1.001, 1.05, 1.4, 3.0, 20.0):
      above = privacy.bound_derivative(setting, best.real * factor)
      # Far out at theta < 1 the slope may exceed binary64, not its sign.
      self.assertGreater(above, 0)
    self.assertEqual(best.bound, privacy.convergence_bound(setting, best.real))

  @SETTINGS
  @hypothesis.given(contractions, gaps, thetas, noises)
  def test_best_integer_is_that_of_brute_force(
    self, contraction, gap, theta, noise
  ):
    setting = setting_of(contraction, gap, theta, noise)
    best = privacy.optimal_rounds(setting)
    last = 2 * math.ceil(best.real) + 5
    bounds = [privacy.convergence_bound(setting, m) for m in range(1, last)]
    least = min(bounds)
    self.assertLessEqual(bounds[best.rounds - 1], least * (1 + 1e-13))
    self.assertLess(abs(best.rounds - max(best.real, 1)), 1)

  @SETTINGS
  @hypothesis.given(contractions, gaps, st.floats(1.001, 2.5), noises)
  def test_printed_form_has_a_minimum_for_theta_above_one(
    self, contraction, gap, theta, noise
  ):
    setting = setting_of(contraction, gap, theta, noise)
    best = privacy.optimal_rounds(setting, 'printed')
    bounds = [
      privacy.convergence_bound(setting, m, 'printed')
      for m in range(1, 2 * math.ceil(best.real) + 5)
    ]
    self.assertLessEqual(bounds[best.rounds - 1], min(bounds) * (1 + 1e-13))

  @parameterized.parameters(0.5, 0.9, 1.0)
  def test_printed_form_has_none_otherwise(self, theta):
    setting = setting_of(0.85, 2.0, theta, 0.1)
    with self.assertRaisesRegex(ValueError, '^theta must be > 1 for form'):
      privacy.optimal_rounds(setting, 'printed')
    bounds = [
      privacy.convergence_bound(setting, m, 'printed') for m in range(1, 60)
    ]
    self.assertEqual(bounds, sorted(bounds, reverse=True))

  @SETTINGS
  @hypothesis.given(
    contractions, gaps, thetas, noises, st.integers(1, 300), exponential(-3, 0)
  )
  def test_fixed_steps_are_brute_force(
    self, contraction, gap, theta, noise, steps, eta
  ):
    setting = dataclasses.replace(
      setting_of(contraction, gap, theta, noise), learning_rate=eta
    )
    best = privacy.optimal_rounds(setting, total_steps=steps)
    bounds = [
      privacy.convergence_bound(setting, m, 'corrected', 'single', steps / m)
      for m in range(1, steps + 1)
    ]
    self.assertEqual(bounds[best.rounds - 1], min(bounds))
    self.assertLessEqual(best.bound, min(bounds) * (1 + 1e-13))
    self.assertBetween(best.real, best.rounds - 1, best.rounds + 1)

  def test_root_of_the_printed_condition_minimises_nothing(self):
    setting = dataclasses.replace(
      setting_of(0.85, 2.3, 1.05, 0.1 * math.log(1e3)),
      users=100,
      learning_rate=0.5,
    )
    best = privacy.optimal_rounds(setting, 'printed', 150)
    self.assertFalse(best.is_minimum)
    slope = privacy.bound_derivative(setting, best.real, 'printed', 150)
    self.assertAlmostEqual(slope, 0, places=12)
    least = min(
      privacy.convergence_bound(setting, m, 'printed', 'single', 150 / m)
      for m in range(1, 151)
    )
    self.assertLess(least, 0.99 * best.bound)

  def test_printed_condition_without_a_root(self):
    setting = dataclasses.replace(
      setting_of(0.85, 2.3, 0.9, 0.1), gradient_divergence=0.0
    )
    with self.assertRaisesRegex(ValueError, '^theta must be such that the'):
      privacy.optimal_rounds(setting, 'printed', 150)


class OptimalThetaTest(parameterized.TestCase):
  @parameterized.parameters(*itertools.product((5, 20, 50), (0.5, 0.85, 0.98)))
  def test_no_series_of_the_budget_is_better(self, rounds, contraction):
    """SLSQP over all positive variances, from equal ones."""
    budget = 3.0
    weights = contraction ** np.arange(rounds - 1, -1, -1.0)

    def noise(log_variances):
      return weights @ np.exp(log_variances)

    found = optimize.minimize(
      noise,
      np.full(rounds, math.log(rounds / budget)),
      jac=lambda u: weights * np.exp(u),
      constraints={
        'type': 'eq',
        'fun': lambda u: np.exp(-u).sum() / budget - 1,
        'jac': lambda u: -np.exp(-u) / budget,
      },
      method='SLSQP',
      options={'ftol': 1e-15, 'maxiter': 1000},
    )
    theta = privacy.optimal_theta(contraction)
    stddev = math.sqrt(
      privacy.GeometricSchedule(theta, rounds, 1.0).precision() / budget
    )
    series = privacy.GeometricSchedule(theta, rounds, stddev)
    best = noise(2 * np.log(series.stddevs()))
    self.assertAlmostEqual(series.precision(), budget, places=12)
    self.assertAlmostEqual(found.fun / best, 1, delta=1e-9)
    self.assertGreater(found.fun / best, 1 - 1e-12)

  @parameterized.parameters(*itertools.product((5, 50), (0.5, 0.85, 0.98)))
  def test_is_the_best_of_a_scan(self, rounds, contraction):
    def bound(theta):
      setting = setting_of(contraction, 1.0, theta, 0.01)
      return privacy.convergence_bound(setting, rounds)

    best = bound(privacy.optimal_theta(contraction))
    scan = [bound(theta) for theta in np.linspace(0.2, 1.5, 400)]
    self.assertLessEqual(best, min(scan))


class OptimalPlanTest(parameterized.TestCase):
  def test_example(self):
    plan = privacy.optimal_plan(0.9, 2.0, 50.0, 1.0)
    self.assertAlmostEqual(plan.real, 4.437, delta=5e-4)
    self.assertAlmostEqual(plan.minimum, 1.583105, delta=5e-7)
    self.assertEqual(plan.rounds, 4)
    self.assertAlmostEqual(plan.bound, 1.586370, delta=5e-7)
    self.assertAlmostEqual(plan.theta**2, 0.9, places=15)

  @SETTINGS
  @hypothesis.given(contractions, gaps, exponential(-3, 6), exponential(-3, 3))
  def test_is_brute_force_over_rounds(self, contraction, gap, budget, weight):
    plan = privacy.optimal_plan(contraction, gap, budget, weight)

    def bound(rounds):
      # Term by term, with the series that spends the budget.
      theta = math.sqrt(contraction)
      unit = math.fsum(theta ** (1.0 - m) for m in range(1, rounds + 1))
      first = unit / budget
      noise = math.fsum(
        contraction ** (rounds - m) * first * theta ** (m - 1)
        for m in range(1, rounds + 1)
      )
      return contraction**rounds * gap + weight * noise

    rounds = range(1, 2 * math.ceil(plan.real) + 4)
    least = min(map(bound, rounds))
    self.assertAlmostEqual(plan.bound / bound(plan.rounds), 1, places=10)
    self.assertLessEqual(plan.bound, least * (1 + 1e-10))
    self.assertLessEqual(plan.minimum, plan.bound * (1 + 1e-12))
    schedule = privacy.GeometricSchedule(
      plan.theta, plan.rounds, plan.initial_stddev
    )
    self.assertAlmostEqual(schedule.precision() / budget, 1, places=11)
    cost = sum(1 / fractions.Fraction(x) ** 2 for x in schedule.stddevs())
    self.assertLessEqual(cost, fractions.Fraction(budget))

  def test_all_of_its_rounds_are_affordable(self):
    multiplier = privacy.gaussian_noise_multiplier(3.0, 1e-5)
    plan = privacy.optimal_plan(0.7, 2.3, multiplier**-2, 1e-3)
    schedule = privacy.GeometricSchedule(
      plan.theta, plan.rounds, plan.initial_stddev
    )
    multipliers = schedule.noise_multipliers(1.0)
    delivered = privacy.delivered_epsilon(multipliers, 1e-5, 'exact')
    self.assertLessEqual(delivered, 3.0)

  def test_agrees_with_the_planner_at_that_theta(self):
    setting = setting_of(0.9, 2.0, math.sqrt(0.9), 0.01)
    # k R stands for c0 times the variance of round 1, that is c0 R / B.
    plan = privacy.optimal_plan(0.9, 2.0, 1 / 0.01, 1.0)
    best = privacy.optimal_rounds(setting)
    self.assertAlmostEqual(best.real, plan.real, places=9)
    self.assertAlmostEqual(best.bound, plan.minimum, places=12)
    self.assertEqual(best.rounds, plan.rounds)

  @parameterized.parameters(1e-9, 1e-12, 1e-15)
  def test_contraction_next_to_one(self, offset):
    contraction = 1 - offset
    plan = privacy.optimal_plan(contraction, 1.0, 1e30, 1.0)
    with mpmath.workdps(high_precision.DIGITS):
      root = mpmath.sqrt(mpmath.mpf(contraction))
      cost = 1 / (mpmath.mpf(1e30) * (1 - root) ** 2)
      real = (
        2 * mpmath.log(cost / (1 + cost)) / mpmath.log(mpmath.mpf(contraction))
      )
    self.assertLess(high_precision.relative_error(plan.real, real), 1e-12)


if __name__ == '__main__':
  absltest.main()
