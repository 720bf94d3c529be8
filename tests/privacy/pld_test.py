import itertools
import math
import warnings

import dp_accounting
import numpy as np
from absl.testing import absltest, parameterized
from dp_accounting import pld

from tests.privacy import high_precision
from tvdp_tf import privacy


def reference_epsilon(multipliers, delta, interval, q=None):
  """dp_accounting's epsilon, on a grid of one's choice."""
  accountant = pld.PLDAccountant(value_discretization_interval=interval)
  for z in multipliers:
    event = dp_accounting.GaussianDpEvent(float(z))
    if q is not None:
      event = dp_accounting.PoissonSampledDpEvent(q, event)
    accountant.compose(event)
  return accountant.get_epsilon(delta)


class UnsampledTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((0.003, 0.1, 1.0, 20.0, 1e4, 1e8), (1e-200, 1e-9, 0.01))
  )
  def test_is_never_below_the_exact_one_and_close(self, z, delta):
    exact = privacy.delivered_epsilon([z], delta, 'exact')
    epsilon = privacy.delivered_epsilon([z], delta, 'pld')
    self.assertGreaterEqual(epsilon, exact)
    self.assertLessEqual(epsilon, exact * 1.002)

  @parameterized.parameters(1e9, 1e12, 1e16, 1e30)
  def test_not_even_where_binary64_is_too_coarse_for_the_losses(self, z):
    for delta in (1e-3 / z, 0.1 / z, 1e-200):
      exact = privacy.delivered_epsilon([z], delta, 'exact')
      self.assertGreater(exact, 0)
      epsilon = privacy.delivered_epsilon([z], delta, 'pld')
      self.assertGreaterEqual(epsilon, exact)

  @parameterized.parameters((0.5, 1e-5), (3.0, 1e-9), (30.0, 1e-3))
  def test_against_dp_accounting(self, z, delta):
    theirs = reference_epsilon([z] * 3, delta, 1e-3 / z)
    epsilon = privacy.delivered_epsilon([z] * 3, delta, 'pld')
    self.assertAlmostEqual(epsilon / theirs, 1, delta=1e-4)


class VisibleTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      ((0.3, 5), (1.0, 30), (6.0, 900), (1e4, 20), (1e7, 2)),
      (0.001, 0.1, 0.9),
      (1e-9, 1e-5, 1e-3),
    )
  )
  def test_is_never_below_the_exact_one_and_close(
    self, multiplier_rounds, q, delta
  ):
    z, rounds = multiplier_rounds
    # The same share of what there is to disclose at any noise.
    delta *= min(1.0, math.sqrt(rounds) / z)
    arguments = ([z] * rounds, delta)
    exact = privacy.delivered_epsilon(*arguments, 'exact', 'visible', q)
    epsilon = privacy.delivered_epsilon(*arguments, 'pld', 'visible', q)
    self.assertGreaterEqual(epsilon, exact)
    # What is set aside for the noise of the FFT matters next to 1e-12.
    if delta > 1e-10:
      self.assertLessEqual(epsilon, exact * 1.002)

  def test_unequal_noise_lies_between_its_extremes(self):
    multipliers = privacy.GeometricSchedule(0.8, 8, 2.0).stddevs()
    low, epsilon, high = (
      privacy.delivered_epsilon(noise, 1e-5, 'pld', 'visible', 0.3)
      for noise in (np.full(8, 2.0), multipliers, np.full(8, multipliers[-1]))
    )
    self.assertBetween(epsilon, low, high)

  def test_is_at_most_the_unsampled_one(self):
    multipliers = privacy.GeometricSchedule(1.2, 6, 0.8).stddevs()
    exact = privacy.delivered_epsilon(multipliers, 1e-4, 'exact')
    for q in (0.01, 0.5, 0.999999):
      epsilon = privacy.delivered_epsilon(
        multipliers, 1e-4, 'pld', 'visible', q
      )
      self.assertLessEqual(epsilon, exact * 1.002)


class PoissonTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      (0.1, 0.5, 1.0, 5.0, 100.0, 1e5), (0.001, 0.1, 0.6), (1e-3, 1e-2)
    )
  )
  def test_one_round_is_never_below_the_closed_form(self, z, q, share):
    delta = share * q * min(1.0, 1 / z)
    epsilon = privacy.delivered_epsilon([z], delta, 'pld', 'poisson', q)
    truth = max(high_precision.poisson_delta(z, q, epsilon))
    self.assertLessEqual(truth, delta)
    less = 0.998 * epsilon
    truth = max(high_precision.poisson_delta(z, q, less))
    self.assertGreater(truth, delta)

  @parameterized.parameters(
    (0.5, 1.0, 20, 0.1, 1e-5),
    (1.0, 1.0, 10, 0.5, 1e-3),
    (2.0, 0.9, 5, 0.02, 1e-7),
    (0.8, 1.2, 4, 0.01, 1e-5),
    (20.0, 1.1, 4, 0.3, 1e-4),
  )
  def test_composition_against_dp_accounting(self, z, theta, rounds, q, delta):
    multipliers = privacy.GeometricSchedule(theta, rounds, z).stddevs()
    epsilon = privacy.delivered_epsilon(multipliers, delta, 'pld', 'poisson', q)
    theirs = reference_epsilon(multipliers, delta, epsilon / 1000, q)
    # Both are upper bounds, and theirs is on the finer grid.
    self.assertAlmostEqual(epsilon / theirs, 1, delta=1e-3)

  def test_where_the_divergences_of_dp_accounting_are_not_monotone(self):
    z, q, delta = 0.05800505414786536, 0.00012300432836907191, 6.9e-08
    epsilon = privacy.delivered_epsilon([z], delta, 'pld', 'poisson', q)
    truth = max(high_precision.poisson_delta(z, q, epsilon))
    self.assertLessEqual(truth, delta)
    self.assertGreater(truth, 0.5 * delta)

  def test_is_at_most_the_visible_one(self):
    for theta, q in itertools.product((0.8, 1.0, 1.3), (0.01, 0.5)):
      multipliers = privacy.GeometricSchedule(theta, 5, 1.0).stddevs()
      poisson, visible = (
        privacy.delivered_epsilon(multipliers, 1e-5, 'pld', sampling, q)
        for sampling in ('poisson', 'visible')
      )
      self.assertLessEqual(poisson, visible * 1.001)


class LimitsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.enter_context(warnings.catch_warnings())
    warnings.simplefilter('error', RuntimeWarning)

  @parameterized.parameters('visible', 'poisson')
  def test_delta_below_the_noise_of_the_fft_is_infinite(self, sampling):
    for rounds, delta in ((1, 1e-14), (10_000, 1e-11)):
      epsilon = privacy.delivered_epsilon(
        [5.0] * rounds, delta, 'pld', sampling, 0.1
      )
      self.assertEqual(epsilon, math.inf)

  @parameterized.parameters(
    *itertools.product(
      ('none', 'visible', 'poisson'), (1e-60, 1e-5, 0.01, 1e5, 1e300)
    )
  )
  def test_extremes_are_no_error(self, sampling, z):
    for q in (1e-9, 1 - 1e-16):
      epsilon = privacy.delivered_epsilon([z], 1e-6, 'pld', sampling, q)
      self.assertGreaterEqual(epsilon, 0)
      if z == 1e300:
        self.assertEqual(epsilon, 0)

  def test_taking_part_less_often_than_delta_costs_nothing(self):
    for sampling in ('visible', 'poisson'):
      epsilon = privacy.delivered_epsilon(
        np.full(10, 0.5), 1e-3, 'pld', sampling, 9e-5
      )
      self.assertEqual(epsilon, 0)


if __name__ == '__main__':
  absltest.main()
