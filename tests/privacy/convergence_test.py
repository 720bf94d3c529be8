import dataclasses
import itertools
import math
from typing import Any

import mpmath
from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf import privacy

NEAR = (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)
SETTING = privacy.ConvergenceSetting(
  contraction=0.85,
  initial_gap=2.3,
  theta=1.05,
  smoothness=1.0,
  sensitivity=1 / 60,
  epsilon=10.0,
  delta=1e-3,
  sampling_rate=0.1,
  users=100,
  dimension=25450,
  sum_squared_weights=0.1,
  lipschitz=1.5,
  gradient_divergence=0.4,
  learning_rate=0.05,
)


def with_theta(theta):
  return dataclasses.replace(SETTING, theta=theta)


@high_precision.workdps
def exact_noise(setting, rounds):
  """The corrected noise term."""
  mpf = mpmath.mpf
  scale = mpf(setting.sensitivity) / mpf(setting.epsilon)
  return (
    mpf(setting.sampling_rate)
    * mpf(setting.smoothness)
    * scale**2
    * -mpmath.log(mpf(setting.delta))
    * setting.dimension
    * mpf(setting.sum_squared_weights)
    * high_precision.noise_sum(setting.theta, setting.contraction, rounds)
    * high_precision.precision_sum(setting.theta, rounds)
  )


class NoiseTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((1, 5, 30, 1000), (*NEAR, 0.0), (-1, 1))
  )
  def test_theta_next_to_one_and_to_the_contraction(self, rounds, off, sign):
    for centre in (1.0, SETTING.contraction):
      setting = with_theta(centre * (1 + sign * off))
      terms = privacy.convergence_terms(setting, rounds)
      error = high_precision.relative_error(
        terms.noise, exact_noise(setting, rounds)
      )
      self.assertLess(error, 1e-12)

  @parameterized.parameters(0.9, 0.95, 1.0, 1.05, 1.1)
  def test_is_the_recursion_of_its_proof(self, theta):
    """Each round contracts the gap and adds (L/2) d sum p^2 variance."""
    setting, rounds = with_theta(theta), 30
    sigma = privacy.theorem1_stddev(theta, rounds, 10.0, 1e-3, 0.1, 1 / 60)
    gap = setting.initial_gap
    for m in range(1, rounds + 1):
      added = 25450 * 0.1 * sigma**2 * theta ** (m - 1) / 2
      gap = setting.contraction * gap + added
    bound = privacy.convergence_bound(setting, rounds)
    self.assertAlmostEqual(bound / gap, 1, places=13)

  @parameterized.parameters(
    (0.9, -2.7e-7), (0.95, -1.4e-7), (1.0, 0.0), (1.05, 3.4e-7), (1.1, 1.4e-6)
  )
  def test_as_printed_it_vanishes_or_helps(self, theta, expected):
    setting = with_theta(theta)
    terms = privacy.convergence_terms(setting, 30, 'printed')
    self.assertAlmostEqual(terms.noise, expected, delta=0.06 * abs(expected))
    self.assertGreater(privacy.convergence_terms(setting, 30).noise, 0.3)

  def test_quadratics_violate_the_printed_bound(self):
    """F = ||w||^2/2 for all users: everything is known in closed form."""
    users, cohort, d, rounds, eta = 20, 5, 10, 15, 0.3
    theta, epsilon, delta, sensitivity = 1.05, 5.0, 1e-3, 0.02
    sigma = privacy.theorem1_stddev(
      theta, rounds, epsilon, delta, cohort / users, sensitivity
    )
    gap = 0.5
    for m in range(1, rounds + 1):
      # E||(1 - eta) w + mean of K noises||^2 / 2.
      gap = (1 - eta) ** 2 * gap + d * sigma**2 * theta ** (m - 1) / (
        2 * cohort
      )
    bounds = {}
    for form in ('printed', 'corrected'):
      setting = privacy.ConvergenceSetting(
        privacy.contraction(eta, 1.0, users, cohort, 1.0, 1.0, form),
        *(0.5, theta, 1.0, sensitivity, epsilon, delta, cohort / users),
        *(users, d, 1 / cohort),
      )
      bounds[form] = privacy.convergence_bound(setting, rounds, form)
    self.assertAlmostEqual(bounds['corrected'] / gap, 1, places=12)
    self.assertLess(bounds['printed'], 0.1 * gap)


class TermsTest(parameterized.TestCase):
  def test_sum(self):
    terms = privacy.convergence_terms(SETTING, 30, 'corrected', 'single', 5)
    self.assertEqual(terms.total, terms.decay + terms.noise + terms.drift)
    self.assertEqual(
      terms.total,
      privacy.convergence_bound(SETTING, 30, 'corrected', 'single', 5),
    )
    self.assertAlmostEqual(terms.decay, 0.85**30 * 2.3, places=15)

  def test_drift(self):
    gap = 1.5 * privacy.divergence_gap(5, 0.4, 0.05, 1.0)
    none, single, accumulated = (
      privacy.convergence_terms(SETTING, 30, drift=drift, local_steps=5).drift
      for drift in ('none', 'single', 'accumulated')
    )
    self.assertEqual(none, 0)
    self.assertAlmostEqual(single, gap, places=15)
    self.assertAlmostEqual(
      accumulated, sum(gap * 0.85**m for m in range(30)), places=14
    )

  def test_one_round_accumulates_one_drift(self):
    single, accumulated = (
      privacy.convergence_terms(SETTING, 1, drift=drift, local_steps=5).drift
      for drift in ('single', 'accumulated')
    )
    self.assertAlmostEqual(single, accumulated, places=15)

  def test_overflow_is_infinite(self):
    setting = with_theta(3.0)
    self.assertEqual(privacy.convergence_bound(setting, 2000), math.inf)
    # As printed, nothing is added at theta = 1.
    terms = privacy.convergence_terms(with_theta(1.0), 10_000, 'printed')
    self.assertEqual(terms.noise, 0)


class SettingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('printed', 'users'),
    ('corrected', 'dimension'),
    ('corrected', 'sum_squared_weights'),
  )
  def test_each_form_names_what_it_lacks(self, form, name):
    nothing: dict[str, Any] = {name: None}
    setting = dataclasses.replace(SETTING, **nothing)
    with self.assertRaisesRegex(
      ValueError, f"^{name} must be given for form '{form}', got None"
    ):
      privacy.convergence_bound(setting, 30, form)

  @parameterized.parameters('lipschitz', 'gradient_divergence', 'learning_rate')
  def test_drift_names_what_it_lacks(self, name):
    nothing: dict[str, Any] = {name: None}
    setting = dataclasses.replace(SETTING, **nothing)
    with self.assertRaisesRegex(ValueError, f'^{name} must be given for a'):
      privacy.convergence_bound(setting, 30, drift='single', local_steps=5)

  def test_drift_needs_the_local_steps(self):
    with self.assertRaisesRegex(ValueError, '^local_steps must be given'):
      privacy.convergence_bound(SETTING, 30, drift='single')


if __name__ == '__main__':
  absltest.main()
