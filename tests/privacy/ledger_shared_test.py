"""One ledger for several runs: one budget, in turn or at once."""

import json
import math
import os
import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import ledger_cases
from tvdp_tf.privacy import (
  _chained_file,
  accounting,
  calibration,
  gaussian,
  ledger,
  ledger_audit,
  spending,
)
from tvdp_tf.privacy.ledger import (
  BudgetExceededError,
  LedgerError,
  NoiseReuseError,
  PrivacyLedger,
)


def exact(*multipliers, delta=1e-5):
  return accounting.delivered_epsilon(multipliers, delta, 'exact')


class SharedTestCase(ledger_cases.LedgerTestCase):
  def setUp(self):
    super().setUp()
    # Nobody is waited for in vain.
    self.enter_context(mock.patch.object(_chained_file, '_LOCK_SECONDS', 0.2))

  def joined(self, header=None, **changes):
    """A run that has joined the ledger, which is made if it is missing."""
    header = header or ledger_cases.shared_header()
    if os.path.exists(self.path()):
      result = PrivacyLedger.open(self.path(), header, shared=True)
    else:
      result = PrivacyLedger.create(self.path(), header, shared=True)
    self.addCleanup(result.close)
    result.join(ledger_cases.run(header, **changes))
    return result

  def audit(self):
    return ledger_audit.audit(self.path())


class OneBudgetTest(SharedTestCase):
  def test_filter_is_over_all_runs(self):
    header = ledger_cases.shared_header(target_epsilon=2.0)
    z = gaussian.gaussian_noise_multiplier(2.0, 1e-5)
    first = self.joined(header)
    second = self.joined(header, mechanism='another', noise='discrete')
    # 1/4 + 1/4 + 1/4 + 1/4 of the budget, of unlike releases.
    first.record(1, [0, 1], ledger_cases.fresh(2), 2 * z)
    second.record(1, [0], ledger_cases.fresh(), 4 * z, 4)
    first.record(2, [0], ledger_cases.fresh(), 2 * z)
    second.record(7, [0], ledger_cases.fresh(), 2 * z)
    for ledger_ in (first, second):
      with ledger_.locked():
        self.assertFalse(ledger_.affordable(0, 1e4 * z))
        self.assertTrue(ledger_.affordable(1, 2 * z))
      with self.assertRaises(BudgetExceededError):
        ledger_.record(9, [0], ledger_cases.fresh(), 1e4 * z)
    audit = self.audit()
    self.assertTrue(audit.holds, audit.reason)
    self.assertEqual(audit.epsilons[0], 2.0)
    self.assertEqual(audit.epsilons[1], exact(2 * z))
    # Each alone, and they do not add up.
    shares = [share.worst_epsilon for share in audit.runs]
    self.assertEqual(shares, [exact(2 * z, 2 * z), exact(*[4 * z] * 4, 2 * z)])
    self.assertGreater(sum(shares), 2.0)
    self.assertEqual([share.records for share in audit.runs], [2, 2])
    self.assertEqual([share.rounds for share in audit.runs], [2, 2])
    np.testing.assert_array_equal(audit.participations, [4, 1, 0])

  def test_what_another_has_spent_meanwhile_counts(self):
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    first, second = self.joined(), self.joined()
    # As of the last time: nothing is spent.
    self.assertTrue(first.affordable(0, z))
    second.record(1, [0], ledger_cases.fresh(), z)
    before = self.content()
    with self.assertRaises(BudgetExceededError):
      first.record(1, [0], ledger_cases.fresh(), z)
    self.assertEqual(self.content(), before)
    self.assertFalse(first.affordable(0, z))
    first.record(1, [1], ledger_cases.fresh(), z)

  def test_run_has_its_own_target_besides(self):
    header = ledger_cases.shared_header(target_epsilon=3.0)
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    for first in (True, False):
      with self.subTest(first=first):
        ledger_ = self.joined(header, target_epsilon=1.0)
        ledger_.record(1, [0], ledger_cases.fresh(), math.sqrt(2) * z)
        self.assertTrue(ledger_.affordable(0, math.sqrt(2) * 1.001 * z))
        self.assertFalse(ledger_.affordable(0, math.sqrt(2) * 0.999 * z))
        with self.assertRaisesRegex(
          BudgetExceededError, 'above its target 1.0: nothing'
        ) as caught:
          ledger_.record(2, [0], ledger_cases.fresh(), z)
        self.assertEqual(caught.exception.target_epsilon, 1.0)
        ledger_.record(2, [0], ledger_cases.fresh(), math.sqrt(2) * 1.001 * z)
        with self.assertRaises(BudgetExceededError):
          ledger_.record(3, [0], ledger_cases.fresh(), 10 * z)

  def test_own_target_holds_after_a_restart(self):
    header = ledger_cases.shared_header(target_epsilon=3.0)
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    run = ledger_cases.run(header, target_epsilon=1.0)
    PrivacyLedger.create(self.path(), header, run).close()
    self.joined(header).close()
    for m in (1, 2):
      with PrivacyLedger.open(self.path(), header, run, shared=True) as ledger_:
        self.assertEqual(ledger_.run, 1)
        self.assertLen(ledger_.charged, m - 1)
        ledger_.record(m, [0], ledger_cases.fresh(), 1.4143 * z)
    with PrivacyLedger.open(self.path(), header, run, shared=True) as ledger_:
      self.assertFalse(ledger_.affordable(0, 50 * z))
    # Not the other run's.
    with self.joined(header) as other:
      self.assertTrue(other.affordable(0, 1.4143 * z))
      self.assertEqual(other.charged, ())
      self.assertEqual(other.attempts(1), 0)

  def test_laplace_adds_up(self):
    header = ledger_cases.laplace_header(data='digits', target_epsilon=1.125)
    for run in range(2):
      with self.joined(header, target_epsilon=0.75) as ledger_:
        for m in range(2 - run):
          ledger_.record(m + 1, [2], ledger_cases.fresh(), None, 1, 0.375)
        self.assertFalse(ledger_.affordable(2, laplace_epsilon=0.375))
    self.assertEqual(self.audit().epsilons[2], 1.125)

  def test_other_runs_of_one_client_share_no_noise(self):
    first, second = self.joined(), self.joined()
    identity = ledger_cases.identity(1)
    first.record(1, [0], [identity], 20.0)
    first.record(1, [0], [identity], 20.0)
    self.assertEqual(self.audit().repeats, 1)
    # Even where all else is the same.
    with self.assertRaisesRegex(
      NoiseReuseError, 'was used in round 1, attempt 1 of run 1, for another'
    ):
      second.record(1, [0], [identity], 20.0)
    self.assertEqual(self.audit().records, 2)

  def test_words(self):
    header = ledger_cases.shared_header()
    with self.joined(header, target_epsilon=0.5) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    with self.joined(header, noise='discrete') as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 30.0)
    text = self.audit().describe()
    self.assertIn('\n  Data: digits; every client is assumed', text)
    self.assertIn('\n  Run 1: gradient, continuous gaussian noise, with', text)
    self.assertIn('\n  Run 2: gradient, discrete gaussian noise, with', text)
    number = ledger_audit.statement.format_epsilon
    for epsilon, target in ((exact(20.0), '0.5'), (exact(30.0), '1')):
      self.assertIn(
        f'Alone, worst client: epsilon = {number(epsilon)} of {target};', text
      )
    self.assertIn(
      f'Worst client: 0, epsilon = {number(exact(20.0, 30.0))}\n', text
    )

  def test_faulty_runs_are_named(self):
    header = ledger_cases.shared_header()
    for _ in range(2):
      self.joined(header, sensitivity_proven=False).close()
    with self.joined(header, sensitivity_proven=False) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    self.assertIn('is not proven (run 1, 2, 3)', self.audit().reason)


class DeltaTest(SharedTestCase):
  """What is drawn is not quite Gaussian: that costs of delta."""

  def test_of_one_run(self):
    distance = 1e-6
    left = 1e-5 - (1 + math.exp(1.0)) * distance
    with self.create(noise_distance=distance) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
      spent = ledger_.epsilon(0)
    np.testing.assert_allclose(spent, exact(20.0, delta=left), rtol=1e-9)
    self.assertGreater(spent, exact(20.0))
    audit = self.audit()
    self.assertEqual(audit.worst_epsilon, spent)
    self.assertEqual(audit.noise_distance, distance)
    self.assertTrue(audit.holds, audit.reason)

  def test_of_several_runs_adds_up(self):
    header = ledger_cases.shared_header(target_epsilon=2.0)
    for target, distance in ((1.0, 3e-7), (2.0, 1e-7)):
      with self.joined(
        header, target_epsilon=target, noise_distance=distance
      ) as ledger_:
        ledger_.record(1, [0], ledger_cases.fresh(), 10.0)
    left = 1e-5 - (1 + math.exp(2.0)) * 4e-7
    audit = self.audit()
    np.testing.assert_allclose(
      audit.worst_epsilon, exact(10.0, 10.0, delta=left), rtol=1e-9
    )
    for share, target, distance in zip(
      audit.runs, (1.0, 2.0), (3e-7, 1e-7), strict=True
    ):
      own = 1e-5 - (1 + math.exp(target)) * distance
      np.testing.assert_allclose(
        share.worst_epsilon, exact(10.0, delta=own), rtol=1e-9
      )

  def test_filter_is_at_what_is_left(self):
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    with self.create(noise_distance=1e-6) as ledger_:
      self.assertFalse(ledger_.affordable(0, z))
      with self.assertRaises(BudgetExceededError):
        ledger_.record(1, [0], ledger_cases.fresh(), z)
      left = 1e-5 - (1 + math.exp(1.0)) * 1e-6
      z = gaussian.gaussian_noise_multiplier(1.0, left * (1 - 1e-9))
      ledger_.record(1, [0], ledger_cases.fresh(), z)

  def test_nobody_joins_who_would_take_the_delta_of_what_is_spent(self):
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    with self.joined() as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), z)
    before = self.content()
    with self.assertRaisesRegex(
      LedgerError, 'the budget is spent: the releases'
    ):
      self.joined(noise_distance=1e-9)
    self.assertEqual(self.content(), before)
    self.joined()

  @parameterized.parameters((2e-7, True), (1e-6, False))
  def test_nobody_joins_who_would_leave_nothing_proven(self, more, joins):
    """Half of delta is 5e-6, and 1 + e^2 is 8.4."""
    header = ledger_cases.shared_header(target_epsilon=2.0)
    with self.joined(header, noise_distance=3e-7) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 10.0)
    before = self.content()
    if joins:
      self.joined(header, noise_distance=more)
      self.assertTrue(self.audit().holds)
      return
    with self.assertRaisesRegex(
      LedgerError, 'no further run can join: .* Gaussian for epsilon = 2.0'
    ):
      self.joined(header, noise_distance=more)
    self.assertEqual(self.content(), before)
    # Of a run that proves nothing there is nothing to undo.
    self.assertTrue(self.audit().holds)

  def test_too_much_is_no_promise(self):
    header = ledger_cases.header(target_epsilon=9.0)
    with self.create(header, noise_distance=1e-9) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    # Half of delta is 5e-6, and e^9 is 8103.
    self.assertFalse(self.audit().holds)
    self.assertIn('too far from Gaussian for epsilon = 9', self.audit().reason)


class CompanyTest(SharedTestCase):
  """Who may join whom."""

  @parameterized.parameters(
    {'unit': 'user'},
    {'adjacency': 'add-or-remove-one'},
    {'delta': 1e-6},
    {'clients': 4},
    {'enforced': False},
    {'target_epsilon': 2.0},
    {'data': 'mnist'},
    {'partition_seed': 8},
    {'accounting': 'laplace', 'delta': 0.0},
  )
  def test_other_budget(self, **changes):
    self.joined().close()
    before = self.content()
    name = next(iter(changes))
    with self.assertRaisesRegex(LedgerError, f'line 1: (delta|{name}) is .*'):
      self.joined(ledger_cases.shared_header(**changes))
    self.assertEqual(self.content(), before)

  @parameterized.product(
    first=[True, False],
    name=['seeded', 'sensitivity_proven', 'selection'],
  )
  def test_no_run_undoes_what_the_others_prove(self, first, name):
    values = ('best of 3', '') if name == 'selection' else (True, False)
    then, now = values if first else values[::-1]
    self.joined(**{name: then}).close()
    before = self.content()
    with self.assertRaisesRegex(
      LedgerError, f'{name} must be {then!r}, as in .*, got {now!r}'
    ):
      self.joined(**{name: now})
    self.assertEqual(self.content(), before)
    self.joined(**{name: then})

  def test_data_must_be_told(self):
    header = ledger_cases.header()
    with self.joined(header) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    with self.assertRaisesRegex(LedgerError, 'must have data in its header'):
      self.joined(header)

  def test_secret_sampling_needs_an_order_fixed_in_advance(self):
    header = ledger_cases.poisson_header(data='digits')
    self.joined(header).close()
    with self.assertRaisesRegex(LedgerError, 'must have renyi_order in its'):
      self.joined(header)

  def test_run_joins_once(self):
    header = ledger_cases.shared_header()
    run = ledger_cases.run(header)
    with PrivacyLedger.create(self.path(), header, run) as ledger_:
      with self.assertRaisesRegex(LedgerError, f'{run.run_id} is on record'):
        ledger_.join(run)
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)

  def test_forged_company_is_refused(self):
    self.joined().close()
    self.joined().close()
    whole = _chained_file.read(self.path()).payloads
    for name, value, message in (
      ('seeded', True, 'line 3: seeded must be False'),
      ('run', 1, 'line 3: run must be 2, got 1'),
      ('run_id', whole[1]['run_id'], 'line 3: run .* is on record already'),
    ):
      payloads = [dict(payload) for payload in whole]
      payloads[2][name] = value
      ledger_cases.forge(self.path(), payloads)
      with self.assertRaisesRegex(LedgerError, message):
        self.audit()

  def test_who_has_not_joined_does_not_record(self):
    self.joined().close()
    self.joined().close()
    with PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.run, 0)
      self.assertLen(ledger_.runs, 2)
      self.assertTrue(ledger_.affordable(0, 20.0))
      with self.assertRaisesRegex(
        LedgerError, 'join must be called before record'
      ):
        ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    run = ledger_cases.run(ledger_cases.shared_header())
    with self.assertRaisesRegex(LedgerError, f'holds no run {run.run_id}'):
      PrivacyLedger.open(self.path(), run=run)

  @parameterized.parameters(
    {'noise': 'discrete'}, {'settings_digest': 'b' * 64}, {'mechanism': 'x'}
  )
  def test_run_that_has_changed_is_refused(self, **changes):
    header = ledger_cases.shared_header()
    run = ledger_cases.run(header, run_id='c' * 32)
    PrivacyLedger.create(self.path(), header, run).close()
    changed = ledger_cases.run(header, run_id='c' * 32, **changes)
    name = next(iter(changes))
    with self.assertRaisesRegex(LedgerError, f'run 1: {name} is .* this run'):
      PrivacyLedger.open(self.path(), header, changed)


class RenyiTest(SharedTestCase):
  """Secret sampling: any rates and noise, at one order."""

  def header(self, **changes):
    return ledger_cases.poisson_header(
      **{'data': 'digits', 'renyi_order': 16.0, 'target_epsilon': 3.0} | changes
    )

  def test_is_dp_accountings_epsilon_at_that_order(self):
    from dp_accounting import dp_event, rdp  # noqa: PLC0415

    header = self.header()
    rounds = (([2.0, 3.0], 0.1), ([1.5], 0.02), ([20.0], 1.0))
    accountant = rdp.RdpAccountant([16.0])
    for multipliers, rate in rounds:
      with self.joined(header, sampling_rate=rate) as ledger_:
        for m, z in enumerate(multipliers, start=1):
          ledger_.record(m, [], ledger_cases.fresh(), z)
          accountant.compose(
            dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(z))
          )
    expected = accountant.get_epsilon(1e-5)
    audit = self.audit()
    np.testing.assert_allclose(audit.epsilons, [expected] * 3, rtol=1e-8)
    self.assertTrue(audit.holds, audit.reason)
    # Alone, each is at the best order for it.
    for share, (multipliers, rate) in zip(audit.runs, rounds, strict=True):
      best = accounting.delivered_epsilon(
        multipliers, 1e-5, 'rdp', 'poisson', rate
      )
      self.assertEqual(share.worst_epsilon, best)
      self.assertLess(share.worst_epsilon, audit.worst_epsilon)
    self.assertIn('all runs at Renyi order 16.0', audit.describe())
    self.assertIn('sampling rate 0.02', audit.describe())

  @parameterized.parameters(1.0, 20.0)
  def test_filter(self, target):
    rounds, rate = 5, 0.2
    planned = calibration.calibrate(
      *(target, 1e-5, 0.95, rounds, 1.0, 'rdp', 'poisson', rate)
    ).noise_multipliers(1.0)
    order = ledger.renyi_order(planned, rate, target, 1e-5)
    header = self.header(target_epsilon=target, renyi_order=order)
    with self.joined(header, sampling_rate=rate) as first:
      for m, z in enumerate(planned, start=1):
        first.record(m, [], ledger_cases.fresh(), z)
    self.assertBetween(self.audit().worst_epsilon, 0.98 * target, target)
    before = self.content()
    with self.joined(header, sampling_rate=rate) as second:
      self.assertFalse(second.affordable(0, planned[0]))
      with self.assertRaisesRegex(BudgetExceededError, f'target {target!r}'):
        second.record(1, [], ledger_cases.fresh(), planned[0])
    self.assertLen(self.content().splitlines(), len(before.splitlines()) + 1)

  @parameterized.parameters(
    (0.1, 1e-6, 1.0), (0.1, 1e-6, 0.9), (9.0, 1e-3, 1.0)
  )
  def test_calibrated_rounds_fit_to_the_last(self, target, delta, rate):
    planned = calibration.calibrate(
      *(target, delta, 0.9, 10, 1.0, 'rdp', 'poisson', rate)
    ).noise_multipliers(1.0)
    order = ledger.renyi_order(planned, rate, target, delta)
    header = self.header(target_epsilon=target, renyi_order=order, delta=delta)
    with self.joined(header, sampling_rate=rate) as ledger_:
      for m, z in enumerate(planned, start=1):
        ledger_.record(m, [], ledger_cases.fresh(), z)

  def test_bare_release(self):
    header = self.header(enforced=False, target_epsilon=math.inf)
    with self.joined(header) as ledger_:
      ledger_.record(1, [], ledger_cases.fresh(), 0.0)
      self.assertEqual(ledger_.epsilon(0), math.inf)

  def test_order_is_the_best_of_all_for_the_rounds(self):
    z, rate, target, delta = 1.2, 0.05, 4.0, 1e-5
    order = ledger.renyi_order([z] * 10, rate, target, delta)

    def most(order):
      header = self.header(target_epsilon=target, renyi_order=float(order))
      budget = spending.of(header, target, delta)
      spent = np.array([z])
      rounds = 0
      while budget.affordable(np.zeros(1, int), spent, 1, rate).all():
        budget.charge(np.zeros(1, int), spent, 1, rate)
        rounds += 1
      return rounds

    best = most(order)
    self.assertGreater(best, 10)
    self.assertGreaterEqual(best, max(map(most, (2, 4, 8, 16, 32, 64, 256))))

  @parameterized.parameters(
    (([], 0.1, 1.0, 1e-5), 'noise_multipliers must not be empty'),
    (([0.0], 0.1, 1.0, 1e-5), 'noise_multipliers must be a finite number > 0'),
    (([1.0], 0.0, 1.0, 1e-5), 'sampling_rate must be'),
    (([1.0], 0.1, 0.0, 1e-5), 'target_epsilon must be'),
    (([1.0], 0.1, 1.0, 0.0), 'delta must be'),
    (([1.0], 0.1, 1e-9, 1e-5), 'epsilon must be within reach'),
  )
  def test_order_of_bad_arguments(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      ledger.renyi_order(*arguments)


class InTurnTest(SharedTestCase):
  def test_lines_alternate(self):
    ledgers = [self.joined() for _ in range(3)]
    for m in range(1, 10):
      writer = ledgers[m % 3]
      writer.record(m, [m % 3], ledger_cases.fresh(), 100.0)
      self.assertEqual(writer.head_hash, self.audit().head_hash)
    audit = self.audit()
    self.assertEqual([share.records for share in audit.runs], [3, 3, 3])
    for ledger_ in ledgers:
      with ledger_.locked():
        np.testing.assert_array_equal(ledger_.epsilons(), audit.epsilons)

  def test_locked_keeps_others_out(self):
    first, second = self.joined(), self.joined()
    with first.locked(), first.locked():
      with self.assertRaisesRegex(LedgerError, 'already open for writing'):
        second.record(1, [0], ledger_cases.fresh(), 20.0)
      first.record(1, [0], ledger_cases.fresh(), 20.0)
      with self.assertRaisesRegex(LedgerError, 'already open for writing'):
        PrivacyLedger.open(self.path(), shared=True)
    second.record(1, [0], ledger_cases.fresh(), 20.0)

  def test_who_has_it_for_himself_keeps_others_out(self):
    shared = self.joined()
    header = ledger_cases.shared_header()
    with PrivacyLedger.open(self.path()) as alone:
      with self.assertRaisesRegex(LedgerError, 'already open for writing'):
        shared.record(1, [0], ledger_cases.fresh(), 20.0)
      alone.join(ledger_cases.run(header))
      alone.record(1, [0], ledger_cases.fresh(), 20.0)
    shared.record(1, [0], ledger_cases.fresh(), 20.0)
    self.assertEqual(self.audit().worst_epsilon, exact(20.0, 20.0))

  def test_what_a_killed_writer_leaves_is_mended_by_the_next(self):
    first, second = self.joined(), self.joined()
    head = pathlib.Path(self.path() + '.head').read_bytes()
    first.record(1, [0], ledger_cases.fresh(), 20.0)
    # Killed before its head, and another in the middle of a line.
    pathlib.Path(self.path() + '.head').write_bytes(head)
    with open(self.path(), 'ab') as file:
      file.write(b'{"attempt":1,')
    second.record(1, [0], ledger_cases.fresh(), 30.0)
    audit = self.audit()
    self.assertEqual(audit.worst_epsilon, exact(20.0, 30.0))
    self.assertEqual((audit.beyond_head, audit.torn_bytes), (0, 0))
    self.assertEqual(second.epsilon(0), exact(20.0, 30.0))

  @parameterized.parameters(
    ('edit', 'line 4: its hash is wrong'),
    ('cut', 'was changed by another program'),
    ('head', 'line 4: its hash is not the one in'),
    ('no head', 'head is missing'),
    ('old head', 'head: was put back to line 2'),
    ('long head', 'line 5: missing: .* counts 9 lines'),
    ('moved', 'was changed by another program'),
    ('forged', 'client 0 .* was used in round 1, attempt 1 of run 2'),
  )
  def test_damage_ends_the_writing(self, change, message):
    first = self.joined()
    old_head = pathlib.Path(self.path() + '.head').read_bytes()
    second = self.joined()
    path, head = pathlib.Path(self.path()), pathlib.Path(self.path() + '.head')
    identity = ledger_cases.identity(1)
    with first.locked():  # It knows of both runs.
      pass
    second.record(1, [0], [identity], 20.0)
    content = path.read_bytes()
    if change == 'edit':
      path.write_bytes(content.replace(b'[20.0]', b'[90.0]'))
    elif change == 'cut':
      path.write_bytes(b''.join(content.splitlines(keepends=True)[:2]))
    elif change == 'head':
      head.write_text(
        json.dumps({'count': 4, 'hash': 'a' * 64}, separators=(',', ':')) + '\n'
      )
    elif change == 'no head':
      head.unlink()
    elif change == 'old head':
      head.write_bytes(old_head)
    elif change == 'long head':
      head.write_bytes(head.read_bytes().replace(b':4,', b':9,'))
    elif change == 'moved':
      copy = path.with_name('copy')
      copy.write_bytes(content)
      os.replace(copy, path)
    else:
      payloads = _chained_file.read(path).payloads
      payloads.append({**payloads[-1], 'run': 1})
      ledger_cases.forge(self.path(), payloads)
    before = path.read_bytes()
    with self.assertRaisesRegex(LedgerError, message) as caught:
      first.record(1, [0], ledger_cases.fresh(), 20.0)
    self.assertNotIn('\n', str(caught.exception))
    with self.assertRaisesRegex(LedgerError, 'open it again'):
      first.record(1, [0], ledger_cases.fresh(), 20.0)
    self.assertEqual(path.read_bytes(), before)

  def test_creation_is_once(self):
    header = ledger_cases.shared_header()
    self.joined(header)
    with self.assertRaisesRegex(LedgerError, 'already exists'):
      PrivacyLedger.create(self.path(), header, shared=True)
    self.assertCountEqual(
      os.listdir(self.folder), ['ledger.jsonl', 'ledger.jsonl.head']
    )


if __name__ == '__main__':
  absltest.main()
