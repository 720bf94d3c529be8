"""Encodes arrays as bytes with a checksum, for checkpoints and caches.

  SHA-256 of all that follows, 32 bytes
  length of the table in bytes, 8 bytes, little-endian
  the table, in JSON: [notes, [[name, NumPy dtype, shape], ...]]
  the arrays in that order, without gaps, in C order

Nothing is unpickled. NumPy archives (`.npz`) take three times as long to write,
and their checksums do not cover everything.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

_DIGEST = 32
_LENGTH = 8


def encoded(arrays: Mapping[str, np.ndarray], notes: Any = None) -> bytes:
  """Encodes arrays by name as bytes.

  Args:
    arrays: Arrays of numbers, or of texts of a fixed length.
    notes: A JSON value to store with them.

  Raises:
    TypeError: If an array holds objects.
  """
  table, parts = [], []
  for name, array in arrays.items():
    if array.dtype.hasobject:
      raise TypeError(f'{name} must be an array of numbers or strings')
    table.append([name, array.dtype.str, array.shape])
    parts.append(array.tobytes())
  head = json.dumps([notes, table]).encode()
  content = b''.join((len(head).to_bytes(_LENGTH, 'little'), head, *parts))
  return b''.join((hashlib.sha256(content).digest(), content))


def decoded(content: bytes) -> tuple[dict[str, np.ndarray], Any]:
  """The inverse of `encoded`; the content may be damaged.

  Returns:
    The arrays, which are read-only, and the notes.

  Raises:
    ValueError: If the content is not a result of `encoded`.
  """
  rest = memoryview(content)[_DIGEST:]
  if hashlib.sha256(rest).digest() != content[:_DIGEST]:
    raise ValueError('it is damaged: its checksum does not match its content')
  try:
    end = _LENGTH + int.from_bytes(rest[:_LENGTH], 'little')
    notes, table = json.loads(bytes(rest[_LENGTH:end]))
    arrays: dict[str, np.ndarray] = {}
    for name, text, shape in table:
      dtype = np.dtype(text)
      if dtype.hasobject:
        raise ValueError('it holds objects')
      arrays[name] = np.ndarray(shape, dtype, rest, end)
      end += arrays[name].nbytes
  except (TypeError, OverflowError, RecursionError) as error:
    raise ValueError(f'it is not a file of arrays: {error}') from error
  if end != len(rest):
    raise ValueError(f'it holds {len(rest) - end} bytes too many')
  return arrays, notes
