import math

import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import ledger_cases
from tvdp_tf.privacy import accounting, spending


def whole(multipliers, rate, delta=1e-5):
  return accounting.delivered_epsilon(
    multipliers, delta, 'rdp', 'poisson', rate
  )


def book(target=math.inf):
  return spending.PoissonSpending(3, target, 1e-5)


class PoissonTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.1, 0.5, 3.0), (0.5, 1.0, 10.0), (0.01, 0.3, 1.0), (0.9, 20.0, 200.0)
  )
  def test_is_the_whole_list_after_every_round(self, rate, least, most):
    rng = np.random.default_rng(0)
    spent = book()
    multipliers = []
    for _ in range(12):
      multipliers.append(float(rng.uniform(least, most)))
      spent.record([], multipliers[-1:], rate=rate)
      np.testing.assert_allclose(
        spent.worst_epsilon(), whole(multipliers, rate), rtol=1e-12
      )
      self.assertEqual(spent.epsilon(1), whole(multipliers, rate))
      np.testing.assert_array_equal(spent.epsilons(), [spent.epsilon(0)] * 3)
      np.testing.assert_array_equal(spent.noise_multipliers(2), multipliers)

  def test_asked_at_the_end_alone(self):
    spent = book()
    for multiplier in (1.0, 2.0, 1.0):
      spent.record([], [multiplier], rate=0.2)
    np.testing.assert_allclose(
      spent.worst_epsilon(), whole([1.0, 1.0, 2.0], 0.2), rtol=1e-12
    )

  def test_does_not_depend_on_when_it_is_asked(self):
    # A run that is resumed after some rounds asks for no epsilon of those.
    rng = np.random.default_rng(1)
    multipliers = np.repeat(rng.uniform(0.5, 3.0, 9), rng.integers(1, 3, 9))
    whole_run: list[float] = []
    for resumed_after in range(len(multipliers)):
      spent = book()
      epsilons = []
      for i, multiplier in enumerate(multipliers.tolist()):
        spent.record([], [multiplier], rate=0.3)
        if i >= resumed_after:
          epsilons.append(spent.worst_epsilon())
      whole_run = whole_run or epsilons
      self.assertEqual(epsilons, whole_run[resumed_after:])

  @parameterized.parameters(0.5, 1.0, 3.0)
  def test_filter_never_lets_pass_what_the_list_refuses(self, multiplier):
    rate, rounds = 0.2, 8
    target = whole([multiplier] * rounds, rate)
    for limit, fits in ((target, True), (math.nextafter(target, 0), False)):
      spent = book(limit)
      for _ in range(rounds - 1):
        self.assertTrue(self.affords(spent, multiplier, rate))
        spent.record([], [multiplier], rate=rate)
      self.assertEqual(self.affords(spent, multiplier, rate), fits)

  def affords(self, spent, multiplier, rate):
    fits = spent.affordable(np.zeros(1, int), np.array([multiplier]), 1, rate)
    return bool(fits.all())

  def test_sums_that_are_added_up_first_are_never_below_the_list(self):
    rng = np.random.default_rng(2)
    for rate in (0.01, 0.1, 0.7):
      spent = book()
      done = []
      for z in rng.uniform(0.5, 5.0, 20).tolist():
        done.append(z)
        self.assertGreaterEqual(
          spent._summed_epsilon(z, 1, rate, 1 + spending._NEAR),
          whole(done, rate),
        )
        spent.record([], [z], rate=rate)

  def test_another_rate_counts_for_all_rounds_if_it_is_higher(self):
    spent = book()
    spent.record([], [2.0], rate=0.1)
    before = spent.epsilon(0)
    self.assertEqual(spent.epsilon(0, 3.0, 1, 0.5), whole([2.0, 3.0], 0.5))
    self.assertEqual(spent.epsilon(0, 3.0, 1, 0.01), whole([2.0, 3.0], 0.1))
    self.assertEqual(spent.epsilon(0), before)

  def test_limits(self):
    spent = book()
    self.assertEqual((spent.epsilon(0), spent.worst_epsilon()), (0, 0))
    spent.record([], [2.0], rate=1.0)
    self.assertEqual(spent.worst_epsilon(), whole([2.0], 1.0))
    for bare in (1e-60, 0.0):
      spent = book()
      spent.record([], [bare], rate=0.5)
      self.assertEqual(spent.worst_epsilon(), math.inf)
      self.assertFalse(spent._summed_epsilon() <= 1e300)


class ClientsTest(parameterized.TestCase):
  def spent(self, make=ledger_cases.header, **changes):
    header = make(clients=4, **changes)
    return spending.of(header, header.target_epsilon, header.delta)

  def test_squared_mu_orders_the_clients(self):
    spent = self.spent()
    spent.record([0, 2], [2.0, 4.0], releases_per_client=3)
    spent.record([2], [1.0])
    spent.record([3], [math.inf])
    np.testing.assert_array_equal(spent.squared_mu, [3 / 4, 0, 3 / 16 + 1, 0])
    self.assertEqual(spent.by_spending(), [1, 3, 0, 2])
    self.assertEqual(spent.worst_epsilon(), spent.epsilon(2))
    self.assertEqual(
      spent.worst_epsilon(),
      accounting.delivered_epsilon(
        spent.noise_multipliers(2), spent.delta, 'exact'
      ),
    )
    np.testing.assert_array_equal(spent.noise_multipliers(2), [1, 4, 4, 4])
    self.assertEmpty(spent.noise_multipliers(1))

  @parameterized.parameters(1e160, 1e290)
  def test_the_worst_client_has_spent_something(self, noise_multiplier):
    """Though 1/z^2 is no number above zero."""
    delta = 1e-300
    spent = spending.GaussianSpending(3, math.inf, delta)
    spent.record([0], [noise_multiplier])
    self.assertGreater(spent.epsilon(0), 0.0)
    self.assertEqual(spent.worst_epsilon(), spent.epsilon(0))
    self.assertEqual(spent.by_spending()[-1], 0)

  def test_the_worst_client_is_found_though_sums_are_rounded(self):
    rng = np.random.default_rng(0)
    for _ in range(100):
      spent = spending.GaussianSpending(6, 50.0, 1e-5)
      multipliers = rng.uniform(0.5, 8, 12)
      of_clients = [
        np.nextafter(rng.permutation(multipliers), 9 * (client % 2))
        for client in range(6)
      ]
      for of_round in zip(*of_clients, strict=True):
        spent.record(range(6), of_round)
      self.assertEqual(spent.worst_epsilon(), spent.epsilons().max())
      *others, worst = spent.by_spending()
      self.assertEqual(spent.epsilon(worst), spent.worst_epsilon())
      self.assertCountEqual([*others, worst], range(6))

  def test_spent_of_a_budget_is_rounded_up_and_leaves_no_crumbs(self):
    spent = self.spent()
    spent.record([0, 1, 2], [1.0, 2.0, 1.0 + 1e-11])
    got = spent.spent_of(1.0)
    np.testing.assert_array_equal(got[[0, 2]], [1.0, 1.0])
    self.assertBetween(got[1], 0.25 * (1 + 1e-13), 0.25 * (1 + 1e-11))

  def test_pure_epsilons_add_up(self):
    spent = self.spent(ledger_cases.laplace_header)
    spent.record([0, 1], laplace_epsilon=0.25)
    spent.record([1], laplace_epsilon=0.5)
    np.testing.assert_array_equal(spent.epsilons(), [0.25, 0.75, 0, 0])
    self.assertEqual(spent.worst_epsilon(), 0.75)
    self.assertEqual(spent.by_spending(), [2, 3, 0, 1])
    np.testing.assert_array_equal(spent.noise_multipliers(1), [4, 2])
    with self.assertRaisesRegex(NotImplementedError, 'no sum of 1/z'):
      _ = spent.squared_mu

  def test_bare_releases(self):
    spent = self.spent(enforced=False, target_epsilon=math.inf)
    spent.record([1], [0.0])
    self.assertEqual(spent.worst_epsilon(), math.inf)
    self.assertTrue(spent.affordable(np.array([1]), np.zeros(1), 1).all())


if __name__ == '__main__':
  absltest.main()
