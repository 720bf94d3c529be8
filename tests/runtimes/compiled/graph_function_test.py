"""What a TFF computation tells of itself."""

import gc
import tracemalloc

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf.learning import discrete_gaussian, noise
from tvdp_tf.runtimes.compiled import graph_function


class HasXlaTest(parameterized.TestCase):
  @parameterized.parameters(
    (discrete_gaussian.discrete_gaussian, True), (noise.standard_normal, False)
  )
  def test_noise(self, draw, has_xla):
    @tff.tensorflow.computation(tff.TensorType(np.int64, [2]))
    def computation(key):
      # In a function of a function, as in a client's work.
      return tf.function(lambda key: draw(key, 9), autograph=False)(key)

    function = graph_function.GraphFunction(computation)
    self.assertIs(function.has_xla, has_xla)
    key = np.array([1, 2], np.int64)
    np.testing.assert_array_equal(
      function(key)[0], draw(tf.constant(key), 9).numpy()
    )

  def test_outlive_one_another(self):
    # Both have the sampler under one name, which TensorFlow must not forget
    # with the first.
    draw = discrete_gaussian.discrete_gaussian
    make = tff.tensorflow.computation(
      lambda key: draw(key, 11), tff.TensorType(np.int64, [2])
    )
    first, second = (graph_function.GraphFunction(make) for _ in range(2))
    key = np.array([1, 2], np.int64)
    expected = first(key)[0].numpy()
    del first
    gc.collect()
    np.testing.assert_array_equal(second(key)[0], expected)
    del second
    gc.collect()
    third = graph_function.GraphFunction(make)
    np.testing.assert_array_equal(third(key)[0], expected)


class MemoryTest(parameterized.TestCase):
  @parameterized.parameters(
    (np.ones([3, 4], np.float32),),  # Taken as it is,
    (np.ones([3, 4], np.float64),),  # converted,
    (tf.ones([3, 4]),),  # and a tensor already.
  )
  def test_calls_leave_nothing(self, argument):
    function = graph_function.TensorFunction(
      lambda x: [x + 1.0, x * 2.0], [tf.TensorSpec([3, 4])]
    )

    def kept_bytes(calls):
      gc.collect()
      before, _ = tracemalloc.get_traced_memory()
      for _ in range(calls):
        function(argument)
      gc.collect()
      after, _ = tracemalloc.get_traced_memory()
      return after - before

    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    kept_bytes(100)
    # A tensor that leaves the room of its attributes leaves 16 bytes or more.
    # Other threads of the process may allocate in one of the three.
    self.assertLess(min(kept_bytes(2000) for _ in range(3)), 2000 * 8)


if __name__ == '__main__':
  absltest.main()
