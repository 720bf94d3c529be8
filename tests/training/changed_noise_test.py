"""Secret samples whose noise differs, in runs that are interrupted."""

import json
from unittest import mock

from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import privacy
from tvdp_tf.privacy import _chained_file, ledger, ledger_audit, spending
from tvdp_tf.training import (
  run_folder,
  shared_ledger,
  start,
)
from tvdp_tf.training import train as training

_OTHERWISE = 'the noise differs from round to round and was not released'


class ChangedNoiseTestCase(resume_cases.FolderTestCase):
  exports = False

  def train(self, resume=False, total=None, **changes):
    """With its own ledger, or one that may spend `total`."""
    settings = resume_cases.small(
      **{'mechanism': 'central', 'epsilon': 50.0} | changes
    )
    shared = None
    if total is not None:
      shared = shared_ledger.SharedLedger(self.folder / 'shared.jsonl', total)
    return training.train(
      settings, self.run_dir, resume=resume, ledger=shared
    ).statement

  def interrupt(self, round_number, **changes):
    """Leaves a run with a round on record that was not completed."""
    with resume_cases.killed_in_round(self, round_number):
      self.train(**changes)

  def resume(self, **changes):
    """Goes on, to the end of the budget if it has to; returns the statement."""
    self.train(resume=True, **changes)
    return json.loads((self.run_dir / run_folder.PRIVACY).read_text())

  def without_order(self):
    """As in the ledger of an older version."""
    return mock.patch.object(start, '_renyi_order', lambda *_: None)

  def audit(self):
    return ledger_audit.audit(self.run_dir / run_folder.LEDGER)

  def multipliers(self):
    records = _chained_file.read(self.run_dir / run_folder.LEDGER).payloads[2:]
    return [record['noise_multipliers'][0] for record in records]


class HeaderTest(ChangedNoiseTestCase):
  @parameterized.parameters(
    {},
    {'schedule': (1.0, 3.0, 2.0)},
    {'epsilon': 0.5},
    # Without amplification the best order may be none of a sample's.
    {'epsilon': 0.1, 'delta': 1e-6, 'users_per_round': 4},
  )
  def test_planned_run_comes_to_its_end(self, **changes):
    statement = self.train(**changes)
    audit = self.audit()
    self.assertGreater(audit.header.renyi_order, 1)
    self.assertEqual(audit.records, 3)
    self.assertTrue(audit.holds, audit.reason)
    self.assertIn('at Renyi order', audit.describe())
    self.assertTrue(statement.holds, statement.reason)
    # At the best order: nothing has changed the noise.
    delta = spending.left_of_delta(
      audit.header.delta, audit.header.target_epsilon, audit.noise_distance
    )
    share = audit.runs[0]
    # One adds up round by round, the other all at once: last bits may differ.
    self.assertAlmostEqual(
      statement.delivered['poisson']['rdp'], share.worst_epsilon, places=13
    )
    self.assertAlmostEqual(
      share.worst_epsilon,
      privacy.delivered_epsilon(
        self.multipliers(),
        delta,
        'rdp',
        'poisson',
        share.run.sampling_rate,
      ),
    )
    self.assertAlmostEqual(share.worst_epsilon, audit.worst_epsilon)

  @parameterized.parameters(
    {'theta': 1.0},
    {'schedule': (2.0, 2.0, 2.0)},
    {'participation': 'balanced'},
    {'mechanism': 'gradient', 'epsilon': 2.0},
  )
  def test_no_order_where_none_is_needed(self, **changes):
    self.train(**changes)
    self.assertIsNone(self.audit().header.renyi_order)
    self.assertTrue(self.audit().holds, self.audit().reason)

  def test_target_beyond_every_order(self):
    with mock.patch.object(
      ledger, 'renyi_order', side_effect=ValueError('epsilon must be')
    ):
      statement = self.train()
    self.assertIsNone(self.audit().header.renyi_order)
    self.assertTrue(statement.holds, statement.reason)
    self.assertTrue(self.audit().holds, self.audit().reason)

  def test_order_that_the_plan_does_not_fit(self):
    with mock.patch.object(ledger, 'renyi_order', return_value=1024.0):
      self.train()
    self.assertIsNone(self.audit().header.renyi_order)


class InterruptedTest(ChangedNoiseTestCase):
  def test_at_an_order_fixed_in_advance_the_target_is_proven(self):
    self.interrupt(2)
    order = self.audit().header.renyi_order
    self.assertGreater(order, 1)
    statement = self.resume()
    self.assertTrue(statement['holds'], statement['reason'])
    self.assertEqual(statement['delivered']['poisson']['rdp'], 50)
    words = ' '.join(statement['assumptions'])
    self.assertIn('which the privacy filter guarantees', words)
    audit = self.audit()
    self.assertEqual(audit.header.renyi_order, order)
    self.assertTrue(audit.holds, audit.reason)
    self.assertTrue(audit.noise_recurs)
    self.assertLessEqual(audit.worst_epsilon, 50)
    # Its times tell how many were drawn.
    self.assertEqual(self.run_dir.stat().st_mode & 0o777, 0o700)

  def test_rounds_numbered_as_planned_are_not_the_plan(self):
    self.interrupt(2)
    self.resume()
    # Once more, as if it had been killed before its end: what was released is
    # now known from the ledger alone.
    (self.run_dir / run_folder.PRIVACY).unlink()
    statement = self.resume()
    self.assertEqual(self.numbers(), [1, 2, 3])
    self.assertEqual(statement['delivered']['poisson']['rdp'], 50)
    words = ' '.join(statement['assumptions'])
    self.assertIn('not follow its first plan', words)

  def numbers(self):
    records = _chained_file.read(self.run_dir / run_folder.LEDGER).payloads[2:]
    return [record['round'] for record in records]

  def test_older_ledger_goes_on_and_promises_nothing(self):
    with self.without_order():
      self.interrupt(2)
    self.assertIsNone(self.audit().header.renyi_order)
    # So far it is the beginning of the plan.
    statement = json.loads((self.run_dir / run_folder.PRIVACY).read_text())
    self.assertTrue(statement['holds'], statement['reason'])
    self.assertTrue(self.audit().holds, self.audit().reason)
    statement = self.resume()
    self.assertFalse(statement['holds'])
    self.assertStartsWith(statement['reason'], _OTHERWISE)
    self.assertNotIn('the privacy filter', ' '.join(statement['assumptions']))
    self.assertIn('is not a bound', ' '.join(statement['assumptions']))
    audit = self.audit()
    self.assertIsNone(audit.header.renyi_order)
    self.assertTrue(audit.within_budget)
    self.assertFalse(audit.holds)
    self.assertStartsWith(audit.reason, 'some rounds have the same noise')

  def test_older_ledger_of_a_run_with_one_noise_holds(self):
    self.interrupt(2, theta=1.0)
    statement = self.resume(theta=1.0)
    self.assertTrue(statement['holds'], statement['reason'])
    self.assertTrue(self.audit().holds, self.audit().reason)

  @parameterized.parameters((30.0, True), (45.0, False))
  def test_order_is_of_what_all_runs_may_spend(self, total, holds):
    self.interrupt(2, epsilon=30.0, total=total)
    statement = self.resume(epsilon=30.0, total=total)
    self.assertEqual(statement['holds'], holds)
    if not holds:
      self.assertStartsWith(statement['reason'], _OTHERWISE)
    audit = ledger_audit.audit(self.folder / 'shared.jsonl')
    self.assertTrue(audit.holds, audit.reason)


if __name__ == '__main__':
  absltest.main()
