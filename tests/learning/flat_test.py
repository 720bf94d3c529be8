import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import flat

TENSORS = [
  tf.constant([[1.5, 2.0], [3.0, 4.0]]),
  tf.zeros([0, 3]),
  tf.constant(5.0),
]


class FlatTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 3)
  def test_split_is_the_inverse(self, count):
    tensors = TENSORS[:count]
    vector = flat.concatenated(tensors)
    self.assertEqual(vector.shape, [flat.size(tensors)])
    for part, tensor in zip(flat.split(vector, tensors), tensors, strict=True):
      self.assertEqual(part.shape, tensor.shape)
      np.testing.assert_array_equal(part, tensor)

  def test_dtypes_may_differ_in_float64(self):
    tensors = [*TENSORS, tf.constant([0.1], tf.float64)]
    vector = flat.in_float64(tensors)
    self.assertEqual(vector.numpy().tolist(), [1.5, 2, 3, 4, 5, 0.1])
    self.assertEqual(flat.in_float64(TENSORS).dtype, tf.float64)

  def test_like_others(self):
    mixed = [TENSORS[0], tf.zeros([1], tf.float64), TENSORS[2]]
    for tensors in (TENSORS, mixed):
      vector = tf.constant(0.1 * np.arange(flat.size(tensors)), tf.float64)
      parts = flat.like(vector, tensors)
      for part, tensor in zip(parts, tensors, strict=True):
        self.assertEqual(part.dtype, tensor.dtype)
        self.assertEqual(part.shape, tensor.shape)
      flattened = np.concatenate([np.ravel(part) for part in parts])
      np.testing.assert_allclose(flattened, vector, rtol=1e-6)
    self.assertEqual(parts[1].numpy().tolist(), [vector[4].numpy()])


if __name__ == '__main__':
  absltest.main()
