import errno
import json
import math
import os
import pathlib
from typing import Any
from unittest import mock

from absl.testing import absltest, parameterized

from tvdp_tf.output import files


class FilesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.path = self.folder / 'x'

  def assert_alone(self, text):
    self.assertEqual(self.path.read_text(), text)
    self.assertEqual(os.listdir(self.folder), ['x'])

  def test_text_is_as_given(self):
    files.write_text(self.path, 'a\r\nb\n\u03b5')
    self.assertEqual(self.path.read_bytes(), 'a\r\nb\n\u03b5'.encode())
    files.write_text(self.path, '')
    self.assert_alone('')

  def test_json_appears_whole_or_not_at_all(self):
    files.write_json(self.path, {'a': 1})
    for wrong in ({'a': math.nan}, {'a': math.inf}, {'a': object()}):
      with self.assertRaises((ValueError, TypeError)):
        files.write_json(self.path, wrong)
    self.assertEqual(json.loads(self.path.read_text()), {'a': 1})
    self.assert_alone('{\n  "a": 1\n}\n')
    self.assertEqual(files.read_json(self.path), {'a': 1})

  @parameterized.parameters('', '{', '[1]', '1', '[' * 100_000)
  def test_json_that_is_none(self, text):
    self.assertEqual(files.read_json(self.path), {})
    self.path.write_text(text)
    self.assertEqual(files.read_json(self.path), {})

  @parameterized.parameters('fsync', 'replace')
  def test_after_a_failure_all_is_as_before(self, name):
    files.write_text(self.path, 'old')
    full = OSError(errno.ENOSPC, 'No space left on device')
    with (
      mock.patch.object(os, name, side_effect=full),
      self.assertRaises(OSError),
    ):
      files.write_text(self.path, 'new')
    self.assert_alone('old')

  def test_is_on_the_disk_before_it_has_the_name(self):
    done = []

    def note(name):
      real = getattr(os, name)

      def call(*args):
        done.append(name)
        return real(*args)

      return mock.patch.object(os, name, call)

    with note('fsync'), note('replace'):
      files.write_text(self.path, 'text')
    self.assertEqual(done, ['fsync', 'replace', 'fsync'])

  def test_folder_is_whole_or_not_there(self):
    with self.assertRaises(KeyError), files.replaced(self.path) as temporary:
      temporary.mkdir()
      (temporary / 'a').write_text('text')
      raise KeyError
    self.assertEmpty(os.listdir(self.folder))
    beside = self.folder / 'beside'
    beside.mkdir()
    with files.replaced(self.path, beside) as temporary:
      self.assertEqual(temporary.parent, beside)
      temporary.mkdir()
      (temporary / 'a').write_text('text')
    self.assertEqual(os.listdir(self.path), ['a'])
    self.assertEmpty(os.listdir(beside))
    # What is in a folder is never lost to another.
    with self.assertRaises(OSError), files.replaced(self.path) as temporary:
      temporary.mkdir()
    self.assertEqual(os.listdir(self.path), ['a'])

  def test_table(self):
    rows: list[list[Any]] = [[1, 0.1, 'a,b'], [2, math.inf, None]]
    files.write_csv(self.path, ('n', 'x', 'text'), rows)
    self.assert_alone('n,x,text\n1,0.1,"a,b"\n2,inf,\n')
    self.assertEqual(
      files.read_csv(self.path),
      [
        {'n': '1', 'x': '0.1', 'text': 'a,b'},
        {'n': '2', 'x': 'inf', 'text': ''},
      ],
    )
    self.assertEqual(files.csv_text(['a'], [[1]], end='\r\n'), 'a\r\n1\r\n')


if __name__ == '__main__':
  absltest.main()
