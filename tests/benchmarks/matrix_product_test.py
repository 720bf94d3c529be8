from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from benchmarks.harness import matrix_product


class StepTest(absltest.TestCase):
  def test_takes_the_gradients_of_linear_layers(self):
    rng = np.random.default_rng(0)
    features = tf.constant(rng.random([7, 5]), tf.float32)
    kernels = [
      tf.constant(rng.random(shape), tf.float32)
      for shape in ((5, 4), (4, 3), (3, 2))
    ]
    with tf.GradientTape() as tape:
      tape.watch(kernels)
      outputs = features
      for kernel in kernels:
        outputs = outputs @ kernel
      loss = tf.nn.l2_loss(outputs)
    gradients = tape.gradient(loss, kernels)
    with mock.patch.object(matrix_product, '_LEARNING_RATE', 0.1):
      found = matrix_product._step(kernels, features)
    for one, kernel, gradient in zip(found, kernels, gradients, strict=True):
      np.testing.assert_allclose(one, kernel - 0.1 * gradient, rtol=1e-5)


if __name__ == '__main__':
  absltest.main()
