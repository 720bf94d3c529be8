"""Arrays whose memory TensorFlow can use as it is.

A tensor made of any other array is a copy of it: of all the users' data, the
second one in memory.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# What TensorFlow's widest instructions ask for (EIGEN_MAX_ALIGN_BYTES).
ALIGNMENT_BYTES = 64


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> np.ndarray[Any, Any]:
  """Like `np.empty`, but it begins at a multiple of `ALIGNMENT_BYTES`."""
  num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
  memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
  start = -memory.ctypes.data % ALIGNMENT_BYTES
  return memory[start : start + num_bytes].view(dtype).reshape(shape)
