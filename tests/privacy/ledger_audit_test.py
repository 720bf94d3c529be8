import copy
import math
import os
import pathlib

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests.privacy import ledger_cases
from tvdp_tf.privacy import (
  _chained_file,
  accounting,
  ledger,
  ledger_audit,
  statement,
)
from tvdp_tf.privacy.ledger import LedgerError


class WrittenTest(ledger_cases.LedgerTestCase):
  def write(self, settings=None):
    """Three rounds: client 0 takes part in all, client 1 once, 2 never."""
    with self.create(settings) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
      ledger_.record(2, [0, 1], ledger_cases.fresh(2), [10.0, 11.0], 2)
      ids = ledger_cases.fresh()
      ledger_.record(5, [0], ids, 30.0)
      ledger_.record(5, [0], ids, 30.0)
      self.epsilons = ledger_.epsilons()
      return ledger_.head_hash

  def audit(self):
    return ledger_audit.audit(self.path())


class AuditTest(WrittenTest):
  def test_numbers_come_from_the_file_alone(self):
    head_hash = self.write()
    audit = self.audit()
    expected = [
      accounting.delivered_epsilon(z, 1e-5, 'exact')
      for z in ([20.0, 10.0, 10.0, 30.0], [11.0, 11.0], [])
    ]
    np.testing.assert_array_equal(audit.epsilons, expected)
    np.testing.assert_array_equal(audit.epsilons, self.epsilons)
    np.testing.assert_array_equal(audit.participations, [3, 1, 0])
    self.assertEqual(audit.epsilons.dtype, np.float64)
    self.assertEqual((audit.rounds, audit.records, audit.repeats), (3, 4, 1))
    self.assertEqual(
      (audit.worst_client, audit.worst_epsilon), (0, expected[0])
    )
    self.assertEqual(audit.median_epsilon, expected[1])
    self.assertEqual(audit.head_hash, head_hash)
    self.assertEqual(audit.header, ledger_cases.header())
    self.assertTrue(audit.head_verified and audit.within_budget)
    self.assertEqual((audit.beyond_head, audit.torn_bytes), (0, 0))
    with self.assertRaises(ValueError):
      audit.epsilons[0] = 0

  def test_words(self):
    head_hash = self.write()
    worst, median = map(statement.format_epsilon, self.epsilons[:2])
    self.assertEqual(
      self.audit().describe(),
      f"""Privacy ledger {self.path()}
  Mechanism: gradient (gaussian noise)
  Protects: one example (replace-one)
  Noise is relative to: 2 C_g / n = 2 * 1.0 / 600
  Accounting: actual participations, no amplification
  Records: 4 of 3 rounds; releases repeated bit for bit, not charged: 1
  Participations: 0 to 3 a client
  Worst client: 0, epsilon = {worst} at delta = 1e-05
  Median client: epsilon = {median}
  Target: epsilon = 1 for each of the 3 clients (enforced): all are within it
  Chain: intact, last hash {head_hash}
  Head: verified, no line was cut off; lines beyond it, counted: 0""",
    )

  def test_words_where_nothing_holds(self):
    settings = ledger_cases.header(
      mechanism='paper',
      target_epsilon=0.5,
      sensitivity='2 C / n',
      sensitivity_proven=False,
      enforced=False,
    )
    self.write(settings)
    os.unlink(self.path() + '.head')
    audit = self.audit()
    self.assertFalse(audit.within_budget or audit.head_verified)
    text = audit.describe()
    self.assertIn('2 C / n (NOT PROVEN)', text)
    self.assertIn('(recorded, not enforced): 1 of them are ABOVE it', text)
    self.assertIn('The sensitivity is not proven, and so is no epsilon', text)
    self.assertIn('.head is MISSING: lines may have been cut off', text)

  def test_words_with_secret_draws(self):
    settings = ledger_cases.poisson_header(
      enforced=False, target_epsilon=math.inf
    )
    with self.create(settings) as ledger_:
      ledger_.record(1, [], ledger_cases.fresh(), 0.0)
    text = self.audit().describe()
    self.assertIn('secret Poisson sampling at rate 0.1', text)
    self.assertIn('Worst client: 0, epsilon = inf', text)
    self.assertIn('Target: epsilon = inf', text)

  def test_ledger_under_way(self):
    with self.create() as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
      self.assertEqual(self.audit().records, 1)
      self.assertEqual(self.audit().worst_epsilon, ledger_.epsilon(0))

  def test_what_a_crash_leaves(self):
    with self.create() as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
      head = pathlib.Path(self.path() + '.head').read_bytes()
      ledger_.record(2, [0], ledger_cases.fresh(), 20.0)
      epsilon = ledger_.epsilon(0)
    pathlib.Path(self.path() + '.head').write_bytes(head)
    with open(self.path(), 'ab') as file:
      file.write(b'{"attempt":1,')
    audit = self.audit()
    # The whole line counts, the torn one was never released.
    self.assertEqual((audit.beyond_head, audit.torn_bytes), (1, 13))
    self.assertEqual(audit.worst_epsilon, epsilon)
    self.assertIn('lines beyond it, counted: 1', audit.describe())
    self.assertIn('An unfinished last line (13 bytes)', audit.describe())
    with ledger.PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.epsilon(0), epsilon)
    self.assertEqual(
      (self.audit().beyond_head, self.audit().torn_bytes), (0, 0)
    )

  def test_overspending_that_was_forged_in_shows(self):
    with self.create() as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    payloads = _chained_file.read(self.path()).payloads
    payloads[1]['noise_multipliers'] = [2.0]
    ledger_cases.forge(self.path(), payloads)
    self.assertFalse(self.audit().within_budget)
    with ledger.PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.affordable_clients([0, 1], 1e5), [1])

  def test_noise_reuse_that_was_forged_in_is_refused(self):
    self.write()
    payloads = _chained_file.read(self.path()).payloads
    payloads[4]['clients'] = [1]
    ledger_cases.forge(self.path(), payloads)
    with self.assertRaisesRegex(
      LedgerError, 'line 5: .*client 1 .*was used in'
    ):
      self.audit()

  def test_no_ledger(self):
    ledger_cases.forge(self.path(), [{'hello': 'world'}])
    with self.assertRaisesRegex(LedgerError, 'line 1: not the header of a'):
      self.audit()
    with self.assertRaisesRegex(LedgerError, 'No such file'):
      ledger_audit.audit(self.path('another'))


# (line, entry, value) -> what is said.
_FORGERIES: tuple[tuple, ...] = (
  (0, 'version', 2, 'line 1: version must be 1, got 2'),
  (0, 'version', True, 'line 1: version must be of type int, got True'),
  (0, 'delta', 1, 'line 1: delta must be of type float, got 1'),
  (0, 'clients', 3.0, 'line 1: clients must be of type int, got 3.0'),
  (0, 'clients', 10**12, 'line 1: clients must be an integer from 1'),
  (0, 'enforced', 1, 'line 1: enforced must be of type bool, got 1'),
  (0, 'unit', [], 'line 1: unit must be of type str'),
  (0, 'mechanism', '\x1b[2J', 'line 1: mechanism must be printable text'),
  (0, 'target_epsilon', 'inf', 'line 1: target_epsilon must be a finite'),
  (0, 'another', 1, "line 1: entry 'another' is not known"),
  (0, 'delta', None, "line 1: entry 'delta' is missing"),
  (2, 'attempt', 2, 'line 3: attempt must be 1 in round 2, got 2'),
  (3, 'attempt', True, 'line 4: attempt must be of type int, got True'),
  (4, 'attempt', 1, 'line 5: attempt must be 2 in round 5, got 1'),
  (1, 'round', 0, 'line 2: round must be an integer from 1'),
  (1, 'clients', [3], 'line 2: clients must be an integer from 0 to 2, got 3'),
  (1, 'clients', [-1], 'line 2: clients must be an integer from 0 to 2'),
  (1, 'clients', [False], 'line 2: clients must be of type int, got False'),
  (1, 'clients', 0, 'line 2: clients must be of type list, got 0'),
  (1, 'clients', [], 'line 2: clients must not be empty'),
  (2, 'clients', [1, 1], 'line 3: clients must be distinct'),
  (1, 'noise_multipliers', [-1.0], 'line 2: noise_multipliers must be a fin'),
  (1, 'noise_multipliers', [1], 'line 2: noise_multipliers must be of type'),
  (1, 'noise_multipliers', [], 'line 2: noise_multipliers must be 1 or 1'),
  (1, 'noise_multipliers', None, "line 2: entry 'noise_multipliers' is miss"),
  (1, 'laplace_epsilon', 1.0, "line 2: entry 'laplace_epsilon' is not known"),
  (1, 'releases_per_client', 0, 'line 2: releases_per_client must be an int'),
  (1, 'noise_digests', ['a'], 'line 2: noise_digests must be hexadecimal'),
  (1, 'noise_digests', ['a' * 64] * 2, 'line 2: noise_digests must be 1 or'),
  (1, 'input_digests', [7], 'line 2: input_digests must be of type str, got 7'),
  (1, 'input_digests', [], 'line 2: input_digests must be 1 or 1 values'),
)


class ForgeryTest(WrittenTest):
  """Lines whose hashes fit, but that no ledger writes."""

  @parameterized.parameters(*_FORGERIES)
  def test_is_refused(self, line, entry, value, message):
    self.write()
    payloads = _chained_file.read(self.path()).payloads
    if value is None:
      del payloads[line][entry]
    else:
      payloads[line][entry] = value
    ledger_cases.forge(self.path(), payloads)
    with self.assertRaises(LedgerError) as caught:
      self.audit()
    self.assertIn(f'{self.path()}: {message}', str(caught.exception))
    with self.assertRaises(LedgerError):
      ledger.PrivacyLedger.open(self.path())

  def test_any_json_gives_one_clear_error_or_a_ledger(self):
    self.write()
    whole = _chained_file.read(self.path()).payloads
    json = st.recursive(
      st.none()
      | st.booleans()
      | st.integers()
      | st.floats(allow_nan=False, allow_infinity=False)
      | st.text(),
      lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
      ),
      max_leaves=5,
    )
    names = sorted({name for payload in whole for name in payload})
    accepted = 0

    @hypothesis.settings(max_examples=400)
    @hypothesis.given(
      line=st.integers(0, 4),
      entry=st.sampled_from(names) | st.text(),
      value=json
      | st.lists(st.floats(0, 100), max_size=3)
      | st.lists(st.integers(0, 3), max_size=3),
    )
    @hypothesis.example(line=1, entry='noise_multipliers', value=[0.1])
    @hypothesis.example(line=4, entry='releases_per_client', value=1)
    def check(line, entry, value):
      nonlocal accepted
      payloads = copy.deepcopy(whole)
      payloads[line][entry] = value
      ledger_cases.forge(self.path(), payloads)
      try:
        audit = self.audit()
      except LedgerError as error:
        self.assertLen(str(error).splitlines(), 1)
        self.assertRegex(str(error), r': line [1-5]: ')
      else:
        accepted += 1
        self.assertFalse(np.isnan(audit.epsilons).any())
        audit.describe()

    check()
    self.assertGreater(accepted, 0)


if __name__ == '__main__':
  absltest.main()
