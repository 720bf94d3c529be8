import contextlib
import os
import threading
from concurrent import futures
from typing import Any
from unittest import mock

from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.privacy import budget as budget_lib
from tvdp_tf.privacy import ledger, ledger_audit


class BudgetTest(parameterized.TestCase):
  def budget(self, **changes):
    self.path = os.path.join(self.create_tempdir().full_path, 'ledger.jsonl')
    return self.opened(**changes)

  def opened(self, **changes):
    arguments: dict[str, Any] = {
      'epsilon': 3.0,
      'delta': 1e-5,
      'clients': 4,
      'unit': 'user',
      'sensitivity': '2 * clip = 2.0',
      'sensitivity_proven': True,
      **changes,
    }
    return budget_lib.Budget(self.path, **arguments)

  def test_two_threads_spend_what_one_can(self):
    """Between the check of one and its line on the disk comes the other."""
    multiplier = privacy.gaussian_noise_multiplier(1.0, 1e-5)
    budget = self.budget(epsilon=1.0)
    refuse = ledger._ledger_state.LedgerState.refuse_overspending
    both = threading.Barrier(2)

    def slowly(*args):
      refuse(*args)
      with contextlib.suppress(threading.BrokenBarrierError):
        both.wait(timeout=0.5)

    def spend(round_number):
      try:
        budget.spend(round_number, [1], multiplier)
      except ledger.BudgetExceededError:
        return False
      return True

    with (
      mock.patch.object(
        ledger._ledger_state.LedgerState, 'refuse_overspending', slowly
      ),
      futures.ThreadPoolExecutor(2) as pool,
    ):
      self.assertCountEqual(pool.map(spend, (1, 2)), [True, False])
    self.assertLessEqual(budget.delivered_epsilon, 1.0)
    budget.close()

  def test_until_it_is_spent(self):
    lines: list[str] = []
    with self.budget(on_alarm=lines.append) as budget:
      self.assertEqual(
        budget.metrics(), {'delivered_epsilon': 0, 'remaining_epsilon': 3}
      )
      with self.assertRaisesRegex(
        ledger.BudgetExceededError, '^client 1 would reach epsilon'
      ):
        for m in range(1, 100):
          budget.spend(m, [1, 2], noise_multiplier=4.0)
      # What is delivered is that of the releases before; one more is too many.
      rounds = m - 1
      expected = privacy.delivered_epsilon([4.0] * rounds, 1e-5, 'exact')
      more = privacy.delivered_epsilon([4.0] * m, 1e-5, 'exact')
      self.assertBetween(budget.delivered_epsilon, expected, expected + 1e-6)
      self.assertGreater(more, 3)
      self.assertAlmostEqual(
        budget.remaining_epsilon, 3 - budget.delivered_epsilon
      )
      self.assertEqual(budget.affordable_clients(range(4), 4.0), [0, 3])
      budget.spend(m, [0, 3], noise_multiplier=4.0)
    # The alarm comes once, after the round that reaches 80 %.
    self.assertLen(lines, 1)
    first = next(
      n
      for n in range(1, rounds + 1)
      if privacy.delivered_epsilon([4.0] * n, 1e-5, 'exact') >= 2.4
    )
    self.assertRegex(
      lines[0], f'^privacy budget: epsilon = .* of 3 .* after round {first}$'
    )
    audit = ledger_audit.audit(self.path)
    self.assertTrue(audit.holds, audit.reason)
    self.assertEqual(audit.participations.tolist(), [1, rounds, rounds, 1])

  def test_goes_on(self):
    with self.budget() as budget:
      budget.spend(1, [0], 2.0)
      spent = budget.delivered_epsilon
    with self.opened() as budget:
      self.assertEqual(budget.delivered_epsilon, spent)
      # Who does not know what was released repeats it, and pays again.
      budget.spend(1, [0], 2.0)
      twice = privacy.delivered_epsilon([2.0] * 2, 1e-5, 'exact')
      self.assertBetween(budget.delivered_epsilon, twice, twice + 1e-6)
    others: dict[str, dict[str, Any]] = {
      'target_epsilon is 3.0': {'epsilon': 5.0},
      'clients is 4': {'clients': 5},
      "sensitivity must be '2 ": {'sensitivity': '1'},
      'proven: True': {'sensitivity_proven': False},
    }
    for text, changes in others.items():
      with self.assertRaisesRegex(ledger.LedgerError, text):
        self.opened(**changes)
    self.opened().close()  # Nobody has kept it.

  def test_many_clients_take_no_time(self):
    with self.budget(clients=100_000) as budget:
      budget.spend(1, range(10), 4.0)
      budget.spend(2, [7], 4.0)
      book = budget._ledger
      self.assertEqual(budget.delivered_epsilon, book.epsilon(7))
      self.assertGreater(book.epsilon(7), book.epsilon(6))
      with mock.patch.object(book, 'epsilons') as one_by_one:
        budget.spend(3, [7], 4.0)
        budget.metrics()
      one_by_one.assert_not_called()

  def test_what_nobody_vouches_for_does_not_hold(self):
    with self.budget(sensitivity_proven=False) as budget:
      budget.spend(1, [0], 8.0)
    self.assertFalse(ledger_audit.audit(self.path).holds)

  def test_a_start_that_was_cut_short_is_gone_on_with(self):
    with (
      mock.patch.object(ledger.PrivacyLedger, 'join', side_effect=SystemExit),
      self.assertRaises(SystemExit),
    ):
      self.budget()
    with self.budget() as budget:
      budget.spend(1, [0], 8.0)
    self.assertTrue(ledger_audit.audit(self.path).holds)

  def test_a_forked_child_has_to_open_it_anew(self):
    """What it spent would be missing in its parent's numbers."""
    with self.budget() as budget:
      budget.spend(1, [0], 8.0)
      size = os.path.getsize(self.path)
      with mock.patch.object(os, 'getpid', return_value=os.getpid() + 1):
        for use in (
          lambda: budget.spend(2, [0], 8.0),
          budget.metrics,
          lambda: budget.affordable_clients([0], 8.0),
        ):
          with self.assertRaisesRegex(ledger.LedgerError, 'its child: open it'):
            use()
      self.assertEqual(os.path.getsize(self.path), size)
      budget.spend(2, [0], 8.0)

  def test_on_the_disk_before_it_returns(self):
    synced: list[int] = []
    with self.budget() as budget:
      size = os.path.getsize(self.path)
      with mock.patch.object(os, 'fsync', synced.append):
        budget.spend(1, [0], 8.0)
      self.assertGreater(os.path.getsize(self.path), size)
    self.assertNotEmpty(synced)

  def test_clients_are_several(self):
    with (
      self.budget() as budget,
      self.assertRaisesRegex(ValueError, '^clients must be the .* got 0$'),
    ):
      budget.spend(1, 0, 8.0)

  @parameterized.parameters(
    ({'epsilon': 0.0}, 'epsilon must be'),
    ({'unit': 'person'}, '^unit must be one of'),
    ({'alarm_at': 0.0}, '^alarm_at must be'),
    ({'on_alarm': None}, '^on_alarm must be a function, got None'),
    ({'sensitivity': ''}, '^sensitivity must be'),
  )
  def test_refused(self, changes, text):
    with self.assertRaisesRegex(ValueError, text):
      self.budget(**changes)
    self.assertFalse(os.path.exists(self.path))


if __name__ == '__main__':
  absltest.main()
