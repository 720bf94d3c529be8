import threading
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  ghost_clipping,
  keras_version,
  models,
)


def convolutional_model():
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([8, 8, 1]),
      tf.keras.layers.Conv2D(4, 3, activation='relu'),
      tf.keras.layers.GroupNormalization(2),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(10),
    ]
  )


def branched_model():
  inputs = tf.keras.Input([8, 8, 1])
  flat = tf.keras.layers.Flatten()(inputs)
  hidden = tf.keras.layers.Dense(64, activation='tanh')(flat)
  sum_ = tf.keras.layers.Add()([flat, hidden])
  return tf.keras.Model(inputs, tf.keras.layers.Dense(10)(sum_))


def recurrent_model():
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([8, 8]),
      tf.keras.layers.GRU(5),
      tf.keras.layers.Dense(10),
    ]
  )


class FunctionalModelTest(parameterized.TestCase):
  @parameterized.parameters(
    (lambda: models.MODELS['mlp'].build([8, 8, 1], 10, 1),),
    (convolutional_model,),
    (branched_model,),
    (recurrent_model,),
  )
  def test_equals_the_keras_model_at_any_weights(self, build):
    model = build()
    functional_model = functional.FunctionalModel(model)
    rng = np.random.default_rng(1)
    features = rng.random([3, *model.input_shape[1:]], np.float32)
    with self.subTest('initial'):
      np.testing.assert_allclose(
        functional_model(functional_model.initial_weights, features),
        model(features),
        rtol=1e-6,
        atol=1e-6,
      )
    weights = [
      rng.normal(size=w.shape).astype(np.float32)
      for w in functional_model.initial_weights
    ]
    before = functional_model(weights, features)
    model.set_weights(weights)
    with self.subTest('other'):
      np.testing.assert_allclose(before, model(features), rtol=1e-5, atol=1e-5)

  def test_gradients_equal_keras(self):
    model = convolutional_model()
    functional_model = functional.FunctionalModel(model)
    features = np.random.default_rng(1).random([3, 8, 8, 1], np.float32)
    weights = [tf.constant(w) for w in functional_model.initial_weights]
    with tf.GradientTape() as tape:
      tape.watch(weights)
      total = tf.reduce_sum(functional_model(weights, features, True) ** 2)
    actual = tape.gradient(total, weights)
    with tf.GradientTape() as tape:
      total = tf.reduce_sum(model(features, training=True) ** 2)
    expected = tape.gradient(total, model.trainable_weights)
    for a, e in zip(actual, expected, strict=True):
      np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)

  def test_takes_a_normalization_by_given_numbers(self):
    layer = tf.keras.layers.Normalization(mean=[1.0, 2, 3], variance=[4, 2, 1])
    model = tf.keras.Sequential(
      [tf.keras.layers.InputLayer([3]), layer, tf.keras.layers.Dense(2)]
    )
    held = layer.mean, layer.variance
    functional_model = functional.FunctionalModel(model)
    features = np.random.default_rng(0).random([4, 3], np.float32)
    np.testing.assert_allclose(
      functional_model(functional_model.initial_weights, features),
      model(features),
      rtol=1e-6,
    )
    for before, after in zip(held, (layer.mean, layer.variance), strict=True):
      self.assertIs(before, after)

  def test_rejects_a_normalization_that_is_adapted(self):
    layer = tf.keras.layers.Normalization()
    layer.adapt(np.random.default_rng(0).random([5, 3]))
    model = tf.keras.Sequential(
      [tf.keras.layers.InputLayer([3]), layer, tf.keras.layers.Dense(2)]
    )
    with self.assertRaisesRegex(ValueError, 'non-trainable weights'):
      functional.FunctionalModel(model)

  def test_leaves_the_keras_model_usable_after_a_tf1_graph(self):
    model = models.MODELS['mlp'].build([8, 8, 1], 10, 1)
    functional_model = functional.FunctionalModel(model)
    features = np.ones([2, 8, 8, 1], np.float32)
    expected = model(features).numpy()
    with tf.Graph().as_default():
      outputs = functional_model(functional_model.initial_weights, features)
      with tf.compat.v1.Session() as session:
        np.testing.assert_allclose(session.run(outputs), expected, rtol=1e-6)
    np.testing.assert_array_equal(model(features), expected)
    self.assertLen(model.get_weights(), 4)
    models.MODELS['mlp'].build([8, 8, 1], 10, 1)(features)

  @unittest.skipIf(keras_version.IS_KERAS_3, 'dropout is refused')
  def test_training_is_passed_on(self):
    model = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer([100]),
        tf.keras.layers.Dropout(0.5),
        tf.keras.layers.Dense(1, use_bias=False, kernel_initializer='ones'),
      ]
    )
    functional_model = functional.FunctionalModel(model)
    features = np.ones([50, 100], np.float32)
    weights = functional_model.initial_weights
    self.assertEqual(np.ptp(functional_model(weights, features)), 0)
    self.assertGreater(np.ptp(functional_model(weights, features, True)), 0)

  def test_rejects_batch_normalisation(self):
    model = tf.keras.Sequential(
      [tf.keras.layers.InputLayer([3]), tf.keras.layers.BatchNormalization()]
    )
    with self.assertRaisesRegex(ValueError, 'non-trainable weights'):
      functional.FunctionalModel(model)

  def test_rejects_a_layer_of_half_precision_whatever_its_graph(self):
    # It computes in what it gets, so that its graph is in float32.
    def build(dtype):
      shaped = tf.keras.layers.Reshape([3], dtype=dtype, autocast=False)
      layers = [tf.keras.layers.InputLayer([3]), shaped]
      return tf.keras.Sequential([*layers, tf.keras.layers.Dense(2)])

    functional.FunctionalModel(build('float32'))
    for dtype in ('float16', 'bfloat16'):
      with self.assertRaisesRegex(ValueError, f'got {dtype} in layer'):
        functional.FunctionalModel(build(dtype))

  @parameterized.parameters('complex64', 'int32')
  def test_rejects_weights_whose_gradients_have_no_norm(self, dtype):
    class Scaled(tf.keras.layers.Layer):
      def build(self, shape):
        self.scale = self.add_weight(
          name='scale', shape=shape[1:], dtype=dtype, initializer='ones'
        )

      def call(self, inputs):
        return inputs * tf.cast(tf.convert_to_tensor(self.scale), tf.float32)

    inputs = tf.keras.Input([3])
    model = tf.keras.Model(
      inputs, tf.keras.layers.Dense(2)(Scaled(dtype='float32')(inputs))
    )
    with self.assertRaisesRegex(ValueError, f'scale.* in {dtype}'):
      functional.FunctionalModel(model)

  def test_rejects_regularisation(self):
    model = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer([3]),
        tf.keras.layers.Dense(2, kernel_regularizer='l2'),
      ]
    )
    with self.assertRaisesRegex(ValueError, 'losses of its own'):
      functional.FunctionalModel(model)

  @unittest.skipIf(keras_version.IS_KERAS_3, 'its generator keeps a state')
  def test_global_seeds_do_not_seed_masks(self):
    """Known masks would be shifted by how many others draw."""
    layer = tf.keras.layers
    tf.random.set_seed(3)
    self.addCleanup(tf.random.set_seed, 0)
    model = tf.keras.Sequential(
      [layer.Input([4]), layer.Dropout(0.5), layer.Dense(2)]
    )
    functional_model = functional.FunctionalModel(model)
    summed = example_independence.clipped_sum(
      functional_model, models.CrossEntropyLoss(), 1.0
    )
    self.assertIsInstance(summed, ghost_clipping.GhostClippedSum)

    @tf.function(autograph=False)
    def total(features):
      return clipping.flat_gradient_sum(
        summed,
        [tf.constant(w) for w in functional_model.initial_weights],
        clipping.examples(summed, features, tf.zeros([2], tf.int32)),
        example_l2_norm_clip=1.0,
      )

    graph = total.get_concrete_function(tf.TensorSpec([2, 4])).graph
    ops = functional.checked_ops('sum', graph.as_graph_def())
    self.assertIn('RandomUniform', ops)

  def test_rejects_seeds_of_layers(self):
    layer = tf.keras.layers
    model = tf.keras.Sequential(
      [layer.Input([4]), layer.Dropout(0.5, seed=3), layer.Dense(2)]
    )
    with self.assertRaisesRegex(ValueError, 'without a seed|no state but'):
      functional.FunctionalModel(model)

  @unittest.skipIf(keras_version.IS_KERAS_3, 'others are named there')
  def test_rejects_what_is_kept_elsewhere(self):
    layer = tf.keras.layers
    hidden = layer.Dense(2)
    hidden.build([None, 16])

    class Hiding(tf.keras.layers.Layer):
      def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel
        self.found = lambda: kernel  # Not an attribute that can be exchanged.

      def call(self, inputs):
        return tf.matmul(inputs, self.found())

    for model, message in (
      (
        tf.keras.Sequential(
          [layer.Input([4, 4, 1]), layer.RandomFlip(), layer.Flatten(), hidden]
        ),
        'use no state but its weights, such as the generator of RandomFlip',
      ),
      (
        tf.keras.Sequential([layer.Input([16]), Hiding(hidden.kernel)]),
        r'keep each weight .*, got .*kernel:0 elsewhere',
      ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        functional.FunctionalModel(model)

  @unittest.skipIf(keras_version.IS_KERAS_3, 'others are named there')
  def test_rejects_tensors_from_outside(self):
    table = tf.ones([4])
    with self.assertRaisesRegex(ValueError, r'NumPy arrays, .* shape \(4,\)'):
      functional.FunctionalModel(
        tf.keras.Sequential(
          [
            tf.keras.layers.InputLayer([4]),
            tf.keras.layers.Lambda(lambda x: x * table),
            tf.keras.layers.Dense(2),
          ]
        )
      )

  @unittest.skipIf(keras_version.IS_KERAS_3, 'its numbers are no tensors')
  def test_takes_numbers_that_keras_holds_as_tensors(self):
    inputs = tf.keras.Input([3])
    rows = tf.keras.layers.Dense(4)(inputs)
    rows = 2.0 * tf.where(rows > 0, 1 - rows, 0.1 * rows)
    model = tf.keras.Model(inputs, rows)
    nodes = [node for one in model.layers for node in one.inbound_nodes]
    held = [value for node in nodes for value in node._flat_arguments]
    wrapped = functional.FunctionalModel(model)
    features = np.random.default_rng(0).standard_normal([5, 3]).astype('f')
    np.testing.assert_allclose(
      wrapped(wrapped.initial_weights, features), model(features), rtol=1e-6
    )
    now = [value for node in nodes for value in node._flat_arguments]
    self.assertTrue(any(isinstance(value, tf.Tensor) for value in held))
    self.assertEqual(list(map(id, held)), list(map(id, now)))

  @unittest.skipIf(keras_version.IS_KERAS_3, 'none is out of reach')
  def test_rejects_weights_out_of_reach(self):
    class Hidden(tf.keras.layers.Layer):
      def build(self, shape):
        self.pair = [self.add_weight(name='w', shape=shape[1:])]

      def call(self, inputs):
        return inputs * self.pair[0]

    model = tf.keras.Sequential([tf.keras.layers.InputLayer([3]), Hidden()])
    with self.assertRaisesRegex(ValueError, 'attribute of its layer'):
      functional.FunctionalModel(model)


@unittest.skipIf(keras_version.IS_KERAS_3, 'it fuses nothing')
class UnfusedTest(parameterized.TestCase):
  @parameterized.parameters(tf.keras.layers.LSTM, tf.keras.layers.GRU)
  def test_a_recurrent_layer_has_no_form_for_gpus(self, kind):
    def ops(layer):
      traced = tf.function(layer).get_concrete_function(
        tf.TensorSpec([None, 4, 3])
      )
      library = traced.graph.as_graph_def().library.function
      return {node.op for f in library for node in f.node_def}

    with functional.unfused():
      layer = kind(2)
      self.assertNotIn('CudnnRNN', ops(layer))
    self.assertIn('CudnnRNN', ops(layer))  # It is as it was.

  def test_outer_and_inner_contexts(self):
    normalization = tf.keras.layers.LayerNormalization
    with functional.unfused():
      with functional.unfused(), self.assertRaises(KeyError):
        raise KeyError
      layer = normalization()
      layer.build([None, 3])
      self.assertFalse(layer._fused)
    self.assertTrue(layer._fused)
    self.assertNotIn('_fused', vars(normalization))

  def test_of_several_threads(self):
    opened, ended = threading.Event(), threading.Event()

    def other():
      with functional.unfused():
        opened.set()
        ended.wait()

    thread = threading.Thread(target=other, daemon=True)
    with functional.unfused():
      thread.start()
      opened.wait()
    layer = tf.keras.layers.LSTM(2)
    self.assertFalse(layer._could_use_gpu_kernel)
    ended.set()
    thread.join()
    self.assertTrue(layer._could_use_gpu_kernel)


class CheckedOpsTest(parameterized.TestCase):
  # TensorFlow calls none of them stateful, and no example's values need be such
  # that they fail: the graph alone tells.
  @parameterized.parameters(
    (lambda x: tf.debugging.check_numerics(x, 'x'), 'CheckNumerics'),
    (lambda x: x + tf.strings.to_number(tf.io.read_file('x')), 'ReadFile'),
    (
      lambda x: tf.numpy_function(abs, [x], tf.float32, stateful=False),
      'PyFuncStateless',
    ),
  )
  def test_rejects_what_fails_or_reads_without_a_state(self, function, op):
    traced = tf.function(function, autograph=False).get_concrete_function(
      tf.TensorSpec([], tf.float32)
    )
    with self.assertRaisesRegex(ValueError, f'got the op {op} '):
      functional.checked_ops('graph', traced.graph.as_graph_def())

  @parameterized.parameters(
    tf.float16, tf.bfloat16, tf.dtypes.experimental.float8_e4m3fn
  )
  def test_rejects_less_than_float32(self, dtype):
    traced = tf.function(
      lambda x: tf.cast(tf.cast(x, dtype), tf.float32), autograph=False
    ).get_concrete_function(tf.TensorSpec([], tf.float32))
    with self.assertRaisesRegex(ValueError, f'in {dtype.name}'):
      functional.checked_ops('graph', traced.graph.as_graph_def())

  @parameterized.parameters(
    (lambda x: tf.random.normal([3], seed=7),),
    (lambda x: tf.nn.dropout(x, 0.5, seed=7),),
    (lambda x: tf.map_fn(lambda v: v + tf.random.uniform([], seed=2), x),),
  )
  def test_rejects_seeds(self, function):
    traced = tf.function(function, autograph=False).get_concrete_function(
      tf.TensorSpec([3], tf.float32)
    )
    with self.assertRaisesRegex(ValueError, 'without a seed, .* got the op R'):
      functional.checked_ops('graph', traced.graph.as_graph_def())

  def test_rejects_what_nobody_knows(self):
    graph = tf.compat.v1.GraphDef()
    graph.node.add(op='OfAnUnknownLibrary', name='it')
    with self.assertRaisesRegex(ValueError, 'got the op OfAnUnknownLibrary'):
      functional.checked_ops('graph', graph)

  def test_takes_a_function_that_is_called_as_an_op(self):
    graph = tf.compat.v1.GraphDef()
    graph.node.add(op='inner', name='it')
    graph.library.function.add().signature.name = 'inner'
    self.assertEqual(functional.checked_ops('graph', graph), {'inner'})


if __name__ == '__main__':
  absltest.main()
