"""That a round which is computed before it is on record is not shown before."""

import threading
from unittest import mock

from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tools import run_outcome
from tvdp_tf import errors, mechanisms, runtimes
from tvdp_tf.learning import evaluation
from tvdp_tf.privacy import ledger, ledger_audit
from tvdp_tf.training import (
  checkpoints,
  federation,
  metrics,
  recorder,
  rounds,
  run_folder,
)
from tvdp_tf.training import train as training

_ROUNDS = 3


def _failing(error):
  return mock.Mock(side_effect=error)


class ComputedAheadTest(resume_cases.FolderTestCase):
  def rounds_on_record(self):
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    return int(audit.participations.sum()) // 2

  def test_nothing_is_shown_before_it_is_on_record(self):
    computed = [threading.Event() for _ in range(_ROUNDS + 1)]
    steps: list[tuple[str, int]] = []
    begin, record = rounds.Rounds.begin, recorder.Recorder.record
    save, row = checkpoints.Checkpoints.save, metrics.row
    evaluate = metrics.RoundLog._evaluated

    def begun(this, state, releases, keys):
      begin(this, state, releases, keys)
      steps.append(('computed', releases.number))
      computed[releases.number].set()

    def recorded(this, state, number, *ready):
      # So much time that what is shown too soon would be seen.
      self.assertTrue(computed[number].wait(60))
      self.assertEqual(this._rounds.completed, number - 1)
      self.assertLen(this._plan.history, number - 1)
      result = record(this, state, number, *ready)
      steps.append(('recorded', number))
      return result

    def described(plan, releases, *args, **kwargs):
      steps.append(('described', releases.number))
      return row(plan, releases, *args, **kwargs)

    def evaluated(this, number, *args):
      steps.append(('evaluated', number))
      return evaluate(this, number, *args)

    def saved(this, completed, *args):
      save(this, completed, *args)
      steps.append(('saved', completed))

    with (
      mock.patch.object(rounds.Rounds, 'begin', begun),
      mock.patch.object(recorder.Recorder, 'record', recorded),
      mock.patch.object(metrics, 'row', described),
      mock.patch.object(metrics.RoundLog, '_evaluated', evaluated),
      mock.patch.object(checkpoints.Checkpoints, 'save', saved),
    ):
      training.train(resume_cases.small(), self.run_dir)
    self.assertLen(steps, 5 * _ROUNDS)
    for number in range(1, _ROUNDS + 1):
      found = [step for step, of in steps if of == number]
      self.assertEqual(
        [found[0], found[1], found[2]], ['computed', 'recorded', 'described']
      )
      if number > 1:
        self.assertLess(
          steps.index(('saved', number - 1)), steps.index(('recorded', number))
        )

  @parameterized.parameters(
    {'mechanism': 'paper'},
    {'mechanism': 'gradient', 'noise': 'continuous'},
    {'mechanism': 'gradient', 'refinement': 'budget'},
    {'mechanism': 'central', 'participation': 'balanced'},
  )
  def test_the_same_as_one_after_the_other(self, **changes):
    settings = resume_cases.small(seed=1, **changes)
    outcomes = []
    for stays_here in (True, False):
      folder = self.folder / f'{stays_here}'
      with (
        mock.patch.object(rounds, '_stays_here', lambda here=stays_here: here),
        mock.patch.object(
          rounds.Rounds, 'begin', autospec=True, side_effect=rounds.Rounds.begin
        ) as begin,
      ):
        training.train(settings, folder)
      self.assertEqual(begin.call_count, _ROUNDS if stays_here else 0)
      outcomes.append(run_outcome.read(folder))
    self.assertEmpty(outcomes[0].differences(outcomes[1]))

  def test_a_round_that_is_not_on_record_fails_without_a_trace(self):
    output = _failing(ValueError('the data say so'))
    with (
      mock.patch.object(rounds.Rounds, '_output', output),
      mock.patch.object(
        ledger.PrivacyLedger, 'record', _failing(ledger.LedgerError('full'))
      ),
      self.assertRaisesRegex(ledger.LedgerError, '^full$') as caught,
    ):
      training.train(resume_cases.small(), self.run_dir)
    output.assert_called_once()
    chain: list[BaseException] = []
    error: BaseException | None = caught.exception
    while error is not None:
      chain.append(error)
      error = error.__cause__ or error.__context__
    self.assertNotIn('the data say so', str(chain))
    self.assertFalse(self.run_dir.exists())  # Nothing was released.

  def test_a_round_that_fails_counts(self):
    with (
      mock.patch.object(
        rounds.Rounds, '_output', _failing(ValueError('it fails'))
      ),
      self.assertRaisesRegex(ValueError, 'it fails'),
    ):
      training.train(resume_cases.small(), self.run_dir)
    self.assertEqual(self.rounds_on_record(), 1)

  def test_without_a_checkpoint_the_next_round_is_not_recorded(self):
    full = OSError(28, 'No space left on device')
    with (
      mock.patch.object(
        checkpoints.TensorFilesManager, 'write', _failing(full)
      ),
      self.assertRaisesRegex(errors.TvdpError, 'No space left'),
    ):
      training.train(resume_cases.small(), self.run_dir)
    self.assertEqual(self.rounds_on_record(), 1)

  def test_nor_does_a_run_end_without_its_last_checkpoint(self):
    full = OSError(28, 'No space left on device')
    write = checkpoints.TensorFilesManager.write

    def last(this, leaves, version):
      if version == _ROUNDS:
        raise full
      write(this, leaves, version)

    with (
      mock.patch.object(checkpoints.TensorFilesManager, 'write', last),
      self.assertRaisesRegex(errors.TvdpError, 'No space left'),
    ):
      training.train(resume_cases.small(), self.run_dir)
    training.train(resume_cases.small(), self.run_dir, resume=True)

  def test_another_cohort_than_that_on_record_is_computed_again(self):
    """Once; then no round is computed ahead until a cohort is complete."""
    drawn = recorder.Recorder._affordable
    begun: list[int] = []
    trained: list[tuple[int, int]] = []
    begin, output = rounds.Rounds.begin, rounds.Rounds._output

    def without_one(this, releases, identities):
      found = drawn(this, releases, identities)
      return found[1:] if releases.number in (2, 3) else found

    def noted(this, state, releases, keys):
      begun.append(releases.number)
      begin(this, state, releases, keys)

    def counted(this, state, releases, keys):
      trained.append((releases.number, len(releases.clients)))
      return output(this, state, releases, keys)

    settings = resume_cases.small(mechanism='gradient', rounds=5, epsilon=50.0)
    with (
      mock.patch.object(recorder.Recorder, '_affordable', without_one),
      mock.patch.object(rounds.Rounds, 'begin', noted),
      mock.patch.object(rounds.Rounds, '_output', counted),
    ):
      training.train(settings, self.run_dir)
    self.assertEqual(begun, [1, 2, 5])
    self.assertEqual(trained, [(1, 2), (2, 2), (2, 1), (3, 1), (4, 2), (5, 2)])
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual(audit.participations.sum(), 8)

  def test_evaluation_is_of_a_round_on_record(self):
    evaluate = evaluation.Evaluator.evaluate
    counts: list[int] = []

    def counted(this, weights):
      counts.append(self.rounds_on_record())
      return evaluate(this, weights)

    with mock.patch.object(evaluation.Evaluator, 'evaluate', counted):
      training.train(resume_cases.small(), self.run_dir)
    self.assertLen(counts, _ROUNDS)
    for number, count in enumerate(counts, start=1):
      self.assertGreaterEqual(count, number)


class StaysHereTest(parameterized.TestCase):
  """A worker, perhaps on another host, gets no round that is not on record."""

  @parameterized.parameters(
    (runtimes.compiled_runtime, {}, True),
    (runtimes.local_runtime, {}, False),  # As with `--runtime=remote`.
    (runtimes.local_runtime, {'runtime': 'tff'}, False),
  )
  def test_only_in_this_process(self, runtime, changes, expected):
    settings = resume_cases.small(**changes)
    fed = federation.assemble(settings)
    with runtime():
      run = rounds.on_runtime(mechanisms.build(settings, fed), fed)
      self.assertEqual(run.stays_here, expected)
      run.close()


if __name__ == '__main__':
  absltest.main()
