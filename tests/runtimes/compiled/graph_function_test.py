"""What a TFF computation tells of itself."""

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


if __name__ == '__main__':
  absltest.main()
