import math
import sys

from absl.testing import absltest, parameterized

from tvdp_tf.privacy import _log_space


class RepresentableTest(parameterized.TestCase):
  @parameterized.parameters(-700.0, 0.0, 709.0)
  def test_exponential(self, log_value):
    self.assertEqual(
      _log_space.representable('it', log_value), math.exp(log_value)
    )

  @parameterized.parameters(
    (-709.0, 'it must be .* got 10\\*\\*-307.915'),
    (710.0, 'it must be .* got 10\\*\\*308.349'),
    (1e6, 'it must be'),
    (math.nan, 'it must be'),
  )
  def test_refuses_what_is_no_normal_number(self, log_value, message):
    with self.assertRaisesRegex(ValueError, message):
      _log_space.representable('it', log_value)


class ExpOrInfTest(absltest.TestCase):
  def test_values(self):
    self.assertEqual(_log_space.exp_or_inf(1.0), math.e)
    self.assertEqual(_log_space.exp_or_inf(-1e9), 0)
    self.assertEqual(_log_space.exp_or_inf(710.0), math.inf)


class RoundUpTest(parameterized.TestCase):
  @parameterized.parameters(0.0, 5e-324, 1.0, math.pi, 1e300)
  def test_exceeds_by_some_units_in_the_last_place(self, value):
    up = _log_space.round_up(value)
    self.assertGreaterEqual(up, value + 8 * math.ulp(value))
    self.assertLessEqual(up, value + 17 * math.ulp(value))

  def test_infinity_stays(self):
    self.assertEqual(_log_space.round_up(math.inf), math.inf)
    self.assertEqual(_log_space.round_up(sys.float_info.max), math.inf)


if __name__ == '__main__':
  absltest.main()
