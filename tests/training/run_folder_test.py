import dataclasses
import errno
import json
import os
import pathlib
import subprocess
from unittest import mock

from absl.testing import absltest, parameterized

from tvdp_tf import errors
from tvdp_tf.output import files
from tvdp_tf.privacy import ledger, ledger_audit
from tvdp_tf.training import run_folder, settings

HEADER = ledger.LedgerHeader(
  unit='example',
  adjacency='replace-one',
  target_epsilon=1.0,
  delta=1e-5,
  clients=3,
  data='digits',
  partition_seed=6,
)
RUN = ledger.LedgerRun(
  mechanism='none',
  sensitivity='none',
  sensitivity_proven=False,
  target_epsilon=1.0,
  seeded=False,
  noise='no',
  settings_digest='a' * 64,
  run_id='b' * 32,
)
RESOLVED = {
  'public_seed': 5,
  'partition_seed': 6,
  'run_id': RUN.run_id,
  'shared_ledger': False,
}


def config(**changes):
  return {
    'settings': {'theta': 0.9, 'seed': None, 'rounds': 3},
    'versions': {'numpy': '1'},
    'resolved': RESOLVED,
    **changes,
  }


def whole(**changes):
  """A `config.json` with a digest that fits."""
  changed = config(**changes)
  return json.dumps({**changed, 'sha256': run_folder.digest(changed).hex()})


class NewNameTest(absltest.TestCase):
  def test_two_in_a_second_differ(self):
    first, second = run_folder.new_name(), run_folder.new_name()
    self.assertNotEqual(first, second)
    self.assertRegex(str(first), r'^runs/\d{8}-\d{6}-\d{6}$')


class RunFolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def test_create_writes_config_and_header(self):
    run = self.folder / 'a' / 'run'
    run_folder.create(run, config(), HEADER, RUN)
    written = {**config(), 'sha256': run_folder.digest(config()).hex()}
    self.assertEqual(run_folder.read_config(run), written)
    self.assertEqual(os.listdir(run.parent), ['run'])
    audit = ledger_audit.audit(run / 'ledger.jsonl')
    self.assertEqual(audit.header, HEADER)
    self.assertEqual([share.run for share in audit.runs], [RUN])
    self.assertEqual(
      (run / 'metrics.csv').read_text().strip(),
      'round,noise_stddev,test_loss,test_accuracy,delivered_epsilon',
    )

  def test_nothing_is_overwritten(self):
    for kind in ('folder', 'file', 'link'):
      path = self.folder / kind
      if kind == 'folder':
        path.mkdir()
        (path / 'mine').touch()
      elif kind == 'file':
        path.write_text('mine')
      else:
        path.symlink_to('nowhere')
      with self.assertRaisesRegex(errors.UsageError, 'must be a new'):
        run_folder.create(path, config(), HEADER, RUN)
    self.assertEqual((self.folder / 'file').read_text(), 'mine')

  def test_read_config_of_no_run(self):
    for content in (
      None,
      '',
      '{',
      '[1]',
      '\x00',
      '[' * 100_000,
      whole(settings=[]),
      whole(resolved={}),
      *(
        whole(resolved={**RESOLVED, name: wrong})
        for name, wrong in (
          ('public_seed', -1),
          ('public_seed', 1.0),
          ('partition_seed', None),
          ('run_id', 'b' * 31),
          ('run_id', 7),
          ('shared_ledger', 0),
        )
      ),
    ):
      path = self.folder / str(hash(content))
      path.mkdir()
      if content is not None:
        (path / 'config.json').write_text(content)
      with self.assertRaisesRegex(
        errors.UsageError, 'output_dir must be the folder of a run to resume'
      ):
        run_folder.read_config(path)

  @parameterized.parameters(
    ('theta', 0.9, 0.8, "theta must be 0.9, as when the run in 'd' began, got"),
    ('seed', None, 3, 'seed must be None, as when .* got 3'),
    ('rounds', 3, 3.0, 'rounds must be 3, as when .* got 3.0'),
    ('rounds', 3, True, 'rounds must be 3, as when .* got True'),
  )
  def test_first_changed_setting_is_named(self, name, then, now, line):
    with self.assertRaisesRegex(errors.UsageError, line):
      run_folder.check_unchanged(
        pathlib.Path('d'),
        config(settings={'a': 1, name: then}),
        'settings',
        {'a': 1, name: now},
      )

  def test_the_setting_that_others_follow_from_is_named(self):
    then = settings.TrainingSettings(mechanism='paper')
    now = settings.TrainingSettings(mechanism='gradient')
    self.assertNotEqual(then.calibration, now.calibration)
    with self.assertRaisesRegex(errors.UsageError, "^mechanism must be 'paper"):
      run_folder.check_unchanged(
        pathlib.Path('d'),
        config(settings=dataclasses.asdict(then)),
        'settings',
        dataclasses.asdict(now),
      )

  def test_setting_that_came_or_went_is_named(self):
    for then, now in (({}, {'a': None}), ({'a': None}, {})):
      with self.assertRaisesRegex(errors.UsageError, "^'?a'? must be .*absent"):
        run_folder.check_unchanged(
          pathlib.Path('d'), config(settings=then), 'settings', now
        )

  def test_changed_version_and_data_are_named(self):
    with self.assertRaisesRegex(
      errors.UsageError, "the version of numpy as when .* began, '1', got '2'"
    ):
      run_folder.check_unchanged(
        pathlib.Path('d'), config(), 'versions', {'numpy': '2'}
      )
    then = config(resolved={'sizes': [1, 2]})
    run_folder.check_unchanged(
      pathlib.Path('d'), then, 'resolved', {'sizes': (1, 2)}
    )
    with self.assertRaisesRegex(errors.UsageError, 'must find the sizes as'):
      run_folder.check_unchanged(
        pathlib.Path('d'), then, 'resolved', {'sizes': (1, 3)}
      )

  def test_edited_and_damaged_configuration_are_told_apart(self):
    run = self.folder / 'run'
    run_folder.create(run, config(), HEADER, RUN)
    run_folder.read_config(run)
    path = run / 'config.json'
    written = path.read_bytes()
    for content, told in (
      (written.replace(b'"public_seed": 5', b'"public_seed": 6'), 'was edited'),
      (written.replace(b'"theta": 0.9', b'"theta": 0.8'), 'was edited'),
      (written.replace(b'sha256', b'sha'), 'was edited'),
      (written[:-20], 'is damaged'),
      (written.replace(b'theta', b'th\xffta'), 'is damaged'),
      (b'', 'is damaged'),
    ):
      self.assertNotEqual(content, written)
      path.write_bytes(content)
      with self.assertRaisesRegex(
        errors.UsageError, f"got '{run}': its config.json {told}"
      ):
        run_folder.config_to_resume(run, {**config()['settings'], 'theta': 0.8})

  def test_finished(self):
    run = self.folder / 'run'
    self.assertFalse(run_folder.is_finished(run))
    run_folder.create(run, config(), HEADER, RUN)
    self.assertFalse(run_folder.is_finished(run))
    for finished in (False, True):
      run_folder.write_privacy(run, {'epsilon': 1.0}, finished)
      self.assertEqual(run_folder.is_finished(run), finished)
    for content in ('', '[true]', '{"finished": 1}', '{"finished": true'):
      (run / 'privacy.json').write_text(content)
      self.assertFalse(run_folder.is_finished(run))

  @parameterized.parameters(
    *('config.json', 'ledger.jsonl', 'ledger.jsonl.head', 'metrics.csv'),
    *('privacy.json', 'curves.png', 'model', 'tensorboard', 'checkpoints'),
    *('checkpoints/round_1', 'checkpoints/round_1/variables/variables.index'),
  )
  def test_link_is_refused(self, name):
    run = self.folder / 'run'
    run_folder.create(run, config(), HEADER, RUN)
    (run / 'checkpoints/round_1/variables').mkdir(parents=True)
    (run / 'mine').symlink_to(self.folder)  # It is none of ours.
    run_folder.read_config(run)
    elsewhere = self.folder / 'elsewhere'
    path = run / name
    if path.exists():
      path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with self.assertRaisesRegex(errors.UsageError, f"'{name}' in it is a link"):
      run_folder.read_config(run)

  @parameterized.parameters('config.json', 'ledger.jsonl', 'checkpoints/x')
  def test_pipe_is_refused(self, name):
    run = self.folder / 'run'
    run_folder.create(run, config(), HEADER, RUN)
    (run / 'checkpoints').mkdir()
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with self.assertRaisesRegex(
      errors.UsageError, f"'{name}' in it is neither a file nor a folder"
    ):
      run_folder.read_config(run)

  def test_a_configuration_that_may_not_be_read(self):
    (self.folder / 'config.json').touch()
    denied = PermissionError(errno.EACCES, 'Permission denied')
    with (
      mock.patch.object(pathlib.Path, 'read_text', side_effect=denied),
      self.assertRaisesRegex(
        errors.UsageError, 'its config.json cannot be read: Permission denied'
      ),
    ):
      run_folder.read_config(self.folder)

  def test_a_name_that_tensorflow_does_not_take(self):
    path = self.folder / os.fsdecode(b'm\xe4x')
    with self.assertRaisesRegex(
      errors.UsageError, r'^output_dir must be a path in UTF-8, got .*m\\udce4x'
    ):
      run_folder.check_absent(path)

  def test_full_disk_leaves_no_half_file(self):
    path = self.folder / 'x.json'
    files.write_json(path, 1)
    full = OSError(errno.ENOSPC, 'No space left on device')
    with mock.patch.object(os, 'fsync', side_effect=full):
      with self.assertRaises(OSError):
        files.write_json(path, 2)
      with self.assertRaisesRegex(
        errors.UsageError, 'must be writable, got .*: No space left on device'
      ):
        run_folder.create(self.folder / 'run', config(), HEADER, RUN)
    self.assertEqual(path.read_text(), '1\n')
    self.assertEqual(os.listdir(self.folder), ['x.json'])

  def test_what_a_killed_creation_has_left_is_removed(self):
    ended = subprocess.Popen(['true'])
    ended.wait()
    names = {
      f'.run.{ended.pid}': False,
      f'.run.{os.getppid()}': True,
      f'.other.{ended.pid}': True,
      '.run.x': True,
    }
    for name in names:
      (self.folder / name).mkdir()
      (self.folder / name / 'config.json').touch()
    run_folder.create(self.folder / 'run', config(), HEADER, RUN)
    for name, stays in names.items():
      self.assertEqual((self.folder / name).exists(), stays, name)


if __name__ == '__main__':
  absltest.main()
