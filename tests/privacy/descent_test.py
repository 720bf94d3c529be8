import itertools

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy


class SecondMomentTest(parameterized.TestCase):
  @parameterized.parameters((2, 1), (2, 2), (5, 1), (5, 3), (6, 4), (7, 7))
  def test_every_cohort(self, users, cohort):
    """E||mean of K of U gradients||^2 over all cohorts, enumerated."""
    rng = np.random.default_rng(users * 10 + cohort)
    gradients = rng.normal(size=(users, 3)) + 1
    full = gradients.mean(axis=0)
    dissimilarity = np.mean(np.sum(gradients**2, 1)) / np.sum(full**2)
    moments = [
      np.sum(gradients[list(chosen)].mean(axis=0) ** 2)
      for chosen in itertools.combinations(range(users), cohort)
    ]
    eta, smoothness = 0.3, 1.7
    phi = privacy.descent_coefficient(
      eta, smoothness, users, cohort, dissimilarity
    )
    # phi = (eta^2 L / 2) c - eta, where c is that moment over ||grad F||^2.
    c = np.mean(moments) / np.sum(full**2)
    expected = eta**2 * smoothness / 2 * c - eta
    self.assertAlmostEqual(phi, expected, places=13)

  def test_printed_form_loses_the_cross_terms(self):
    printed, corrected = (
      privacy.descent_coefficient(0.1, 1.0, 100, 10, 1.0, form)
      for form in ('printed', 'corrected')
    )
    self.assertAlmostEqual(corrected, -0.095, places=15)
    self.assertAlmostEqual(printed, -0.099545, places=15)


class ContractionTest(parameterized.TestCase):
  @parameterized.parameters(*itertools.product((0.1, 0.3, 0.9), (1, 4, 20)))
  def test_gradient_descent_attains_the_corrected_one(self, eta, cohort):
    """All losses ||w||^2/2: a step multiplies F by (1 - eta)^2."""
    factor = privacy.contraction(eta, 1.0, 20, cohort, 1.0, 1.0)
    self.assertAlmostEqual(factor, (1 - eta) ** 2, places=14)

  def test_gradient_descent_violates_the_printed_one(self):
    printed = privacy.contraction(0.3, 1.0, 100, 100, 1.0, 1.0, 'printed')
    self.assertAlmostEqual(printed, 0.400009, places=12)
    self.assertLess(printed**5 * 0.5, (1 - 0.3) ** 10 * 0.5)

  def test_printed_one_may_be_negative(self):
    for eta, expected in ((0.6, -0.199964), (1.0, -0.9999)):
      printed = privacy.contraction(eta, 1.0, 100, 100, 1.0, 1.0, 'printed')
      self.assertAlmostEqual(printed, expected, places=12)

  @parameterized.parameters(1.0, 4.0, 12.0)
  def test_range_of_learning_rates(self, dissimilarity):
    users, cohort = 100, 10
    c = ((users - cohort) * dissimilarity + users * (cohort - 1)) / (
      cohort * (users - 1)
    )
    limit = 2 / c
    factor = privacy.contraction(
      0.999 * limit, 1.0, users, cohort, dissimilarity, 0.1
    )
    self.assertBetween(factor, 0.99, 1)
    with self.assertRaisesRegex(
      ValueError, '^contraction must be a number strictly between 0 and 1'
    ):
      privacy.contraction(1.001 * limit, 1.0, users, cohort, dissimilarity, 0.1)

  def test_perfect_step_is_refused(self):
    # One step reaches the optimum: A = 0, and ln A has no value.
    with self.assertRaisesRegex(ValueError, 'got 0.0 for eta=1.0'):
      privacy.contraction(1.0, 1.0, 20, 20, 1.0, 1.0)


if __name__ == '__main__':
  absltest.main()
