"""What a TFF computation tells of itself."""

import concurrent.futures
import gc
import tracemalloc
import unittest

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized
from tensorflow.python.eager import context  # No public name.

from tvdp_tf.learning import discrete_gaussian, noise, onednn
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


def normalized(images):
  outputs, *_ = tf.compat.v1.nn.fused_batch_norm(
    images, tf.ones([3]), tf.zeros([3])
  )
  return outputs


IMAGES = tff.TensorType(np.float32, [2, 4, 4, 3])


class TurnTest(parameterized.TestCase):
  """Kernels of oneDNN that mix what they compute at once."""

  @parameterized.named_parameters(
    ('normalization', normalized, True),
    ('of_a_function', tf.function(normalized, autograph=False), True),
    ('nothing_of_the_kind', lambda images: images + 1.0, False),
  )
  @unittest.skipUnless(onednn.is_used(), 'oneDNN is off')
  def test_waits_for_others(self, compute, waits):
    function = graph_function.GraphFunction(
      tff.tensorflow.computation(compute, IMAGES)
    )
    # What is built of it waits, too.
    outer = graph_function.TensorFunction(
      lambda images: [tf.reduce_sum(function.traced(images)[0])],
      function.specs,
    )
    images = np.ones(IMAGES.shape, np.float32)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
      for call in (function, outer):
        with graph_function._ALONE:
          future = pool.submit(call, images)
          done, _ = concurrent.futures.wait([future], 1.0 if waits else 60.0)
          self.assertEqual(bool(done), not waits)
        future.result(60)

  @unittest.skipUnless(onednn.is_used(), 'oneDNN is off')
  def test_iterations_wait_for_one_another(self):
    @tff.tensorflow.computation(IMAGES)
    def looped(images):
      return tf.while_loop(
        lambda index, _: index < 3,
        lambda index, images: (index + 1, normalized(images)),
        (tf.constant(0), images),
      )

    graph = graph_function.GraphFunction(looped).traced.graph.as_graph_def()
    nodes = [*graph.node]
    for function in graph.library.function:
      nodes.extend(function.node_def)
    loops = [node for node in nodes if node.op.endswith('While')]
    self.assertNotEmpty(loops)
    for node in loops:
      self.assertEqual(node.attr['parallel_iterations'].i, 1)

  @unittest.skipUnless(onednn.is_used(), 'oneDNN is off')
  def test_fuses_nothing(self):
    def residual(images):
      kernel = tf.ones([3, 3, 3, 3])
      hidden = tf.tanh(tf.nn.conv2d(images, kernel, 1, 'SAME'))
      convolved = tf.nn.conv2d(hidden, kernel, 1, 'SAME')
      return tf.nn.bias_add(convolved, tf.ones([3])) + hidden

    function = graph_function.GraphFunction(
      tff.tensorflow.computation(residual, IMAGES)
    )
    context.enable_run_metadata()
    try:
      function(np.ones(IMAGES.shape, np.float32))
      metadata = context.export_run_metadata()
    finally:
      context.disable_run_metadata()
    ops = [
      node.op
      for graphs in metadata.function_graphs
      for node in graphs.post_optimization_graph.node
    ]
    self.assertEqual(ops.count('Conv2D'), 2)
    self.assertNotIn('_FusedConv2D', ops)


class PlacementTest(absltest.TestCase):
  def test_ops_that_a_gpu_lacks_may_run_elsewhere(self):
    # What fails without it can be seen on a GPU alone: gpu_test.
    options = tf.compat.v1.ConfigProto.FromString(onednn.CALL_OPTIONS)
    self.assertTrue(options.allow_soft_placement)


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
