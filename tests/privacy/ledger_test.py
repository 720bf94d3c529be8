import errno
import math
import os
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.privacy import ledger_cases
from tvdp_tf import errors
from tvdp_tf.privacy import (
  _ledger_state,
  accounting,
  calibration,
  gaussian,
  schedule,
)
from tvdp_tf.privacy.ledger import (
  BudgetExceededError,
  LedgerError,
  PrivacyLedger,
  read_header,
)


class FitTest(ledger_cases.LedgerTestCase):
  def assert_fits_and_no_more(self, ledger_, multipliers, count=1):
    """Client 1 can afford all the rounds, and nothing like the last of them."""
    for m, z in enumerate(multipliers, start=1):
      ledger_.record(m, [1], ledger_cases.fresh(), z, count)
    self.assertLessEqual(ledger_.epsilon(1), ledger_.header.target_epsilon)
    self.assertFalse(ledger_.affordable(1, multipliers[-1], count))
    with self.assertRaises(BudgetExceededError):
      ledger_.record(
        len(multipliers) + 1, [1], ledger_cases.fresh(), multipliers[-1]
      )


class FilterTest(FitTest):
  @parameterized.product(
    theta=[0.9, 1.0, 1.05],
    epsilon=[0.1, 1.0, 10.0],
    delta=[1e-3, 1e-8],
    rounds=[1, 7, 30],
  )
  def test_calibrated_schedule_fits_and_no_more(
    self, theta, epsilon, delta, rounds
  ):
    planned = calibration.calibrate(epsilon, delta, theta, rounds)
    header = ledger_cases.header(target_epsilon=epsilon, delta=delta)
    multipliers = planned.noise_multipliers(1.0)
    with self.create(header) as ledger_:
      self.assert_fits_and_no_more(ledger_, multipliers)
      self.assertEqual(
        ledger_.epsilon(1),
        accounting.delivered_epsilon(multipliers, delta, 'exact'),
      )

  @parameterized.parameters(1, 2, 5, 30)
  def test_local_steps_count_one_by_one(self, steps):
    # tau steps of 6 rounds, calibrated as 6 tau releases.
    planned = calibration.calibrate(3.0, 1e-5, 1.0, 6 * steps)
    with self.create(ledger_cases.header(target_epsilon=3.0)) as ledger_:
      z = planned.noise_multipliers(1.0)[:6]
      self.assert_fits_and_no_more(ledger_, z, steps)

  @parameterized.parameters(0.01, 0.3, 1.0, 4.0, 20.0)
  def test_smallest_multiplier_itself_fits(self, epsilon):
    # Where the accountant, which rounds up, is above the target by some bits.
    for delta in (1e-3, 1e-5, 1e-9):
      z = gaussian.gaussian_noise_multiplier(epsilon, delta)
      header = ledger_cases.header(target_epsilon=epsilon, delta=delta)
      with self.create(header, f'{delta}') as ledger_:
        ledger_.record(1, [0], ledger_cases.fresh(), z)
        ledger_.record(1, [1], ledger_cases.fresh(), 2 * z, 4)
        ledger_.record(1, [2], ledger_cases.fresh(), 2 * z)
        ledger_.record(2, [2], ledger_cases.fresh(), 4 * z, 12)
        self.assertLessEqual(ledger_.epsilons().max(), epsilon)
        for client in range(3):
          self.assertFalse(ledger_.affordable(client, 1e5 * z))
        self.assertEqual(ledger_.affordable_clients([0, 1, 2], 1e5 * z), [])

  def test_smaller_multiplier_does_not_fit(self):
    z = gaussian.gaussian_noise_multiplier(1.0, 1e-5)
    ledger_ = self.create()
    self.assertTrue(ledger_.affordable(0, z))
    self.assertFalse(ledger_.affordable(0, z * (1 - 1e-11)))
    self.assertFalse(ledger_.affordable(0, 2 * z, 5))
    self.assertFalse(ledger_.affordable(0, 0.0))
    self.assertFalse(ledger_.affordable(0, 1e-310))
    self.assertTrue(ledger_.affordable(0, 1e300, 1000))

  def test_refusal_says_who_and_how_much(self):
    ledger_ = self.create(ledger_cases.header(target_epsilon=2.0))
    ledger_.record(1, [0, 2], ledger_cases.fresh(2), 3.0)
    error = self.assert_refused(
      BudgetExceededError,
      'client 2 would reach epsilon 2.449.* at delta 1e-05, above its target',
      ledger_,
      *(2, [1, 2], ledger_cases.fresh(2), 2.0),
    )
    self.assertIsInstance(error, errors.TvdpError)
    self.assertEqual(error.client, 2)
    self.assertEqual(
      error.epsilon, accounting.delivered_epsilon([3.0, 2.0], 1e-5, 'exact')
    )
    self.assertEqual(error.target_epsilon, 2.0)
    self.assertEqual(ledger_.affordable_clients([2, 1, 0], 2.0), [1])
    self.assertEqual(ledger_.attempts(2), 0)
    ledger_.record(2, [1], ledger_cases.fresh(), 2.0)

  def test_spent_and_remaining(self):
    ledger_ = self.create()
    ledger_.record(1, [0, 1], ledger_cases.fresh(2), [9.0, 8.0])
    ledger_.record(2, [1], ledger_cases.fresh(), 10.0, 2)
    expected = [
      accounting.delivered_epsilon(z, 1e-5, 'exact')
      for z in ([9.0], [8.0, 10.0, 10.0], [])
    ]
    np.testing.assert_array_equal(ledger_.epsilons(), expected)
    self.assertEqual(ledger_.epsilon(1), expected[1])
    self.assertEqual(ledger_.remaining(1), 1 - expected[1])
    self.assertEqual(ledger_.remaining(2), 1.0)

  def test_very_many_releases(self):
    # More than are listed one by one: still an upper bound, and a close one.
    z, count = 1e6, 2**31 - 1
    expected = gaussian.gaussian_epsilon(z / math.sqrt(count), 1e-5)
    ledger_ = self.create()
    self.assertTrue(ledger_.affordable(0, z, count))
    ledger_.record(1, [0], ledger_cases.fresh(), z, count)
    self.assertBetween(ledger_.epsilon(0), expected, expected * (1 + 1e-12))
    self.assertFalse(ledger_.affordable(0, z / 100, count))


class RefinementTest(FitTest):
  @parameterized.product(
    theta=[0.8, 0.95, 1.0, 1.1], steps=[(30, 10, 24), (30, 15, 40), (9, 1, 2)]
  )
  def test_refined_schedule_fits_and_no_more(self, theta, steps):
    rounds, done, new_rounds = steps
    z = gaussian.gaussian_noise_multiplier(2.0, 1e-5)
    sensitivity = 2 / 600
    budget = 1 / (sensitivity * z) ** 2
    first = calibration.calibrate(2.0, 1e-5, theta, rounds, sensitivity)
    past = first.stddevs()[:done]
    stddev = calibration.refine_stddev(theta, past, new_rounds, budget)
    later = schedule.GeometricSchedule(theta, new_rounds, stddev).stddevs()
    multipliers = np.concatenate([past, later[done:]]) / sensitivity
    with self.create(ledger_cases.header(target_epsilon=2.0)) as ledger_:
      self.assert_fits_and_no_more(ledger_, multipliers.tolist())

  def test_theorem_2_is_refused(self):
    # ERRATA C3: the printed rule overspends by half for theta < 1.
    planned = calibration.calibrate(10.0, 1e-3, 0.9, 30).noise_multipliers(1.0)
    header = ledger_cases.header(target_epsilon=10.0, delta=1e-3)
    ledger_ = self.create(header)
    for m in range(10):
      ledger_.record(m + 1, [0], ledger_cases.fresh(), planned[m])
    with self.assertRaises(BudgetExceededError):
      for m in range(10, 24):
        ledger_.record(m + 1, [0], ledger_cases.fresh(), planned[m] * 0.5456)
    self.assertBetween(ledger_.epsilon(0), 7, 10)


class OpeningTest(ledger_cases.LedgerTestCase):
  def test_goes_on_where_it_was(self):
    planned = calibration.calibrate(1.0, 1e-5, 0.9, 12).noise_multipliers(1.0)
    for m, z in enumerate(planned, start=1):
      opened = (
        self.create()
        if m == 1
        else PrivacyLedger.open(self.path(), ledger_cases.header())
      )
      with opened as ledger_:
        self.assertEqual(ledger_.attempts(m - 1), int(m > 1))
        ledger_.record(m, [0], ledger_cases.fresh(), z)
        head_hash = ledger_.head_hash
    with PrivacyLedger.open(self.path()) as ledger_:
      self.assertFalse(ledger_.affordable(0, planned[-1]))
      self.assertEqual(ledger_.header, ledger_cases.header())
      self.assertEqual(ledger_.head_hash, head_hash)

  @parameterized.parameters(
    {'delta': 1e-3},
    {'target_epsilon': 2.0},
    {'clients': 4},
    {'unit': 'user'},
    {'adjacency': 'add-or-remove-one'},
    {'enforced': False},
    {'data': 'another'},
    {'partition_seed': 5},
  )
  def test_other_settings_are_refused(self, **changes):
    self.create().close()
    name = next(iter(changes))
    with self.assertRaisesRegex(
      LedgerError, f'line 1: {name} is .*, but this run has'
    ):
      PrivacyLedger.open(self.path(), ledger_cases.header(**changes))
    # And the lock is gone.
    PrivacyLedger.open(self.path()).close()

  def test_header_alone(self):
    header = ledger_cases.poisson_header(renyi_order=8.0)
    with self.create(header):
      self.assertEqual(read_header(self.path()), header)
    with self.assertRaisesRegex(LedgerError, 'No such file'):
      read_header(self.path('another'))
    ledger_cases.forge(self.path(), [{'hello': 'world'}])
    with self.assertRaisesRegex(LedgerError, 'line 1: not the header'):
      read_header(self.path())

  def test_one_writer(self):
    ledger_ = self.create()
    with self.assertRaisesRegex(LedgerError, 'already open for writing'):
      PrivacyLedger.open(self.path())
    ledger_.close()
    with self.assertRaisesRegex(LedgerError, 'is closed'):
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)

  def test_interrupted_record_counts_and_ends_the_writing(self):
    ledger_ = self.create()
    with (
      mock.patch.object(
        _ledger_state.LedgerState, 'apply', side_effect=KeyboardInterrupt
      ),
      self.assertRaises(KeyboardInterrupt),
    ):
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    with self.assertRaisesRegex(LedgerError, 'open it again'):
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    with PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(
        ledger_.epsilon(0),
        accounting.delivered_epsilon([20.0], 1e-5, 'exact'),
      )

  def test_full_disk(self):
    ledger_ = self.create()
    failure = OSError(errno.ENOSPC, 'No space left on device')
    with (
      mock.patch.object(os, 'write', side_effect=failure),
      self.assertRaisesRegex(LedgerError, 'No space left on device'),
    ):
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    with PrivacyLedger.open(self.path()) as ledger_:
      self.assertEqual(ledger_.epsilon(0), 0.0)

  def test_unenforced_records_all(self):
    header = ledger_cases.header(target_epsilon=math.inf, enforced=False)
    with self.create(header) as ledger_:
      ledger_.record(1, [0, 1], ledger_cases.fresh(2), [0.0, 1e-3])
      self.assertEqual(ledger_.epsilon(0), math.inf)
      self.assertGreater(ledger_.epsilon(1), 1e5)
      self.assertEqual(ledger_.remaining(0), math.inf)
      self.assertTrue(ledger_.affordable(0, 0.0))
    with PrivacyLedger.open(self.path(), header) as ledger_:
      self.assertEqual(ledger_.epsilon(0), math.inf)


class ArgumentTest(ledger_cases.LedgerTestCase):
  @parameterized.parameters(
    ({'round_number': 0}, 'round_number must be an integer >= 1, got 0'),
    ({'round_number': 1.0}, 'round_number must be an integer >= 1'),
    ({'clients': [3, 0]}, 'clients must be an integer from 0 to 2, got 3'),
    ({'clients': [-1, 0]}, 'clients must be an integer >= 0, got -1'),
    ({'clients': [True, 0]}, 'clients must be an integer'),
    ({'clients': [1, 1]}, r'clients must be distinct, got \[1, 1\]'),
    ({'clients': []}, 'noise_digests must have|clients must not be empty'),
    ({'release_ids': ledger_cases.fresh(3)}, 'must have 1 value or 2, got 3'),
    ({'release_ids': ['a', 'b']}, 'must be values that release_id returned'),
    (
      {'release_ids': [b'k' * 16] * 2},
      'must be values that release_id returned',
    ),
    ({'noise_multipliers': [1.0] * 3}, 'must have 1 value or 2, got 3'),
    ({'noise_multipliers': -1.0}, 'must be a finite number >= 0, got -1.0'),
    # Iterated over, it would be 53.
    ({'noise_multipliers': np.bytes_(b'5')}, "must be numbers, got b'5'"),
    ({'noise_multipliers': bytearray(b'50')}, 'must be numbers, got bytearray'),
    ({'noise_multipliers': [b'5']}, "must be a finite number >= 0, got b'5'"),
    ({'noise_multipliers': np.array([True])}, 'number >= 0, got True'),
    ({'noise_multipliers': np.array('5')}, "number >= 0, got '5'"),
    ({'noise_multipliers': 1 + 0j}, 'number >= 0, got .*1\\+0j'),
    ({'noise_multipliers': np.complex128(1)}, 'number >= 0, got .*1\\+0j'),
    ({'clients': b'01'}, "clients must be numbers, got b'01'"),
    ({'noise_multipliers': math.nan}, 'must be a finite number >= 0'),
    ({'noise_multipliers': math.inf}, 'must be a finite number >= 0'),
    ({'noise_multipliers': None}, 'one of noise_multipliers and laplace'),
    ({'laplace_epsilon': 1.0}, 'one of noise_multipliers and laplace'),
    (
      {'noise_multipliers': None, 'laplace_epsilon': 1.0},
      "noise_multipliers must be given with accounting 'gaussian'",
    ),
    ({'releases_per_client': 0}, 'releases_per_client must be an integer'),
    ({'releases_per_client': 2**31}, 'releases_per_client must be an integer'),
  )
  def test_record(self, changes, regex):
    release = {
      'round_number': 1,
      'clients': [0, 1],
      'release_ids': ledger_cases.fresh(2),
      'noise_multipliers': 20.0,
    }
    ledger_ = self.create()
    self.assert_refused(ValueError, regex, ledger_, **release | changes)
    ledger_.record(**release)

  @parameterized.parameters(
    ({'target_epsilon': math.inf}, 'target_epsilon must be a finite number'),
    ({'target_epsilon': 0.0}, 'target_epsilon must be a finite number > 0'),
    ({'delta': 0.0}, 'delta must be a number strictly between 0 and 1'),
    ({'clients': 0}, 'clients must be an integer from 1'),
    ({'unit': 'person'}, 'unit must be one of example, user'),
    ({'adjacency': 'swap'}, 'adjacency must be one of'),
    ({'data': 'a\nb'}, 'data must be printable text'),
    ({'partition_seed': -1}, 'partition_seed must be an integer from 0'),
    ({'renyi_order': 8.0}, "renyi_order must be None with sampling 'none'"),
    ({'enforced': None}, 'enforced must be True or False'),
    ({'sampling': 'visible'}, 'sampling must be one of none, poisson'),
    ({'accounting': 'rdp'}, 'accounting must be one of gaussian, laplace'),
    ({'accounting': 'laplace'}, 'delta must be 0'),
    ({'sampling': 'poisson'}, "unit must be 'user' with sampling 'poisson'"),
  )
  def test_header(self, changes, regex):
    with self.assertRaisesRegex(ValueError, regex):
      ledger_cases.header(**changes)

  @parameterized.parameters(1.01, 1, 20000.0, float('nan'), 8)
  def test_order(self, order):
    with self.assertRaisesRegex(ValueError, 'renyi_order must be a float abov'):
      ledger_cases.poisson_header(renyi_order=order)

  @parameterized.parameters(
    ({'sensitivity': ''}, 'sensitivity must be printable text'),
    ({'mechanism': 'a\nb'}, 'mechanism must be printable text'),
    ({'noise': ''}, 'noise must be printable text'),
    ({'selection': '\t'}, 'selection must be printable text'),
    ({'sensitivity_proven': 1}, 'sensitivity_proven must be True or False'),
    ({'seeded': 0}, 'seeded must be True or False, got 0'),
    ({'seeded': None}, 'seeded must be True or False, got None'),
    ({'target_epsilon': 0.0}, 'target_epsilon must be a finite number > 0'),
    ({'target_epsilon': math.inf}, 'target_epsilon must be a finite number'),
    ({'sampling_rate': 0.5}, "sampling_rate must be 1 with sampling 'none'"),
    ({'sampling_rate': 0.0}, r'sampling_rate must be a number in \(0, 1\]'),
    ({'settings_digest': 'a' * 63}, 'settings_digest must match'),
    ({'run_id': 'A' * 32}, 'run_id must match'),
  )
  def test_run(self, changes, regex):
    with self.assertRaisesRegex(ValueError, regex):
      self.create(**changes)
    # Without a run that fits, nothing can be recorded.
    path = self.path()
    if os.path.exists(path):
      with PrivacyLedger.open(path) as ledger_:
        self.assertEqual(ledger_.runs, ())

  def test_questions(self):
    ledger_ = self.create()
    with self.assertRaisesRegex(ValueError, 'client must be an integer'):
      ledger_.epsilon(3)
    with self.assertRaisesRegex(ValueError, 'client must be an integer'):
      ledger_.affordable(-1, 1.0)
    with self.assertRaisesRegex(ValueError, 'laplace_epsilon must be given if'):
      ledger_.affordable(0, laplace_epsilon=1.0)
    self.assertEqual(ledger_.affordable_clients([], 1.0), [])


if __name__ == '__main__':
  absltest.main()
