import itertools
import math

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tvdp_tf import privacy
from tvdp_tf.privacy import calibration

SOUND_PAIRS = tuple(
  (accountant, sampling)
  for accountant, sampling in itertools.product(
    privacy.ACCOUNTANTS, privacy.SAMPLINGS
  )
  if privacy.is_sound(accountant, sampling, 0.1)
)
UNSOUND_PAIRS = tuple(
  pair
  for pair in itertools.product(privacy.ACCOUNTANTS, privacy.SAMPLINGS)
  if pair not in SOUND_PAIRS
)


def settings(examples):
  return hypothesis.settings(
    derandomize=True, deadline=None, max_examples=examples, database=None
  )


def delivered_share(schedule, target, delta, sensitivity, *how):
  """Delivered over target epsilon."""
  noise = schedule.noise_multipliers(sensitivity)
  return privacy.delivered_epsilon(noise, delta, *how) / target


class TargetTest(parameterized.TestCase):
  def test_every_pair_is_here(self):
    self.assertLen(SOUND_PAIRS, 8)
    self.assertLen(UNSOUND_PAIRS, 4)

  @parameterized.parameters(
    *itertools.product(
      SOUND_PAIRS, ((0.3, 1e-7), (3.0, 1e-3), (30.0, 1e-9)), (0.8, 1.0, 1.3)
    )
  )
  def test_is_met_and_used(self, pair, target, theta):
    accountant, sampling = pair
    if (accountant, sampling) == ('exact', 'visible'):
      theta = 1.0
    rounds = 4 if accountant == 'pld' else 25
    how = (accountant, sampling, 0.1)
    epsilon, delta = target
    schedule = privacy.calibrate(epsilon, delta, theta, rounds, 0.02, *how)
    self.assertEqual(schedule.shape, privacy.GeometricShape(theta))
    self.assertEqual(schedule.rounds, rounds)
    share = delivered_share(schedule, epsilon, delta, 0.02, *how)
    self.assertBetween(share, 0.99, 1)

  @settings(100)
  @hypothesis.given(
    st.floats(-3, 3).map(lambda x: 10**x),
    st.floats(-100, -1).map(lambda x: 10**x),
    st.floats(0.5, 2.0),
    st.integers(1, 300),
    st.floats(-6, 6).map(lambda x: 10**x),
  )
  def test_unsampled(self, target, delta, theta, rounds, sensitivity):
    for accountant in ('exact', 'rdp'):
      schedule = privacy.calibrate(
        target, delta, theta, rounds, sensitivity, accountant
      )
      share = delivered_share(schedule, target, delta, sensitivity, accountant)
      self.assertBetween(share, 0.99, 1)

  @settings(15)
  @hypothesis.given(
    st.floats(-1, 2).map(lambda x: 10**x),
    st.floats(-9, -4).map(lambda x: 10**x),
    st.floats(0.5, 2.0),
    st.integers(1, 60),
    st.floats(-2, -0.01).map(lambda x: 10**x),
  )
  def test_sampled(self, target, delta, theta, rounds, q):
    for sampling in ('visible', 'poisson'):
      how = ('rdp', sampling, q)
      schedule = privacy.calibrate(target, delta, theta, rounds, 1.0, *how)
      share = delivered_share(schedule, target, delta, 1.0, *how)
      self.assertBetween(share, 0.99, 1)
    how = ('exact', 'visible', q)
    schedule = privacy.calibrate(target, delta, 1.0, rounds, 1.0, *how)
    share = delivered_share(schedule, target, delta, 1.0, *how)
    self.assertBetween(share, 0.99, 1)

  def test_moments_without_sampling(self):
    schedule = privacy.calibrate(5.0, 1e-5, 0.9, 30, 1.0, 'moments')
    tight = privacy.tight_moment_stddev(0.9, 30, 5.0, 1e-5, 1.0, 1.0)
    self.assertAlmostEqual(schedule.initial_stddev / tight, 1, delta=1e-3)
    self.assertGreaterEqual(schedule.initial_stddev, tight)


class ClosedFormTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((0.5, 0.9, 1.0, 1.1, 2.0), (1, 30, 900), (1e-8, 3.0))
  )
  def test_exact_is_the_gaussian_noise_multiplier(
    self, theta, rounds, sensitivity
  ):
    schedule = privacy.calibrate(2.0, 1e-6, theta, rounds, sensitivity)
    z = privacy.gaussian_noise_multiplier(2.0, 1e-6)
    budget = 1 / (sensitivity * z) ** 2
    self.assertAlmostEqual(schedule.precision() / budget, 1, delta=1e-12)
    share = delivered_share(schedule, 2.0, 1e-6, sensitivity, 'exact')
    self.assertBetween(share, 1 - 1e-10, 1)

  def test_sampling_rate_plays_no_part_without_sampling(self):
    for accountant in ('exact', 'rdp', 'pld'):
      self.assertEqual(
        privacy.calibrate(2.0, 1e-6, 0.9, 30, 1.0, accountant, 'none', 0.1),
        privacy.calibrate(2.0, 1e-6, 0.9, 30, 1.0, accountant),
      )

  @parameterized.parameters(
    # epsilon and the noise needed over Theorem 1's, q = 0.1, delta = 1e-3.
    (1.0, 2.1905),
    (2.0, 2.4592),
    (5.0, 2.9345),
    (10.0, 3.4547),
    (20.0, 4.1981),
  )
  def test_against_theorem_1(self, epsilon, expected):
    for theta in (0.9, 1.0, 1.1):
      printed = privacy.theorem1_stddev(theta, 30, epsilon, 1e-3, 0.1, 1.0)
      schedule = privacy.calibrate(epsilon, 1e-3, theta, 30)
      ratio = schedule.initial_stddev / printed
      self.assertAlmostEqual(ratio, expected, delta=5e-5)

  @parameterized.parameters(
    # theta, epsilon, then that ratio by rdp: poisson, visible.
    (0.9, 1.0, 0.3554, 1.0438),
    (0.9, 20.0, 1.6764, 2.2132),
    (1.0, 1.0, 0.3008, 0.9570),
    (1.0, 10.0, 0.9208, 1.5834),
    (1.1, 5.0, 0.7824, 1.4377),
  )
  def test_sampled_rdp_against_theorem_1(self, theta, epsilon, *expected):
    printed = privacy.theorem1_stddev(theta, 30, epsilon, 1e-3, 0.1, 1.0)
    for sampling, value in zip(('poisson', 'visible'), expected, strict=True):
      schedule = privacy.calibrate(
        epsilon, 1e-3, theta, 30, 1.0, 'rdp', sampling, 0.1
      )
      ratio = schedule.initial_stddev / printed
      # Up to 0.1 % of epsilon is not used; the reference takes all orders.
      self.assertBetween(ratio / value, 1 - 1e-3, 1.015)

  @parameterized.parameters(
    # theta, epsilon, then that ratio by pld: poisson, visible.
    (0.9, 10.0, 1.0382, 1.5353),
    (1.0, 1.0, 0.2658, 0.7976),
    (1.0, 20.0, 1.2528, 1.7668),
  )
  def test_the_pld_ratio_delivers_the_target(self, theta, epsilon, *ratios):
    printed = privacy.theorem1_stddev(theta, 30, epsilon, 1e-3, 0.1, 1.0)
    for sampling, ratio in zip(('poisson', 'visible'), ratios, strict=True):
      schedule = privacy.GeometricSchedule(theta, 30, ratio * printed)
      share = delivered_share(
        schedule, epsilon, 1e-3, 1.0, 'pld', sampling, 0.1
      )
      self.assertAlmostEqual(share, 1, delta=2e-3)


class LostRoundTest(parameterized.TestCase):
  # Round 1 is over; clients 0 and 1 were in round 2.
  PLANNED = np.array(
    [
      [0, 1, 0, 0],
      [0, 1, 0, 0],
      [0, 0, 1, 0],
      [0, 0, 1, 1],
      [1, 0, 0, 1],
    ],
    bool,
  )

  @parameterized.parameters(
    # Two rounds at z = 1, or three at z = 1.22 or more.
    (1.0, 1.23, True),
    (1.0, 1.22, False),
    # The round is worth less than those after it: 1 of 1 + 1.25 + 1.5625.
    (0.8, 1.17, True),
    (0.8, 1.16, False),
    (1.0, 1e300, True),
    (1.0, np.inf, False),  # Nothing left: they do not count anyway.
  )
  def test_is_left_out_if_it_costs_more_than_it_is_worth(self, theta, z, lost):
    initial = np.array([z, 0.5, 1.0, 0.2, 0.3])
    found = calibration.without_lost_round(initial, self.PLANNED, theta, 1)
    if lost:
      initial[:2] = np.inf
    np.testing.assert_array_equal(found, initial)

  def test_stays_if_its_clients_have_others(self):
    planned = self.PLANNED.copy()
    planned[1, 3] = True
    initial = np.array([9.0, 9.0, 1.0, 1.0, 1.0])
    for of, completed in ((planned, 1), (self.PLANNED, 3)):
      found = calibration.without_lost_round(initial, of, 1.0, completed)
      np.testing.assert_array_equal(found, initial)


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(*UNSOUND_PAIRS)
  def test_unsound_accountants(self, accountant, sampling):
    with self.assertRaisesRegex(ValueError, '^accountant must be'):
      privacy.calibrate(1.0, 1e-5, 1.0, 5, 1.0, accountant, sampling, 0.1)

  def test_exact_visible_of_unequal_noise(self):
    with self.assertRaisesRegex(ValueError, '^accountant must be rdp or pld'):
      privacy.calibrate(1.0, 1e-5, 0.9, 5, 1.0, 'exact', 'visible', 0.1)

  @parameterized.parameters('visible', 'poisson')
  def test_delta_beyond_the_accountant(self, sampling):
    with self.assertRaisesRegex(ValueError, '^delta must be within reach'):
      privacy.calibrate(1.0, 1e-15, 1.0, 5, 1.0, 'pld', sampling, 0.1)

  def test_epsilon_that_binary64_does_not_tell_from_zero(self):
    with self.assertRaisesRegex(ValueError, '^epsilon must be large enough'):
      privacy.calibrate(1e-15, 0.3, 1.0, 5)

  @parameterized.parameters(*(10.0**-e for e in range(9, 16)))
  def test_near_it_the_target_is_met_or_refused(self, epsilon):
    try:
      schedule = privacy.calibrate(epsilon, 0.3, 1.0, 10)
    except ValueError as error:
      self.assertStartsWith(str(error), 'epsilon must be large enough')
      self.assertLess(epsilon, 1e-11)
      return
    share = delivered_share(schedule, epsilon, 0.3, 1.0, 'exact')
    self.assertBetween(share, 0.99, 1)

  def test_epsilon_that_no_noise_delivers(self):
    # The user is hardly ever there: delta covers it, and nothing is needed.
    with self.assertRaisesRegex(ValueError, '^epsilon must be so small that'):
      privacy.calibrate(1.0, 0.1, 1.0, 1, 1.0, 'exact', 'visible', 0.01)
    with self.assertRaisesRegex(ValueError, '^epsilon must be within reach'):
      privacy.calibrate(0.002, 0.004, 1.7, 6, 1.0, 'rdp', 'visible', 0.03)

  @parameterized.parameters((0.5, 3000), (2.0, 1100))
  def test_noise_beyond_binary64(self, theta, rounds):
    with self.assertRaisesRegex(ValueError, 'must be representable'):
      privacy.calibrate(1.0, 1e-5, theta, rounds)

  def test_the_series_that_just_fits(self):
    schedule = privacy.calibrate(1.0, 1e-5, 0.5, 1000)
    self.assertTrue(np.all(np.isfinite(schedule.stddevs())))
    share = delivered_share(schedule, 1.0, 1e-5, 1.0, 'exact')
    self.assertBetween(share, 1 - 1e-9, 1)
    self.assertGreater(schedule.initial_stddev, 1e150)
    self.assertLess(math.log10(schedule.stddev(1000)), 1)


if __name__ == '__main__':
  absltest.main()
