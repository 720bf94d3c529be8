import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.learning import aligned


class EmptyTest(parameterized.TestCase):
  @parameterized.product(
    shape=[(), (7,), (600, 28, 28, 1)],
    dtype=[np.float32, np.int32, np.float64],
  )
  def test_begins_where_tensorflow_can_use_it(self, shape, dtype):
    kept = [aligned.empty(shape, dtype) for _ in range(5)]
    for array in kept:
      self.assertEqual(array.ctypes.data % aligned.ALIGNMENT_BYTES, 0)
      self.assertEqual((array.shape, array.dtype), (shape, dtype))
      array[...] = 3  # It is all its own.
    self.assertTrue(all(np.all(array == 3) for array in kept))


if __name__ == '__main__':
  absltest.main()
