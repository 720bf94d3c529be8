"""What a user's loader returns is used as it should be, or refused."""

import dataclasses
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import errors
from tvdp_tf.learning import datasets

_X = np.arange(40.0).reshape(10, 4) / 40
_Y = np.arange(10) % 2
_GOOD = datasets.Dataset('any', _X[:6], _Y[:6], _X[6:], _Y[6:], 2)


def _with(field, row, value):
  array = np.array(getattr(_GOOD, field), float)
  array[row] = value
  return {field: array}


class OwnLoaderTest(parameterized.TestCase):
  def load(self, loader):
    with mock.patch.dict(datasets.LOADERS, mine=loader):
      return datasets.load('mine')

  @parameterized.parameters(
    {},
    {'train_features': _X[:6].tolist(), 'train_labels': _Y[:6].tolist()},
    {'test_labels': _Y[6:].astype(float)},
    {'num_classes': np.int64(2)},
  )
  def test_takes(self, **changes):
    found = self.load(lambda _: dataclasses.replace(_GOOD, **changes))
    self.assertEqual((found.name, found.num_classes), ('any', 2))
    for features, labels, rows in (
      (found.train_features, found.train_labels, slice(0, 6)),
      (found.test_features, found.test_labels, slice(6, 10)),
    ):
      self.assertEqual(features.dtype, np.float32)
      self.assertEqual(labels.dtype, np.int32)
      np.testing.assert_array_equal(features, _X[rows].astype(np.float32))
      np.testing.assert_array_equal(labels, _Y[rows])

  @parameterized.parameters(
    (_with('train_labels', 3, 2), 'class numbers .* as train_labels, .* row 3'),
    (_with('train_labels', 3, -1), 'class numbers in .0, 2. .* in row 3'),
    (_with('test_labels', 0, 0.5), 'as test_labels, got another in row 0'),
    (
      _with('train_features', 5, np.nan),
      'finite .* as train_features,.* row 5',
    ),
    (
      _with('test_features', 1, 1e39),
      'finite .* as test_features, .* in row 1',
    ),
    ({'train_labels': _Y[:5]}, r'train_labels \[6\], one .* the shape \[5\]'),
    ({'train_labels': np.eye(2)[_Y[:6]]}, r'one .* the shape \[6, 2\]'),
    ({'train_features': _X[:6, :3]}, r'one shape .* \[3\] and \[4\]'),
    ({'test_features': _X[:0]}, r'test_features \[n, ...\], .* \[0, 4\]'),
    ({'train_features': _X[:6, 0]}, r'train_features \[n, ...\], .* \[6\]'),
    ({'train_features': [[1.0], [1.0, 2.0]]}, 'numbers as train_features'),
    ({'train_labels': ['a'] * 6}, 'numbers as train_labels, got list'),
    ({'num_classes': 1}, 'num_classes of at least 2, got 1'),
    ({'num_classes': 2.5}, 'num_classes of at least 2, got 2.5'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError, f'^data set mine must have .*{message}'
    ):
      self.load(lambda _: dataclasses.replace(_GOOD, **changes))

  def test_what_is_no_data_set(self):
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError, '^data set mine must be .* got tuple$'
    ):
      self.load(lambda _: (_X, _Y))

  def test_a_loader_that_fails(self):
    def fail(_):
      raise KeyError('x')

    with self.assertRaisesRegex(
      errors.DatasetUnavailableError, "data set mine cannot .* KeyError: 'x'"
    ):
      self.load(fail)


if __name__ == '__main__':
  absltest.main()
