"""What a restarted run reads from its ledger: what counts, and first uses."""

from absl.testing import absltest

from tests.privacy import ledger_cases
from tvdp_tf.privacy.ledger import PrivacyLedger


class ChargedTest(ledger_cases.LedgerTestCase):
  def test_repeats_are_left_out(self):
    ledger_ = self.create()
    ids = [ledger_cases.identity(key) for key in range(4)]
    first = ledger_.record(1, [0, 1], ids[:2], [20.0, 30.0], 2)
    second = ledger_.record(2, [2], ids[2:3], 25.0)
    self.assertEqual(ledger_.charged, (first, second))
    # Wholly a repeat; and one of two clients.
    ledger_.record(1, [1, 0], ids[1::-1], [30.0, 20.0], 2)
    self.assertEqual(ledger_.charged, (first, second))
    fourth = ledger_.record(1, [0, 1], [ids[0], ids[3]], [20.0, 30.0], 2)
    self.assertLen(fourth.clients, 2)
    (*_, partial) = ledger_.charged
    self.assertEqual(
      (partial.round, partial.attempt, partial.clients), (1, 3, (1,))
    )
    self.assertEqual(partial.noise_multipliers, (30.0,))
    self.assertEqual(partial.noise_digests, fourth.noise_digests[1:])
    charged = ledger_.charged
    ledger_.close()
    with PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.charged, charged)

  def test_one_noise_for_all_and_for_none(self):
    ledger_ = self.create(mechanism='central')
    record = ledger_.record(1, [0, 2], ledger_cases.fresh(), 20.0)
    self.assertEqual(ledger_.charged, (record,))
    ledger_.close()
    poisson = self.create(ledger_cases.poisson_header(), 'poisson.jsonl')
    identity = ledger_cases.identity(5)
    record = poisson.record(1, [], [identity], 20.0)
    poisson.record(1, [], [identity], 20.0)
    self.assertEqual(poisson.charged, (record,))

  def test_first_use(self):
    ledger_ = self.create()
    ids = [ledger_cases.identity(key) for key in range(3)]
    record = ledger_.record(3, [0, 1], ids[:2], 20.0)
    ledger_.record(3, [1], ids[1:2], 20.0)
    for identity in ids[:2]:
      self.assertEqual(ledger_.first_use(identity), record)
    # By its noise: with another input it will be refused.
    self.assertEqual(
      ledger_.first_use(ledger_cases.identity(0, model=b'other')), record
    )
    self.assertIsNone(ledger_.first_use(ids[2]))
    with self.assertRaisesRegex(ValueError, 'release_ids must be values that'):
      ledger_.first_use('x')


if __name__ == '__main__':
  absltest.main()
