import dataclasses
import socket
import time
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests import mutations
from tvdp_tf import errors
from tvdp_tf.learning import aligned, datasets, partitions


class DigitsTest(parameterized.TestCase):
  def test_shapes_and_ranges(self):
    digits = datasets.load('digits')
    self.assertEqual(digits.train_features.shape, (1437, 8, 8, 1))
    self.assertEqual(digits.test_features.shape, (360, 8, 8, 1))
    self.assertEqual(digits.num_classes, 10)
    for features, labels in (
      (digits.train_features, digits.train_labels),
      (digits.test_features, digits.test_labels),
    ):
      self.assertEqual(features.dtype, np.float32)
      self.assertEqual(labels.dtype, np.int32)
      self.assertEqual((np.min(features), np.max(features)), (0, 1))
      self.assertLen(np.unique(labels), 10)

  def test_train_and_test_are_disjoint_and_fixed(self):
    one, other = datasets.load('digits'), datasets.load('digits')
    np.testing.assert_array_equal(one.test_features, other.test_features)
    everything = np.concatenate([one.train_features, one.test_features])
    self.assertLen(np.unique(everything.reshape(1797, -1), axis=0), 1797)


class UnavailableTest(parameterized.TestCase):
  def test_unknown_name(self):
    with self.assertRaisesRegex(ValueError, 'dataset must be one of digits'):
      datasets.load('mnst')

  def test_unwritable_folder(self):
    blocker = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError, 'mnist is not in .*file'
    ):
      datasets.load('mnist', blocker)

  def test_without_a_network_it_is_told_at_once_and_fails_soon(self):
    folder = self.create_tempdir().full_path
    started = time.monotonic()
    with (
      mock.patch.object(
        socket, 'getaddrinfo', side_effect=socket.gaierror(-2, 'not known')
      ),
      self.assertLogs('absl', 'WARNING') as logs,
      self.assertRaisesRegex(
        errors.DatasetUnavailableError,
        'could not be downloaded.*ConnectionError',
      ) as caught,
    ):
      datasets.load('mnist', folder)
    # TFDS and TensorFlow may be imported here.
    self.assertLess(time.monotonic() - started, 60)
    self.assertTrue(mutations.is_one_line(caught.exception))
    self.assertIn(
      f'mnist is not in {folder}: downloading it', '\n'.join(logs.output)
    )


class OwnTest(parameterized.TestCase):
  @parameterized.parameters('mnst', 'tfds:', 'tfds:../mnist', 'tfds:a b', None)
  def test_no_name(self, name):
    with self.assertRaisesRegex(ValueError, 'dataset must be one of .*, got '):
      datasets.check_name(name)

  @parameterized.parameters(
    'mnist', 'tfds:kmnist', 'tfds:cmaterdb/bangla:1.0.0'
  )
  def test_names(self, name):
    self.assertEqual(datasets.check_name(name), name)

  def test_a_loader_of_ones_own(self):
    self.addCleanup(datasets.LOADERS.pop, 'mine')
    digits = datasets.load('digits')
    datasets.LOADERS['mine'] = lambda data_dir: dataclasses.replace(
      digits, name=f'mine in {data_dir}'
    )
    self.assertEqual(datasets.load('mine', 'there').name, 'mine in there')

  @parameterized.parameters(
    ('digits', True),
    ('generated_mnist', True),
    ('adult', False),
    ('mnist', False),
    ('tfds:mnist', False),
    ('files:folder', False),
    (datasets.OWN, False),
  )
  def test_what_cannot_change(self, name, expected):
    self.assertEqual(datasets.is_fixed(name), expected)

  def test_a_replaced_loader_can_bring_anything(self):
    with mock.patch.dict(datasets.LOADERS, digits=lambda data_dir: None):
      self.assertFalse(datasets.is_fixed('digits'))

  @parameterized.parameters(
    ({'text': None}, {}, 'text, not image and label'),
    ({'image': (None, 8, 1), 'label': None}, {}, 'not of one size'),
    (
      {'image': (8, 8, 1), 'label': None},
      {'train': 1},
      'not train, test',
    ),
  )
  def test_tfds_sets_that_do_not_fit(self, features, splits, message):
    info = types.SimpleNamespace(
      features={
        name: types.SimpleNamespace(shape=shape)
        for name, shape in features.items()
      },
      splits=splits,
    )
    builder = types.SimpleNamespace(info=info)
    with (
      mock.patch('tensorflow_datasets.builder', return_value=builder),
      self.assertRaisesRegex(errors.DatasetUnavailableError, message),
    ):
      datasets.load('tfds:odd', self.create_tempdir().full_path)


class DealtTest(parameterized.TestCase):
  def test_users_have_their_examples_in_a_row(self):
    digits = datasets.load('digits')
    parts = partitions.dirichlet(digits.train_labels, 7, 0.5, seed=3)
    dealt, ranges = datasets.dealt(digits, parts)
    self.assertEqual(list(map(len, ranges)), list(map(len, parts)))
    for part, held in zip(parts, ranges, strict=True):
      assert isinstance(held, range)
      rows = slice(held.start, held.stop)
      np.testing.assert_array_equal(
        dealt.train_features[rows], digits.train_features[part]
      )
      np.testing.assert_array_equal(
        dealt.train_labels[rows], digits.train_labels[part]
      )
    self.assertEqual(dealt.train_labels.dtype, digits.train_labels.dtype)
    assert isinstance(dealt.train_features, np.ndarray)
    start = dealt.train_features.ctypes.data
    self.assertEqual(start % aligned.ALIGNMENT_BYTES, 0)
    self.assertIs(dealt.test_features, digits.test_features)


class BytesTest(parameterized.TestCase):
  def read(self, dtype=np.uint8):
    rng = np.random.default_rng(0)

    def part(count):
      shape = [count, 3, 3, 1]
      return {
        'image': rng.integers(0, 256, shape, dtype),
        'label': rng.integers(0, 3, count),
      }

    self.parts = part(2500), part(10), 3
    return mock.patch.object(datasets, 'read_decoded', return_value=self.parts)

  @parameterized.parameters('mnist', 'tfds:tiny')
  def test_the_same_values_at_once_or_when_dealt(self, name):
    with self.read() as read:
      datasets.read_ahead(name, 'there')
      in_bytes = datasets.load(name, 'there', in_bytes=True)
      read.assert_called_once()
      at_once = datasets.load(name, 'there')
    images = self.parts[0]['image']
    expected = images.astype(np.float32) / 255
    parts = partitions.dirichlet(at_once.train_labels, 7, 0.5, seed=3)
    self.assertIs(in_bytes.train_features, images)
    found, _ = datasets.dealt(in_bytes, parts)
    other, _ = datasets.dealt(at_once, parts)
    for features in (found.train_features, other.train_features):
      assert isinstance(features, np.ndarray)
      np.testing.assert_array_equal(features, expected[np.concatenate(parts)])
      self.assertEqual(features.dtype, np.float32)
      self.assertEqual(features.ctypes.data % aligned.ALIGNMENT_BYTES, 0)
    np.testing.assert_array_equal(at_once.train_features, expected)
    np.testing.assert_array_equal(at_once.test_features, in_bytes.test_features)

  def test_memory_is_claimed_for_what_is_dealt(self):
    with self.read():
      datasets.read_ahead('mnist')
      found = datasets.load('mnist', in_bytes=True)
      assert isinstance(found.train_features, np.ndarray)
      size = 4 * found.train_features.size
      claimed = aligned._claimed[size]
      dealt, _ = datasets.dealt(found, [np.arange(2500)])
    assert isinstance(dealt.train_features, np.ndarray)
    self.assertTrue(np.shares_memory(dealt.train_features, claimed))
    self.assertNotIn(size, aligned._claimed)

  def test_more_than_a_byte_a_value(self):
    with self.read(np.uint16):
      datasets.read_ahead('mnist')
      found = datasets.load('mnist', in_bytes=True)
    images = self.parts[0]['image'].astype(np.float32)
    np.testing.assert_array_equal(found.train_features, images / 255)
    self.assertEmpty(aligned._claimed)

  def test_a_failure_comes_to_who_loads(self):
    with mock.patch.object(datasets, 'read_decoded', side_effect=MemoryError):
      datasets.read_ahead('mnist')
      with self.assertRaises(MemoryError):
        datasets.load('mnist')

  def test_others_are_not_read_ahead(self):
    with self.read() as read:
      for name in ('digits', 'adult', 'files:there', 'generated_mnist'):
        datasets.read_ahead(name)
      digits = datasets.load('digits')
      datasets.LOADERS['mine'] = lambda data_dir: digits
      self.addCleanup(datasets.LOADERS.pop, 'mine')
      datasets.read_ahead('mine')
      found = datasets.load('mine', in_bytes=True)
    self.assertEqual(found.name, 'digits')
    read.assert_not_called()


class TestPartTest(parameterized.TestCase):
  def test_parts_are_disjoint_and_together_all(self):
    digits = datasets.load('digits')
    tuning, reported = (
      datasets.with_test_part(digits, part) for part in ('tuning', 'reported')
    )
    self.assertLen(tuning.test_labels, 72)
    self.assertLen(reported.test_labels, 288)
    together = np.concatenate([tuning.test_features, reported.test_features])
    np.testing.assert_array_equal(
      np.unique(together.reshape(360, -1), axis=0),
      np.unique(digits.test_features.reshape(360, -1), axis=0),
    )
    self.assertIs(datasets.with_test_part(digits, 'all'), digits)
    self.assertIs(tuning.train_features, digits.train_features)

  def test_no_part(self):
    with self.assertRaisesRegex(ValueError, 'test_part must be one of all'):
      datasets.with_test_part(datasets.load('digits'), 'validation')


if __name__ == '__main__':
  absltest.main()
