"""Arrays whose memory TensorFlow can use without a copy.

TensorFlow copies arrays that are not aligned, which would keep all the users'
data in memory twice.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Required by TensorFlow's widest instructions (EIGEN_MAX_ALIGN_BYTES).
ALIGNMENT_BYTES = 64
# Number of bytes -> the memory that `claim` has allocated.
_claimed: dict[int, np.ndarray[Any, Any]] = {}


def _memory(num_bytes: int) -> np.ndarray[Any, Any]:
  return np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)


def claim(num_bytes: int) -> None:
  """Allocates memory ahead of time for an array of that size.

  The system clears a page when it is first touched, which takes half a second
  for 200 MB on some virtual machines. A thread can do this during imports.
  """
  memory = _memory(num_bytes)
  memory[::4096] = 0
  _claimed[num_bytes] = memory


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray[Any, Any]:
  """Like `np.empty`, but aligned to a multiple of `ALIGNMENT_BYTES`."""
  num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
  memory = _claimed.pop(num_bytes, None)
  if memory is None:
    memory = _memory(num_bytes)
  start = -memory.ctypes.data % ALIGNMENT_BYTES
  return memory[start : start + num_bytes].view(dtype).reshape(shape)
