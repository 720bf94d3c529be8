"""Runs that were interrupted, and go on."""

import collections
import csv
import json
import math
import os
import random
import secrets
import threading
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tools import run_outcome
from tvdp_tf import errors, mechanisms
from tvdp_tf.learning import evaluation
from tvdp_tf.privacy import (
  _chained_file,
  ledger,
  ledger_audit,
  noise_distance,
  spending,
)
from tvdp_tf.training import (
  checkpoints,
  federation,
  recorder,
  rounds,
  run_folder,
)
from tvdp_tf.training import metrics as round_metrics
from tvdp_tf.training import train as training

# Before it is replaced.
_RANDBITS = secrets.randbits


def statement_of(run):
  return json.loads((run / run_folder.PRIVACY).read_text())


class KilledTest(resume_cases.FolderTestCase):
  """A copy of the folder at any step is what a kill leaves."""

  @parameterized.parameters(
    {
      'mechanism': 'gradient',
      'refinement': 'budget',
      'alpha_d': 0.7,
      'learning_rate': 3.0,
      'rounds': 5,
    },
    {
      'mechanism': 'central',
      'epsilon': 20.0,
      'schedule': (1.0, 3.0, 2.0),
      'server_momentum': 0.9,
      'server_average': 0.8,
      'server_final_step': 0.5,
    },
  )
  def test_resumed_run_is_the_uninterrupted_one(self, **changes):
    settings = resume_cases.small(seed=3, **changes)
    copies = resume_cases.copies_of_a_run(settings, self.folder)
    expected = run_outcome.read(self.run_dir)
    warned = self.enter_context(
      mock.patch.object(checkpoints.logging, 'warning')
    )
    seed = random.randrange(2**32)
    for step, copy in random.Random(seed).sample(copies, 2):
      with self.subTest(step=step, copy=copy.name, seed=seed):
        if not run_folder.is_finished(copy):
          training.train(settings, copy, resume=True)
        self.assertEmpty(run_outcome.read(copy).differences(expected))
        self.assertTrue(run_folder.is_finished(copy))
        self.assertCountEqual(os.listdir(copy), os.listdir(self.run_dir))
        self.assertEqual(
          {**statement_of(copy), 'ledger_head': ''},
          {**statement_of(self.run_dir), 'ledger_head': ''},
        )
    for call in warned.call_args_list:
      self.assertIn('starts at round 1', call.args[0])

  def test_round_on_record_is_charged_once_with_a_seed(self):
    settings = resume_cases.small(seed=3, mechanism='gradient')
    copies = resume_cases.copies_of_a_run(settings, self.folder)
    recorded = [copy for step, copy in copies if step == 'after record']
    training.train(settings, recorded[1], resume=True)
    audit = ledger_audit.audit(recorded[1] / run_folder.LEDGER)
    # Nobody is turned away, although the first attempt has spent the budget.
    self.assertEqual((audit.rounds, audit.records, audit.repeats), (3, 4, 2))
    self.assertEmpty(
      run_outcome.read(recorded[1]).differences(run_outcome.read(self.run_dir))
    )


class EvaluationTest(resume_cases.FolderTestCase):
  exports = False

  @parameterized.parameters(
    ({}, True), ({'refinement': 'budget', 'alpha_d': 1.0}, False)
  )
  def test_runs_beside_the_next_round(self, changes, beside):
    """But for a refinement, which needs the loss before the next round."""
    begun = [threading.Event() for _ in range(4)]
    ended: list[tuple[float, float]] = []
    overlaps: list[bool] = []
    evaluate, run = evaluation.Evaluator.evaluate, rounds.Rounds.run

    def slow(self_, weights):
      if beside and len(ended) < 2:
        # The next round begins, although this has not ended.
        overlaps.append(begun[len(ended) + 2].wait(60))
      result = evaluate(self_, weights)
      ended.append(result)
      return result

    def announced(self_, state, releases, noise_keys):
      begun[releases.number].set()
      if not beside:
        self.assertLen(ended, releases.number - 1)
      return run(self_, state, releases, noise_keys)

    with (
      mock.patch.object(evaluation.Evaluator, 'evaluate', slow),
      mock.patch.object(rounds.Rounds, 'run', announced),
    ):
      training.train(resume_cases.small(seed=3, **changes), self.run_dir)
    self.assertEqual(overlaps, [True, True] if beside else [])
    with open(self.run_dir / run_folder.METRICS, newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual([row['round'] for row in rows], ['1', '2', '3'])
    self.assertEqual(
      [(float(row['test_loss']), float(row['test_accuracy'])) for row in rows],
      ended,
    )

  def test_diverged_run_costs_no_further_round_when_resumed(self):
    settings = resume_cases.small(seed=3, l2_norm_clip=1e30)
    path = self.run_dir / run_folder.LEDGER
    for resume in (False, True):
      with self.assertRaisesRegex(
        errors.TrainingFailedError, 'the test loss of round 1 is nan'
      ):
        training.train(settings, self.run_dir, resume=resume)
      if not resume:
        before = path.read_bytes()
    self.assertEqual(path.read_bytes(), before)
    self.assertEqual(
      statement_of(self.run_dir)['rounds'], ledger_audit.audit(path).rounds
    )


class UnseededTest(resume_cases.FolderTestCase):
  """Noise that is gone cannot be repeated: what was on record counts."""

  exports = False

  def interrupt(self, settings, round_number):
    """Leaves a run with a round on record that was not completed."""
    with resume_cases.killed_in_round(self, round_number):
      training.train(settings, self.run_dir)

  def metrics(self):
    with open(self.run_dir / run_folder.METRICS, newline='') as file:
      return list(csv.DictReader(file))

  def test_paper_counts_and_repeats(self):
    settings = resume_cases.small(theta=1.0)
    self.interrupt(settings, 2)
    result = training.train(settings, self.run_dir, resume=True)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual((audit.rounds, audit.records, audit.repeats), (3, 4, 0))
    self.assertEqual(statement_of(self.run_dir)['rounds'], 4)
    self.assertAlmostEqual(result.statement.epsilon, audit.worst_epsilon)
    rows = self.metrics()
    self.assertEqual([row['round'] for row in rows], ['1', '2', '3'])
    self.assertAlmostEqual(
      float(rows[-1]['delivered_epsilon']), audit.worst_epsilon
    )

  @parameterized.parameters('gradient', 'central')
  def test_draws_no_more_noise_than_delta_covers(self, mechanism):
    self.enter_context(mock.patch.object(noise_distance, 'TIMES_PLANNED', 1))
    settings = resume_cases.small(mechanism=mechanism, epsilon=50.0)
    self.interrupt(settings, 2)
    with self.assertLogs(level='WARNING') as logs:
      training.train(settings, self.run_dir, resume=True)
    self.assertRegex(
      logs.output[-1],
      'delta covers the noise of 3 rounds, and as many are on record after'
      ' interruptions: the run stops after 2 rounds$',
    )
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual(audit.records, 3)
    self.assertEqual(statement_of(self.run_dir)['rounds'], 3)

  @parameterized.parameters(
    {'mechanism': 'gradient'},
    {'mechanism': 'gradient', 'refinement': 'budget', 'alpha_d': 1.0},
    {'mechanism': 'central', 'epsilon': 50.0},
    {'mechanism': 'distributed', 'local_steps': 1},
    {'mechanism': 'distributed_users', 'epsilon': 20.0},
  )
  def test_noise_is_set_anew_and_lasts_for_all_rounds(self, **changes):
    settings = resume_cases.small(
      participation='balanced', rounds=4, theta=0.9, **changes
    )
    self.interrupt(settings, 2)
    result = training.train(settings, self.run_dir, resume=True)
    self.assertTrue(result.statement.holds)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertTrue(audit.within_budget)
    self.assertGreater(audit.worst_epsilon, 0.999 * settings.epsilon)
    self.assertEqual(sorted(audit.participations.tolist()), [2, 2, 3, 3])
    rows = self.metrics()
    self.assertLen(rows, 4)
    for row in rows:
      self.assertEqual(row['participants'], '2')
      # Users' failures are not shown.
      protects_users = settings.mechanism in ('central', 'distributed_users')
      dropped = None if protects_users else '0'
      self.assertEqual(row.get('dropped'), dropped)
      self.assertGreaterEqual(float(row['remaining_budget']), 0)

  def test_clients_without_budget_are_dropped(self):
    # Where the noise cannot be set anew. Cohorts 02, 13, 03, 12.
    settings = resume_cases.small(
      mechanism='laplace', participation='balanced', rounds=4
    )
    self.interrupt(settings, 2)
    training.train(settings, self.run_dir, resume=True)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertTrue(audit.within_budget)
    self.assertEqual(audit.participations.tolist(), [2, 2, 2, 2])
    rows = self.metrics()
    self.assertEqual([row['dropped'] for row in rows], ['0', '0', '1', '1'])
    self.assertEqual(
      [row['participants'] for row in rows], ['2', '2', '1', '1']
    )

  @parameterized.parameters('gradient', 'laplace', 'distributed_users')
  def test_round_whose_cohort_is_spent_is_left_out(self, mechanism):
    # Each user takes part once.
    settings = resume_cases.small(
      mechanism=mechanism,
      participation='balanced',
      users=6,
      theta=1.0,
      epsilon=8.0,
    )
    self.interrupt(settings, 1)
    with resume_cases.killed_in_round(self, 3):
      training.train(settings, self.run_dir, resume=True)
    with self.assertLogs(level='WARNING') as logs:
      training.train(settings, self.run_dir, resume=True)
    self.assertIn('no client of round 3 has budget left', logs.output[-1])
    rows = self.metrics()
    self.assertEqual([row['participants'] for row in rows], ['0', '2'])
    dropped = [row.get('dropped', '') for row in rows]
    protects_users = mechanism == 'distributed_users'
    self.assertEqual(dropped, ['', ''] if protects_users else ['2', '0'])
    self.assertEqual(rows[0]['signal_to_noise'], 'nan')
    self.assertGreaterEqual(float(rows[1]['signal_to_noise']), 0)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertTrue(audit.within_budget)
    self.assertEqual(audit.participations.tolist(), [1] * 6)
    statement = statement_of(self.run_dir)
    self.assertTrue(statement['finished'])
    self.assertEqual(statement['holds'], mechanism != 'laplace')
    self.assertTrue((self.run_dir / run_folder.MODEL).exists())

  @parameterized.parameters('distributed_users', 'central')
  def test_noise_of_all_is_not_raised_for_one_round(self, mechanism):
    # Its users have next to nothing left: at theta < 1, of the last round's.
    settings = resume_cases.small(
      mechanism=mechanism, participation='balanced', users=6, theta=0.95
    )
    training.train(settings, self.run_dir)
    planned = [float(row['noise_stddev']) for row in self.metrics()]
    self.run_dir = self.folder / 'interrupted'
    self.interrupt(settings, 1)
    training.train(settings, self.run_dir, resume=True)
    found = [float(row['noise_stddev']) for row in self.metrics()]
    np.testing.assert_allclose(found, [math.nan, *planned[1:]], rtol=1e-9)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertTrue(audit.within_budget)
    self.assertEqual(audit.participations.tolist(), [1] * 6)

  def test_rounds_that_are_left_out_change_no_other(self):
    settings = resume_cases.small(
      mechanism='gradient', participation='balanced', users=8, rounds=4
    )
    training.train(settings, self.run_dir)
    planned = [row['noise_stddev'] for row in self.metrics()]
    self.run_dir = self.folder / 'interrupted'
    self.interrupt(settings, 1)
    with resume_cases.killed_in_round(self, 2):
      training.train(settings, self.run_dir, resume=True)
    with self.assertLogs(level='WARNING') as logs:
      training.train(settings, self.run_dir, resume=True)
    left_out = [line for line in logs.output if 'it is left out' in line]
    self.assertLen(left_out, 2)
    rows = self.metrics()
    self.assertEqual(
      [row['participants'] for row in rows], ['0', '0', '2', '2']
    )
    self.assertEqual(
      [row['noise_stddev'] for row in rows], ['nan', 'nan', *planned[2:]]
    )

  def test_another_run_spends_what_was_left_a_moment_ago(self):
    record = recorder.Recorder.record

    def spent_twice(this, state, number, *ready):
      if number < 3:
        raise recorder.CohortSpentError(f'round {number}')
      return record(this, state, number, *ready)

    settings = resume_cases.small(
      mechanism='gradient', participation='balanced', users=6
    )
    with mock.patch.object(recorder.Recorder, 'record', spent_twice):
      training.train(settings, self.run_dir)
    rows = self.metrics()
    self.assertEqual([row['participants'] for row in rows], ['0', '0', '2'])

  def test_poisson_draws_anew_under_another_number(self):
    settings = resume_cases.small(mechanism='central', epsilon=50.0)
    row = round_metrics.row

    def earlier_row(*args, **kwargs):  # Of a version that showed the time.
      return collections.OrderedDict(row(*args, **kwargs), seconds=0.5)

    with mock.patch.object(round_metrics, 'row', earlier_row):
      self.interrupt(settings, 2)
    self.assertIn('seconds', self.metrics()[0])
    with self.assertLogs(level='WARNING') as logs:
      training.train(settings, self.run_dir, resume=True)
    self.assertIn(
      'no client of round 3 has budget left: the run stops after 2 ',
      logs.output[-1],
    )
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual((audit.rounds, audit.records), (3, 3))
    self.assertTrue(audit.within_budget)
    statement = statement_of(self.run_dir)
    self.assertTrue(statement['finished'])
    # It did not go as planned: what is proven is the target.
    self.assertLess(audit.worst_epsilon, 50)
    self.assertEqual(statement['delivered']['poisson']['rdp'], 50)
    (events,) = [
      value['rdp']
      for view, value in statement['delivered'].items()
      if view.startswith("the query's events")
    ]
    self.assertBetween(events, 50, 50.5)
    # The model of the rounds that there were is there.
    self.assertLen(self.metrics(), 2)
    self.assertNoCommonElements(self.metrics()[0], ['participants', 'seconds'])
    self.assertTrue((self.run_dir / run_folder.MODEL).exists())

  def test_statement_of_a_run_that_fails_again_counts_the_lost_round(self):
    for seed in (None, 5):
      settings = resume_cases.small(seed=seed)
      self.run_dir = self.folder / f'run{seed}'
      self.interrupt(settings, 3)
      with (
        mock.patch.object(
          ledger.PrivacyLedger,
          'record',
          side_effect=ledger.LedgerError('no space'),
        ),
        self.assertRaises(ledger.LedgerError),
      ):
        training.train(settings, self.run_dir, resume=True)
      statement = statement_of(self.run_dir)
      audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
      self.assertEqual((statement['rounds'], audit.rounds), (3, 3))
      self.assertAlmostEqual(
        statement['delivered']['server, worst client']['exact'],
        audit.worst_epsilon,
      )

  @parameterized.product(
    where=(
      # The file has the line, the memory has not.
      (_chained_file, '_write_head', 'after'),
      (ledger.PrivacyLedger, 'record', 'after'),
      # The history has the round, the book has not.
      (spending.Spending, 'record', 'before'),
      (mechanisms.Mechanism, 'take', 'after'),
    ),
    changes=(
      {'mechanism': 'paper'},
      {'mechanism': 'gradient', 'seed': 5},
      {'mechanism': 'central', 'epsilon': 50.0, 'participation': 'uniform'},
    ),
  )
  def test_statement_after_an_interrupt_anywhere(self, where, changes):
    owner, name, when = where
    original = getattr(owner, name)
    path = self.run_dir / run_folder.LEDGER
    interrupts = [KeyboardInterrupt()]

    def interrupted(*args, **kwargs):
      result = None if when == 'before' else original(*args, **kwargs)
      if interrupts and path.exists() and ledger_audit.audit(path).rounds == 2:
        raise interrupts.pop()
      return original(*args, **kwargs) if when == 'before' else result

    with (
      mock.patch.object(owner, name, interrupted),
      self.assertRaises(KeyboardInterrupt),
    ):
      training.train(resume_cases.small(**changes), self.run_dir)
    statement = statement_of(self.run_dir)
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual(statement['rounds'], 2)
    self.assertEqual(statement['ledger_head'], audit.head_hash)
    worst, *_ = statement['delivered'].values()
    self.assertGreaterEqual(worst['exact'], audit.worst_epsilon * (1 - 1e-9))

  def test_old_statement_is_gone_before_there_are_new_releases(self):
    settings = resume_cases.small(seed=5)
    self.interrupt(settings, 2)
    self.assertTrue((self.run_dir / run_folder.PRIVACY).exists())
    with (
      mock.patch.object(
        rounds.Rounds,
        'run',
        lambda *args: self.assertFalse(
          (self.run_dir / run_folder.PRIVACY).exists()
        ),
      ),
      self.assertRaises(AttributeError),
    ):
      training.train(settings, self.run_dir, resume=True)
    self.assertTrue((self.run_dir / run_folder.PRIVACY).exists())

  def test_secret_seed_of_the_cohorts_is_written_nowhere(self):
    settings = resume_cases.small(mechanism='central', epsilon=50.0)
    self.enter_context(
      mock.patch.object(federation.secrets, 'randbits', _RANDBITS)
    )
    drawn = []
    original = rounds.Rounds.cohort

    def cohort(self_, round_number):
      drawn.append(self_.plan.fed.participation.seed)
      return original(self_, round_number)

    with mock.patch.object(rounds.Rounds, 'cohort', cohort):
      training.train(settings, self.run_dir)
    (secret,) = set(drawn)
    needles = [str(secret).encode(), secret.to_bytes(8, 'little')]
    for path in self.run_dir.rglob('*'):
      if path.is_file():
        content = path.read_bytes()
        self.assertFalse(any(needle in content for needle in needles), path)


if __name__ == '__main__':
  absltest.main()
