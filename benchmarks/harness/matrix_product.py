"""Products of matrices as programs of the benchmark.

Forms:

  matmul    a round is one product of two large matrices, on all cores. What it
            reaches is the machine's peak, to hold the rounds against.
  products  the products that a round of a dense model cannot do without, in
            TensorFlow, with nothing else: what is left for all the rest. As in
            our runtime each core has a client of its own at a time.
"""

import concurrent.futures
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib

# So little of the gradients that the weights stay as large as they are.
_LEARNING_RATE = 1e-9


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


def _step(kernels: list[tf.Tensor], features: tf.Tensor) -> list[tf.Tensor]:
  """The products of one step of linear layers whose loss is half a square.

  The kernels move by next to nothing: TensorFlow would compute equal products
  once.
  """
  inputs = [features]
  for kernel in kernels:
    inputs.append(tf.linalg.matmul(inputs[-1], kernel))
  delta = inputs.pop()
  gradients: list[tf.Tensor] = []
  for layer in reversed(range(len(kernels))):
    gradients.insert(
      0, tf.linalg.matmul(inputs[layer], delta, transpose_a=True)
    )
    if layer:  # The first one's input is the data.
      delta = tf.linalg.matmul(delta, kernels[layer], transpose_b=True)
  return [
    kernel - _LEARNING_RATE * gradient
    for kernel, gradient in zip(kernels, gradients, strict=True)
  ]


class RoundProducts(program_lib.Program):
  """The products of the rounds of a work with dense layers."""

  def __init__(self, server: program_lib.Server):
    self._work = server.work
    self._features = [tf.constant(features) for features in server.features]
    self._kernels = list(map(tf.constant, self._work.initial_weights()[::2]))
    self._pool = concurrent.futures.ThreadPoolExecutor(
      len(os.sched_getaffinity(0))
    )

    @tf.function(autograph=False)
    def client(features):
      kernels = self._kernels
      for _ in range(self._work.local_steps):
        kernels = _step(kernels, features)
      return kernels

    self._client = client.get_concrete_function(
      tf.TensorSpec([None, *self._work.input_shape])
    )

  def reset(self, noise_stddev: float) -> None:
    """Nothing is kept."""

  def round(self, round_number: int) -> None:
    """A cohort's products."""
    cohort = [self._features[i] for i in self._work.cohort(round_number)]
    for kernels in self._pool.map(self._client, cohort):
      kernels[0][0, 0].numpy()

  def weights(self) -> list[np.ndarray]:
    """None."""
    return []


def main() -> None:
  """Serves until it is told to quit."""
  server = program_lib.start('matmul')
  program: program_lib.Program
  if server.form == 'products':
    tf.config.threading.set_intra_op_parallelism_threads(1)
    program = RoundProducts(server)
  else:
    program = MatrixProduct()
  server.serve(program, tensorflow=tf.__version__)


if __name__ == '__main__':
  main()
