"""Products of matrices as programs of the benchmark.

Forms:

  matmul    a round is one product of two large matrices, on all cores. Its
            speed is the machine's peak, to which rounds are compared.
  products  only the products that a round cannot avoid, including
            convolutions, in TensorFlow: a round's other time is overhead. As
            in our runtime, each core works on its own client.
"""

import concurrent.futures
import os
from collections.abc import Callable

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib

# So small that the weights do not change noticeably.
_LEARNING_RATE = 1e-9


class MatrixProduct(program_lib.Program):
  """Square float32 matrices in TensorFlow."""

  def __init__(self):
    shape = [work_lib.MATRIX_SIZE] * 2
    self._factors = [tf.random.uniform(shape, seed=i) for i in (1, 2)]

  def reset(self, noise_stddev: float) -> None:
    """Nothing is kept."""

  def round(self, round_number: int) -> None:
    """Computes one product."""
    tf.linalg.matmul(*self._factors)[0, 0].numpy()

  def weights(self) -> list[np.ndarray]:
    """None."""
    return []


def _products(
  kernel: tf.Tensor, inputs: tf.Tensor
) -> tuple[tf.Tensor, Callable[[], tf.Tensor]]:
  """Computes a layer's products in a step, with its output as the delta.

  Args:
    kernel: [in, out], or [height, width, in, out] for a convolution.
    inputs: Inputs of the layer, [n, ...].

  Returns:
    The gradient of the kernel, and a function for that of the inputs.
  """
  if kernel.shape.rank == 2:
    outputs = tf.linalg.matmul(inputs, kernel)
    gradient = tf.linalg.matmul(inputs, outputs, transpose_a=True)
    return gradient, lambda: tf.linalg.matmul(outputs, kernel, transpose_b=True)
  form: dict[str, Any] = {'strides': [1, 1, 1, 1], 'padding': 'VALID'}
  outputs = tf.nn.conv2d(inputs, kernel, **form)
  form['out_backprop'] = outputs
  gradient = tf.raw_ops.Conv2DBackpropFilter(
    input=inputs, filter_sizes=kernel.shape, **form
  )
  return gradient, lambda: tf.raw_ops.Conv2DBackpropInput(
    input_sizes=tf.shape(inputs), filter=kernel, **form
  )


class RoundProducts(program_lib.Program):
  """The products in the rounds of a work, including convolutions.

  Layers are not connected: activations and pooling are left out.
  """

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    self._features = [tf.constant(features) for features in server.features]
    self._kernels = list(map(tf.constant, work.initial_weights()[::2]))
    inner = [
      tf.random.uniform([work.examples_per_user, *layer.input_shape], seed=i)
      for i, layer in enumerate(work.layers[1:])
    ]
    self._pool = concurrent.futures.ThreadPoolExecutor(
      len(os.sched_getaffinity(0))
    )

    @tf.function(autograph=False)
    def client(features):
      kernels, back = list(self._kernels), []
      for _ in range(work.local_steps):
        for i, inputs in enumerate([features, *inner]):
          gradient, of_inputs = _products(kernels[i], inputs)
          # Changed, because TensorFlow would compute equal products once.
          kernels[i] -= _LEARNING_RATE * gradient
          if i:  # The gradient of the data is not needed.
            back.append(of_inputs())
      return kernels + back

    self._client = client.get_concrete_function(
      tf.TensorSpec([None, *work.input_shape])
    )

  def reset(self, noise_stddev: float) -> None:
    """Nothing is kept."""

  def round(self, round_number: int) -> None:
    """Computes a cohort's products."""
    cohort = [self._features[i] for i in self._work.cohort(round_number)]
    for results in self._pool.map(self._client, cohort):
      np.asarray(results[1])

  def weights(self) -> list[np.ndarray]:
    """None."""
    return []


def main() -> None:
  """Serves until the command to quit."""
  server = program_lib.start('matmul')
  tf.config.set_visible_devices([], 'GPU')  # The cores' peak, on any machine.
  program: program_lib.Program
  if server.form == 'products':
    tf.config.threading.set_intra_op_parallelism_threads(1)
    program = RoundProducts(server)
  else:
    program = MatrixProduct()
  server.serve(program, tensorflow=tf.__version__)


if __name__ == '__main__':
  main()
