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
  def write(self, settings=None, **changes):
    """Three rounds: client 0 takes part in all, client 1 once, 2 never."""
    with self.create(settings, **changes) as ledger_:
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
    (share,) = self.audit().runs
    self.assertEqual(
      self.audit().describe(),
      f"""Privacy ledger {self.path()}: epsilon = 1 at delta = 1e-05 HOLDS.
  Reason: every release is on record, its noise cannot be reproduced, its \
sensitivity is proven, and no client is above the target
  Worth: an attacker who has to tell which of two examples was in the data is \
right at most 73.2 % of the time; guessing is 50 %
  Protects: one example (replace-one: exchanged for any other; the number of \
units is public)
  Accounting: actual participations, no amplification
  Run 1: gradient, continuous gaussian noise, without a seed
    Noise is relative to: 2 C_g / n = 2 * 1.0 / 600
    Alone, worst client: epsilon = {worst} of 1; 4 records of 3 rounds
    Id {share.run.run_id}
  Records: 4 of 3 rounds; releases repeated bit for bit, not charged: 1
  Participations: 0 to 3 per client
  Worst client: 0, epsilon = {worst}
  Median client: epsilon = {median}
  Target: epsilon = 1 for each of the 3 clients (enforced): all are within it
  What is spent is a reading: if it may have depended on the releases, only \
the target is proven.
  Chain: intact, last hash {head_hash}
  Head: verified, no line was cut off; lines beyond it, which are counted: 0""",
    )

  def test_words_where_nothing_holds(self):
    settings = ledger_cases.header(target_epsilon=0.5, enforced=False)
    self.write(
      settings,
      mechanism='paper',
      sensitivity='2 C / n',
      sensitivity_proven=False,
      seeded=True,
    )
    os.unlink(self.path() + '.head')
    audit = self.audit()
    self.assertFalse(audit.within_budget or audit.head_verified)
    text = audit.describe()
    self.assertIn('epsilon = 0.5 at delta = 1e-05 DOES NOT HOLD.', text)
    self.assertIn('2 C / n (NOT PROVEN)', text)
    self.assertIn('noise, from a SEED', text)
    self.assertIn('(recorded, not enforced): 1 of them are ABOVE it', text)
    self.assertIn('.head is MISSING: lines may have been cut off', text)
    self.assertEqual(
      audit.reason,
      'the head is missing, so lines may have been cut off the end; the'
      ' noise is reproducible from a seed: this was a simulation; the'
      ' sensitivity that the noise is relative to is not proven; 1 of 3'
      ' clients are above the target; run 1 has spent more than its own'
      ' target; the target was not enforced, so the releases may depend on'
      ' what had been spent',
    )

  def test_words_with_secret_draws(self):
    settings = ledger_cases.poisson_header(
      enforced=False, target_epsilon=math.inf
    )
    with self.create(settings) as ledger_:
      ledger_.record(1, [], ledger_cases.fresh(), 0.0)
    text = self.audit().describe()
    self.assertIn('secret Poisson sampling', text)
    self.assertIn('noise, without a seed, sampling rate 0.1', text)
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
    self.assertIn('lines beyond it, which are counted: 1', audit.describe())
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
    payloads[2]['noise_multipliers'] = [2.0]
    ledger_cases.forge(self.path(), payloads)
    self.assertFalse(self.audit().within_budget)
    with ledger.PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.affordable_clients([0, 1], 1e5), [1])

  def test_noise_reuse_that_was_forged_in_is_refused(self):
    self.write()
    payloads = _chained_file.read(self.path()).payloads
    payloads[5]['clients'] = [1]
    ledger_cases.forge(self.path(), payloads)
    with self.assertRaisesRegex(
      LedgerError, 'line 6: .*client 1 .*was used in'
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
  (0, 'version', 3, 'line 1: version must be 1 or 2, got 3'),
  (0, 'version', True, 'line 1: version must be of type int, got True'),
  (0, 'delta', 1, 'line 1: delta must be of type float, got 1'),
  (0, 'clients', 3.0, 'line 1: clients must be of type int, got 3.0'),
  (0, 'clients', 10**12, 'line 1: clients must be an integer from 1'),
  (0, 'enforced', 1, 'line 1: enforced must be of type bool, got 1'),
  (0, 'unit', [], 'line 1: unit must be of type str'),
  (0, 'data', '\x1b[2J', 'line 1: data must be printable text'),
  (0, 'data', None, "line 1: entry 'data' is missing"),
  (0, 'partition_seed', 1.0, 'line 1: partition_seed must be an integer'),
  (0, 'renyi_order', 8.0, 'line 1: renyi_order must be None with sampling'),
  (0, 'mechanism', 'gradient', "line 1: entry 'mechanism' is not known"),
  (0, 'target_epsilon', 'inf', 'line 1: target_epsilon must be a finite'),
  (0, 'another', 1, "line 1: entry 'another' is not known"),
  (0, 'delta', None, "line 1: entry 'delta' is missing"),
  (1, 'run', 2, 'line 2: run must be 1, got 2'),
  (1, 'run', True, 'line 2: run must be of type int, got True'),
  (1, 'mechanism', '\x1b[2J', 'line 2: mechanism must be printable text'),
  (1, 'seeded', 1, 'line 2: seeded must be of type bool, got 1'),
  (1, 'seeded', None, "line 2: entry 'seeded' is missing"),
  (1, 'sensitivity_proven', 1, 'line 2: sensitivity_proven must be of type'),
  (1, 'target_epsilon', 'inf', 'line 2: target_epsilon must be a finite'),
  (1, 'sampling_rate', 0.5, 'line 2: sampling_rate must be 1 with sampling'),
  (1, 'settings_digest', 'a', 'line 2: settings_digest must match'),
  (1, 'run_id', 'a', 'line 2: run_id must match [0-9a-f]{32}'),
  (1, 'another', 1, "line 2: entry 'another' is not known"),
  (2, 'run', 2, 'line 3: run must be at most 1, the number of'),
  (2, 'run', 0, 'line 3: run must be an integer from 1'),
  (2, 'run', True, 'line 3: run must be of type int, got True'),
  (2, 'run', None, "line 3: entry 'run' is missing"),
  (3, 'attempt', 2, 'line 4: attempt must be 1 in round 2, got 2'),
  (4, 'attempt', True, 'line 5: attempt must be of type int, got True'),
  (5, 'attempt', 1, 'line 6: attempt must be 2 in round 5, got 1'),
  (2, 'round', 0, 'line 3: round must be an integer from 1'),
  (2, 'clients', [3], 'line 3: clients must be an integer from 0 to 2, got 3'),
  (2, 'clients', [-1], 'line 3: clients must be an integer from 0 to 2'),
  (2, 'clients', [False], 'line 3: clients must be of type int, got False'),
  (2, 'clients', 0, 'line 3: clients must be of type list, got 0'),
  (2, 'clients', [], 'line 3: clients must not be empty'),
  (3, 'clients', [1, 1], 'line 4: clients must be distinct'),
  (2, 'noise_multipliers', [-1.0], 'line 3: noise_multipliers must be a fin'),
  (2, 'noise_multipliers', [1], 'line 3: noise_multipliers must be of type'),
  (2, 'noise_multipliers', [], 'line 3: noise_multipliers must have 1'),
  (2, 'noise_multipliers', None, "line 3: entry 'noise_multipliers' is miss"),
  (2, 'laplace_epsilon', 1.0, "line 3: entry 'laplace_epsilon' is not known"),
  (2, 'releases_per_client', 0, 'line 3: releases_per_client must be an int'),
  (2, 'noise_digests', ['a'], 'line 3: noise_digests must be hexadecimal'),
  (2, 'noise_digests', ['a' * 64] * 2, 'line 3: noise_digests must have 1'),
  (2, 'input_digests', [7], 'line 3: input_digests must be of type str, got 7'),
  (2, 'input_digests', [], 'line 3: input_digests must have 1 value or 1'),
)


class VerdictTest(WrittenTest):
  """What holds, and each single thing that keeps it from holding."""

  def assert_fails(self, regex):
    audit = self.audit()
    self.assertFalse(audit.holds)
    self.assertRegex(audit.reason, f'^{regex}$')
    self.assertIn('DOES NOT HOLD', audit.describe())

  def test_holds(self):
    self.write()
    self.assertTrue(self.audit().holds)
    self.assertNotIn('DOES NOT', self.audit().describe())

  @parameterized.parameters(
    ({}, {'seeded': True}, 'the noise is reproducible from a seed.*'),
    ({}, {'sensitivity_proven': False}, 'the sensitivity .* is not proven'),
    ({}, {'selection': 'the best of 5'}, 'the published model was chosen.*'),
    (
      {},
      {'noise_distance': 2e-6},
      'the noise that is drawn is too far from.*',
    ),
    (
      {'target_epsilon': math.inf, 'enforced': False},
      {},
      'there is no finite target; the target was not enforced, .*',
    ),
    (
      {'target_epsilon': 0.5, 'enforced': False},
      {'target_epsilon': 1.0},
      '1 of 3 clients are above the target; the target was not enforced, .*',
    ),
    (
      {'enforced': False},
      {'target_epsilon': 0.5},
      'run 1 has spent more .* own target; the target was not enforced, .*',
    ),
    (
      {'enforced': False},
      {},
      'the target was not enforced, so the releases may depend .*',
    ),
  )
  def test_one_fault(self, header, run, regex):
    self.write(ledger_cases.header(**header), **run)
    self.assert_fails(regex)

  @parameterized.parameters(
    ({'delta': 1e-3, 'units': 1000}, True),
    ({'delta': 1e-3, 'units': 999}, False),
    ({'delta': 0.4}, True),
    ({'target_epsilon': 10.1}, True),
    ({'target_epsilon': 9.9}, False),
  )
  def test_what_protects_little(self, header, little):
    self.write(ledger_cases.header(**header))
    self.assertTrue(self.audit().holds, self.audit().reason)
    self.assertEqual(self.audit().worth[1], little)
    self.assertEqual(
      ' HOLDS, BUT PROTECTS LITTLE.\n' in self.audit().describe(), little
    )

  def test_without_head(self):
    self.write()
    os.unlink(self.path() + '.head')
    self.assert_fails('the head is missing, so .*')

  def test_without_releases(self):
    self.create().close()
    self.assert_fails('no release is on record')

  @parameterized.parameters(('replace-one', False), ('add-or-remove-one', True))
  def test_secret_sampling_is_for_adding_or_removing_one(
    self, adjacency, holds
  ):
    with self.create(
      ledger_cases.poisson_header(adjacency=adjacency)
    ) as ledger_:
      ledger_.record(1, [], ledger_cases.fresh(), 5.0)
    self.assertEqual(self.audit().holds, holds)
    if not holds:
      self.assert_fails('the accounting of secret sampling is only for.*')

  @parameterized.parameters(
    ([5.0, 5.0, 5.0], None, True),
    ([5.0, 6.0, 7.0], None, True),
    ([5.0, 6.0, 6.0, 7.0], None, False),
    ([5.0, 6.0, 5.0], None, False),
    ([5.0, 6.0, 6.0, 7.0], 16.0, True),
  )
  def test_sampled_noise_that_was_released_again(
    self, multipliers, order, holds
  ):
    header = ledger_cases.poisson_header(renyi_order=order)
    with self.create(header) as ledger_:
      for m, z in enumerate(multipliers, start=1):
        ids = ledger_cases.fresh()
        ledger_.record(m, [], ids, z)
        ledger_.record(m, [], ids, z)  # The same bits tell nothing more.
    audit = self.audit()
    self.assertTrue(audit.within_budget)
    self.assertEqual(audit.holds, holds, audit.reason)
    if not holds:
      self.assert_fails('some rounds have the same noise and others do not.*')
    granted = 'this assumes that the noise of all releases was fixed before'
    self.assertEqual(granted in audit.describe(), order is None)

  def test_noise_that_is_not_sampled_may_recur(self):
    with self.create() as ledger_:
      for m, z in enumerate([20.0, 30.0, 20.0], start=1):
        ledger_.record(m, [0], ledger_cases.fresh(), z)
    self.assertTrue(self.audit().holds, self.audit().reason)
    self.assertNotIn('this assumes that the noise', self.audit().describe())

  def test_selection_is_told(self):
    self.write(selection='the best of a secret number of runs')
    self.assertIn(
      '\n    Published: the best of a secret number of runs\n',
      self.audit().describe(),
    )


# What version 1 wrote: a header, and a record without a run.
_VERSION_1 = (
  {
    'format': 'tvdp_tf privacy ledger',
    'version': 1,
    'mechanism': 'gradient',
    'unit': 'example',
    'adjacency': 'replace-one',
    'target_epsilon': 1.0,
    'delta': 1e-5,
    'clients': 3,
    'sensitivity': '2 C_g / n',
    'sensitivity_proven': True,
    'accounting': 'gaussian',
    'sampling': 'none',
    'sampling_rate': 1.0,
    'enforced': True,
  },
  {
    'attempt': 1,
    'clients': [0, 2],
    'input_digests': ['b' * 64],
    'noise_digests': ['c' * 64, 'd' * 64],
    'noise_multipliers': [20.0],
    'releases_per_client': 1,
    'round': 1,
  },
)


class VersionOneTest(WrittenTest):
  def test_numbers_are_those_of_then_and_nothing_is_endorsed(self):
    ledger_cases.forge(self.path(), list(_VERSION_1))
    audit = self.audit()
    one = accounting.delivered_epsilon([20.0], 1e-5, 'exact')
    np.testing.assert_array_equal(audit.epsilons, [one, 0, one])
    self.assertTrue(audit.within_budget and audit.head_verified)
    self.assertFalse(audit.holds)
    self.assertEqual(
      audit.reason,
      'the record does not say whether the noise is reproducible from a seed',
    )
    self.assertIn(
      'gradient, unknown gaussian noise, UNKNOWN whether from a seed',
      audit.describe(),
    )

  def test_is_not_gone_on_with(self):
    ledger_cases.forge(self.path(), list(_VERSION_1))
    before = self.content()
    with self.assertRaisesRegex(
      LedgerError, 'line 1: version is 1, which does not say whether'
    ):
      ledger.PrivacyLedger.open(self.path())
    self.assertEqual(self.content(), before)

  @parameterized.parameters(
    (0, {'sampling_rate': 0.5}, 'line 1: sampling_rate must be 1 with'),
    (0, {'data': ''}, "line 1: entry 'data' is not known"),
    (1, {'run': 1}, "line 2: entry 'run' is not known"),
    (1, {'run_id': 'a' * 32}, "line 2: entry 'run_id' is not known"),
  )
  def test_lines_are_those_of_then(self, line, changes, message):
    payloads = list(_VERSION_1)
    payloads[line] = payloads[line] | changes
    ledger_cases.forge(self.path(), payloads)
    with self.assertRaisesRegex(LedgerError, message):
      self.audit()


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
      line=st.integers(0, 5),
      entry=st.sampled_from(names) | st.text(),
      value=json
      | st.lists(st.floats(0, 100), max_size=3)
      | st.lists(st.integers(0, 3), max_size=3),
    )
    @hypothesis.example(line=2, entry='noise_multipliers', value=[0.1])
    @hypothesis.example(line=5, entry='releases_per_client', value=1)
    def check(line, entry, value):
      nonlocal accepted
      payloads = copy.deepcopy(whole)
      payloads[line][entry] = value
      ledger_cases.forge(self.path(), payloads)
      try:
        audit = self.audit()
      except LedgerError as error:
        self.assertLen(str(error).splitlines(), 1)
        self.assertRegex(str(error), r': line [1-6]: ')
      else:
        accepted += 1
        self.assertFalse(np.isnan(audit.epsilons).any())
        audit.describe()

    check()
    self.assertGreater(accepted, 0)


if __name__ == '__main__':
  absltest.main()
