import itertools
import math

import mpmath
import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf import privacy

NUMBERS = (1e-12, 1e-6, 1e-3, 0.05, 0.3, 1.0, 7.0, 1e3)


@high_precision.workdps
def exact_gap(x, gamma, eta, smoothness):
  x, gamma, eta, smoothness = map(mpmath.mpf, (x, gamma, eta, smoothness))
  return (
    gamma / smoothness * ((1 + eta * smoothness) ** x - 1) - eta * gamma * x
  )


class GapTest(parameterized.TestCase):
  @parameterized.parameters(*itertools.product(NUMBERS, (0.1, 1.0, 10.0)))
  def test_is_the_formula_without_cancellation(self, eta, smoothness):
    for x in (1e-9, 0.3, 0.999, 1 + 1e-12, 1.001, 2, 2.5, 5, 40, 1000):
      gap = privacy.divergence_gap(x, 1.3, eta, smoothness)
      reference = exact_gap(x, 1.3, eta, smoothness)
      if gap == math.inf:
        self.assertGreater(reference, 1e306)
        continue
      # The power amplifies the rounding of eta * L by its exponent.
      tolerance = 1e-13 * (1 + x * math.log1p(eta * smoothness))
      with self.subTest(x=x):
        self.assertLess(
          high_precision.relative_error(gap, reference), tolerance
        )

  @parameterized.parameters(0, 1, 0.0, 1.0)
  def test_is_zero_without_drift(self, x):
    self.assertEqual(privacy.divergence_gap(x, 1.3, 0.1, 2.0), 0)
    self.assertEqual(privacy.divergence_gap(3, 0, 0.1, 2.0), 0)

  @parameterized.parameters(1, 2, 5, 30)
  def test_is_the_recursion_of_its_proof(self, steps):
    eta, smoothness, gamma = 0.07, 1.9, 0.4
    total = sum(
      eta * gamma * ((1 + eta * smoothness) ** (j - 1) - 1)
      for j in range(1, steps + 1)
    )
    gap = privacy.divergence_gap(steps, gamma, eta, smoothness)
    self.assertAlmostEqual(gap, total, places=14)

  @parameterized.parameters(*itertools.product((0.01, 0.3, 1.0), (2, 5, 12)))
  def test_bounds_the_drift_of_quadratics(self, eta, steps):
    """Full participation, no noise, a reference that starts together."""
    rng = np.random.default_rng(steps)
    curvatures = rng.uniform(0.2, 1.0, (6, 4))
    centres = rng.normal(size=(6, 4))
    mean_curvature = curvatures.mean(axis=0)
    start = rng.normal(size=4)
    local, reference = np.tile(start, (6, 1)), start.copy()
    gammas = np.zeros(6)
    for _ in range(steps):
      # The divergence is bounded where the reference passes.
      gradients = curvatures * (reference - centres)
      spread = gradients - gradients.mean(axis=0)
      gammas = np.maximum(gammas, np.linalg.norm(spread, axis=1))
      local -= eta * curvatures * (local - centres)
      reference -= eta * (
        mean_curvature * reference - (curvatures * centres).mean(axis=0)
      )
    drift = np.linalg.norm(local.mean(axis=0) - reference)
    bound = privacy.divergence_gap(steps, float(gammas.mean()), eta, 1.0)
    self.assertLessEqual(drift, bound)
    self.assertGreater(drift, 0)

  def test_overflow_is_infinite(self):
    self.assertEqual(privacy.divergence_gap(1e9, 1.0, 1.0, 1.0), math.inf)


class DerivativeTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((1e-9, 0.01, 0.3, 5.0), (0.1, 1.0, 10.0), (2, 30, 150))
  )
  def test_is_the_derivative(self, eta, smoothness, rounds):
    with mpmath.workdps(3 * high_precision.DIGITS):
      step = mpmath.mpf(10) ** -high_precision.DIGITS

      def gap(m):
        base = 1 + mpmath.mpf(eta) * mpmath.mpf(smoothness)
        return base ** (150 / m) / smoothness - mpmath.mpf(eta) * 150 / m

      rise = gap(rounds + step) - gap(rounds - step)
      reference = mpmath.mpf(1.3) * rise / (2 * step)
    slope = privacy.divergence_gap_derivative(150, rounds, 1.3, eta, smoothness)
    self.assertLess(high_precision.relative_error(slope, reference), 1e-11)

  @parameterized.parameters(*itertools.product(NUMBERS, (0.1, 1.0, 10.0)))
  def test_more_rounds_mean_less_drift_for_every_tau_from_one(
    self, eta, smoothness
  ):
    for tau in (1.0, 1.5, 3.0, 50.0):
      slope = privacy.divergence_gap_derivative(
        tau * 20, 20, 1.0, eta, smoothness
      )
      self.assertLess(slope, 0)

  def test_printed_one_may_be_positive(self):
    printed, corrected = (
      privacy.divergence_gap_derivative(5, 1, 1.0, 0.1, 1.0, form)
      for form in ('printed', 'corrected')
    )
    self.assertGreater(printed, 0)
    self.assertLess(corrected, 0)

  def test_limits(self):
    self.assertEqual(privacy.divergence_gap_derivative(9, 3, 0, 0.1, 1.0), 0)
    self.assertEqual(
      privacy.divergence_gap_derivative(1e9, 1, 1.0, 1.0, 1.0), -math.inf
    )


if __name__ == '__main__':
  absltest.main()
