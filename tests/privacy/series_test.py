import itertools
import math

import mpmath
from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf.privacy import _log_space

NEAR_ONE = (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)
THETAS = (
  *(1 + sign * offset for sign in (-1, 1) for offset in NEAR_ONE),
  *(0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0),
)
ROUNDS = (1, 2, 30, 1000, 10_000)


def error_of_log(log_value, reference):
  """Relative error of the exponential, which may overflow binary64."""
  with mpmath.workdps(high_precision.DIGITS):
    return float(abs(mpmath.exp(mpmath.mpf(log_value)) / reference - 1))


class PrecisionSumTest(parameterized.TestCase):
  @parameterized.parameters(*itertools.product(THETAS, ROUNDS))
  def test_is_the_sum(self, theta, rounds):
    log_sum = _log_space.log_precision_sum(theta, rounds)
    reference = high_precision.precision_sum(theta, rounds)
    # The logarithm itself is good to a few units in its last place.
    tolerance = 2e-15 * (4 + abs(log_sum))
    self.assertLess(error_of_log(log_sum, reference), tolerance)

  @parameterized.parameters(*ROUNDS)
  def test_limit_at_one_is_the_number_of_rounds(self, rounds):
    self.assertEqual(
      _log_space.log_precision_sum(1.0, rounds), math.log(rounds)
    )

  def test_falls_with_theta_and_grows_with_rounds(self):
    thetas = sorted(THETAS)
    for rounds in ROUNDS[1:]:
      sums = [_log_space.log_precision_sum(theta, rounds) for theta in thetas]
      self.assertEqual(sums, sorted(sums, reverse=True))
    for theta in thetas:
      sums = [_log_space.log_precision_sum(theta, rounds) for rounds in ROUNDS]
      self.assertEqual(sums, sorted(sums))

  def test_real_number_of_terms(self):
    between = _log_space.log_precision_sum(0.9, 2.5)
    self.assertBetween(
      between,
      _log_space.log_precision_sum(0.9, 2),
      _log_space.log_precision_sum(0.9, 3),
    )


class NoiseSumTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(THETAS, (0.01, 0.5, 0.9, 0.999), ROUNDS)
  )
  def test_is_the_sum(self, theta, contraction, rounds):
    log_sum = _log_space.log_noise_sum(theta, contraction, rounds)
    reference = high_precision.noise_sum(theta, contraction, rounds)
    tolerance = 2e-15 * (
      4 + rounds * (abs(math.log(theta)) - 2 * math.log(contraction))
    )
    self.assertLess(error_of_log(log_sum, reference), tolerance)

  @parameterized.parameters(
    *itertools.product((0.5, 0.85, 0.99), (*NEAR_ONE, 0.0), (1, 30, 10_000))
  )
  def test_theta_next_to_the_contraction(self, contraction, offset, rounds):
    for theta in (contraction * (1 - offset), contraction * (1 + offset)):
      log_sum = _log_space.log_noise_sum(theta, contraction, rounds)
      reference = high_precision.noise_sum(theta, contraction, rounds)
      tolerance = 2e-15 * (4 - 2 * rounds * math.log(contraction))
      self.assertLess(error_of_log(log_sum, reference), tolerance)

  def test_limit_at_the_contraction(self):
    self.assertAlmostEqual(
      math.exp(_log_space.log_noise_sum(0.85, 0.85, 7)), 7 * 0.85**6, places=15
    )


if __name__ == '__main__':
  absltest.main()
