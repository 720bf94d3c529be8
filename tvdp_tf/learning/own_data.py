"""Converts arrays, data frames and `tf.data` data sets to users with data.

The training data are inspected only to refuse invalid values. The number of
classes is taken from the model.
"""

import itertools
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import datasets, own_arrays

# Number of examples; each value takes 8 bytes while they are hashed.
_HASHED_AT_ONCE = 1024


def shape_of(x: Any, y: Any = None) -> tuple[int, ...]:
  """Shape of one example of `dataset`'s x and y, before they are checked.

  Raises:
    ValueError: If there is no example.
  """
  first = x
  if y is None and isinstance(x, (list, tuple)):
    if not x:
      raise ValueError('x must hold examples, got an empty list')
    first = x[0]
    if isinstance(first, (list, tuple)) and len(first) == 2:
      first = first[0]
  if isinstance(first, tf.data.Dataset):
    features, batched = _elements('x', first)
    return tuple(features.shape[1 if batched else 0 :])
  if hasattr(first, 'create_tf_dataset_for_client'):
    raise ValueError(
      f'x must be a list with the tf.data.Dataset of each client, got'
      f' {type(first).__name__}: use'
      ' [x.create_tf_dataset_for_client(c) for c in x.client_ids]'
    )
  try:
    shape = np.shape(first)
  except ValueError:
    raise ValueError(
      'x must hold examples of one shape, got several shapes: put several'
      ' inputs into one array with all columns'
    ) from None
  if not shape:
    raise ValueError(
      f'x must hold examples, one array of them, got {type(first).__name__}'
    )
  return tuple(shape[1:])


def dataset(
  x: Any,
  y: Any,
  test: Any,
  num_classes: int,
  dtype: np.dtype,
  user_ids: Any = None,
) -> tuple[datasets.Dataset, list[np.ndarray] | None]:
  """Builds a data set from the caller's data.

  Args:
    x: Examples [n, ...] of all users, as an array, a data frame or the like; or
      a list with one entry per user: a pair of such examples and labels, or a
      `tf.data.Dataset` of (example, label), batched or not.
    y: Labels [n] of the examples of all users, in [0, num_classes), or one-hot
      [n, num_classes]; None with a list of users.
    test: Public test data: a pair or a `tf.data.Dataset` as above.
    num_classes: Number of classes.
    dtype: Dtype of the examples.
    user_ids: [n], the user of each example: integers or strings. None to deal
      the examples out to users, or with a list of users.

  Returns:
    The data set; and for each user the indices of its examples, in the order of
    the list or of the sorted ids, or None if they are to be dealt out.

  Raises:
    ValueError: If the data have another form, or the test data are part of x.
      The message shows no values.
  """
  if test is None:
    raise ValueError(
      'test must be public examples and labels, (xt, yt), got None: their loss'
      ' and accuracy are shown without noise'
    )
  test_features, test_labels = _part('of test', test, num_classes, dtype)
  clients: list[np.ndarray] | None = None
  is_pair = isinstance(x, tuple) and len(x) == 2
  if y is None and is_pair and all(hasattr(part, 'shape') for part in x):
    raise ValueError(
      'y must be given as an argument of its own, got x and y in a pair'
    )
  if y is not None:
    parts = [_part('', (x, y), num_classes, dtype)]
    if user_ids is not None:
      _check_index('users', x, user_ids)
      clients = _by_user(user_ids, len(parts[0][1]))
  else:
    # Not one `tf.data.Dataset` of all users: its order may change each time it
    # is read, as in a resumed run, which would give an example another user.
    if not isinstance(x, (list, tuple)) or not len(x):
      raise ValueError(
        'y must be the labels of x, or x a list with (examples, labels) or a'
        f' tf.data.Dataset for each user, got None and {type(x).__name__}'
      )
    if user_ids is not None:
      raise ValueError(
        'users must be a number or left out if x is a list with an entry for'
        ' each user, got ids'
      )
    parts = [
      _part(f'of user {user}', part, num_classes, dtype)
      for user, part in enumerate(x)
    ]
    ends = np.cumsum([0, *(len(labels) for _, labels in parts)])
    clients = [np.arange(*pair) for pair in itertools.pairwise(ends)]
  for features, _ in [*parts, (test_features, test_labels)]:
    if features.shape[1:] != parts[0][0].shape[1:]:
      raise ValueError(
        'x must have examples of one shape, for all users and the test, got '
        f'{parts[0][0].shape[1:]} and {features.shape[1:]}'
      )
  private = [x] if y is not None else [_examples_of(part) for part in x]
  _check_columns([*private, _examples_of(test)])
  train_features = np.concatenate([features for features, _ in parts])
  if (
    any(_share_memory(given, _examples_of(test)) for given in private)
    or any(np.array_equal(features, test_features) for features, _ in parts)
    or _are_mostly_of(train_features, test_features)
  ):
    raise ValueError(
      'test must be public data other than x, because their loss and accuracy'
      ' are shown without noise, got examples of x'
    )
  return datasets.Dataset(
    datasets.OWN,
    train_features,
    np.concatenate([labels for _, labels in parts]),
    test_features,
    test_labels,
    num_classes,
  ), clients


def _examples_of(part: Any) -> Any:
  """Returns the examples of a part, in the form they were given."""
  return part[0] if isinstance(part, (list, tuple)) else part


def _share_memory(one: Any, other: Any) -> bool:
  """Whether two objects are the same, or are known to share memory."""
  if one is other:
    return True
  if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
    return False
  try:
    return np.shares_memory(one, other, max_work=10**5)
  except np.exceptions.TooHardError:
    return False  # Unusual strides.


def _are_mostly_of(examples: np.ndarray, test: np.ndarray) -> bool:
  """Whether most of the test data are copies of examples.

  A single duplicate proves nothing: in a table with few columns and few values,
  different rows may be equal.
  """
  found, counts = np.unique(_hashes(examples), return_counts=True)
  return np.isin(_hashes(test), found[counts == 1]).mean() > 0.5


def _hashes(examples: np.ndarray) -> np.ndarray:
  """Hashes each example to a number, uint64 [n]."""
  # A frame stores its data by column.
  flat = np.ascontiguousarray(examples).reshape(len(examples), -1)
  flat = flat.view(np.uint8 if flat.itemsize % 4 else np.uint32)
  rng = np.random.default_rng(0)
  factors = rng.integers(2**63, size=flat.shape[1], dtype=np.uint64) * 2 + 1
  hashes = np.empty(len(flat), np.uint64)
  for start in range(0, len(flat), _HASHED_AT_ONCE):
    part = slice(start, start + _HASHED_AT_ONCE)
    hashes[part] = (flat[part] * factors).sum(axis=1)  # Modulo 2^64.
  return hashes


def _part(
  whose: str, part: Any, num_classes: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (features, labels) of a user, or of the test data."""
  if isinstance(part, tf.data.Dataset):
    part = _read(f'x {whose}'.strip(), part, num_classes)
  if not isinstance(part, (list, tuple)) or len(part) != 2:
    raise ValueError(
      f'{f"x {whose}".strip()} must be a pair of examples and labels, or a'
      f' tf.data.Dataset, got {type(part).__name__}'
    )
  x, y = f'x {whose}'.strip(), f'y {whose}'.strip()
  _check_index(y, *part)
  features = own_arrays.features(x, part[0], dtype)
  labels = own_arrays.labels(y, part[1], num_classes)
  if len(features) != len(labels) or not len(labels):
    raise ValueError(
      f'{y} must have one label for each example, and at least one, got'
      f' {len(features)} examples and {len(labels)} labels'
    )
  return features, labels


def _check_index(name: str, x: Any, column: Any) -> None:
  """Refuses a column whose pandas index differs from that of x."""
  indices: list[Any] = [getattr(given, 'index', None) for given in (x, column)]
  known = [index for index in indices if hasattr(index, 'equals')]
  if len(known) == 2 and not known[0].equals(known[1]):
    raise ValueError(
      f'{name} must have the same index as its examples, so that each value'
      ' belongs to its row, got another index'
    )


def _check_columns(examples: Sequence[Any]) -> None:
  """Refuses frames whose columns differ in names or order."""
  columns: list[Any] = [getattr(one, 'columns', None) for one in examples]
  known = [names for names in columns if hasattr(names, 'equals')]
  if any(not names.equals(known[0]) for names in known[1:]):
    raise ValueError(
      'test and the examples of every user must have the columns of x, in the'
      ' same order, got frames with others'
    )


def _by_user(user_ids: Any, count: int) -> list[np.ndarray]:
  """Returns the indices of each user's examples, in order of sorted ids."""
  if hasattr(user_ids, 'to_numpy'):  # A column of a frame.
    user_ids = user_ids.to_numpy()
  try:
    # NumPy would make strings of a list in which there is one: [1, '1'].
    as_given = None if hasattr(user_ids, 'dtype') else object
    ids = np.ma.asarray(user_ids, as_given)
  except (TypeError, ValueError):
    raise ValueError('users must be one array of ids') from None
  if ids.shape != (count,):
    raise ValueError(
      f'users must have an id for each of the {count} examples, got an array of'
      f' the shape {ids.shape}'
    )
  kinds: Any = (numbers.Integral, str, bytes)
  if ids.dtype == object:
    kinds = next((kind for kind in kinds if isinstance(ids[0], kind)), kinds)
    wrong = np.array(
      [isinstance(one, bool) or not isinstance(one, kinds) for one in ids]
    )
  elif ids.dtype.kind not in 'iuUS':
    raise ValueError(
      'users must be all integers or all strings, the id of the user of each'
      f' example, got the dtype {ids.dtype}'
    )
  else:
    wrong = np.zeros(count, bool)
  wrong |= np.ma.getmaskarray(ids)
  if wrong.any():
    raise ValueError(
      'users must be all integers or all strings, the id of the user of each'
      f' example, got another value in row {np.argmax(wrong)}'
    )
  _, users = np.unique(np.asarray(ids), return_inverse=True)
  order = np.argsort(users, kind='stable')
  return np.split(order, np.cumsum(np.bincount(users))[:-1])


def _elements(name: str, data: tf.data.Dataset) -> tuple[tf.TensorSpec, bool]:
  """Returns (spec of the examples, whether they come in batches)."""
  spec = data.element_spec
  if (
    not isinstance(spec, tuple)
    or len(spec) != 2
    or not all(isinstance(part, tf.TensorSpec) for part in spec)
    or spec[0].shape.rank is None
  ):
    raise ValueError(
      f'{name} must be a tf.data.Dataset of (example, label), which its map'
      f' can return, got elements {" ".join(str(spec).split())[:200]}'
    )
  if data.cardinality() == tf.data.INFINITE_CARDINALITY:
    raise ValueError(
      f'{name} must be finite, got a tf.data.Dataset that repeats'
    )
  # A batch has an unknown size, or a vector of labels.
  labels = spec[1].shape
  return spec[0], labels.rank == 2 or (
    labels.rank == 1 and (labels[0] is None or labels[0] == spec[0].shape[0])
  )


def _read(
  name: str, data: tf.data.Dataset, num_classes: int
) -> tuple[Any, Any]:
  _, batched = _elements(name, data)
  if not batched:
    data = data.batch(1024)
  try:
    batches = list(data.as_numpy_iterator())
  except tf.errors.OpError as error:
    raise ValueError(
      f'{name} must be a tf.data.Dataset that can be read, of examples of one'
      f' shape, got {type(error).__name__}'
    ) from error
  if not batches:
    raise ValueError(f'{name} must have examples, got none')
  features, labels = zip(*batches, strict=True)
  if batched and all(
    row.shape == (num_classes,) and np.isin(row, (0, 1)).all() for row in labels
  ):
    # Privacy protects whole examples, not single rows within one.
    raise ValueError(
      f'{name} must have batches of another size, or labels that are class'
      f' numbers, got {num_classes} zeros and ones with each element, which'
      ' may be the one-hot label of one example or the labels of a batch'
    )
  if len({rows.shape[1:] for rows in features}) > 1:
    raise ValueError(f'{name} must hold examples of one shape, got several')
  return np.concatenate(features), np.concatenate(labels)
