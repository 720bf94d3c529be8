"""Checks values from outside, with error messages of one line.

Every function returns the checked value in its plain Python type. It raises a
`ValueError` that states the name, the value, and what is allowed.
"""

import contextlib
import math
import os
import pathlib
import reprlib
from collections.abc import Callable, Collection
from typing import Any

# An error is one line on a terminal, whatever a damaged file holds.
_QUOTES = reprlib.Repr()
_QUOTES.maxstring = _QUOTES.maxother = 100


def quoted(value: Any) -> str:
  """The value, shortened to one line; NumPy numbers appear as Python's."""
  if type(value).__module__ == 'numpy' and getattr(value, 'ndim', None) == 0:
    value = value.item()
  return ' '.join(_QUOTES.repr(value).split('\n'))


# Their elements are numbers: the codes of characters.
TEXT = (str, bytes, bytearray, memoryview)


def failure(error: BaseException) -> str:
  """Describes an error of code from elsewhere, in one line."""
  return f'{type(error).__name__}: {" ".join(str(error).split())[:200]}'


def _number(
  name: str, value: Any, allowed: str, fits: Callable[[float], bool]
) -> float:
  # NumPy would convert its flags, texts and complex numbers.
  kind = getattr(getattr(value, 'dtype', None), 'kind', 'f')
  number = math.nan
  if not isinstance(value, (bool, *TEXT)) and kind in 'iuf':
    with contextlib.suppress(TypeError, ValueError, OverflowError):
      number = float(value)
  if not fits(number):
    raise ValueError(f'{name} must be {allowed}, got {quoted(value)}')
  return number


def not_text(name: str, values: Any) -> Any:
  """Numbers in any form but text, which is iterated over as numbers, too."""
  if isinstance(values, TEXT):
    raise ValueError(f'{name} must be numbers, got {quoted(values)}')
  return values


def positive(name: str, value: Any) -> float:
  """A finite number above zero."""
  return _number(name, value, 'a finite number > 0', lambda x: 0 < x < math.inf)


def non_negative(name: str, value: Any) -> float:
  """A finite number, zero or above."""
  return _number(
    name, value, 'a finite number >= 0', lambda x: 0 <= x < math.inf
  )


def open_unit(name: str, value: Any) -> float:
  """A number strictly between 0 and 1 (a delta, a contraction)."""
  allowed = 'a number strictly between 0 and 1'
  return _number(name, value, allowed, lambda x: 0 < x < 1)


def rate(name: str, value: Any) -> float:
  """A number in (0, 1] (a sampling rate)."""
  return _number(name, value, 'a number in (0, 1]', lambda x: 0 < x <= 1)


def integer(
  name: str, value: Any, minimum: int = 1, maximum: int | None = None
) -> int:
  """An integer in [minimum, maximum]; neither 3.0 nor True is one."""
  allowed = (
    f'an integer >= {minimum}'
    if maximum is None
    else f'an integer from {minimum} to {maximum}'
  )
  try:
    number = value.__index__()
  except (AttributeError, TypeError):
    number = None
  if isinstance(value, bool) or number is None or number < minimum:
    raise ValueError(f'{name} must be {allowed}, got {quoted(value)}')
  if maximum is not None and number > maximum:
    raise ValueError(f'{name} must be {allowed}, got {quoted(value)}')
  return number


def one_of(
  name: str, value: Any, allowed: Collection[str], condition: str = ''
) -> str:
  """One of a closed set of words; `condition` says if it was narrowed."""
  if not isinstance(value, str) or value not in allowed:
    raise ValueError(
      f'{name} must be one of {", ".join(allowed)}{condition}, got'
      f' {quoted(value)}'
    )
  return value


def path(name: str, value: Any) -> pathlib.Path:
  """A path: a string or an `os.PathLike`; a leading ~ is the home folder."""
  if not isinstance(value, (str, os.PathLike)):
    raise ValueError(f'{name} must be a path, got {quoted(value)}')
  return pathlib.Path(os.path.expanduser(value))
