"""Data of the caller's own: taken as they are, or refused."""

import math
from typing import Any

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from scipy import sparse

from tvdp_tf.learning import own_data

_X = np.arange(24).reshape(6, 4) / 8
_Y = np.array([0, 1, 2, 0, 1, 2])
_TEST = (_X + 9, _Y)
_SET = tf.data.Dataset.from_tensor_slices((_X, _Y))


def _of_shapes(*sizes, batches=False):
  """A data set of examples (or batches of two) of these sizes."""
  shape = [2] if batches else []
  return tf.data.Dataset.from_generator(
    lambda: (
      (np.ones([*shape, size]), np.zeros(shape, np.int32)) for size in sizes
    ),
    output_signature=(
      tf.TensorSpec([*shape, None]),
      tf.TensorSpec(shape, tf.int32),
    ),
  )


class _Frame:
  """What is asked of pandas."""

  def __init__(self, values, index=None, columns=None):
    self._values = values
    self.shape = np.shape(values)
    self.index = index
    self.columns = columns
    self.dtypes: Any = np.asarray(values).dtype
    if np.ndim(values) == 2:
      of_columns = np.transpose(values).tolist()
      self.dtypes = [np.asarray(column).dtype for column in of_columns]

  def to_numpy(self):
    return self._values


class _ClientData:
  """What is asked of TFF's."""

  client_ids = ('a',)

  def create_tf_dataset_for_client(self, client):
    del client
    return _SET


class _Index:
  def __init__(self, labels):
    self._labels = labels

  def equals(self, other):
    return self._labels == other._labels

  def __getitem__(self, place):
    return self._labels[place]


def _without(value):
  examples = _X.astype(object)
  examples[value == _X] = None
  return examples


def _dataset(x=_X, y=_Y, test=_TEST, classes=3, dtype='float32', user_ids=None):
  return own_data.dataset(x, y, test, classes, np.dtype(dtype), user_ids)


class DataTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('arrays', _X, _Y),
    ('lists', _X.tolist(), _Y.tolist()),
    ('frames', _Frame(_X), _Frame(_Y.astype(float))),
    ('objects', _Frame(_X.astype(object)), _Frame(_Y.astype(object))),
    ('tensors', tf.constant(_X), tf.constant(_Y)),
    ('sparse', sparse.csr_matrix(_X), _Y),
    ('one_hot', _X, np.eye(3)[_Y]),
    ('column', _X, _Y[:, np.newaxis]),
    ('bytes', (8 * _X).astype(np.uint8), _Y.astype(np.int8)),
  )
  def test_kinds(self, x, y):
    data, clients = _dataset(x, y)
    scale = 8 if np.asarray(_frameless(x)).dtype == np.uint8 else 1
    np.testing.assert_array_equal(data.train_features, scale * _X)
    np.testing.assert_array_equal(data.train_labels, _Y)
    self.assertEqual(data.train_features.dtype, np.float32)
    self.assertEqual(data.train_labels.dtype, np.int32)
    self.assertIsNone(clients)

  @parameterized.named_parameters(
    ('the_same', _X, _Y, (_X, _Y)),
    ('a_part', _X, _Y, (_X[1:3], _Y[1:3])),
    ('equal', _X.tolist(), _Y, (_X.copy(), _Y)),
    ('of_a_user', [(_X[:2], _Y[:2]), (_X[2:], _Y[2:])], None, (_X[3:], _Y[3:])),
    ('a_set', [_SET], None, _SET),
    ('equal_sets', [_SET], None, _SET.batch(2)),
    ('a_copied_part', _X, _Y, (_X[[4, 2, 1]], _Y[:3])),
    (
      'most_of_it',
      _X,
      _Y,
      (np.concatenate([_X, _X[:5] + 9]), np.arange(11) % 3),
    ),
    ('of_users', [(_X[:2], _Y[:2]), (_X[2:], _Y[2:])], None, (_X[::-1], _Y)),
    ('frames', _Frame(_X), _Frame(_Y), (_Frame(_X[1:3].copy()), _Y[1:3])),
  )
  def test_test_data_are_not_the_private_ones(self, x, y, test):
    with self.assertRaisesRegex(ValueError, '^test must be public data other'):
      _dataset(x, y, test)

  def test_neighbors_in_memory_are_no_examples_of_x(self):
    for x, test in ((_X[:2], _X[2:]), (_X[::2], _X[1::2])):
      data, _ = _dataset(x, _Y[: len(x)], (test, _Y[: len(test)]))
      np.testing.assert_array_equal(data.test_features, test)

  def test_what_is_twice_in_x_may_be_in_the_test(self):
    """And half of the test, by chance."""
    x = np.concatenate([_X[:2], _X[:2], _X[:1]])
    data, _ = _dataset(x, _Y[:5], (_X[:2], _Y[:2]))
    np.testing.assert_array_equal(data.test_features, _X[:2])
    _dataset(_X, _Y, (np.concatenate([_X, _X + 9]), np.tile(_Y, 2)))

  @parameterized.parameters('float32', 'float64', 'uint8', 'int64')
  def test_a_copy_is_found_whatever_its_type(self, dtype):
    x = (8 * _X[:, :3]).astype(dtype)  # Of no whole number of words.
    with self.assertRaisesRegex(ValueError, '^test must be public data other'):
      _dataset(x, _Y, (x[[1, 0]], _Y[:2]), dtype=dtype)
    _dataset(x, _Y, (x + 1, _Y), dtype=dtype)
    # As of a frame, a column after the other.
    columns = np.asfortranarray(x)
    with self.assertRaisesRegex(ValueError, '^test must be public data other'):
      _dataset(columns, _Y, (x[[1, 0]], _Y[:2]), dtype=dtype)
    _dataset(columns, _Y, (np.asfortranarray(x + 1), _Y), dtype=dtype)

  @parameterized.named_parameters(
    ('pairs', lambda part: part),
    ('sets', tf.data.Dataset.from_tensor_slices),
    ('batches', lambda part: tf.data.Dataset.from_tensor_slices(part).batch(2)),
    (
      'whole_batches',
      lambda part: tf.data.Dataset.from_tensor_slices(part).batch(1, True),
    ),
  )
  def test_users(self, make):
    users = [make((_X[:1], _Y[:1])), make((_X[1:4], _Y[1:4]))]
    data, clients = _dataset(users, None, make(_TEST))
    np.testing.assert_array_equal(data.train_features, _X[:4])
    np.testing.assert_array_equal(data.train_labels, _Y[:4])
    np.testing.assert_array_equal(data.test_features, _TEST[0])
    self.assertEqual([part.tolist() for part in clients], [[0], [1, 2, 3]])
    self.assertEqual(own_data.shape_of(users), (4,))

  @parameterized.named_parameters(
    ('integers', [7, -1, 7, 2**40, -1, 7]),
    ('huge', [2**70, 3, 2**70, 2**80, 3, 2**70]),
    ('strings', ['b', 'a', 'b', 'ccc', 'a', 'b']),
    ('of_a_tensor', tf.constant(['b', 'a', 'b', 'ccc', 'a', 'b'])),
    ('a_frame', _Frame(np.array(['b', 'a', 'b', 'c', 'a', 'b'], object))),
    ('unmasked', np.ma.masked_equal([7, 6, 7, 8, 6, 7], 0)),
  )
  def test_ids_of_users(self, user_ids):
    data, clients = _dataset(user_ids=user_ids)
    np.testing.assert_array_equal(data.train_features, _X)
    self.assertEqual(
      [part.tolist() for part in clients], [[1, 4], [0, 2, 5], [3]]
    )

  @parameterized.parameters(('ab', True), ('ba', False), ('ac', False))
  def test_columns_of_the_test(self, names, are_taken):
    x, test, other = (
      _Frame(values, columns=_Index(columns))
      for values, columns in ((_X, 'ab'), (_TEST[0], names), (_X[:2], names))
    )
    for arguments in (
      (x, _Y, (test, _TEST[1])),
      ([(x, _Y), (other, _Y[:2])], None, _TEST),
    ):
      if are_taken:
        _dataset(*arguments)
        continue
      with self.assertRaisesRegex(
        ValueError, '^test and .* must have the columns of x'
      ):
        _dataset(*arguments)

  @parameterized.parameters(([1, 2], [1, 2], True), ([1, 2], [2, 1], False))
  def test_ids_of_other_rows(self, index, index_of_ids, are_taken):
    x = _Frame(_X, _Index(index))
    user_ids = _Frame(_Y, _Index(index_of_ids))
    if are_taken:
      self.assertLen(_dataset(x, user_ids=user_ids)[1], 3)
      return
    with self.assertRaisesRegex(
      ValueError, '^users must have the same index as'
    ):
      _dataset(x, user_ids=user_ids)

  def test_labels_of_other_rows(self):
    x, other = (_Frame(values, _Index([1, 2])) for values in (_X, _TEST[0]))
    labels, moved = (_Frame(_Y, _Index(index)) for index in ([1, 2], [2, 1]))
    _dataset(x, labels, (other, labels))
    for arguments, name in (
      ((x, moved), 'y'),
      ((x, labels, (other, moved)), 'y of test'),
      (([(x, moved)], None), 'y of user 0'),
    ):
      with self.assertRaisesRegex(
        ValueError, f'^{name} must have the same index as'
      ):
        _dataset(*arguments)

  @parameterized.parameters(
    # Of one shape: an example with its one-hot label, and a batch.
    (tf.TensorSpec((3, 4)), tf.TensorSpec((3,))),
    (tf.TensorSpec((None, 4)), tf.TensorSpec((None,))),
  )
  def test_an_example_is_not_taken_for_a_batch(self, *specs):
    rng = np.random.default_rng(0)

    def elements(labels):
      return tf.data.Dataset.from_generator(
        lambda: ((rng.random([3, 4]), label) for label in labels),
        output_signature=specs,
      )

    one_hot = elements(np.eye(3)[[0, 2, 1]])
    with self.assertRaisesRegex(
      ValueError, '^x of user 0 must have batches of'
    ):
      _dataset([one_hot], None)
    data, _ = _dataset([elements(np.array([[0, 2, 1], [0, 0, 1]]))], None)
    np.testing.assert_array_equal(data.train_labels, [0, 2, 1, 0, 0, 1])

  def test_the_callers_arrays_stay_theirs(self):
    x = _X.astype(np.float32)
    data, _ = _dataset(x)
    self.assertFalse(np.shares_memory(data.train_features, x))

  @parameterized.named_parameters(
    ('text', {'x': np.array([['a']] * 6)}, r'^x must hold only numbers, got'),
    (
      'text_in_a_frame',
      {
        'x': _Frame(
          np.array([[1, 'a', 'b']] * 6, object), columns=_Index(['n', 'A', 'B'])
        )
      },
      r"^x .* numbers, got the dtype object, in the column 'A': convert",
    ),
    (
      'nan_in_a_frame',
      {
        'x': _Frame(
          np.where(_X == 9 / 8, np.nan, _X), columns=_Index(['a', 'b', 'c'])
        )
      },
      r"^x must hold finite numbers, got .* in row 2, in the column 'b'$",
    ),
    (
      'missing_in_a_frame',
      {'x': _Frame(_without(9 / 8), columns=_Index(['a', 'b', 'c']))},
      r"^x must hold finite numbers, got a missing .* row 2, .* column 'b'$",
    ),
    (
      'text_in_a_series',
      {'y': _Frame(np.array(['a'] * 6, object))},
      r'^y must hold only numbers, got the dtype object: np\.unique',
    ),
    ('ragged', {'x': [[1], [1, 2]]}, r'^x must be one array of numbers$'),
    ('nan', {'x': np.where(_X == 2, np.nan, _X)}, r'numbers, got .* in row 4$'),
    (
      'beyond',
      {'x': np.where(_X == 2, 1e300, _X)},
      r'^x must hold numbers within float32, got another value in row 4$',
    ),
    (
      'wrapped',
      {
        'x': np.where(_X == 2, 2**40, 0),
        'test': (np.zeros([6, 3], int), _Y),
        'dtype': 'int32',
      },
      r'^x must hold numbers within int32, got another value in row 4$',
    ),
    (
      'masked',
      {'x': np.ma.masked_equal(_X, 2)},
      r'^x must have no masked numbers, got some$',
    ),
    (
      'fewer',
      {'y': _Y[:5]},
      r'^y must have .* 6 examples and 5 labels$',
    ),
    ('none', {'x': _X[:0], 'y': _Y[:0]}, r'^y must have one label'),
    (
      'class',
      {'y': _Y + 1},
      r'^y must hold .* \[0, 3\), .* in row 2$',
    ),
    ('score', {'y': _Y + 0.5}, r'^y must hold class numbers .* in row 0$'),
    ('soft', {'y': np.full([6, 3], 1 / 3)}, r'^y must hold .* in row 0$'),
    ('wide', {'y': np.zeros([6, 2])}, r'one-dimensional, got shape \(6, 2\)$'),
    ('test', {'test': (_X[:, :2], _Y)}, r'^x must have examples of one shape'),
    ('test_label', {'test': (_X, -_Y)}, r'^y of test must hold .* in row 1$'),
    ('test_alone', {'test': _X}, r'^x of test must be a pair'),
    ('not_whole', {'dtype': 'int32'}, r'^x of test must hold whole numbers'),
    ('no_labels', {'y': None}, r'^y must be the labels of x, or x a list'),
    (
      'in_a_pair',
      {'x': (_X, _Y), 'y': None},
      r'^y must be given as an argument',
    ),
    ('user', {'x': [(_X, _Y), _X], 'y': None}, r'^x of user 1 must be a pair'),
    (
      'user_label',
      {'x': [(_X, _Y), (_X, -_Y)], 'y': None},
      r'^y of user 1 must hold class numbers in \[0, 3\), .* in row 1$',
    ),
    ('few_ids', {'user_ids': [1, 2]}, r'^users must .* 6 examples, .* \(2,\)$'),
    ('ids_of_rows', {'user_ids': _X}, r'^users must have .* shape \(6, 4\)$'),
    ('ragged_ids', {'user_ids': [[1], [1, 2]]}, r'^users must .* \(2,\)$'),
    (
      'ids_of_rows_in_a_list',
      {'user_ids': [np.zeros(2), np.zeros([2, 2])]},
      r'^users must be one array of ids$',
    ),
    ('real_ids', {'user_ids': _Y / 2}, r'^users must be all .* float64$'),
    ('flags', {'user_ids': _Y == 1}, r'^users must be all .* dtype bool$'),
    (
      'ids_of_two_kinds',
      {'user_ids': np.array([1, 1, 'a', 2, 1, 1], object)},
      r'^users must be all integers or all strings, .* in row 2$',
    ),
    *(
      (
        f'ids_of_two_kinds_in_a_list_{number}',
        {'user_ids': [one, other, *[other] * 4]},
        r'^users must be all integers or all strings, .* in row [01]$',
      )
      for number, (one, other) in enumerate(
        [(1, '1'), ('a', b'a'), ('a', math.nan), (1.5, '1.5'), (1, True)]
      )
    ),
    (
      'no_id',
      {'user_ids': _Frame(np.array(['a', 'b', 'a', None, 'a', 'b'], object))},
      r'^users must be all .* in row 3$',
    ),
    (
      'masked_id',
      {'user_ids': np.ma.masked_equal([1, 1, 1, 1, 2, 1], 2)},
      r'^users must be all .* in row 4$',
    ),
    (
      'ids_with_a_list',
      {'x': [(_X, _Y)], 'y': None, 'user_ids': [1]},
      r'^users must be a number or left out if x is a list with an',
    ),
    (
      'a_set_of_all_users',
      {'x': _SET.shuffle(6), 'y': None},
      r'^y must be the labels of x, or x a list .* None and _ShuffleDataset$',
    ),
    (
      'ids_with_a_set',
      {'x': _SET.shuffle(6), 'y': None, 'user_ids': _Y},
      r'^y must be the labels of x, or x a list .* None and _ShuffleDataset$',
    ),
    (
      'endless',
      {
        'x': [tf.data.Dataset.from_tensor_slices(_TEST).repeat()],
        'y': None,
      },
      r'^x of user 0 must be finite, got a tf.data.Dataset that repeats$',
    ),
    (
      'of_several_shapes',
      {'x': [_of_shapes(4, 4, 3)], 'y': None},
      r'^x of user 0 must be a tf.data.Dataset that can be read, .* got Inv',
    ),
    (
      'batches_of_several_shapes',
      {'x': [_of_shapes(4, 3, batches=True)], 'y': None},
      r'^x of user 0 must hold examples of one shape, got several$',
    ),
    (
      'no_pairs',
      {'x': [tf.data.Dataset.from_tensor_slices(_X)], 'y': None},
      r'^x of user 0 must be a tf.data.Dataset of \(example, label\), which',
    ),
  )
  def test_refused(self, arguments, text):
    with self.assertRaisesRegex(ValueError, text):
      _dataset(**arguments)


class ShapeTest(parameterized.TestCase):
  @parameterized.parameters(
    ([np.zeros([5, 2]), np.zeros([5, 3])], 'of one shape, got several shapes'),
    ({'a': [1]}, '^x must hold examples, one array of them, got dict$'),
    (
      _ClientData(),
      '^x must be a list with .* _ClientData: use .x.create_tf_dataset_for_',
    ),
  )
  def test_what_has_none(self, x, message):
    with self.assertRaisesRegex(ValueError, message):
      own_data.shape_of(x, np.zeros(5))


def _frameless(value):
  for name in ('to_numpy', 'toarray'):
    value = getattr(value, name, lambda value=value: value)()
  return value


if __name__ == '__main__':
  absltest.main()
