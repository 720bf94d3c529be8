"""Checks what a user's loader of a data set returns.

The text of an error shows no values: some of them are private.
"""

from typing import Any

import numpy as np

from tvdp_tf import errors
from tvdp_tf.learning import on_disk

_PARTS = ('train', 'test')


def _fail(name: str, problem: str) -> errors.DatasetUnavailableError:
  return errors.DatasetUnavailableError(f'data set {name} {problem}')


def _array(name: str, part: str, value: Any) -> np.ndarray:
  try:
    array = np.asarray(value)
  except (TypeError, ValueError):
    array = np.array(None)
  if array.dtype.kind not in 'biuf':
    raise _fail(
      name, f'must have numbers as {part}, got {type(value).__name__}'
    )
  return array


def _features(name: str, part: str, value: Any) -> Any:
  if isinstance(value, on_disk.Examples):
    return value
  array = _array(name, part, value)
  if array.ndim < 2 or not array.size:
    raise _fail(
      name, f'must have {part} [n, ...], got the shape {list(array.shape)}'
    )
  with np.errstate(over='ignore'):
    array = array.astype(np.float32, copy=False)
  finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
  if not finite.all():
    raise _fail(
      name,
      f'must have finite float32 numbers as {part}, got others in row'
      f' {np.argmin(finite)}',
    )
  return array


def _labels(
  name: str, part: str, value: Any, count: int, num_classes: int
) -> np.ndarray:
  array = _array(name, part, value)
  if array.shape != (count,):
    raise _fail(
      name,
      f'must have {part} [{count}], one for each example, got the shape'
      f' {list(array.shape)}',
    )
  wrong = (array < 0) | (array >= num_classes) | (array != np.floor(array))
  if wrong.any():
    raise _fail(
      name,
      f'must have class numbers in [0, {num_classes}) as {part}, got another'
      f' in row {np.argmax(wrong)}',
    )
  return array.astype(np.int32)


def checked(name: str, found: Any) -> dict[str, Any]:
  """The fields of a `datasets.Dataset`, of the dtypes that it should have.

  Args:
    name: Of the data set.
    found: The `Dataset`.

  Raises:
    DatasetUnavailableError: If its features or labels cannot be used.
  """
  parts = [f'{one}_{two}' for one in _PARTS for two in ('features', 'labels')]
  if not all(
    hasattr(found, field) for field in (*parts, 'name', 'num_classes')
  ):
    raise _fail(name, f'must be a datasets.Dataset, got {type(found).__name__}')
  num_classes = found.num_classes
  if not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
    raise _fail(
      name, f'must have num_classes of at least 2, got {num_classes!r}'
    )
  fields: dict[str, Any] = {'name': found.name, 'num_classes': int(num_classes)}
  for part in _PARTS:
    features, labels = f'{part}_features', f'{part}_labels'
    fields[features] = _features(name, features, getattr(found, features))
    fields[labels] = _labels(
      name,
      labels,
      getattr(found, labels),
      len(fields[features]),
      fields['num_classes'],
    )
  shapes = [list(fields[f'{part}_features'].shape[1:]) for part in _PARTS]
  if shapes[0] != shapes[1]:
    raise _fail(
      name,
      f'must have examples of one shape in training and test, got {shapes[0]}'
      f' and {shapes[1]}',
    )
  return fields
