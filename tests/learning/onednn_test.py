"""Kernels of oneDNN that mix what they compute at once are not reached."""

import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from tensorflow.python.eager import context  # No public name.

from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  models,
  onednn,
)

LAYERS = tf.keras.layers
CROSS_ENTROPY = models.MODELS['mlp'].loss
of_onednn = unittest.skipUnless(onednn.is_used(), 'oneDNN is off')


IMAGES = tf.TensorSpec([2, 8, 8, 3])


def residual(features):
  """What Grappler makes one op of: convolution, bias and addition."""
  kernel = tf.ones([3, 3, 3, 3])
  hidden = tf.tanh(tf.nn.conv2d(features, kernel, 1, 'SAME'))
  convolved = tf.nn.conv2d(hidden, kernel, 1, 'SAME')
  return tf.nn.bias_add(convolved, tf.ones([3])) + hidden


def optimized_ops(call):
  """The ops that are run, each with what is fused into it."""
  context.enable_run_metadata()
  try:
    call()
    metadata = context.export_run_metadata()
  finally:
    context.disable_run_metadata()
  return {
    (node.op, *node.attr['fused_ops'].list.s)
    for graphs in metadata.function_graphs
    for node in graphs.post_optimization_graph.node
  }


def graph_of(function, *specs):
  traced = tf.function(function, autograph=False).get_concrete_function(*specs)
  return traced.graph.as_graph_def()


def iterations_at_once(graph):
  nodes = [*graph.node]
  for function in graph.library.function:
    nodes.extend(function.node_def)
  return [
    node.attr['parallel_iterations'].i
    for node in nodes
    if node.op in ('While', 'StatelessWhile')
  ]


FUSED = ('_FusedConv2D', b'BiasAdd', b'Add')


@of_onednn
class FusedAdditionTest(parameterized.TestCase):
  @parameterized.parameters((b'', True), (onednn.CALL_OPTIONS, False))
  def test_in_a_call_with_options(self, options, fused):
    traced = tf.function(residual, autograph=False).get_concrete_function(
      IMAGES
    )
    ops = optimized_ops(
      lambda: tf.raw_ops.StatefulPartitionedCall(
        args=[tf.ones([2, 8, 8, 3])],
        Tout=[tf.float32],
        f=traced.name.decode(),
        config_proto=options,
      )
    )
    self.assertEqual(FUSED in ops, fused, ops)

  def test_not_after_a_model_was_taken(self):
    features = tf.ones([2, 8, 8, 3])
    before = tf.config.optimizer.get_experimental_options()
    self.addCleanup(
      tf.config.optimizer.set_experimental_options,
      {'remapping': before.get('remapping', True)},
    )
    tf.config.optimizer.set_experimental_options({'remapping': True})
    function = tf.function(residual, autograph=False)
    self.assertIn(FUSED, optimized_ops(lambda: function(features)))
    functional.FunctionalModel(
      tf.keras.Sequential([tf.keras.Input([3]), LAYERS.Dense(2)])
    )
    function = tf.function(residual, autograph=False)
    self.assertNotIn(FUSED, optimized_ops(lambda: function(features)))


class LoopTest(parameterized.TestCase):
  # TFF's worker runs the graph with its own options, which fuse.
  @parameterized.parameters(
    example_independence.clipped_sum,
    lambda model, loss, clip: clipping.looped_clipped_sum(
      lambda weights, x, y: tf.reduce_mean(loss(y, model(weights, x)))
    ),
  )
  def test_microbatches_and_examples_follow_one_another(self, make):
    wrapped = functional.FunctionalModel(
      tf.keras.Sequential([tf.keras.Input([6]), LAYERS.Dense(3)])
    )
    clipped_sum = make(wrapped, CROSS_ENTROPY, 0.5)
    graph = graph_of(
      lambda features, labels: clipping.clipped_mean_gradient(
        clipped_sum,
        [tf.constant(w) for w in wrapped.initial_weights],
        features,
        labels,
        example_l2_norm_clip=0.5,
      ),
      tf.TensorSpec([None, 6]),
      tf.TensorSpec([None], tf.int32),
    )
    found = iterations_at_once(graph)
    self.assertNotEmpty(found)
    self.assertEqual(set(found), {1})


class NormalizationTest(absltest.TestCase):
  def test_a_clipped_mean_is_the_same_every_time(self):
    # Of six examples, four are in one microbatch and two in the next. With the
    # fused kernel, and iterations side by side, one in thirty calls differs.
    tf.keras.utils.set_random_seed(3)
    model = functional.FunctionalModel(
      tf.keras.Sequential(
        [tf.keras.Input([6]), LAYERS.LayerNormalization(), LAYERS.Dense(3)]
      )
    )
    clipped_sum = example_independence.clipped_sum(model, CROSS_ENTROPY, 0.5)

    @tf.function(autograph=False)
    def mean(features, labels):
      return clipping.clipped_mean_gradient(
        clipped_sum,
        [tf.constant(w) for w in model.initial_weights],
        features,
        labels,
        example_l2_norm_clip=0.5,
      )

    rng = np.random.default_rng(0)
    features = tf.constant(rng.normal(size=[300, 6]), tf.float32)
    labels = tf.constant(rng.integers(0, 3, 300), tf.int32)
    found = {
      b''.join(
        gradient.numpy().tobytes() for gradient in mean(features, labels)
      )
      for _ in range(400)
    }
    self.assertLen(found, 1)

  def test_a_layer_is_left_as_it_was(self):
    layer = LAYERS.LayerNormalization()
    model = tf.keras.Sequential([tf.keras.Input([6]), layer, LAYERS.Dense(3)])
    before = vars(layer).get('_fused')
    wrapped = functional.FunctionalModel(model)
    features = np.random.default_rng(0).normal(size=[5, 6]).astype(np.float32)
    np.testing.assert_allclose(
      wrapped(wrapped.initial_weights, features),
      model(features),
      rtol=1e-5,
      atol=1e-6,
    )
    self.assertIs(vars(layer).get('_fused'), before)

  def test_the_kernel_is_refused_where_a_layer_hides_it(self):
    class Hidden(tf.keras.layers.Layer):
      def call(self, inputs):
        images = tf.reshape(inputs, [1, -1, 6, 1])
        outputs, *_ = tf.compat.v1.nn.fused_batch_norm(images, [1.0], [0.0])
        return tf.reshape(outputs, [-1, 6])

    with self.assertRaisesRegex(
      ValueError, 'must normalize with .* got the op FusedBatchNormV3 '
    ):
      functional.FunctionalModel(
        tf.keras.Sequential([tf.keras.Input([6]), Hidden(), LAYERS.Dense(3)])
      )

  def test_every_form_of_it_is_refused(self):
    self.assertLen(onednn.RACING_OPS, 6)
    for op in onednn.RACING_OPS:
      graph = tf.compat.v1.GraphDef()
      graph.node.add(op=op, name='it')
      with self.assertRaisesRegex(ValueError, f'got the op {op} '):
        functional.checked_ops('graph', graph)


def convolved(features):
  return tf.nn.conv2d(features, tf.ones([3, 3, 3, 3]), 1, 'SAME')


def biased(features):
  return tf.nn.bias_add(convolved(features), tf.ones([3]))


def normalized(features):
  outputs, *_ = tf.compat.v1.nn.fused_batch_norm(
    features, tf.ones([3]), tf.zeros([3])
  )
  return outputs


def as_function(function):
  """Called as a function of its own."""
  return tf.function(function, autograph=False)


def looped(function):
  """Three times in a loop."""

  def loop(features):
    return tf.while_loop(
      lambda index, _: index < 3,
      lambda index, _: (index + 1, function(features)),
      (tf.constant(0), features),
    )

  return loop


class KeptApartTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('normalization', normalized),
    ('of_a_function', as_function(normalized)),
    ('of_a_loop', looped(normalized)),
  )
  @of_onednn
  def test_normalization_always(self, function):
    for by_others in (False, True):
      graph = graph_of(function, IMAGES)
      self.assertTrue(onednn.kept_apart(graph, by_others=by_others))

  @parameterized.named_parameters(
    ('addition', lambda x: biased(x) + x),
    ('of_two', lambda x: tf.add_n([biased(x), x])),
    ('second', lambda x: tf.raw_ops.Add(x=x, y=biased(x))),
    ('identity', lambda x: tf.identity(biased(x)) + x),
    ('of_a_function', lambda x: as_function(biased)(x) + x),
    ('in_a_function', as_function(lambda x: biased(x) + x)),
    (
      'bias_of_a_function',
      lambda x: tf.nn.bias_add(as_function(convolved)(x), tf.ones([3])) + x,
    ),
    ('in_a_loop', looped(lambda x: biased(x) + x)),
    (
      'by_depth',
      lambda x: (
        tf.nn.bias_add(
          tf.nn.depthwise_conv2d(x, tf.ones([3, 3, 3, 1]), [1] * 4, 'SAME'),
          tf.ones([3]),
        )
        + x
      ),
    ),
  )
  def test_an_addition_that_others_may_fuse(self, function):
    graph = graph_of(function, IMAGES)
    self.assertTrue(onednn.kept_apart(graph, by_others=True))
    # Here, nothing is fused.
    self.assertFalse(onednn.kept_apart(graph_of(function, IMAGES)))

  def test_an_addition_to_a_function_that_is_called_as_an_op(self):
    # As graphs of TensorFlow 1 call it.
    graph = tf.compat.v1.GraphDef()
    graph.library.function.add().signature.name = 'inner'
    graph.node.add(op='inner', name='source')
    graph.node.add(op='Conv2D', name='other')
    graph.node.add(op='BiasAdd', name='bias', input=['source', 'bias'])
    graph.node.add(op='AddV2', name='sum', input=['x', 'bias:0'])
    self.assertTrue(onednn.kept_apart(graph, by_others=True))
    graph.node[0].op = 'MatMul'
    self.assertFalse(onednn.kept_apart(graph, by_others=True))

  @parameterized.named_parameters(
    ('convolution', lambda x: tf.nn.relu(biased(x))),
    ('without_bias', lambda x: convolved(x) + x),
    ('dense', lambda x: tf.nn.bias_add(x @ tf.ones([3, 3]), tf.ones([3])) + x),
    ('loop', looped(tf.nn.relu)),
  )
  def test_nothing_else_waits(self, function):
    graph = graph_of(function, IMAGES)
    before = graph.SerializeToString(deterministic=True)
    self.assertFalse(onednn.kept_apart(graph, by_others=True))
    self.assertEqual(graph.SerializeToString(deterministic=True), before)

  @parameterized.parameters(normalized, lambda x: biased(x) + x)
  def test_iterations_follow_one_another(self, function):
    graph = graph_of(as_function(looped(function)), IMAGES)
    self.assertEqual(iterations_at_once(graph), [10])
    onednn.kept_apart(graph, by_others=True)
    self.assertEqual(iterations_at_once(graph), [1])


if __name__ == '__main__':
  absltest.main()
