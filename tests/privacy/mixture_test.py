import itertools
import math

from absl.testing import absltest, parameterized

from tests.privacy import high_precision
from tvdp_tf import privacy

# An epsilon may exceed the truth by this, relatively.
EXCESS = 1e-10


class VisibleTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      ((0.2, 5), (1.0, 30), (4.0, 200), (30.0, 60), (1e4, 10)),
      (1e-4, 0.1, 0.5, 0.999),
    )
  )
  def test_is_never_below_and_hardly_above(self, multiplier_rounds, q):
    z, rounds = multiplier_rounds
    for delta in (1e-100, 1e-12, 1e-5, 1e-2):
      epsilon = privacy.delivered_epsilon(
        [z] * rounds, delta, 'exact', 'visible', q
      )
      with self.subTest(delta=delta, epsilon=epsilon):

        def truth(epsilon):
          return high_precision.visible_delta(z, rounds, q, epsilon)

        self.assertLessEqual(truth(epsilon), delta)
        if epsilon > 0:
          self.assertGreater(truth(epsilon * (1 - EXCESS)), delta)

  @parameterized.parameters(1e-9, 1e-5, 1e-2)
  def test_tends_to_the_unsampled_one_as_all_take_part(self, delta):
    multipliers = [3.0] * 50
    everyone = privacy.delivered_epsilon(multipliers, delta, 'exact')
    almost = privacy.delivered_epsilon(
      multipliers, delta, 'exact', 'visible', 1 - 1e-12
    )
    self.assertAlmostEqual(almost / everyone, 1, delta=1e-8)

  def test_is_zero_where_taking_part_is_rarer_than_delta(self):
    self.assertEqual(
      privacy.delivered_epsilon([1e-3] * 9, 1e-3, 'exact', 'visible', 1e-4), 0
    )
    self.assertGreater(
      privacy.delivered_epsilon([1e-3] * 11, 1e-3, 'exact', 'visible', 1e-4),
      1000,
    )

  def test_no_noise_is_infinite(self):
    epsilon = privacy.delivered_epsilon(
      [1e-200] * 9, 1e-3, 'exact', 'visible', 0.1
    )
    self.assertEqual(epsilon, math.inf)

  def test_thousands_of_rounds(self):
    rounds, z, q, delta = 10_000, 100.0, 0.02, 1e-6
    epsilon = privacy.delivered_epsilon(
      [z] * rounds, delta, 'exact', 'visible', q
    )
    expected = privacy.gaussian_epsilon(z / math.sqrt(q * rounds), delta)
    # The number of rounds varies little; more of them cost more.
    self.assertBetween(epsilon, expected, 1.05 * expected)


class PaperTest(parameterized.TestCase):
  """The visible selection of the paper's server: Theorem 1 does not hold."""

  def test_default_setting(self):
    sigma = privacy.theorem1_stddev(1.0, 30, 10.0, 1e-3, 0.1, 1 / 60)
    multipliers = [60 * sigma] * 30
    epsilon = privacy.delivered_epsilon(
      multipliers, 1e-3, 'exact', 'visible', 0.1
    )
    self.assertAlmostEqual(epsilon, 16.47, delta=5e-3)
    delta = high_precision.visible_delta(60 * sigma, 30, 0.1, 10.0)
    self.assertAlmostEqual(float(delta), 0.0307, delta=5e-5)

  def test_one_round(self):
    z = privacy.theorem1_stddev(1.0, 1, 1.0, 1e-3, 0.01, 1.0)
    self.assertAlmostEqual(z, 0.37169, delta=5e-6)
    visible = high_precision.visible_delta(z, 1, 0.01, 1.0)
    self.assertAlmostEqual(float(visible), 7.18e-3, delta=5e-6)
    secret = max(high_precision.poisson_delta(z, 0.01, 1.0))
    self.assertAlmostEqual(float(secret), 1.882e-3, delta=5e-7)
    epsilon = privacy.delivered_epsilon([z], 1e-3, 'pld', 'poisson', 0.01)
    self.assertAlmostEqual(epsilon, 1.831, delta=5e-4)

  @parameterized.parameters(
    (0.01, 0.450), (0.05, 1.86), (0.1, 2.93), (0.2, 4.19), (0.5, 5.88)
  )
  def test_holds_up_to_some_epsilon(self, q, limit):
    def excess(epsilon):
      z = privacy.theorem1_stddev(1.0, 30, epsilon, 1e-3, q, 1.0)
      delivered = privacy.delivered_epsilon(
        [z] * 30, 1e-3, 'exact', 'visible', q
      )
      return delivered - epsilon

    self.assertLess(excess(0.99 * limit), 0)
    self.assertGreater(excess(1.01 * limit), 0)


if __name__ == '__main__':
  absltest.main()
