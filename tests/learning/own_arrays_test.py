"""What a loader of the caller's returns is used as it should be, or refused."""

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


class DatasetFieldsTest(parameterized.TestCase):
  def load(self, loader):
    with mock.patch.dict(datasets.LOADERS, mine=loader):
      return datasets.load('mine')

  @parameterized.parameters(
    {},
    {'train_features': _X[:6].tolist(), 'train_labels': _Y[:6].tolist()},
    {'test_labels': _Y[6:].astype(float)},
    {'num_classes': np.int64(2)},
    {'train_labels': np.eye(2)[_Y[:6]]},
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
    (_with('train_labels', 3, 2), 'train_labels must hold class .* in row 3'),
    (_with('train_labels', 3, -1), 'class numbers in .0, 2.*, .* in row 3'),
    (
      _with('test_labels', 0, 0.5),
      'test_labels must .* another value in row 0',
    ),
    (
      _with('train_features', 5, np.nan),
      'train_features .* finite .* in row 5',
    ),
    (
      _with('test_features', 1, 1e39),
      'test_features .* within float32.* row 1',
    ),
    ({'train_labels': _Y[:5]}, 'train_labels .* 6 examples and 5 labels'),
    ({'train_labels': np.eye(3)[_Y[:6]]}, r'one-dimensional, .* \(6, 3\)'),
    ({'train_features': _X[:6, :3]}, r'one shape, got \(3,\) and \(4,\)'),
    (
      {'test_features': _X[:0], 'test_labels': _Y[:0]},
      'test_labels must .* at least one, got 0 examples and 0 labels',
    ),
    ({'train_features': _X[:6, 0]}, r'one shape, got \(\) and \(4,\)'),
    ({'train_features': [[1.0], [1.0, 2.0]]}, 'train_features .* of numbers'),
    ({'train_labels': ['a'] * 6}, 'train_labels must hold only numbers'),
    ({'num_classes': 1}, 'num_classes must be an integer >= 2, got 1'),
    ({'num_classes': 2.5}, 'num_classes must be an integer >= 2, got 2.5'),
  )
  def test_refuses(self, changes, message):
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError,
      f'^data set mine cannot be loaded: .*{message}',
    ):
      self.load(lambda _: dataclasses.replace(_GOOD, **changes))

  def test_what_is_no_data_set(self):
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError,
      '^data set mine cannot .* a Dataset is expected, got tuple$',
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
