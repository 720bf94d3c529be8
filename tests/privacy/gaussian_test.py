import itertools
import math
import warnings

import hypothesis
import mpmath
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests.privacy import high_precision
from tvdp_tf import privacy
from tvdp_tf.privacy import gaussian

# A result may exceed the truth by this, relatively.
EXCESS = 1e-11
# Or, where epsilon is far below 1/z and a difference, by this fraction of 1/z.
EXCESS_OF_MU = 1e-12
DELTAS = (
  *(10.0**-e for e in (300, 250, 200, 150, 100, 50, 20, 10, 8, 5, 3, 2, 1)),
  0.3,
  0.5,
)
# Off the powers of ten, so that every bit of the mantissa is in use.
MULTIPLIERS = tuple(
  float(z) for z in 1.2345678901234567 * 10.0 ** np.arange(-8, 8.5, 0.5)
)
EPSILONS = tuple(
  float(e) for e in 1.2345678901234567 * 10.0 ** np.arange(-12, 16, 1.0)
)

SETTINGS = hypothesis.settings(
  derandomize=True, deadline=None, max_examples=100, database=None
)
exponents = st.floats(-8, 8)
deltas = st.floats(-300, math.log10(0.5)).map(lambda x: 10**x)


class AgainstHighPrecisionTest(parameterized.TestCase):
  @parameterized.parameters(*MULTIPLIERS)
  def test_epsilon_is_never_below_and_hardly_above(self, z):
    for delta in DELTAS:
      epsilon = privacy.gaussian_epsilon(z, delta)
      with self.subTest(delta=delta, epsilon=epsilon):
        self.assertLessEqual(high_precision.gaussian_delta(z, epsilon), delta)
        with mpmath.workdps(high_precision.DIGITS):
          less = mpmath.mpf(epsilon) * (1 - EXCESS) - EXCESS_OF_MU / z
        if less > 0:
          self.assertGreater(high_precision.gaussian_delta(z, less), delta)

  @parameterized.parameters(*EPSILONS)
  def test_noise_multiplier_is_never_below_and_hardly_above(self, epsilon):
    for delta in DELTAS:
      z = privacy.gaussian_noise_multiplier(epsilon, delta)
      with self.subTest(delta=delta, z=z):
        self.assertLessEqual(high_precision.gaussian_delta(z, epsilon), delta)
        less = mpmath.mpf(z) * (1 - EXCESS)
        self.assertGreater(high_precision.gaussian_delta(less, epsilon), delta)

  @parameterized.parameters(*MULTIPLIERS)
  def test_delta_is_never_below_and_hardly_above(self, z):
    for score in (-20.0, -5.0, -1.0, 0.0, 0.5, 2.0, 8.0, 20.0, 36.0):
      epsilon = max((score + 0.5 / z) / z, 0.0)
      delta = privacy.gaussian_delta(z, epsilon)
      with self.subTest(epsilon=epsilon, delta=delta):
        truth = high_precision.gaussian_delta(z, epsilon)
        self.assertGreaterEqual(delta, truth)
        # What four units in the last place of epsilon and z can move it by.
        rounding = 2.0**-50 * (epsilon * z + 1 / z) * (abs(score) + 3)
        self.assertLessEqual(delta / truth - 1, EXCESS + rounding)

  def test_smallest_delta_of_binary64(self):
    delta = 5e-324
    for z in (1e-8, 1.0, 1e8):
      epsilon = privacy.gaussian_epsilon(z, delta)
      truth = high_precision.gaussian_delta(z, epsilon)
      self.assertLessEqual(truth, delta)
      self.assertGreater(epsilon, 0)


class RelationsTest(parameterized.TestCase):
  @SETTINGS
  @hypothesis.given(st.floats(-6, 6).map(lambda x: 10**x), deltas)
  def test_noise_multiplier_delivers_epsilon(self, epsilon, delta):
    z = privacy.gaussian_noise_multiplier(epsilon, delta)
    delivered = privacy.gaussian_epsilon(z, delta)
    # The absolute term: near mu/sqrt(2 pi) = delta, epsilon is a difference.
    self.assertAlmostEqual(delivered, epsilon, delta=1e-10 * epsilon + 1e-11)

  @SETTINGS
  @hypothesis.given(exponents, exponents, deltas, deltas)
  def test_epsilon_falls_with_noise_and_delta(self, a, b, delta1, delta2):
    (less, more), (small, large) = sorted((a, b)), sorted((delta1, delta2))
    low = privacy.gaussian_epsilon(10**more, large)
    high = privacy.gaussian_epsilon(10**less, small)
    self.assertLessEqual(low, high * (1 + EXCESS))

  @SETTINGS
  @hypothesis.given(exponents, exponents, st.floats(0, 50), st.floats(0, 50))
  def test_delta_falls_with_noise_and_epsilon(self, a, b, epsilon1, epsilon2):
    (less, more) = sorted((a, b))
    small, large = sorted((epsilon1, epsilon2))
    low = privacy.gaussian_delta(10**more, large)
    high = privacy.gaussian_delta(10**less, small)
    self.assertLessEqual(low, high * (1 + 1e-9))

  def test_vectorised_bound_is_the_scalar_one(self):
    mu, epsilon = np.array([[0.1], [3.0]]), np.array([0.0, 0.5, 7.0])
    logs = gaussian.log_delta_upper(mu, epsilon)
    self.assertEqual(logs.shape, (2, 3))
    for (i, one_mu), (j, one) in itertools.product(
      enumerate(mu[:, 0]), enumerate(epsilon)
    ):
      self.assertEqual(logs[i, j], gaussian.log_delta_upper(one_mu, one))


class LimitsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.enter_context(warnings.catch_warnings())
    warnings.simplefilter('error')

  def test_no_release_discloses_nothing(self):
    self.assertEqual(privacy.gaussian_epsilon(math.inf, 1e-5), 0)
    self.assertEqual(privacy.gaussian_delta(math.inf, 0.0), 0)

  def test_nothing_is_left_of_privacy(self):
    self.assertEqual(privacy.gaussian_epsilon(1e-200, 1e-5), math.inf)
    self.assertEqual(privacy.gaussian_epsilon(5e-324, 0.5), math.inf)
    self.assertEqual(privacy.gaussian_delta(1e-200, 1e300), 1)
    self.assertEqual(privacy.gaussian_delta(5e-324, 0), 1)

  def test_epsilon_is_zero_from_the_total_variation_on(self):
    total_variation = privacy.gaussian_delta(2.0, 0.0)
    self.assertEqual(privacy.gaussian_epsilon(2.0, total_variation), 0)
    below_it = privacy.gaussian_epsilon(2.0, total_variation * (1 - 1e-9))
    self.assertGreater(below_it, 0)
    self.assertLess(below_it, 1e-8)

  def test_extreme_noise_is_no_error(self):
    self.assertEqual(privacy.gaussian_epsilon(1e308, 0.999), 0)
    self.assertGreater(privacy.gaussian_epsilon(1e308, 5e-324), 0)
    self.assertGreater(privacy.gaussian_delta(1e-3, 1e308), 0)

  def test_underflowing_delta_is_not_zero(self):
    self.assertGreater(privacy.gaussian_delta(1.0, 1e4), 0)
    self.assertLess(privacy.gaussian_delta(1.0, 1e4), 1e-320)

  def test_unrepresentable_noise_multiplier_is_refused(self):
    with self.assertRaisesRegex(ValueError, '^epsilon must leave the noise'):
      privacy.gaussian_noise_multiplier(5e-324, 5e-324)


if __name__ == '__main__':
  absltest.main()
