"""Arrays whose memory TensorFlow can use without a copy.

TensorFlow copies any other array, which would hold all the users' data in
memory twice.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# What TensorFlow's widest instructions ask for (EIGEN_MAX_ALIGN_BYTES).
ALIGNMENT_BYTES = 64
# By number of bytes: what `claim` has got.
_claimed: dict[int, np.ndarray[Any, Any]] = {}


def _memory(num_bytes: int) -> np.ndarray[Any, Any]:
  return np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)


def claim(num_bytes: int) -> None:
  """Gets memory for an array of that size that will soon be made.

  The system clears a page when it is first touched: half a second for 200 MB in
  some virtual machines. A thread can do so while others import.
  """
  memory = _memory(num_bytes)
  memory[::4096] = 0
  _claimed[num_bytes] = memory


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray[Any, Any]:
  """Like `np.empty`, but it begins at a multiple of `ALIGNMENT_BYTES`."""
  num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
  memory = _claimed.pop(num_bytes, None)
  if memory is None:
    memory = _memory(num_bytes)
  start = -memory.ctypes.data % ALIGNMENT_BYTES
  return memory[start : start + num_bytes].view(dtype).reshape(shape)
