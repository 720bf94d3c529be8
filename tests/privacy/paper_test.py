import itertools
import math
from typing import Any

import mpmath
import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf import privacy
from tvdp_tf.privacy import _rdp

# theta next to 1 on either side, where the printed quotient is 0/0.
NEAR_ONE = tuple(
  1 + sign * offset
  for sign in (-1, 1)
  for offset in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)
)
# q = 0.1, |D_k| = 600, C = 5.
CLAIM: dict[str, Any] = {
  'epsilon': 10.0,
  'delta': 1e-3,
  'sampling_rate': 0.1,
  'sensitivity': 1 / 60,
}


def _unit(epsilon, delta, sampling_rate, sensitivity):
  """sensitivity/epsilon sqrt(2 q ln(1/delta)) in high precision."""
  mpf = mpmath.mpf
  return (
    mpf(sensitivity)
    / mpf(epsilon)
    * mpmath.sqrt(2 * mpf(sampling_rate) * -mpmath.log(mpf(delta)))
  )


def _exact_moment(multipliers, q, moment_order):
  """The moment of secretly sampled rounds at lambda = `moment_order`."""
  values = np.sort(np.asarray(multipliers, np.float64))
  counts = np.ones(len(values))
  orders = np.array([moment_order + 1])
  return float(_rdp.poisson_moments(values, counts, q, orders)[0])


class Theorem1Test(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((*NEAR_ONE, 0.9, 1.0, 1.1), (1, 30, 10_000))
  )
  def test_formula(self, theta, rounds):
    log_stddev = privacy.theorem1_log_stddev(theta, rounds, **CLAIM)
    with mpmath.workdps(high_precision.DIGITS):
      reference = _unit(**CLAIM) * mpmath.sqrt(
        high_precision.precision_sum(theta, rounds)
      )
      error = abs(mpmath.exp(mpmath.mpf(log_stddev)) / reference - 1)
    self.assertLess(error, 1e-15 * (10 + abs(log_stddev)))

  @parameterized.parameters(1, 30, 10_000)
  def test_limit_at_one(self, rounds):
    stddev = privacy.theorem1_stddev(1.0, rounds, **CLAIM)
    single = privacy.theorem1_stddev(1.0, 1, **CLAIM)
    self.assertAlmostEqual(stddev / single, math.sqrt(rounds), places=11)
    for theta in (1 - 1e-15, 1 + 1e-15):
      near = privacy.theorem1_stddev(theta, rounds, **CLAIM)
      self.assertAlmostEqual(near / stddev, 1.0, delta=1e-11)

  def test_stddev_of_any_round_follows_the_series(self):
    first = privacy.theorem1_stddev(0.9, 30, **CLAIM)
    schedule = privacy.GeometricSchedule(0.9, 30, first)
    for m in (1, 2, 30):
      log_stddev = privacy.theorem1_log_stddev(0.9, 30, **CLAIM, round=m)
      self.assertAlmostEqual(
        math.exp(log_stddev) / schedule.stddev(m), 1.0, places=13
      )

  def test_first_round_beyond_binary64_and_the_last_not(self):
    with self.assertRaisesRegex(ValueError, 'round 1 must be representable'):
      privacy.theorem1_stddev(0.5, 3000, **CLAIM)
    last = privacy.theorem1_log_stddev(0.5, 3000, **CLAIM, round=3000)
    # Half of 1/variance is spent in the last round, a quarter before it, ...
    with mpmath.workdps(high_precision.DIGITS):
      reference = mpmath.log(_unit(**CLAIM) * mpmath.sqrt(2))
    self.assertAlmostEqual(last, float(reference), places=12)

  def test_delivers_more_than_it_claims_under_its_own_bound(self):
    for epsilon, expected in (
      (1.0, 1.0362),
      (2.0, 2.1448),
      (5.0, 5.9048),
      (10.0, 13.6191),
      (20.0, 34.4765),
    ):
      sigma = privacy.theorem1_stddev(0.95, 30, epsilon, 1e-3, 0.1, 1.0)
      schedule = privacy.GeometricSchedule(0.95, 30, sigma)
      delivered = privacy.moment_bound_epsilon(0.1 * schedule.precision(), 1e-3)
      self.assertAlmostEqual(delivered, expected, delta=5e-5)
      exactly = epsilon * (1 + epsilon / (4 * math.log(1e3)))
      self.assertAlmostEqual(delivered / exactly, 1.0, places=13)

  @parameterized.parameters(
    (1e-1, 5.12),
    (1e-2, 6.25),
    (1e-3, 6.98),
    (1e-5, 7.97),
    (1e-6, 8.34),
    (1e-8, 8.94),
  )
  def test_without_sampling_it_suffices_up_to_some_epsilon(self, delta, limit):
    def excess(epsilon):
      z = privacy.theorem1_stddev(1.0, 1, epsilon, delta, 1.0, 1.0)
      return privacy.gaussian_epsilon(z, delta) - epsilon

    self.assertLess(excess(limit - 0.01), 0)
    self.assertGreater(excess(limit + 0.01), 0)

  def test_without_sampling_it_fails_at_large_epsilon(self):
    z = privacy.theorem1_stddev(1.0, 1, 10.0, 1e-3, 1.0, 1.0)
    self.assertAlmostEqual(privacy.gaussian_epsilon(z, 1e-3), 11.27, delta=5e-3)
    self.assertAlmostEqual(privacy.gaussian_delta(z, 10.0), 4.29e-3, delta=5e-6)
    z = privacy.theorem1_stddev(1.0, 1, 20.0, 1e-3, 1.0, 1.0)
    self.assertAlmostEqual(privacy.gaussian_epsilon(z, 1e-3), 30.3, delta=0.05)


class TightTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((0.01, 1.0, 10.0, 500.0), (1e-12, 1e-3, 0.5), (0.1, 1.0))
  )
  def test_meets_the_moment_bound_with_equality(self, epsilon, delta, q):
    sigma = privacy.tight_moment_stddev(1.05, 30, epsilon, delta, q, 0.2)
    schedule = privacy.GeometricSchedule(1.05, 30, sigma)
    moment = q * 0.2**2 * schedule.precision()
    delivered = privacy.moment_bound_epsilon(moment, delta)
    self.assertAlmostEqual(delivered / epsilon, 1.0, places=12)

  @parameterized.parameters(*itertools.product((0.1, 1.0, 30.0), (1e-9, 0.3)))
  def test_is_sound_without_sampling(self, epsilon, delta):
    sigma = privacy.tight_moment_stddev(0.9, 20, epsilon, delta, 1.0, 1.0)
    multipliers = privacy.GeometricSchedule(0.9, 20, sigma).stddevs()
    delivered = privacy.delivered_epsilon(multipliers, delta, 'exact')
    self.assertLess(delivered, epsilon)


class MomentBoundTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((1e-6, 0.1, 3.0, 100.0), (1e-9, 1e-3, 0.4))
  )
  def test_epsilon_is_the_minimum_over_orders(self, moment, delta):
    def at(order):
      return moment * (order + 1) / 2 - math.log(delta) / order

    best = math.sqrt(-2 * math.log(delta) / moment)
    epsilon = privacy.moment_bound_epsilon(moment, delta)
    self.assertAlmostEqual(epsilon / at(best), 1.0, places=13)
    for factor in (0.9, 1.1):
      self.assertLess(epsilon, at(best * factor))

  @parameterized.parameters(
    *itertools.product((0.01, 0.1, 3.0, 100.0), (1e-9, 1e-3, 0.4))
  )
  def test_delta_is_the_inverse(self, moment, delta):
    epsilon = privacy.moment_bound_epsilon(moment, delta)
    inverse = privacy.moment_bound_delta(moment, epsilon)
    self.assertAlmostEqual(inverse / delta, 1.0, delta=1e-10)

  def test_limits(self):
    self.assertEqual(privacy.moment_bound_epsilon(0.0, 1e-5), 0)
    self.assertEqual(privacy.moment_bound_epsilon(math.inf, 1e-5), math.inf)
    self.assertEqual(privacy.moment_bound_delta(2.0, 1.0), 1)
    self.assertEqual(privacy.moment_bound_delta(2.0, 0.5), 1)

  @parameterized.parameters(
    (0.1, 0.2, 0.051),
    (0.1, 0.5, 0.962),
    (0.1, 1.0, 4.76),
    (0.01, 0.5, 1.92),
    (0.5, 1.0, 2.31),
    (0.9, 1.0, 1.69),
  )
  def test_is_false_for_secret_sampling_at_large_orders(self, q, z, limit):
    """The exact moment passes q lambda (lambda + 1) / (2 z^2) at `limit`."""

    def ratio(moment_order):
      bound = q * moment_order * (moment_order + 1) / (2 * z * z)
      return _exact_moment([z], q, moment_order) / bound

    self.assertLess(ratio(limit * 0.98), 1)
    self.assertGreater(ratio(limit * 1.02), 1)

  @parameterized.parameters((0.9, 7.75), (1.0, 2.18), (1.1, 6.68))
  def test_is_false_for_some_series_at_its_own_order(self, theta, expected):
    sigma = privacy.theorem1_stddev(theta, 30, **CLAIM)
    multipliers = privacy.GeometricSchedule(theta, 30, sigma).noise_multipliers(
      CLAIM['sensitivity']
    )
    x = 0.1 * math.fsum(multipliers**-2)
    order = 10.0 / x - 0.5
    self.assertAlmostEqual(order, 0.8816, delta=5e-5)
    self.assertAlmostEqual(x * order * (order + 1) / 2, 6.003, delta=5e-4)
    exact = _exact_moment(multipliers, 0.1, order)
    self.assertAlmostEqual(exact, expected, delta=5e-3)


class Theorem2Test(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      (*NEAR_ONE, 0.5, 0.9, 1.0, 1.1, 2.0), ((1, 2), (10, 24), (100, 900))
    )
  )
  def test_formula(self, theta, rounds):
    done, new = rounds
    stddev = privacy.theorem2_stddev(theta, done, new, **CLAIM)
    with mpmath.workdps(high_precision.DIGITS):
      th = mpmath.mpf(theta)
      if theta > 1:
        bracket = high_precision.precision_sum(theta, done) + new - done
      elif theta == 1:
        bracket = mpmath.mpf(new)
      else:
        bracket = high_precision.precision_sum(theta, done)
        bracket += th ** (done - new) / (1 - th)
      reference = _unit(**CLAIM) * mpmath.sqrt(bracket)
    error = high_precision.relative_error(stddev, reference)
    self.assertLess(error, 1e-12)

  def test_blows_up_as_theta_tends_to_one_from_below(self):
    at_one = privacy.theorem2_stddev(1.0, 10, 24, **CLAIM)
    above = privacy.theorem2_stddev(1 + 1e-12, 10, 24, **CLAIM)
    self.assertAlmostEqual(above / at_one, 1.0, places=9)
    below = privacy.theorem2_stddev(1 - 1e-12, 10, 24, **CLAIM)
    self.assertAlmostEqual(below / at_one, 1e6 / math.sqrt(24), delta=10)


if __name__ == '__main__':
  absltest.main()
