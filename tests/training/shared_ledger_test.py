"""Runs that share one ledger, and the best of several runs."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import errors, privacy
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.privacy import ledger_audit
from tvdp_tf.training import (
  best_run,
  export,
  federation,
  population,
  rounds,
  run_folder,
  selection,
  shared_ledger,
)
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training


class SharedTestCase(resume_cases.FolderTestCase):
  exports = False

  def setUp(self):
    super().setUp()
    self.path = self.folder / 'ledger.jsonl'

  def train(self, name, total=None, resume=False, **changes):
    settings = resume_cases.small(
      **{'mechanism': 'gradient', 'rounds': 2, 'epsilon': 2.0} | changes
    )
    return training.train(
      settings,
      self.folder / name,
      resume=resume,
      ledger=shared_ledger.SharedLedger(self.path, total),
    )

  def resolved(self, name):
    config = json.loads((self.folder / name / 'config.json').read_text())
    return config['resolved']

  def statement(self, name):
    return json.loads((self.folder / name / 'privacy.json').read_text())

  def audit(self):
    return ledger_audit.audit(self.path)


class OneBudgetTest(SharedTestCase):
  def test_runs_add_up(self):
    # Seeds as they are, not all 0.
    self.enter_context(
      mock.patch.object(
        federation.secrets, 'randbits', side_effect=[5, 6, 7, 8]
      )
    )
    self.train('a', total=5.0)
    result = self.train('b', theta=0.9, example_l2_norm_clip=0.5)
    self.assertTrue(result.statement.holds)
    self.assertFalse((self.folder / 'a' / run_folder.LEDGER).exists())
    audit = self.audit()
    self.assertTrue(audit.holds, audit.reason)
    self.assertEqual(audit.header.target_epsilon, 5.0)
    self.assertEqual(audit.head_hash, self.statement('b')['ledger_head'])
    for name, share in zip('ab', audit.runs, strict=True):
      self.assertEqual(share.run.run_id, self.resolved(name)['run_id'])
      self.assertFalse(share.run.seeded)
      self.assertEqual(share.records, 2)
      view = 'server, worst client'
      self.assertAlmostEqual(
        share.worst_epsilon, self.statement(name)['delivered'][view]['exact']
      )
      self.assertBetween(share.worst_epsilon, 1.99, 2.0)
    self.assertBetween(audit.worst_epsilon, 2.5, 4.0)
    self.assertIn('C_g = 0.5', audit.runs[1].run.sensitivity)
    # The same data for the same client; other cohorts.
    self.assertEqual(
      [self.resolved(name)['partition_seed'] for name in 'ab'], [5, 5]
    )
    self.assertEqual(
      [self.resolved(name)['public_seed'] for name in 'ab'], [5, 6]
    )
    number = privacy.statement.format_epsilon
    self.assertTrue(
      any(
        f'epsilon = 5; so far {number(audit.worst_epsilon)} is spent' in text
        for text in self.statement('b')['assumptions']
      )
    )

  def test_noise_reaches_as_far_as_the_ledgers_target(self):
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger_epsilon must be smaller, got 40.0: '
    ):
      self.train('a', total=40.0)
    self.assertFalse((self.folder / 'a').exists())
    self.assertFalse(self.path.exists())
    # It promises nothing.
    result = self.train('a', total=40.0, mechanism='paper')
    self.assertFalse(result.statement.holds)
    with ledger_lib.PrivacyLedger.open(self.path, shared=True) as ledger:
      text = shared_ledger.together(ledger)
    self.assertRegex(
      text, 'is not bounded by .* 40, because it was not enforced$'
    )

  def test_a_ledger_whose_noise_does_not_reach_says_so(self):
    """As one of a release that did not refuse it."""
    known = mock.Mock(is_gaussian_enough=lambda *args: True)
    with mock.patch.object(shared_ledger, 'spending', known):
      self.train('a', total=40.0)
    with ledger_lib.PrivacyLedger.open(self.path, shared=True) as ledger:
      text = shared_ledger.together(ledger)
    self.assertRegex(text, 'is not bounded by .* 40, because the noise that')
    self.assertFalse(self.audit().holds)

  def test_times_of_secret_draws_are_kept(self):
    self.folder.chmod(0o755)
    changes = {'mechanism': 'central', 'participation': 'poisson'}
    with self.assertRaisesRegex(
      errors.UsageError,
      '^ledger must be in a folder .* in a folder of mode 755$',
    ):
      self.train('a', total=5.0, **changes)
    self.assertFalse((self.folder / 'a').exists())
    self.folder.chmod(0o700)
    self.assertTrue(self.train('a', total=5.0, **changes).statement.holds)

  def test_full_ledger_is_refused_before_anything(self):
    self.train('a')
    before = self.path.read_bytes()
    with self.assertRaisesRegex(
      errors.UsageError,
      '^ledger must have room for the first round of this run, got .* whose'
      ' runs have spent epsilon = 2 of 2$',
    ):
      self.train('b')
    self.assertEqual(self.path.read_bytes(), before)
    self.assertFalse((self.folder / 'b').exists())

  def test_run_that_no_longer_fits_stops(self):
    self.train('a', total=2.2, users_per_round=4, participation='balanced')
    with self.assertLogs(level='WARNING') as logs:
      self.train(
        'b',
        rounds=9,
        theta=0.5,
        users_per_round=4,
        participation='balanced',
      )
    self.assertRegex(logs.output[-1], 'no client of round .* has budget left')
    audit = self.audit()
    self.assertTrue(audit.holds, audit.reason)
    self.assertGreater(audit.runs[1].records, 0)
    self.assertLess(audit.runs[1].records, 9)

  def test_secret_sampling(self):
    central = {'mechanism': 'central'}
    self.train('a', total=8.0, epsilon=4.0, users_per_round=1, **central)
    self.train('b', users_per_round=2, **central)
    audit = self.audit()
    self.assertTrue(audit.holds, audit.reason)
    self.assertGreater(audit.header.renyi_order, 1)
    self.assertEqual(
      [share.run.sampling_rate for share in audit.runs], [0.25, 0.5]
    )
    for share, target in zip(audit.runs, (4.0, 2.0), strict=True):
      self.assertBetween(share.worst_epsilon, 0.9 * target, target)
    self.assertGreater(audit.worst_epsilon, 4.0)

  def test_calibrated_run_alone_fits_to_the_last_round(self):
    self.train('a', mechanism='central')
    self.assertEqual(self.audit().runs[0].records, 2)


class CompanyTest(SharedTestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.original = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    training.train(
      resume_cases.small(mechanism='gradient', rounds=2, epsilon=2.0),
      cls.original / 'a',
      ledger=shared_ledger.SharedLedger(cls.original / 'ledger.jsonl'),
    )

  def join(self):
    """There is a ledger with one run, of epsilon 2, in it."""
    for path in self.original.glob('ledger.jsonl*'):
      shutil.copy(path, self.folder)

  @parameterized.parameters(
    ({'delta': 1e-5}, 'ledger must have delta 1e-05, as this run has, got'),
    ({'users': 6}, 'ledger must have clients 6, as this run has, got 4'),
    ({'mechanism': 'paper'}, 'ledger must have enforced False'),
    (
      {'mechanism': 'central', 'participation': 'balanced'},
      'ledger must have unit ',
    ),
    ({'mechanism': 'laplace'}, 'ledger must have accounting'),
    (
      {'split': 'dirichlet'},
      "ledger must have data 'digits, 4 users, dirichlet 0.5, dealt out as",
    ),
  )
  def test_run_of_another_kind_is_refused(self, changes, message):
    self.join()
    before = self.path.read_bytes()
    with self.assertRaisesRegex(errors.UsageError, f'^{message}'):
      self.train('b', **changes)
    self.assertEqual(self.path.read_bytes(), before)
    self.assertFalse((self.folder / 'b').exists())

  def test_seed_is_refused(self):
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger must be given without --seed, got --seed=3'
    ):
      self.train('a', seed=3)
    self.assertFalse(self.path.exists())

  def test_total_is_fixed(self):
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger_epsilon must be at least --epsilon, 2.0, got'
    ):
      self.train('a', total=1.5)
    self.join()
    # By default the run's.
    self.assertEqual(self.audit().header.target_epsilon, 2.0)
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger_epsilon must be 2.0, as in the ledger'
    ):
      shared_ledger.SharedLedger(self.path, 3.0).find()
    with self.assertRaisesRegex(ValueError, 'ledger_epsilon must be a finite'):
      shared_ledger.SharedLedger(self.path, 0.0)

  def test_folder_must_exist(self):
    self.path = self.folder / 'none' / 'ledger.jsonl'
    with self.assertRaisesRegex(errors.UsageError, 'in a folder that exists'):
      self.train('a')

  def test_other_libraries_deal_out_otherwise(self):
    settings = resume_cases.small()
    words = federation.data_on_record(settings, 7, [3, 4])
    self.assertEqual(words, federation.data_on_record(settings, 7, [3, 4]))
    others = [
      federation.data_on_record(settings, 8, [3, 4]),
      federation.data_on_record(settings, 7, [4, 3]),
    ]
    with mock.patch.object(
      population.partitions, 'iid', lambda n, users, seed: []
    ):
      others.append(federation.data_on_record(settings, 7, [3, 4]))
    self.assertLen({words, *others}, 4)

  def test_another_number_of_examples_is_dealt_out_otherwise(self):
    data = self.folder / 'data'
    write = functools.partial(resume_cases.write_files, data)
    changes = {
      'mechanism': 'distributed_users',
      'dataset': f'files:{data}',
      'model': 'linear',
      'participation': 'balanced',
    }
    write(40)
    self.train('a', total=9.0, **changes)
    write(41)
    with self.assertRaisesRegex(errors.UsageError, 'ledger must have data'):
      self.train('b', **changes)
    write(40)
    self.train('b', **changes)

    self.path = self.folder / 'old.jsonl'
    on_record = federation.data_on_record
    with mock.patch.object(  # As earlier versions did.
      federation, 'data_on_record', lambda *args: on_record(*args[:2])
    ):
      self.train('c', total=9.0, **changes)
    self.train('d', **changes)
    self.assertLen(self.audit().runs, 2)

  def test_another_folder_is_other_data(self):
    def words(**changes):
      settings = resume_cases.small(**changes)
      return federation.data_on_record(settings, 7)

    found = []
    for name in ('one', 'other'):
      (self.folder / name).mkdir()
      with contextlib.chdir(self.folder / name):
        found.append(words(dataset='files:data'))
        found.append(words(data_dir='data'))
        found.append(words(data_dir='~/data'))
    self.assertLen(set(found), 5)  # The home is one folder.
    self.assertIn(f'files:{self.folder.resolve()}/one/data, 4 users', found[0])
    path = f'{self.folder.resolve()}/one/data'
    self.assertEqual(words(dataset=f'files:{path}'), found[0])
    self.assertEqual(words(data_dir=path), found[1])
    self.assertStartsWith(words(), 'digits, 4 users')

  def test_who_creates_it_meanwhile_is_joined(self):
    """Between a look for the ledger and its creation."""
    seeds = iter(range(5, 50))
    self.enter_context(
      mock.patch.object(federation.secrets, 'randbits', lambda _: next(seeds))
    )
    create = run_folder.create
    calls: list[bool] = []

    def create_after_another(*args):
      if not calls:
        calls.append(True)
        self.train('first', total=9.0)
      create(*args)

    with mock.patch.object(run_folder, 'create', create_after_another):
      self.train('second', total=9.0)
    self.assertLen(self.audit().runs, 2)
    self.assertEqual(
      self.resolved('first')['partition_seed'],
      self.resolved('second')['partition_seed'],
    )


class ResumeTest(SharedTestCase):
  def interrupt(self, name, **changes):
    """Leaves a run whose second round is on record and was not completed."""
    original = rounds.Rounds.run

    def run(self_, state, releases, noise_keys):
      if releases.number == 2:
        raise InterruptedError
      return original(self_, state, releases, noise_keys)

    with (
      mock.patch.object(rounds.Rounds, 'run', run),
      self.assertRaises(InterruptedError),
    ):
      self.train(name, **changes)

  def test_goes_on_among_others(self):
    self.interrupt('a', total=6.0, rounds=3)
    self.train('b')
    result = self.train('a', resume=True, rounds=3)
    self.assertTrue(result.statement.holds)
    audit = self.audit()
    self.assertTrue(audit.holds, audit.reason)
    # The round in vain counts.
    self.assertEqual([share.records for share in audit.runs], [4, 2])
    self.assertBetween(audit.runs[0].worst_epsilon, 1.99, 2.0)

  def test_other_ledger_is_refused(self):
    self.interrupt('a', total=6.0)
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger must be given, as when the run in'
    ):
      training.train(
        resume_cases.small(mechanism='gradient', rounds=2, epsilon=2.0),
        self.folder / 'a',
        resume=True,
      )
    run_id = self.resolved('a')['run_id']
    original, self.path = self.path, self.folder / 'other.jsonl'
    header = ledger_audit.audit(original).header
    ledger_lib.PrivacyLedger.create(self.path, header).close()
    with self.assertRaisesRegex(
      ledger_lib.LedgerError, f'holds no run {run_id}'
    ):
      self.train('a', resume=True)

  def test_ledger_is_not_given_to_a_run_that_has_its_own(self):
    settings = resume_cases.small(mechanism='gradient', rounds=2, epsilon=2.0)
    training.train(settings, self.folder / 'a')
    (self.folder / 'a' / 'privacy.json').unlink()
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger must be not given, as when the run in'
    ):
      self.train('a', resume=True)

  def test_folder_in_use_is_refused(self):
    self.interrupt('a', total=6.0)
    with (
      run_folder.locked(self.folder / 'a'),
      self.assertRaisesRegex(
        errors.UsageError, 'no other process is continuing'
      ),
    ):
      self.train('a', resume=True)

  def test_moved_ledger_is_found(self):
    self.interrupt('a', total=6.0, rounds=3)
    for name in ('ledger.jsonl', 'ledger.jsonl.head'):
      shutil.move(self.folder / name, self.folder / f'moved-{name}')
    self.path = self.folder / 'moved-ledger.jsonl'
    self.train('a', resume=True, rounds=3)


class BestRunTest(resume_cases.FolderTestCase):
  def settings(self, **changes):
    return resume_cases.small(
      **{'mechanism': 'central', 'epsilon': 9.0, 'rounds': 2} | changes
    )

  def train(self, runs, accuracies, **changes):
    """With given numbers of runs and accuracies; None is a run that fails."""
    original = training.train
    results = iter(accuracies)

    def train(*args, **kwargs):
      result = original(*args, **kwargs)
      accuracy = next(results)
      if accuracy is None:
        raise errors.TrainingFailedError('nan')
      return training.dataclasses.replace(result, accuracy=accuracy)

    with (
      mock.patch.object(selection.Selection, 'draw', lambda self_: runs),
      mock.patch.object(best_run.training, 'train', train),
    ):
      return best_run.train_best(self.settings(**changes), self.run_dir, 3.0)

  def test_best_alone_is_published(self):
    result = self.train(4, [0.3, None, 0.5, 0.4])
    self.assertEqual(result.accuracy, 0.5)
    self.assertEqual(result.output_dir, self.run_dir)
    self.assertCountEqual(
      os.listdir(self.run_dir), ['model', 'privacy.json', 'private']
    )
    private = self.run_dir / best_run.PRIVATE
    self.assertEqual(private.stat().st_mode & 0o777, 0o700)
    # Its number of links, which anybody can read, counts the folders in it.
    self.assertEqual(os.listdir(private), ['runs'])
    private /= 'runs'
    self.assertCountEqual(
      os.listdir(private), ['run_1', 'run_2', 'run_3', 'run_4']
    )
    best = private / 'run_3'
    for path in (best / 'model').rglob('*'):
      if path.is_file():
        published = self.run_dir / 'model' / path.relative_to(best / 'model')
        self.assertEqual(published.read_bytes(), path.read_bytes())
    statement = json.loads((self.run_dir / 'privacy.json').read_text())
    self.assertEqual(statement, json.loads((best / 'privacy.json').read_text()))
    self.assertTrue(statement['holds'], statement['reason'])
    self.assertEqual(statement['target_epsilon'], 9.0)
    epsilon = statement['delivered']['poisson']['rdp']
    self.assertBetween(epsilon, 0.97 * 9.0, 9.0)
    # The same by what is on record, and more than the run alone.
    with ledger_lib.PrivacyLedger.open(best / 'ledger.jsonl') as book:
      multipliers = [record.noise_multipliers[0] for record in book.charged]
    expected = privacy.best_of_runs_epsilon(
      multipliers, 1e-4, 3.0, 1.0, 'poisson', 0.5
    )
    self.assertBetween(epsilon, expected, expected * (1 + 1e-3))
    alone = privacy.delivered_epsilon(multipliers, 1e-4, 'rdp', 'poisson', 0.5)
    self.assertLess(alone, 0.9 * epsilon)
    self.assertIn('secret number of runs', statement['assumptions'][0])
    self.assertIn(
      'keeps secret the number of runs', statement['assumptions'][1]
    )
    # Its ledger endorses nothing: it counts the run alone.
    audit = ledger_audit.audit(best / 'ledger.jsonl')
    self.assertFalse(audit.holds)
    self.assertIn('chosen among several runs', audit.reason)
    # A user holds the same in all of them.
    configs = [
      json.loads((private / f'run_{n}' / 'config.json').read_text())['resolved']
      for n in (1, 3)
    ]
    self.assertEqual(*(config['partition_seed'] for config in configs))
    self.assertNotEqual(*(config['run_id'] for config in configs))

  def test_what_is_published_tells_neither_which_it_was_nor_when(self):
    """Of runs that come to the same weights."""

    def save(original, path, spec, shape, classes, weights, *args):
      weights = [np.zeros_like(w) for w in weights]
      original(path, spec, shape, classes, weights, *args)

    self.enter_context(
      mock.patch.object(
        export, 'save_model', functools.partial(save, export.save_model)
      )
    )
    published = []
    for accuracies in ([0.5], [0.1, 0.5, 0.2]):
      self.train(len(accuracies), accuracies, rounds=1, model='mlp')
      found = {
        str(path.relative_to(self.run_dir)): path.read_bytes()
        for path in (self.run_dir / 'model').rglob('*')
        if path.is_file()
      }
      words = json.loads((self.run_dir / 'privacy.json').read_text())
      del words['ledger_head']  # The hash of random keys.
      published.append({**found, 'privacy.json': words})
      shutil.rmtree(self.run_dir)
    self.assertIn('model/model.keras', published[0])
    self.assertEqual(*published)

  def test_all_have_failed(self):
    with self.assertRaisesRegex(errors.TrainingFailedError, 'every run has'):
      self.train(2, [None, None])
    self.assertEqual(os.listdir(self.run_dir), [best_run.PRIVATE])

  def test_run_of_it_is_not_resumed(self):
    self.train(1, [0.3])
    run = self.run_dir / best_run.PRIVATE / 'runs' / 'run_1'
    (run / 'privacy.json').unlink()
    config = json.loads((run / 'config.json').read_text())
    settings = settings_lib.TrainingSettings(**config['settings'])
    with self.assertRaisesRegex(
      ledger_lib.LedgerError, "run 1: selection is 'the best of .* has ''"
    ):
      training.train(settings, run, resume=True)

  @parameterized.parameters(
    ({'mechanism': 'gradient'}, 3.0, 'best_of must be given with mechanism c'),
    ({'participation': 'balanced'}, 3.0, 'best_of must be given with particip'),
    ({'seed': 1}, 3.0, 'best_of must be given with seed None, got 1'),
    ({}, 1.0, 'best_of must be above 1 and at most 1000, got 1.0'),
    ({}, float('nan'), 'best_of must be above 1 and at most 1000, got nan'),
    (
      {'epsilon': 1e-9},
      3.0,
      'epsilon must be within reach with --best_of, got 1e-09:',
    ),
  )
  def test_is_refused(self, changes, mean, message):
    with self.assertRaisesRegex(errors.UsageError, f'^{message}'):
      best_run.train_best(self.settings(**changes), self.run_dir, mean)
    self.assertFalse(self.run_dir.exists())


if __name__ == '__main__':
  absltest.main()
