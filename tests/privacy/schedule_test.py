import dataclasses
import itertools
import math
from typing import Any

import mpmath
import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf import privacy

THETAS = (0.5, 0.9, 1 - 1e-12, 1.0, 1 + 1e-15, 1.001, 1.1, 2.0)


class SeriesTest(parameterized.TestCase):
  @parameterized.parameters(*itertools.product(THETAS, (1, 2, 30, 900)))
  def test_stddev_of_every_round(self, theta, rounds):
    schedule = privacy.GeometricSchedule(theta, rounds, 0.3)
    with mpmath.workdps(high_precision.DIGITS):
      expected = [
        mpmath.mpf(0.3) * mpmath.sqrt(mpmath.mpf(theta) ** (m - 1))
        for m in range(1, rounds + 1)
      ]
    stddevs = schedule.stddevs()
    self.assertEqual(stddevs.shape, (rounds,))
    self.assertEqual(stddevs.dtype, np.float64)
    for stddev, reference in zip(stddevs, expected, strict=True):
      self.assertLess(
        high_precision.relative_error(float(stddev), reference),
        1e-15 * (3 + rounds * abs(math.log(theta))),
      )

  @parameterized.parameters(*THETAS)
  def test_variance_is_what_theta_multiplies(self, theta):
    schedule = privacy.GeometricSchedule(theta, 5, 2.0)
    for m in range(1, 5):
      ratio = schedule.variance(m + 1) / schedule.variance(m)
      self.assertAlmostEqual(ratio, theta, delta=4e-15 * theta)

  def test_a_round_is_a_function_of_the_round_alone(self):
    long = privacy.GeometricSchedule(0.97, 400, 1.7)
    short = privacy.GeometricSchedule(0.97, 300, 1.7)
    for m in (300, 1, 17, 300):
      self.assertEqual(long.stddev(m), short.stddev(m))
      self.assertEqual(long.stddev(m), long.stddevs()[m - 1])
      self.assertEqual(long.variance(m), long.stddev(m) ** 2)

  def test_equal_noise_is_exactly_equal(self):
    stddevs = privacy.GeometricSchedule(1.0, 10_000, 0.1).stddevs()
    self.assertTrue(np.all(stddevs == 0.1))

  @parameterized.parameters(*itertools.product(THETAS, (1, 30, 900)))
  def test_precision_is_the_sum_of_inverse_variances(self, theta, rounds):
    schedule = privacy.GeometricSchedule(theta, rounds, 0.3)
    direct = math.fsum(schedule.stddevs() ** -2.0)
    tolerance = 1e-14 * (1 + rounds * abs(math.log(theta))) * direct
    self.assertAlmostEqual(schedule.precision(), direct, delta=tolerance)

  @parameterized.parameters(
    (0.9, 6000, 1e100),
    (1 - 1e-9, 10_000, 1.0),
    (1 - 1e-15, 10_000, 1.0),
    (1.0, 10_000, 1.0),
    (1 + 1e-3, 10_000, 1.0),
    (1.1, 6000, 1.0),
  )
  def test_precision_of_thousands_of_rounds(self, theta, rounds, initial):
    schedule = privacy.GeometricSchedule(theta, rounds, initial)
    with mpmath.workdps(high_precision.DIGITS):
      reference = high_precision.precision_sum(theta, rounds) / (
        mpmath.mpf(initial) ** 2
      )
    error = high_precision.relative_error(schedule.precision(), reference)
    self.assertLess(error, 1e-12)

  def test_noise_multipliers_are_relative_to_the_sensitivity(self):
    schedule = privacy.GeometricSchedule(0.9, 4, 3.0)
    np.testing.assert_array_equal(
      schedule.noise_multipliers(2.0), schedule.stddevs() / 2
    )


class LimitsTest(parameterized.TestCase):
  def test_is_frozen_and_a_value(self):
    numbers: tuple[Any, ...] = (np.float32(0.5), np.int64(3), 1)
    schedule = privacy.GeometricSchedule(*numbers)
    self.assertEqual(schedule, privacy.GeometricSchedule(0.5, 3, 1.0))
    self.assertLen({schedule, privacy.GeometricSchedule(0.5, 3, 1.0)}, 1)
    self.assertIs(type(schedule.theta), float)
    self.assertIs(type(schedule.rounds), int)
    with self.assertRaises(dataclasses.FrozenInstanceError):
      schedule.theta = 1.0  # type: ignore[misc]

  @parameterized.parameters(
    (0.5, 1100, 1.0, 'the noise variance of round 1100 must be'),
    (2.0, 1100, 1.0, 'the noise variance of round 1100 must be'),
    (1.0, 1, 1e-160, 'the noise variance of round 1 must be'),
    (1.0, 1, 1e160, 'the noise variance of round 1 must be'),
    (1.0, 10_000, 2e-154, 'initial_stddev must be so large'),
  )
  def test_refuses_noise_that_binary64_does_not_hold(
    self, theta, rounds, stddev, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      privacy.GeometricSchedule(theta, rounds, stddev)

  def test_the_widest_series_that_fits(self):
    schedule = privacy.GeometricSchedule(0.5, 2000, 1e150)
    self.assertAlmostEqual(schedule.stddev(2000) / 1e150 * 2.0**999.5, 1)

  @parameterized.parameters(1e300, 1e-300)
  def test_refuses_a_sensitivity_out_of_proportion(self, sensitivity):
    schedule = privacy.GeometricSchedule(0.9, 3, 1e10 / sensitivity**0.1)
    with self.assertRaisesRegex(ValueError, '^sensitivity must leave every'):
      schedule.noise_multipliers(sensitivity)

  @parameterized.parameters(0, -1, 4, 1.0, True)
  def test_there_is_no_round_but_those(self, m):
    schedule = privacy.GeometricSchedule(0.9, 3, 1.0)
    for function in (schedule.stddev, schedule.variance):
      with self.assertRaisesRegex(
        ValueError, '^m must be an integer from 1 to 3'
      ):
        function(m)


class ListedScheduleTest(parameterized.TestCase):
  def test_of_a_geometric_series_it_is_the_geometric_one(self):
    geometric = privacy.GeometricSchedule(0.7, 12, 0.3)
    listed = privacy.ListedSchedule(tuple(geometric.stddevs().tolist()))
    np.testing.assert_array_equal(listed.stddevs(), geometric.stddevs())
    self.assertEqual(listed.rounds, 12)
    self.assertEqual(listed.variance(5), geometric.variance(5))
    self.assertAlmostEqual(listed.precision() / geometric.precision(), 1)
    np.testing.assert_array_equal(
      listed.noise_multipliers(0.1), geometric.noise_multipliers(0.1)
    )

  def test_scaled_by_its_shape(self):
    listed = privacy.ListedSchedule((2.0, 8.0, 0.5))
    other = listed.shape.schedule(2, 3.0)
    np.testing.assert_allclose(other.stddevs(), [3.0, 12.0], rtol=1e-15)
    with self.assertRaisesRegex(ValueError, 'each of the 4 rounds, got 3'):
      listed.shape.schedule(4, 3.0)

  @parameterized.parameters((1e-160,), (1e160,), (0.0,), (math.nan,))
  def test_refuses(self, stddev):
    with self.assertRaises(ValueError):
      privacy.ListedSchedule((1.0, stddev))

  def test_refuses_a_round_that_is_none(self):
    with self.assertRaisesRegex(ValueError, 'm must be an integer from 1 to 2'):
      privacy.ListedSchedule((1.0, 2.0)).stddev(3)


if __name__ == '__main__':
  absltest.main()
