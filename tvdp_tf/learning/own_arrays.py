"""Checks features and labels from a caller or from a caller's loader.

Error messages show no values, because some of them are private.
"""

import numbers
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.learning import on_disk


def _column(frame: Any, place: int) -> str:
  """Describes a frame's column for an error message."""
  columns = getattr(frame, 'columns', None)
  if columns is None:
    return ''
  return f', in the column {_validate.quoted(columns[place])}'


def _cure_for_no_numbers(array: np.ndarray, frame: Any) -> str:
  """Names a frame's first column without numbers, and says what to do."""
  if getattr(frame, 'columns', None) is None:
    if array.ndim != 1:
      return ''
    return ': np.unique(values, return_inverse=True)[1] numbers its values'
  for place, dtype in enumerate(frame.dtypes):
    if getattr(dtype, 'kind', 'O') not in 'biuf':
      return f'{_column(frame, place)}: convert its categories to numbers'
  return ''


def _is_number(value: Any) -> bool:
  return isinstance(value, (numbers.Real, np.bool_))


def _is_missing(value: Any) -> bool:
  """Whether an object stands for a missing number, as in a frame."""
  return value is None or type(value).__name__ in ('NAType', 'NaTType')


def _check_all(name: str, kind: str, allowed: np.ndarray, frame: Any) -> None:
  """Refuses an array in which not all values are allowed."""
  if not allowed.all():
    row, *places = (axis[0] for axis in np.nonzero(~allowed))
    column = _column(frame, places[0]) if len(places) == 1 else ''
    raise ValueError(
      f'{name} must hold finite numbers, got {kind} in row {row}{column}'
    )


def _array(name: str, value: Any) -> np.ndarray:
  frame = value
  if hasattr(value, 'to_numpy'):  # A data frame, or a column of one.
    value = value.to_numpy()
  elif hasattr(value, 'toarray'):  # A SciPy sparse matrix.
    value = value.toarray()
  if np.ma.is_masked(value):
    raise ValueError(f'{name} must have no masked numbers, got some')
  try:
    array = np.asarray(value)
  except (TypeError, ValueError):
    raise ValueError(f'{name} must be one array of numbers') from None
  if array.dtype == object:
    missing = np.array([_is_missing(one) for one in array.flat], bool)
    others = array.ravel()[~missing]
    if all(map(_is_number, others)):
      missing = missing.reshape(array.shape)
      _check_all(name, 'a missing value', ~missing, frame)
      array = array.astype(np.float64)  # A frame with columns of several types.
  if array.dtype.kind not in 'biuf':
    raise ValueError(
      f'{name} must hold only numbers, got the dtype'
      f' {array.dtype}{_cure_for_no_numbers(array, frame)}'
    )
  if not array.ndim:
    raise ValueError(f'{name} must hold examples, got a single number')
  if array.dtype.kind == 'f':
    _check_all(name, 'another value', np.isfinite(array), frame)
  return array


def features(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
  """Copies and checks examples [n, ...].

  Args:
    name: Name of the value, for error messages.
    value: An array, a data frame or the like.
    dtype: Dtype of the model's input.

  Raises:
    ValueError: If a number is not finite, or does not fit `dtype`.
  """
  array = _array(name, value)
  if array.dtype.kind == 'f' and dtype.kind != 'f':
    raise ValueError(
      f'{name} must hold whole numbers for a model of {dtype}, got the dtype '
      f'{array.dtype}'
    )
  # A copy, because the caller may change the original.
  with np.errstate(all='ignore'):
    copy = np.array(array, dtype)
  kept = np.isfinite(copy) if dtype.kind == 'f' else copy == array
  if not kept.all():
    raise ValueError(
      f'{name} must hold numbers within {dtype}, got another value in row'
      f' {np.argmin(kept.reshape(len(kept), -1).all(axis=1))}'
    )
  return copy


def labels(name: str, value: Any, num_classes: int) -> np.ndarray:
  """Checks labels and returns them as class numbers, int32 [n].

  Args:
    name: Name of the value, for error messages.
    value: Class numbers [n] or [n, 1], or one-hot [n, num_classes].
    num_classes: How many classes there are.

  Raises:
    ValueError: If it is something else.
  """
  array = _array(name, value)
  allowed = f'{name} must hold class numbers in [0, {num_classes})'
  if array.ndim == 2 and array.shape[1] == num_classes:
    ones = array == 1
    wrong = (ones.sum(axis=1) != 1) | ((array != 0) != ones).any(axis=1)
    array = ones.argmax(axis=1)
  else:
    if array.ndim == 2 and array.shape[1] == 1:
      array = array[:, 0]
    if array.ndim != 1:
      raise ValueError(f'{allowed}, one-dimensional, got shape {array.shape}')
    wrong = (array < 0) | (array >= num_classes) | (array != np.floor(array))
  if wrong.any():
    raise ValueError(f'{allowed}, got another value in row {np.argmax(wrong)}')
  return array.astype(np.int32)


def dataset_fields(found: Any) -> dict[str, Any]:
  """Checks the fields of a `datasets.Dataset` from a caller's loader.

  Args:
    found: The `Dataset`.

  Raises:
    ValueError: If a field cannot be used.
  """
  fields: dict[str, Any] = {
    'name': found.name,
    'num_classes': _validate.integer('num_classes', found.num_classes, 2),
  }
  for part in ('train', 'test'):
    of_features, of_labels = f'{part}_features', f'{part}_labels'
    examples = getattr(found, of_features)
    if not isinstance(examples, on_disk.Examples):
      examples = features(of_features, examples, np.dtype(np.float32))
    classes = labels(
      of_labels, getattr(found, of_labels), fields['num_classes']
    )
    if len(classes) != len(examples) or not len(classes):
      raise ValueError(
        f'{of_labels} must have one label for each example, and at least one,'
        f' got {len(examples)} examples and {len(classes)} labels'
      )
    fields |= {of_features: examples, of_labels: classes}
  shapes = [fields[f'{part}_features'].shape[1:] for part in ('train', 'test')]
  if shapes[0] != shapes[1] or not shapes[0]:
    raise ValueError(
      'train_features and test_features must be [n, ...], with examples of one'
      f' shape, got {shapes[0]} and {shapes[1]}'
    )
  return fields
