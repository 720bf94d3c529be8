"""Data sets are decoded once, and never taken for what they are not."""

import importlib.metadata
import os
import pathlib
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests import mutations
from tvdp_tf.learning import datasets

_PARTS = (
  {
    'image': np.arange(24, dtype=np.uint8).reshape(3, 2, 2, 2),
    'label': np.arange(3),
  },
  {'image': np.ones([1, 2, 2, 2], np.uint8), 'label': np.array([2])},
  5,
)


class _Builder:
  """As of TFDS, with two splits."""

  def __init__(self, folder):
    self.data_path = folder
    self.info = types.SimpleNamespace(
      features={
        'image': types.SimpleNamespace(shape=(2, 2, 2)),
        'label': types.SimpleNamespace(num_classes=_PARTS[2]),
      },
      splits={'train': None, 'test': None},
    )
    self.read = []

  def is_prepared(self):
    return True

  def as_dataset(self, split, batch_size):
    del batch_size
    self.read.append(split)
    return _PARTS[split == 'test']


_Builder.__module__ = 'tensorflow_datasets.somewhere'


class DecodedTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.source = self.root / 'tiny' / '3.0.1'
    self.source.mkdir(parents=True)
    (self.source / 'tiny-train.tfrecord').write_bytes(b'some records')
    (self.source / 'dataset_info.json').write_text('{}')
    self.builder = _Builder(str(self.source))
    self.path = self.root / 'decoded_by_tvdp_tf' / 'tiny'

  def write(self, parts=_PARTS, builder=None):
    datasets.write_decoded(
      'tiny', str(self.root), builder or self.builder, parts
    )

  def read(self, name='tiny'):
    return datasets.read_decoded(name, str(self.root))

  def test_round_trip(self):
    self.assertIsNone(self.read())
    self.write()
    train, test, num_classes = self.read()
    self.assertEqual(num_classes, 5)
    for part, expected in zip((train, test), _PARTS[:2], strict=True):
      self.assertEqual(part.keys(), expected.keys())
      for name, column in expected.items():
        self.assertEqual(part[name].dtype, column.dtype)
        np.testing.assert_array_equal(part[name], column)
    self.assertEqual(os.listdir(self.path.parent), ['tiny'])

  def test_is_read_through_tfds_once(self):
    with (
      mock.patch('tensorflow_datasets.builder', return_value=self.builder),
      mock.patch('tensorflow_datasets.as_numpy', lambda part: part),
    ):
      first = datasets.load('tfds:tiny', str(self.root))
      second = datasets.load('tfds:tiny', str(self.root))
    self.assertEqual(self.builder.read, ['train', 'test'])
    for name, value in vars(first).items():
      np.testing.assert_array_equal(getattr(second, name), value)
    np.testing.assert_array_equal(
      second.train_features, _PARTS[0]['image'].astype(np.float32) / 255
    )

  def test_of_the_default_folder(self):
    with mock.patch.dict(os.environ, TFDS_DATA_DIR=str(self.root)):
      datasets.write_decoded('tiny', None, self.builder, _PARTS)
      self.assertIsNotNone(datasets.read_decoded('tiny', None))
    self.assertTrue(self.path.is_file())

  def other_content(self):
    (self.source / 'tiny-train.tfrecord').write_bytes(b'MORE records')
    os.utime(self.source / 'tiny-train.tfrecord', ns=(1, 1))

  def another_file(self):
    (self.source / 'tiny-train2.tfrecord').touch()

  def a_file_less(self):
    (self.source / 'dataset_info.json').unlink()

  def another_version(self):
    (self.root / 'tiny' / '4.0.0').mkdir()

  def nothing_there(self):
    (self.root / 'tiny').rename(self.root / 'other')

  @parameterized.parameters(
    'other_content',
    'another_file',
    'a_file_less',
    'another_version',
    'nothing_there',
  )
  def test_is_not_taken_once_its_source_has_changed(self, change):
    self.write()
    getattr(self, change)()
    self.assertIsNone(self.read())

  def test_is_not_taken_for_another_name_or_version_of_tfds(self):
    self.write()
    other = self.path.with_name('tiny_config')
    other.write_bytes(self.path.read_bytes())
    self.assertIsNone(self.read('tiny/config'))
    with mock.patch.object(importlib.metadata, 'version', return_value='99'):
      self.assertIsNone(self.read())
    self.assertIsNotNone(self.read())

  def test_damage_is_told(self):
    self.write()
    content = self.path.read_bytes()
    for place in range(0, len(content), 11):
      damaged = bytearray(content)
      damaged[place] ^= 1 << place % 8
      self.path.write_bytes(damaged)
      self.assertIsNone(self.read(), place)
    for other in (b'', content[:40], content[:-1], content + b'\0'):
      self.path.write_bytes(other)
      self.assertIsNone(self.read())

  @parameterized.parameters(*mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, kind):
    self.write()
    mutations.replace(self.path, kind)
    self.assertIsNone(self.read())

  def test_what_cannot_be_kept(self):
    class Foreign(_Builder):
      pass

    Foreign.__module__ = 'mine'
    self.write(builder=Foreign(str(self.source)))
    text = {'label': np.array([b'a'], object)}
    self.write((text, text, 2))
    with mock.patch.object(datasets, '_MOST_BYTES', 10):
      self.write()
    self.assertFalse(self.path.parent.exists())

  @parameterized.parameters('replace', 'relpath')
  def test_a_failing_disk_leaves_nothing(self, name):
    owner = os if name == 'replace' else os.path
    with mock.patch.object(owner, name, side_effect=OSError(28, 'full')):
      self.write()
    self.assertIsNone(self.read())
    self.assertEmpty(list(self.root.rglob('*tiny.*')))


if __name__ == '__main__':
  absltest.main()
