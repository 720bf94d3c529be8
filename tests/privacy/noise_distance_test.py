import math

from absl.testing import absltest, parameterized

from tvdp_tf.privacy import noise_distance


class NoiseDistanceTest(parameterized.TestCase):
  def test_adds_up(self):
    for noise, distance in noise_distance.DISTANCES.items():
      share = noise_distance.share_of_delta(3.0, 1000, noise)
      expected = (1 + math.exp(3)) * 16 * 1000 * distance
      self.assertAlmostEqual(share / expected, 1, delta=1e-9)
      self.assertGreaterEqual(share, expected)

  @parameterized.parameters('continuous', 'discrete')
  def test_what_is_left_is_less_and_hardly_less(self, noise):
    delta = noise_distance.accounted_delta(1e-5, 3.0, 4_000_000, noise)
    self.assertLess(delta, 1e-5)
    share = noise_distance.share_of_delta(3.0, 4_000_000, noise)
    self.assertLessEqual(delta + share, 1e-5)
    self.assertGreater(delta, 1e-5 * (1 - 1e-5))

  @parameterized.parameters(
    (1e-250, 10.0, 'continuous'),
    (1e-15, 3.0, 'discrete'),
    (1e-5, 28.0, 'discrete'),
  )
  def test_names_the_least_delta(self, delta, epsilon, noise):
    with self.assertRaises(ValueError) as caught:
      noise_distance.accounted_delta(delta, epsilon, 10**6, noise)
    text = str(caught.exception)
    self.assertStartsWith(text, 'delta must be at least ')
    least = float(text.split()[5].rstrip(',')) if '.' in text.split()[5] else 0
    if least:
      noise_distance.accounted_delta(least * 1.1, epsilon, 10**6, noise)

  def test_no_delta_reaches_a_huge_epsilon(self):
    for noise in noise_distance.DISTANCES:
      self.assertGreater(noise_distance.share_of_delta(200.0, 1, noise), 1)
      self.assertEqual(noise_distance.share_of_delta(1e9, 1, noise), math.inf)
    with self.assertRaisesRegex(ValueError, '^epsilon must be lower'):
      noise_distance.accounted_delta(0.4, 1e9, 1, 'continuous')

  def test_the_break_of_a_tail_at_eight_deviations_is_covered(self):
    # Where noise ended at 8.57 standard deviations, the tail alone was above
    # delta at (28, 1e-5) and (33, 1e-3): P(|N| > 8.57 - mu), mu some 4.5.
    for epsilon, delta in ((28.0, 1e-5), (33.0, 1e-3)):
      share = noise_distance.share_of_delta(epsilon, 10**6, 'continuous')
      self.assertLess(share, delta / 1000)

  @parameterized.parameters(
    (0.0, 1, 'discrete', 'epsilon must'),
    (1.0, 0, 'discrete', 'values must'),
    (1.0, 1, 'uniform', 'noise must'),
  )
  def test_refuses(self, epsilon, values, noise, message):
    with self.assertRaisesRegex(ValueError, message):
      noise_distance.share_of_delta(epsilon, values, noise)


if __name__ == '__main__':
  absltest.main()
