import math

import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import ledger_cases
from tvdp_tf.privacy import (
  accounting,
  calibration,
  ledger,
  ledger_audit,
  spending,
)
from tvdp_tf.privacy.ledger import BudgetExceededError, LedgerError


class ExactSumTest(parameterized.TestCase):
  def test_sum_is_rounded_up(self):
    # Sums of (1/z)^2: 1, and above 1 by 1e-60 and by 1/4.
    self.assertTrue(spending._within({2.0: 3, 4.0: 4}, 1.0))
    self.assertFalse(spending._within({3.0: 9, 1e30: 1}, 1.0))
    self.assertFalse(spending._within({2.0: 5}, 1.0))
    self.assertTrue(spending._within({5e-324: 1}, 5e-324))


class NotANumberTest(parameterized.TestCase):
  # Amounts are checked before they come here; if one slips through, it must not
  # pass for a release that costs nothing.
  @parameterized.parameters(ledger_cases.header, ledger_cases.laplace_header)
  def test_fits_nowhere_and_leaves_no_room(self, make):
    header = make(target_epsilon=1.0)
    budget = spending.of(header, 1.0, header.delta)
    clients = np.array([0, 1])
    amount, broken = np.array([1e-3 if header.delta == 0 else 1e3]), [math.nan]
    self.assertTrue(budget.affordable(clients, amount, 1).all())
    self.assertFalse(budget.affordable(clients, np.array(broken), 1).any())
    budget.charge(clients[:1], np.array(broken), 1)
    np.testing.assert_array_equal(
      budget.affordable(clients, amount, 1), [False, True]
    )


class PoissonTest(ledger_cases.LedgerTestCase):
  # The best Renyi order is a small integer, a fraction, and above a thousand.
  @parameterized.parameters((2.0, 0.1, 40), (30.0, 0.5, 3), (0.01, 0.1, 3))
  def test_calibrated_schedule_fits_and_no_more(self, target, rate, rounds):
    planned = calibration.calibrate(
      *(target, 1e-5, 0.97, rounds, 1.0, 'rdp', 'poisson', rate)
    ).noise_multipliers(1.0)
    header = ledger_cases.poisson_header(target_epsilon=target, clients=20)
    ledger_ = self.create(header, sampling_rate=rate)
    rng = np.random.default_rng(0)
    for m, z in enumerate(planned, start=1):
      drawn = np.flatnonzero(rng.random(20) < rate)
      ledger_.record(m, drawn, ledger_cases.fresh(), z)
    expected = accounting.delivered_epsilon(
      planned, 1e-5, 'rdp', 'poisson', rate
    )
    # Whoever was drawn.
    np.testing.assert_array_equal(ledger_.epsilons(), [expected] * 20)
    self.assertFalse(ledger_.affordable(0, planned[-1]))
    self.assert_refused(
      BudgetExceededError,
      f'above its target {target}',
      ledger_,
      *(rounds + 1, [3], ledger_cases.fresh(), planned[-1]),
    )
    self.assert_refused(
      BudgetExceededError,
      '',
      ledger_,
      rounds + 1,
      [],
      ledger_cases.fresh(),
      planned[-1],
    )
    ledger_.close()
    audit = ledger_audit.audit(self.path())
    np.testing.assert_array_equal(audit.epsilons, [expected] * 20)
    self.assertTrue(audit.within_budget)

  def test_every_draw_counts_even_an_empty_one(self):
    ledger_ = self.create(ledger_cases.poisson_header(target_epsilon=9.0))
    ledger_.record(1, [], ledger_cases.fresh(), 1.0)
    one = accounting.delivered_epsilon([1.0], 1e-5, 'rdp', 'poisson', 0.1)
    np.testing.assert_array_equal(ledger_.epsilons(), [one] * 3)

  def test_a_round_is_drawn_once(self):
    ledger_ = self.create(ledger_cases.poisson_header(target_epsilon=9.0))
    ids = ledger_cases.fresh()
    ledger_.record(1, [0, 2], ids, 1.0)
    spent = ledger_.epsilon(0)
    ledger_.record(1, [0, 2], ids, 1.0)
    self.assertEqual(ledger_.epsilon(0), spent)
    self.assert_refused(
      LedgerError,
      'round 1 was already released with other.*continue with the next round',
      ledger_,
      *(1, [0, 2], ledger_cases.fresh(), 1.0),
    )
    ledger_.record(2, [0, 2], ledger_cases.fresh(), 1.0)

  @parameterized.parameters(
    ({'noise_multipliers': [1.0, 2.0]}, 'noise_multipliers must have one'),
    ({'release_ids': ledger_cases.fresh(2)}, 'noise_digests must have one'),
    ({'releases_per_client': 2}, 'releases_per_client must be 1'),
  )
  def test_one_release_of_one_noise_a_round(self, changes, regex):
    release = {
      'round_number': 1,
      'clients': [0, 1],
      'release_ids': ledger_cases.fresh(),
      'noise_multipliers': 1.0,
    }
    ledger_ = self.create(ledger_cases.poisson_header())
    self.assert_refused(ValueError, regex, ledger_, **release | changes)

  @parameterized.parameters(0.1, 1.0)
  def test_no_noise(self, rate):
    header = ledger_cases.poisson_header(enforced=False)
    ledger_ = self.create(header, sampling_rate=rate)
    self.assertFalse(ledger_.affordable(0, 0.0))
    ledger_.record(1, [0], ledger_cases.fresh(), 0.0)
    self.assertEqual(ledger_.epsilon(2), math.inf)
    self.assertFalse(ledger_.affordable(0, 1e5))


class LaplaceTest(ledger_cases.LedgerTestCase):
  @parameterized.parameters(
    (1.0, 10), (10.0, 3), (0.3, 7), (2.0, 1), (1.0, 1000)
  )
  def test_split_budget_fits_and_no_more(self, target, releases):
    header = ledger_cases.laplace_header(target_epsilon=target)
    ledger_ = self.create(header)
    part = ledger.laplace_epsilon_of_release(target, releases)
    self.assertBetween(part, target / releases * (1 - 1e-15), target / releases)
    ledger_.record(1, [1], ledger_cases.fresh(), None, releases - 1 or 1, part)
    if releases > 1:
      ledger_.record(2, [1], ledger_cases.fresh(), laplace_epsilon=part)
    self.assertLessEqual(ledger_.epsilon(1), target)
    self.assertFalse(ledger_.affordable(1, laplace_epsilon=part))
    self.assert_refused(
      BudgetExceededError,
      'client 1 would reach epsilon',
      ledger_,
      *(3, [1], ledger_cases.fresh(), None, 1, part),
    )
    ledger_.close()
    audit = ledger_audit.audit(self.path())
    self.assertLessEqual(audit.epsilons[1], target)
    self.assertTrue(audit.within_budget)

  def test_sum_is_exact_and_rounded_up(self):
    ledger_ = self.create(ledger_cases.laplace_header())
    # Ten times 0.1 is more than 1: 0.1 is rounded up.
    ledger_.record(1, [0], ledger_cases.fresh(), None, 9, 0.1)
    self.assertFalse(ledger_.affordable(0, laplace_epsilon=0.1))
    self.assertGreater(ledger_.epsilon(0), 0.9)
    ledger_.record(2, [0], ledger_cases.fresh(), laplace_epsilon=0.09999999)

  def test_no_noise(self):
    header = ledger_cases.laplace_header(
      enforced=False, target_epsilon=math.inf
    )
    with self.create(header) as ledger_:
      ledger_.record(1, [2], ledger_cases.fresh(), laplace_epsilon=math.inf)
      self.assertEqual(ledger_.epsilon(2), math.inf)
    self.assertEqual(ledger_audit.audit(self.path()).epsilons[2], math.inf)


if __name__ == '__main__':
  absltest.main()
