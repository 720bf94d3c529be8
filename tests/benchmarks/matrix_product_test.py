"""What is timed as a round's products are those that training takes."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from benchmarks.harness import matrix_product
from benchmarks.harness import work as work_lib


class ProductsTest(parameterized.TestCase):
  @parameterized.parameters(((7, 5), (5, 4)), ((2, 8, 7, 3), (5, 4, 3, 6)))
  def test_are_the_gradients_of_a_layer(self, inputs_shape, kernel_shape):
    """Of one whose loss is half the square of what it puts out."""
    rng = np.random.default_rng(0)
    inputs, kernel = (
      tf.constant(rng.random(shape), tf.float32)
      for shape in (inputs_shape, kernel_shape)
    )
    with tf.GradientTape() as tape:
      tape.watch([inputs, kernel])
      outputs = (
        inputs @ kernel
        if len(kernel_shape) == 2
        else tf.nn.conv2d(inputs, kernel, 1, 'VALID')
      )
      loss = tf.nn.l2_loss(outputs)
    of_inputs, of_kernel = tape.gradient(loss, [inputs, kernel])
    found, back = matrix_product._products(kernel, inputs)
    np.testing.assert_allclose(found, of_kernel, rtol=1e-5)
    np.testing.assert_allclose(back(), of_inputs, rtol=1e-5)


class LayerTest(absltest.TestCase):
  def test_shapes_of_inputs(self):
    for model, inner in (
      ('mlp', [(32,)]),
      ('cnn', [(14, 14, 6), (400,), (120,), (84,)]),
    ):
      work = work_lib.Work(model)
      first, *others = [layer.input_shape for layer in work.layers]
      self.assertEqual(first, work.input_shape)
      self.assertEqual(others, inner)


if __name__ == '__main__':
  absltest.main()
