"""Runs whose files are damaged, changed or cannot be written."""

import csv
import dataclasses
import errno
import functools
import json
import os
import pathlib
import shutil
import tempfile
from typing import Any
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tools import run_outcome
from tvdp_tf import errors, mechanisms
from tvdp_tf.learning import discrete_gaussian
from tvdp_tf.privacy import ledger, ledger_audit
from tvdp_tf.training import checkpoints, export, federation, run_folder, start
from tvdp_tf.training import metrics as round_metrics
from tvdp_tf.training import train as training

_ENOSPC = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
_TF_ENOSPC = tf.errors.ResourceExhaustedError(
  None, None, '/somewhere/x_temp1; No space left on device'
)


def _truncate(path):
  path.write_bytes(path.read_bytes()[:-100])


def _flip(path):
  content = bytearray(path.read_bytes())
  content[100] ^= 1
  path.write_bytes(content)


def _empty(path):
  path.write_bytes(b'')


def _folder(path):
  path.unlink()
  path.mkdir()


def _older(path):
  shutil.copy(path.with_name('round_2'), path)


class DamagedTest(resume_cases.FolderTestCase):
  """The newest checkpoint of three rounds cannot be used."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.original = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.settings = resume_cases.small(seed=3)
    training.train(cls.settings, cls.original / 'run')
    cls.expected = run_outcome.read(cls.original / 'run')

  def setUp(self):
    super().setUp()
    shutil.copytree(self.original / 'run', self.run_dir)

  @parameterized.parameters(
    (_truncate,), (_flip,), (_empty,), (_folder,), (_older,)
  )
  def test_falls_back_to_the_one_before(self, damage):
    resume_cases.unfinish(self.run_dir, completed=3)
    damage(self.run_dir / 'checkpoints/round_3')
    with self.assertLogs('absl', 'WARNING') as logs:
      training.train(self.settings, self.run_dir, resume=True)
    self.assertLen(logs.output, 1)
    self.assertIn('checkpoints/round_3 cannot be used', logs.output[0])
    self.assertEmpty(run_outcome.read(self.run_dir).differences(self.expected))
    self.assertCountEqual(
      os.listdir(self.run_dir / 'checkpoints'),
      ['round_2', 'round_3', 'round_3.unusable'],
    )
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual((audit.rounds, audit.records, audit.repeats), (3, 4, 2))

  def test_that_of_another_model_is_not_taken(self):
    other = self.folder / 'other'
    training.train(dataclasses.replace(self.settings, seed=4), other)
    resume_cases.unfinish(self.run_dir, completed=3)
    shutil.copy(
      other / 'checkpoints/round_3', self.run_dir / 'checkpoints/round_3'
    )
    with self.assertLogs('absl', 'WARNING') as logs:
      training.train(self.settings, self.run_dir, resume=True)
    self.assertIn('to another run or configuration', logs.output[0])
    self.assertEmpty(run_outcome.read(self.run_dir).differences(self.expected))

  def test_without_any_it_starts_again_and_keeps_the_ledger(self):
    resume_cases.unfinish(self.run_dir, completed=3)
    for name in ('round_2', 'round_3'):
      _truncate(self.run_dir / 'checkpoints' / name)
    with self.assertLogs('absl', 'WARNING') as logs:
      training.train(self.settings, self.run_dir, resume=True)
    self.assertLen(logs.output, 3)
    self.assertIn('starts at round 1', logs.output[-1])
    self.assertEmpty(run_outcome.read(self.run_dir).differences(self.expected))
    audit = ledger_audit.audit(self.run_dir / run_folder.LEDGER)
    self.assertEqual((audit.rounds, audit.records, audit.repeats), (3, 6, 6))

  @parameterized.parameters('', '\x00', 'round\r\n1\r\n', None)
  def test_metrics_come_from_the_checkpoint(self, content):
    resume_cases.unfinish(self.run_dir, completed=2)
    path = self.run_dir / run_folder.METRICS
    path.unlink()
    if content is not None:
      path.write_text(content)
    training.train(self.settings, self.run_dir, resume=True)
    self.assertEmpty(run_outcome.read(self.run_dir).differences(self.expected))

  def test_ledger_that_was_put_back_is_refused(self):
    resume_cases.unfinish(self.run_dir, completed=3)
    for name in (run_folder.LEDGER, run_folder.LEDGER + '.head'):
      (self.run_dir / name).unlink()
    audit = ledger_audit.audit(self.original / 'run' / run_folder.LEDGER)
    (share,) = audit.runs
    ledger.PrivacyLedger.create(
      self.run_dir / run_folder.LEDGER, audit.header, share.run
    ).close()
    with self.assertRaisesRegex(ledger.LedgerError, 'put back to an earlier'):
      training.train(self.settings, self.run_dir, resume=True)

  def test_ledger_that_is_missing_is_refused(self):
    resume_cases.unfinish(self.run_dir, completed=3)
    (self.run_dir / run_folder.LEDGER).unlink()
    with self.assertRaisesRegex(ledger.LedgerError, 'No such file'):
      training.train(self.settings, self.run_dir, resume=True)

  def test_leftovers_are_removed(self):
    resume_cases.unfinish(self.run_dir, completed=2)
    before = {path.name for path in self.run_dir.iterdir()}
    for name in ('checkpoints/round_3_temp1234', '.model.77', 'mine'):
      (self.run_dir / name).mkdir()
      (self.run_dir / name / 'file').touch()
    for name in (
      *('metrics.csv_temp1', '.privacy.json.5', '.curves.png.7'),
      'checkpoints/.round_3.99',
    ):
      (self.run_dir / name).touch()
    training.train(self.settings, self.run_dir, resume=True)
    self.assertCountEqual(
      os.listdir(self.run_dir),
      {*before, 'mine', run_folder.PRIVACY, run_folder.MODEL},
    )
    self.assertCountEqual(
      os.listdir(self.run_dir / 'checkpoints'), ['round_2', 'round_3']
    )

  def test_folder_in_use_is_refused(self):
    resume_cases.unfinish(self.run_dir, completed=2)
    before = sorted(self.run_dir.rglob('*'))
    with (
      ledger.PrivacyLedger.open(self.run_dir / run_folder.LEDGER),
      self.assertRaisesRegex(ledger.LedgerError, 'is already open for writing'),
    ):
      training.train(self.settings, self.run_dir, resume=True)
    self.assertEqual(sorted(self.run_dir.rglob('*')), before)

  def test_finished_run_gives_its_result_again(self):
    before = {
      path: path.read_bytes()
      for path in sorted(self.run_dir.rglob('*'))
      if path.suffix in ('.json', '.jsonl', '.csv', '.safetensors')
    }
    result = training.train(self.settings, self.run_dir, resume=True)
    self.assertTrue(before)
    for path, content in before.items():
      self.assertEqual(path.read_bytes(), content, path)
    last = list(
      csv.DictReader(
        (self.run_dir / run_folder.METRICS).read_text().splitlines()
      )
    )[-1]
    self.assertEqual(result.accuracy, float(last['test_accuracy']))
    self.assertEqual(result.loss, float(last['test_loss']))

  def test_changed_data_are_refused(self):
    resume_cases.unfinish(self.run_dir, completed=2)
    path = self.run_dir / run_folder.CONFIG
    config = json.loads(path.read_text())
    config['resolved']['examples_per_user'][0] += 1
    # As if it had been written so: an edited one is refused before.
    config['sha256'] = run_folder.digest(config).hex()
    path.write_text(json.dumps(config))
    with self.assertRaisesRegex(
      errors.UsageError, 'resume must find the examples_per_user as when'
    ):
      training.train(self.settings, self.run_dir, resume=True)

  @parameterized.parameters(
    (ledger.PrivacyLedger, 'record', ledger.LedgerError('x: no space')),
    (checkpoints.TensorFilesManager, 'write', _ENOSPC),
    (round_metrics.files, 'write_text', _ENOSPC),
    (tf.summary.experimental, 'write_raw_pb', _TF_ENOSPC),
    (export, 'save_model', _TF_ENOSPC),
    (run_folder, 'write_privacy', _ENOSPC),
  )
  def test_full_disk_is_one_line_and_loses_nothing(self, owner, name, error):
    resume_cases.unfinish(self.run_dir, completed=2)
    with (
      mock.patch.object(owner, name, side_effect=error),
      self.assertRaisesRegex(errors.TvdpError, '(?i)no space') as caught,
    ):
      training.train(self.settings, self.run_dir, resume=True)
    self.assertNotIn('\n', str(caught.exception))
    self.assertNotIn('somewhere', str(caught.exception))
    training.train(self.settings, self.run_dir, resume=True)
    self.assertEmpty(run_outcome.read(self.run_dir).differences(self.expected))


class DealtOutTest(resume_cases.FolderTestCase):
  """The examples are dealt out to protected users, by their number."""

  exports = False

  def setUp(self):
    super().setUp()
    data = self.folder / 'data'
    self.write = functools.partial(resume_cases.write_files, data)
    self.settings = resume_cases.small(
      mechanism='distributed_users',
      dataset=f'files:{data}',
      model='linear',
      rounds=2,
      participation='balanced',
    )

  def start(self):
    self.write(40)
    training.train(self.settings, self.run_dir)
    resume_cases.unfinish(self.run_dir, completed=1)

  def resume(self):
    return training.train(self.settings, self.run_dir, resume=True)

  def test_another_number_is_refused(self):
    self.start()
    self.write(41)
    with self.assertRaisesRegex(
      errors.UsageError, r'resume must find the examples as when .* 40, got 41$'
    ):
      self.resume()
    self.write(40)
    self.resume()

  def test_a_run_of_an_earlier_version_continues(self):
    resolved = start._resolved

    def without(*args):
      values = resolved(*args)
      return {name: values[name] for name in values if name != 'examples'}

    with mock.patch.object(start, '_resolved', without):
      self.start()
    self.assertTrue(self.resume().statement.holds)

  def test_the_statement_says_that_their_number_is_public(self):
    self.write(40)
    cases: list[tuple[dict[str, Any], bool]] = [
      ({}, True),
      ({'dataset': 'digits'}, False),  # It cannot change.
      ({'dataset': 'generated_adult'}, False),
      ({'mechanism': 'gradient', 'adjacency': ''}, False),
    ]
    for changes, expected in cases:
      settings = dataclasses.replace(self.settings, **changes)
      plan = mechanisms.build(settings, federation.assemble(settings))
      said = 'the number of examples is public: it decides'
      found = any(said in words for words in plan.statement().assumptions)
      self.assertEqual(found, expected)

  def test_their_number_is_on_record_only_if_it_decides(self):
    self.write(40)
    for mechanism, expected in (
      ('distributed_users', 40),
      ('central', 40),
      ('gradient', None),  # Each user's number is on record.
    ):
      settings = dataclasses.replace(
        self.settings, adjacency='', mechanism=mechanism
      )
      fed = federation.assemble(settings)
      found = start._resolved(mechanisms.build(settings, fed), fed)
      self.assertEqual(found.get('examples'), expected)


class ResolvedTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'seed': 3, 'noise': 'discrete'}, True),
    ({'seed': 3, 'noise': 'continuous'}, False),
    ({'noise': 'discrete'}, False),
  )
  def test_a_seed_goes_on_with_the_same_noise_alone(self, changes, recorded):
    settings = resume_cases.small(mechanism='gradient', **changes)
    fed = federation.assemble(settings)
    resolved = start._resolved(mechanisms.build(settings, fed), fed)
    expected = discrete_gaussian.STREAM if recorded else None
    self.assertEqual(resolved.get('discrete_noise_stream'), expected)


if __name__ == '__main__':
  absltest.main()
