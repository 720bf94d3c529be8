"""Folders that appear whole, in no place or in an empty one."""

import os
import pathlib
import subprocess

from absl.testing import absltest, parameterized

from tvdp_tf.output import files


class FolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path, 'out')

  def test_an_empty_folder_is_filled_and_stays_the_same(self):
    self.path.mkdir(mode=0o750)
    before = self.path.stat()
    with files.create_folder(self.path) as folder:
      self.assertEmpty([*self.path.glob('[!.]*')])
      (folder / 'a').write_text('text')
      (folder / 'b').mkdir()
    self.assertCountEqual(os.listdir(self.path), ['a', 'b'])
    after = self.path.stat()
    self.assertEqual(
      (after.st_ino, after.st_mode), (before.st_ino, before.st_mode)
    )

  @parameterized.parameters(False, True)
  def test_a_failure_leaves_it_as_it_was(self, exists):
    if exists:
      self.path.mkdir()
    with self.assertRaises(KeyError), files.create_folder(self.path) as folder:
      (folder / 'a').write_text('text')
      raise KeyError
    self.assertEqual(self.path.exists(), exists)
    self.assertEqual(os.listdir(self.path.parent), ['out'] if exists else [])
    if exists:
      self.assertEmpty(os.listdir(self.path))

  def test_what_a_killed_creation_has_left_in_it(self):
    ended = subprocess.Popen(['true'])
    ended.wait()
    (self.path / f'.out.{ended.pid}').mkdir(parents=True)
    with files.create_folder(self.path) as folder:
      (folder / 'a').write_text('text')
    self.assertEqual(os.listdir(self.path), ['a'])

  def test_two_at_once(self):
    self.path.mkdir()
    other = self.path / f'.out.{os.getppid()}'
    with (
      self.assertRaisesRegex(ValueError, 'by this process only'),
      files.create_folder(self.path) as folder,
    ):
      other.mkdir()
      (folder / 'a').write_text('text')
    self.assertEqual(os.listdir(self.path), [other.name])
    with self.assertRaisesRegex(ValueError, 'be a new or an empty folder'):
      files.check_folder(self.path)

  def test_what_is_there_stays(self):
    for kind in ('full', 'file', 'link'):
      path = self.path.with_name(kind)
      if kind == 'file':
        path.touch()
      elif kind == 'link':
        path.symlink_to(path.parent)
      else:
        path.mkdir()
        (path / 'mine').touch()
      with self.assertRaisesRegex(
        ValueError, f"must be a new or an empty folder, got '{path}'"
      ):
        files.check_folder(path)


if __name__ == '__main__':
  absltest.main()
