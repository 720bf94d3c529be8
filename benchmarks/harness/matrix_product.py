"""A large product of matrices as a program of the benchmark.

What it reaches is the machine's peak, to hold the rounds against. A `round` is
one product; there is nothing else to it.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib


class MatrixProduct(program_lib.Program):
  """float32, square, in TensorFlow."""

  def __init__(self):
    shape = [work_lib.MATRIX_SIZE] * 2
    self._factors = [tf.random.uniform(shape, seed=i) for i in (1, 2)]

  def reset(self, noise_stddev: float) -> None:
    """Nothing is kept."""

  def round(self, round_number: int) -> None:
    """One product."""
    tf.linalg.matmul(*self._factors)[0, 0].numpy()

  def weights(self) -> list[np.ndarray]:
    """None."""
    return []


if __name__ == '__main__':
  server = program_lib.start('')
  server.serve(MatrixProduct(), tensorflow=tf.__version__)
