"""Data sets in files: read as they are needed, checked at the door."""

import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import errors
from tvdp_tf.learning import datasets, on_disk
from tvdp_tf.training import federation, run_folder, settings
from tvdp_tf.training import rounds as rounds_lib
from tvdp_tf.training import train as training

_COUNTS = [30, 10, 25, 35]


def write(folder: pathlib.Path, dtype=np.uint8) -> datasets.Dataset:
  """Files of a generated data set; and what should be read of them."""
  own = datasets.load('generated_mnist')
  features = [own.train_features[:100], own.test_features]
  if dtype == np.uint8:
    features = [np.round(255 * part).astype(np.uint8) for part in features]
  np.save(folder / 'train_features.npy', features[0])
  np.save(folder / 'train_labels.npy', own.train_labels[:100].astype(np.int64))
  np.save(folder / 'test_features.npy', features[1])
  np.save(folder / 'test_labels.npy', own.test_labels)
  np.save(folder / 'train_users.npy', np.array(_COUNTS))
  if dtype == np.uint8:
    features = [part.astype(np.float32) / 255 for part in features]
  return datasets.Dataset(
    'memory',
    features[0],
    own.train_labels[:100],
    features[1],
    own.test_labels,
    10,
  )


class OnDiskTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.name = f'files:{self.folder}'

  @parameterized.parameters(np.uint8, np.float32)
  def test_reads_what_was_written(self, dtype):
    expected = write(self.folder, dtype)
    found = datasets.load(self.name)
    self.assertTrue(found.is_on_disk)
    self.assertEqual(found.train_features.shape, (100, 28, 28, 1))
    self.assertEqual(found.num_classes, 10)
    some = np.array([3, 99, 7])
    np.testing.assert_array_equal(
      found.train_features[some], expected.train_features[some]
    )
    self.assertEqual(found.train_features[some].dtype, np.float32)
    np.testing.assert_array_equal(found.train_features, expected.train_features)
    np.testing.assert_array_equal(found.test_features, expected.test_features)
    np.testing.assert_array_equal(found.train_labels, expected.train_labels)
    self.assertEqual(
      datasets.facts(self.name), datasets.Facts(100, (28, 28, 1), 10)
    )
    self.assertEqual(
      [len(part) for part in datasets.natural(self.name)], _COUNTS
    )

  @parameterized.named_parameters(
    ('labels', 'train_labels', np.zeros(99, int), 'a label for each of 100'),
    ('classes', 'train_labels', np.full(100, 10), 'below 10'),
    ('negative', 'test_labels', np.full(100, -1), 'from 0 to'),
    ('wrapped', 'train_labels', np.full(100, 2**32), 'from 0 to'),
    ('fractions', 'test_labels', np.zeros(100), 'integers'),
    ('doubles', 'train_features', np.zeros([100, 28, 28, 1]), 'uint8 or'),
    ('flat', 'train_features', np.zeros([100], np.uint8), 'uint8 or'),
    ('shapes', 'test_features', np.zeros([100, 9], np.uint8), 'one shape'),
    ('pickle', 'train_features', np.array([{}]), 'np.save'),
  )
  def test_what_does_not_fit_is_said(self, name, array, message):
    write(self.folder)
    np.save(self.folder / f'{name}.npy', array)
    with self.assertRaisesRegex(errors.DatasetUnavailableError, message):
      datasets.load(self.name)

  def test_an_archive_is_no_array(self):
    write(self.folder)
    with open(self.folder / 'train_features.npy', 'wb') as file:
      np.savez(file, np.zeros([100, 9], np.uint8))
    with self.assertRaisesRegex(errors.DatasetUnavailableError, 'np.savez$'):
      datasets.load(self.name)

  def test_users_must_fit(self):
    write(self.folder)
    for counts, message in (
      ([50, 49], 'all of 100'),
      ([100, 0], 'from 1 to'),
      # In sum 100, if sums wrap around; two users would share examples.
      (
        np.array([60, 2**64 - 10, 50], np.uint64),
        'from 1 to 2147483647, got 50 to 1844674407370955',
      ),
    ):
      np.save(self.folder / 'train_users.npy', np.array(counts))
      with self.assertRaisesRegex(errors.DatasetUnavailableError, message):
        datasets.natural(self.name)
    (self.folder / 'train_users.npy').unlink()
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError,
      'train_users.npy cannot be read: No such file or directory$',
    ):
      datasets.natural(self.name)
    with self.assertRaisesRegex(ValueError, 'files:FOLDER'):
      datasets.natural('digits')
    with self.assertRaisesRegex(ValueError, 'split natural'):
      settings.TrainingSettings(split='natural')
    with self.assertRaisesRegex(errors.DatasetUnavailableError, 'missing'):
      datasets.load(f'files:{self.folder}/missing')
    for name in ('files:', 'files'):
      with self.assertRaisesRegex(ValueError, 'dataset must be'):
        datasets.check_name(name)


class RoundsTest(absltest.TestCase):
  def settings(self, **changes):
    folder = pathlib.Path(self.create_tempdir().full_path)
    self.expected = write(folder)
    return settings.TrainingSettings(
      **{
        'dataset': f'files:{folder}',
        'users': 4,
        'users_per_round': 3,
        'participation': 'uniform',
        'rounds': 3,
        'local_steps': 1,
        'seed': 3,
        'split': 'natural',
        **changes,
      }
    )

  def test_trains_as_from_memory(self):
    on_files = self.settings(split='iid', users=7)
    folders = [
      pathlib.Path(self.create_tempdir().full_path) / 'run' for _ in range(2)
    ]
    training.train(on_files, folders[0])
    with mock.patch.dict(
      datasets.LOADERS, {'memory': lambda data_dir: self.expected}
    ):
      training.train(
        settings.TrainingSettings(
          dataset='memory',
          users=7,
          users_per_round=3,
          participation='uniform',
          rounds=3,
          local_steps=1,
          seed=3,
        ),
        folders[1],
      )
    losses = [
      [
        line.split(',')[:3]
        for line in (folder / run_folder.METRICS).read_text().splitlines()
      ]
      for folder in folders
    ]
    self.assertEqual(*losses)

  def test_holds_two_cohorts_and_reads_each_client_once(self):
    fed = federation.assemble(self.settings())
    self.assertEqual(fed.examples_per_user.tolist(), _COUNTS)
    ahead = rounds_lib._ReadAhead(fed)
    self.addCleanup(ahead.close)
    reads = []
    original = on_disk.Examples.__getitem__

    def read(examples, index):
      reads.append(index)
      return original(examples, index)

    with mock.patch.object(on_disk.Examples, '__getitem__', read):
      first = ahead.read([0, 2], [1, 2])
      second = ahead.read([1, 2, 3], [])
    self.assertEqual([len(labels) for _, labels in first], [30, 25])
    self.assertEqual([len(labels) for _, labels in second], [10, 25, 35])
    self.assertLen(reads, 5)  # 0, 2; 1, 2 in the thread; 3 was not foreseen.
    self.assertEmpty(ahead._next)
    self.assertEmpty(fed._user_data)
    start = 0
    for user, count in enumerate(_COUNTS):
      features, labels = fed.user_data(user)
      here = slice(start, start + count)
      np.testing.assert_array_equal(
        features, self.expected.train_features[here]
      )
      np.testing.assert_array_equal(labels, self.expected.train_labels[here])
      start += count

  def test_what_does_not_go_together_is_said(self):
    with self.assertRaisesRegex(ValueError, 'users must be the 4'):
      federation.assemble(self.settings(users=5))
    with self.assertRaisesRegex(ValueError, 'on the disk'):
      federation.assemble(self.settings(features='scattering', model='linear'))


if __name__ == '__main__':
  absltest.main()
