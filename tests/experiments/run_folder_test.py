import json
import math
import os
import pathlib

from absl.testing import absltest

from tvdp_tf import errors
from tvdp_tf.experiments import run_folder


class RunFolderTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def test_create_writes_config_and_header(self):
    run = self.folder / 'a' / 'run'
    run_folder.create(run, {'settings': {'theta': 0.9}})
    self.assertEqual(run_folder.read_config(run), {'settings': {'theta': 0.9}})
    self.assertEqual(
      (run / 'metrics.csv').read_text().strip(),
      'round,noise_stddev,test_loss,test_accuracy,delivered_epsilon,seconds',
    )

  def test_nothing_is_overwritten(self):
    for kind in ('folder', 'file', 'link'):
      path = self.folder / kind
      if kind == 'folder':
        path.mkdir()
      elif kind == 'file':
        path.write_text('mine')
      else:
        path.symlink_to('nowhere')
      with self.assertRaisesRegex(errors.UsageError, 'must not exist yet'):
        run_folder.create(path, {})
    self.assertEqual((self.folder / 'file').read_text(), 'mine')

  def test_json_appears_whole_or_not_at_all(self):
    path = self.folder / 'x.json'
    run_folder.write_json(path, {'a': 1})
    for wrong in ({'a': math.nan}, {'a': math.inf}, {'a': object()}):
      with self.assertRaises((ValueError, TypeError)):
        run_folder.write_json(path, wrong)
    self.assertEqual(json.loads(path.read_text()), {'a': 1})
    self.assertEqual(os.listdir(self.folder), ['x.json'])

  def test_read_config_of_no_run(self):
    for content in (None, '', '{', '[1]', '\x00'):
      path = self.folder / str(hash(content))
      path.mkdir()
      if content is not None:
        (path / 'config.json').write_text(content)
      with self.assertRaises(errors.UsageError):
        run_folder.read_config(path)


if __name__ == '__main__':
  absltest.main()
