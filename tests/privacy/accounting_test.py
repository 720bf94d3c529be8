import itertools
import math
import time
import warnings
from typing import Any

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tvdp_tf import privacy
from tvdp_tf.privacy import accounting

SOUND = ('exact', 'pld', 'rdp')
# What the grid of pld, or the orders of rdp, may cost or save, relatively.
PLD_ERROR = 2e-3
RDP_ERROR = 1e-6


def settings(examples):
  return hypothesis.settings(max_examples=examples)


multipliers = st.lists(
  st.floats(-0.5, 2).map(lambda x: 10**x), min_size=1, max_size=5
)
deltas = st.floats(-9, -1).map(lambda x: 10**x)
rates = st.floats(-3, -0.01).map(lambda x: 10**x)


def assert_at_most(small, large, error):
  """`small` <= `large` (1 + error), where both may be 0 or inf."""
  assert small <= large * (1 + error), (small, large)


class SoundnessTest(parameterized.TestCase):
  """Tighter accountants say less, and less to see never says more."""

  @settings(100)
  @hypothesis.given(multipliers, deltas)
  def test_unsampled(self, noise, delta):
    exact, pld, rdp, moments = (
      privacy.delivered_epsilon(noise, delta, name)
      for name in ('exact', 'pld', 'rdp', 'moments')
    )
    assert_at_most(exact, pld, 0)
    assert_at_most(pld, rdp, PLD_ERROR)
    # rdp converts its moments better, moments optimises over all orders.
    assert_at_most(exact, moments, 0)
    assert_at_most(rdp, moments, 0.05)

  @settings(30)
  @hypothesis.given(
    st.floats(-0.5, 2).map(lambda x: 10**x), st.integers(1, 300), deltas, rates
  )
  def test_visible_of_equal_noise(self, z, rounds, delta, q):
    exact, pld, rdp = (
      privacy.delivered_epsilon([z] * rounds, delta, name, 'visible', q)
      for name in SOUND
    )
    assert_at_most(exact, pld, 0)
    assert_at_most(pld, rdp, PLD_ERROR)

  @settings(20)
  @hypothesis.given(multipliers, deltas, rates)
  def test_the_more_is_secret_the_less_is_disclosed(self, noise, delta, q):
    everyone = privacy.delivered_epsilon(noise, delta, 'exact')
    visible, poisson, visible_rdp, poisson_rdp = (
      privacy.delivered_epsilon(noise, delta, accountant, sampling, q)
      for accountant in ('pld', 'rdp')
      for sampling in ('visible', 'poisson')
    )
    assert_at_most(poisson, visible, PLD_ERROR)
    assert_at_most(visible, everyone, PLD_ERROR)
    assert_at_most(poisson, poisson_rdp, PLD_ERROR)
    assert_at_most(visible, visible_rdp, PLD_ERROR)
    # A lower order where the quadrature ends is not searched for.
    assert_at_most(poisson_rdp, visible_rdp, RDP_ERROR)

  @settings(10)
  @hypothesis.given(multipliers, deltas)
  def test_sampling_at_rate_one_is_none(self, noise, delta):
    for accountant, sampling in itertools.product(
      privacy.ACCOUNTANTS, privacy.SAMPLINGS
    ):
      self.assertEqual(
        privacy.delivered_epsilon(noise, delta, accountant, sampling, 1.0),
        privacy.delivered_epsilon(noise, delta, accountant),
      )

  @settings(15)
  @hypothesis.given(multipliers, deltas, st.randoms(use_true_random=False))
  def test_order_and_idle_rounds_play_no_part(self, noise, delta, random):
    shuffled = [*noise, math.inf]
    random.shuffle(shuffled)
    for accountant in privacy.ACCOUNTANTS:
      self.assertEqual(
        privacy.delivered_epsilon(shuffled, delta, accountant),
        privacy.delivered_epsilon(noise, delta, accountant),
      )

  @parameterized.parameters(
    *itertools.product((0.9, 1.0, 1.1), privacy.ACCOUNTANTS)
  )
  def test_many_releases_are_one(self, theta, accountant):
    """Only the sum of 1/z^2 counts, whatever the series."""
    z = privacy.GeometricSchedule(theta, 100, 3.0).stddevs()
    single = math.fsum(z**-2.0) ** -0.5
    many = privacy.delivered_epsilon(z, 1e-6, accountant)
    one = privacy.delivered_epsilon([single], 1e-6, accountant)
    self.assertAlmostEqual(many / one, 1, delta=1e-12)


class MonotoneTest(parameterized.TestCase):
  """In every argument: more noise, fewer rounds, larger delta, smaller q."""

  def _less_and_more(self, less, more, pairs):
    for accountant, sampling, error in pairs:
      small = privacy.delivered_epsilon(less[0], less[1], accountant, *sampling)
      large = privacy.delivered_epsilon(more[0], more[1], accountant, *sampling)
      assert_at_most(small, large, error)

  @settings(60)
  @hypothesis.given(
    multipliers, deltas, st.floats(1, 10), st.floats(1, 10), rates, rates
  )
  def test_cheap_accountants(self, noise, delta, factor, larger, q1, q2):
    few, many = sorted((q1, q2))
    less = ([z * factor for z in noise], min(delta * larger, 0.9))
    more = ([*noise, 50.0], delta)
    errors = {'exact': 1e-11, 'rdp': RDP_ERROR, 'moments': 1e-12}
    for accountant, error in errors.items():
      self._less_and_more(less, more, [(accountant, (), error)])
    for sampling in ('visible', 'poisson'):
      small = privacy.delivered_epsilon(*less, 'rdp', sampling, few)
      large = privacy.delivered_epsilon(*more, 'rdp', sampling, many)
      assert_at_most(small, large, RDP_ERROR)
    equal = [noise[0]] * len(noise)
    small = privacy.delivered_epsilon(
      [factor * z for z in equal], less[1], 'exact', 'visible', few
    )
    large = privacy.delivered_epsilon(
      [*equal, noise[0]], delta, 'exact', 'visible', many
    )
    assert_at_most(small, large, 1e-9)

  @settings(15)
  @hypothesis.given(
    multipliers, deltas, st.floats(1, 10), st.floats(1, 10), rates, rates
  )
  def test_pld(self, noise, delta, factor, larger, q1, q2):
    few, many = sorted((q1, q2))
    less = ([z * factor for z in noise], min(delta * larger, 0.9))
    more = ([*noise, 50.0], delta)
    for sampling in (('none',), ('visible',), ('poisson',)):
      small = privacy.delivered_epsilon(*less, 'pld', *sampling, few)
      large = privacy.delivered_epsilon(*more, 'pld', *sampling, many)
      assert_at_most(small, large, PLD_ERROR)


class PaperTest(parameterized.TestCase):
  """What the printed noise delivers: q = 0.1, M = 30, delta = 1e-3."""

  def _multipliers(self, theta, epsilon):
    z = privacy.theorem1_stddev(theta, 30, epsilon, 1e-3, 0.1, 1.0)
    return privacy.GeometricSchedule(theta, 30, z).stddevs()

  @parameterized.parameters(
    (1.0, 1.0362, 2.5726, 2.9085),
    (2.0, 2.1448, 6.1412, 6.8420),
    (5.0, 5.9048, 21.4456, 23.3611),
    (10.0, 13.6191, 61.6311, 65.7828),
    (20.0, 34.4765, 196.4287, 205.3806),
  )
  def test_without_amplification(self, epsilon, own_bound, exact, rdp):
    for theta in (0.9, 1.0, 1.1):
      noise = self._multipliers(theta, epsilon)
      own = privacy.delivered_epsilon(noise, 1e-3, 'moments', sampling_rate=0.1)
      self.assertAlmostEqual(own, own_bound, delta=1e-4)
      for accountant in ('exact', 'pld'):
        delivered = privacy.delivered_epsilon(noise, 1e-3, accountant)
        self.assertAlmostEqual(delivered, exact, delta=1e-4 * exact)
      # The reference optimises over all orders.
      delivered = privacy.delivered_epsilon(noise, 1e-3, 'rdp')
      self.assertBetween(delivered, rdp - 1e-4, rdp * 1.005)

  @parameterized.parameters(
    # theta, target, poisson pld, poisson rdp, visible pld, visible rdp
    (0.9, 1, 0.1727, 0.2123, 0.8189, 1.0536),
    (0.9, 5, 2.3354, 3.1574, 6.8046, 8.3601),
    (0.9, 10, 10.8646, 13.7259, 19.3947, 23.4455),
    (0.9, 20, 49.5331, 59.9347, 63.3177, 75.4481),
    (0.95, 2, 0.4181, 0.5064, 1.8468, 2.2925),
    (0.95, 10, 7.9973, 10.0908, 17.3216, 20.7633),
    (1, 1, 0.1681, 0.2043, 0.7555, 0.9483),
    (1, 2, 0.4096, 0.4917, 1.7954, 2.2108),
    (1, 5, 1.5987, 1.9653, 5.9917, 7.2334),
    (1, 10, 6.6752, 8.2929, 16.4736, 19.6256),
    (1, 20, 34.0587, 40.9770, 51.6449, 60.8336),
    (1.05, 5, 1.7688, 2.2820, 6.2048, 7.5373),
    (1.05, 20, 38.5035, 46.5618, 54.7732, 64.8357),
    (1.1, 1, 0.1720, 0.2110, 0.8093, 1.0388),
    (1.1, 10, 10.2929, 13.0150, 18.9661, 22.8987),
  )
  def test_with_sampling(self, theta, target, *expected):
    noise = self._multipliers(float(theta), float(target))
    for (sampling, accountant), value in zip(
      itertools.product(('poisson', 'visible'), ('pld', 'rdp')),
      expected,
      strict=True,
    ):
      delivered = privacy.delivered_epsilon(
        noise, 1e-3, accountant, sampling, 0.1
      )
      # The reference of rdp optimises over all orders, not multiples of 0.1.
      excess = 1e-3 if accountant == 'pld' else 0.025
      self.assertBetween(delivered / value, 1 - 1e-3, 1 + excess)

  @parameterized.parameters(
    (0.9, 15.2, 23.5),
    (0.95, 13.1, 17.1),
    (1.0, 11.3, 11.3),
    (1.05, 13.0, 16.8),
    (1.1, 14.8, 22.3),
  )
  def test_the_worst_user_of_three_rounds(self, theta, one_a_block, any_three):
    noise = self._multipliers(theta, 10.0)
    slots = [noise[slot::10] for slot in range(10)]
    worst = max(
      privacy.delivered_epsilon(slot, 1e-3, 'exact') for slot in slots
    )
    self.assertAlmostEqual(worst, one_a_block, delta=0.051)
    worst = privacy.delivered_epsilon(np.sort(noise)[:3], 1e-3, 'exact')
    self.assertAlmostEqual(worst, any_three, delta=0.051)

  def test_outsider_who_sees_the_aggregate_of_ten(self):
    noise = self._multipliers(1.05, 10.0) * math.sqrt(10)
    delivered = privacy.delivered_epsilon(noise, 1e-3, 'exact')
    self.assertAlmostEqual(delivered, 11.27, delta=5e-3)


class DoorTest(parameterized.TestCase):
  @parameterized.parameters(*privacy.ACCOUNTANTS)
  def test_no_release_discloses_nothing(self, accountant):
    nothing: tuple[Any, ...] = ([], [math.inf], np.array([]), iter([math.inf]))
    for noise in nothing:
      self.assertEqual(privacy.delivered_epsilon(noise, 1e-5, accountant), 0)

  @parameterized.parameters(
    *itertools.product(privacy.ACCOUNTANTS, privacy.SAMPLINGS, (0.1, 1.0))
  )
  def test_soundness_is_refused_to_the_false_bound_only(
    self, accountant, sampling, q
  ):
    expected = q == 1 or (accountant, sampling) in {
      *itertools.product(SOUND, ('none', 'visible')),
      ('rdp', 'poisson'),
      ('pld', 'poisson'),
    }
    self.assertEqual(privacy.is_sound(accountant, sampling, q), expected)

  def test_there_is_no_exact_accountant_of_secret_sampling(self):
    with self.assertRaisesRegex(ValueError, '^accountant must be rdp or pld'):
      privacy.delivered_epsilon([1.0], 1e-5, 'exact', 'poisson', 0.5)

  def test_exact_visible_needs_equal_noise(self):
    with self.assertRaisesRegex(ValueError, "got 'exact' with 2 different"):
      privacy.delivered_epsilon([1.0, 1.1], 1e-5, 'exact', 'visible', 0.5)

  @parameterized.parameters(
    *itertools.product(privacy.ACCOUNTANTS, (5e-324, 1e-200, 1e200, 1e308))
  )
  def test_extremes_are_no_error(self, accountant, z):
    with warnings.catch_warnings():
      warnings.simplefilter('error', RuntimeWarning)
      for delta in (5e-324, 0.5, 1 - 1e-15):
        epsilon = privacy.delivered_epsilon([z, z], delta, accountant)
        self.assertIsInstance(epsilon, float)
        self.assertEqual(epsilon == math.inf, z < 1)

  def test_equivalent_mu_is_rounded_up(self):
    self.assertEqual(accounting.equivalent_mu(np.array([])), 0)
    self.assertEqual(accounting.equivalent_mu(np.array([5e-324])), math.inf)
    mu = accounting.equivalent_mu(np.array([3.0, 3.0, 3.0]))
    self.assertGreaterEqual(mu, 1 / math.sqrt(3))
    self.assertAlmostEqual(mu, 1 / math.sqrt(3), places=14)


class CostTest(parameterized.TestCase):
  @parameterized.parameters('exact', 'rdp', 'moments')
  def test_ten_thousand_unsampled_rounds(self, accountant):
    noise = privacy.GeometricSchedule(0.9999, 10_000, 200.0).stddevs()
    privacy.delivered_epsilon(noise, 1e-5, accountant)
    start = time.process_time()
    privacy.delivered_epsilon(noise, 1e-5, accountant)
    self.assertLess(time.process_time() - start, 0.05)


class TextTest(parameterized.TestCase):
  @parameterized.parameters(
    ('5',), (b'5',), (np.bytes_(b'5'),), (bytearray(b'5'),)
  )
  def test_is_not_a_list_of_numbers(self, text):
    with self.assertRaisesRegex(ValueError, '^noise_multipliers must be a seq'):
      privacy.delivered_epsilon(text, 1e-5, 'exact')


if __name__ == '__main__':
  absltest.main()
