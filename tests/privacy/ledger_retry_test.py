import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import ledger_cases
from tvdp_tf.privacy import (
  _ledger_format,
  _ledger_state,
  accounting,
  gaussian,
  ledger,
  ledger_audit,
)
from tvdp_tf.privacy.ledger import NoiseReuseError, PrivacyLedger


class RetryTest(ledger_cases.LedgerTestCase):
  def test_repeat_is_recorded_and_not_charged(self):
    ledger_ = self.create()
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    ids = [ledger_cases.identity(0), ledger_cases.identity(1)]
    ledger_.record(1, [0, 1], ids, z)
    spent = ledger_.epsilons()
    # The budget is spent to the last bit; a repeat costs nothing.
    again = ledger_.record(1, [0, 1], ids, [z, z])
    self.assertEqual((again.attempt, ledger_.attempts(1)), (2, 2))
    np.testing.assert_array_equal(ledger_.epsilons(), spent)
    # In another order, or only one of them, and after a restart.
    ledger_.close()
    ledger_ = PrivacyLedger.open(self.path())
    ledger_.record(1, [1, 0], ids[::-1], z)
    ledger_.record(1, [1], ids[1:], z)
    np.testing.assert_array_equal(ledger_.epsilons(), spent)
    ledger_.close()
    audit = ledger_audit.audit(self.path())
    self.assertEqual((audit.records, audit.rounds, audit.repeats), (4, 1, 5))
    np.testing.assert_array_equal(audit.participations, [1, 1, 0])
    np.testing.assert_array_equal(audit.epsilons, spent)

  @parameterized.parameters((1, 2), (2, 1), (2, 3))
  def test_attempts_are_counted_from_one(self, attempt, claimed):
    header = ledger_cases.header()
    state = _ledger_state.LedgerState(header)
    state.begin(ledger_cases.run(header))
    for i in range(1, attempt):
      earlier = self.attempted(i)
      state.apply(earlier, state.fresh(earlier))
    self.assertEqual(state.fresh(self.attempted(attempt)), [0])
    regex = f'attempt must be {attempt} in round 1, got {claimed}'
    with self.assertRaisesRegex(ValueError, regex):
      state.fresh(self.attempted(claimed))

  def attempted(self, attempt):
    """A record of round 1 with noise of its own."""
    return _ledger_format.LedgerRecord(
      round=1,
      attempt=attempt,
      clients=(0,),
      noise_multipliers=(20.0,),
      laplace_epsilon=None,
      releases_per_client=1,
      noise_digests=(f'{attempt:064x}',),
      input_digests=('a' * 64,),
    )

  def test_fresh_retry_is_charged(self):
    ledger_ = self.create()
    ids = ledger_cases.fresh(2)
    ledger_.record(1, [0, 1], ids, 20.0)
    # Client 0 repeats, client 1 draws anew.
    ledger_.record(1, [0, 1], [ids[0], *ledger_cases.fresh()], 20.0)
    expected = [
      accounting.delivered_epsilon([20.0] * n, 1e-5, 'exact') for n in (1, 2, 0)
    ]
    np.testing.assert_array_equal(ledger_.epsilons(), expected)

  def test_each_is_charged_for_its_own_noise(self):
    ledger_ = self.create()
    ids = ledger_cases.fresh(2)
    ledger_.record(1, [0, 1], ids, [20.0, 30.0])
    ledger_.record(1, [0, 1], [ids[0], *ledger_cases.fresh()], [20.0, 30.0])
    ledger_.record(1, [1, 2], ledger_cases.fresh(2), [40.0, 50.0], 2)
    expected = [
      accounting.delivered_epsilon(z, 1e-5, 'exact')
      for z in ([20.0], [30.0, 30.0, 40.0, 40.0], [50.0, 50.0])
    ]
    np.testing.assert_array_equal(ledger_.epsilons(), expected)

  @parameterized.named_parameters(
    ('client', {'clients': [1]}),
    ('round', {'round_number': 2}),
    ('model', {'release_ids': [ledger_cases.identity(0, model=b'x')]}),
    ('settings', {'release_ids': [ledger_cases.identity(0, settings=b'x')]}),
    ('noise', {'noise_multipliers': 21.0}),
    ('steps', {'releases_per_client': 2}),
    (
      'company',
      {'clients': [0, 1], 'release_ids': [ledger_cases.identity(0)]},
    ),
  )
  def test_noise_is_used_once(self, changes):
    release = {
      'round_number': 1,
      'clients': [0],
      'release_ids': [ledger_cases.identity(0)],
      'noise_multipliers': 20.0,
      'releases_per_client': 1,
    }
    ledger_ = self.create()
    ledger_.record(**release)
    regex = 'was used in round 1, attempt 1, for another release'
    self.assert_refused(NoiseReuseError, regex, ledger_, **release | changes)
    ledger_.record(**release)
    ledger_.close()
    ledger_ = PrivacyLedger.open(self.path())
    regex = 'was used in round 1, attempt 1, for another release'
    self.assert_refused(NoiseReuseError, regex, ledger_, **release | changes)
    ledger_.close()

  def test_two_clients_never_share_noise(self):
    ledger_ = self.create()
    ids = [ledger_cases.identity(0, b'x'), ledger_cases.identity(0, b'y')]
    self.assert_refused(
      NoiseReuseError, 'two clients of round 1', ledger_, 1, [0, 1], ids, 20.0
    )

  def test_clients_may_hide_in_one_noise(self):
    ledger_ = self.create()
    ids = [ledger_cases.identity(0)]
    ledger_.record(1, [0, 1], ids, 20.0)
    ledger_.record(1, [0, 1], ids, 20.0)
    one = accounting.delivered_epsilon([20.0], 1e-5, 'exact')
    np.testing.assert_array_equal(ledger_.epsilons(), [one, one, 0])
    # The sum of others is another release.
    regex = 'the noise key of 2 clients in round 1 was used'
    self.assert_refused(NoiseReuseError, regex, ledger_, 1, [0, 2], ids, 20.0)

  def test_release_id_hides_the_key_and_tells_inputs_apart(self):
    key = bytes(range(16))
    made = {
      ledger.release_id(key, model, settings)
      for model, settings in [(b'', b'ab'), (b'a', b'b'), (b'ab', b'')]
    }
    self.assertLen(made, 3)
    self.assertLen({identity[:64] for identity in made}, 1)
    ledger_ = self.create()
    ledger_.record(1, [0], [made.pop()], 20.0)
    self.assertNotIn(key, self.content())
    self.assertNotIn(key.hex().encode(), self.content())

  @parameterized.parameters((b'short',), ('a text of 16 chars',), (None,))
  def test_bad_key(self, key):
    with self.assertRaisesRegex(ValueError, 'noise_key must be') as caught:
      ledger.release_id(key, b'', b'')
    self.assertNotIn('short', str(caught.exception))


if __name__ == '__main__':
  absltest.main()
