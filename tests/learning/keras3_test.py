"""What is otherwise under Keras 3: `make check-keras3`."""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  example_independence,
  functional,
  ghost_clipping,
  ghost_list,
  keras_version,
  models,
  onednn,
)

LAYERS = tf.keras.layers
CLIP = 0.5


def sequential(*layers, shape=(6,)):
  return tf.keras.Sequential([tf.keras.Input(shape), *layers])


def of_a_model():
  functional.FunctionalModel(sequential(LAYERS.Dense(2)))


def of_a_loss():
  example_independence.example_clipped_sum(
    lambda weights, x, y: tf.reduce_mean((x @ weights[0])[:, 0]),
    [np.ones([6, 1], np.float32)],
    tf.TensorSpec([None, 6]),
    num_labels=2,
    example_l2_norm_clip=CLIP,
  )


class VersionTest(parameterized.TestCase):
  def test_is_told_by_the_version(self):
    major = 3 if keras_version.IS_KERAS_3 else 2
    version = getattr(tf.keras, '__version__', '2')
    self.assertEqual(int(version.partition('.')[0]), major)

  def test_all_layers_are_all(self):
    inner = sequential(LAYERS.Dense(4))
    bidirectional = LAYERS.Bidirectional(LAYERS.LSTM(2))
    model = sequential(inner, LAYERS.Reshape([2, 2]), bidirectional)
    found = keras_version.all_layers(model)
    for layer in (
      *(inner, inner.layers[0], bidirectional),
      *(bidirectional.forward_layer, bidirectional.forward_layer.cell),
    ):
      self.assertTrue(any(one is layer for one in found), layer.name)

  @parameterized.parameters(of_a_model, of_a_loss)
  def test_a_newer_tensorflow_must_not_use_onednn(self, build):
    self.enter_context(mock.patch.object(onednn, 'is_used', lambda: True))
    with mock.patch.object(tf, '__version__', '2.14.1'):
      build()
    for version in ('2.15.0', '2.21.0', '3.0.0-rc1'):
      with (
        mock.patch.object(tf, '__version__', version),
        self.assertRaisesRegex(ValueError, 'TF_ENABLE_ONEDNN_OPTS must be 0'),
      ):
        build()
      with (
        mock.patch.object(tf, '__version__', version),
        mock.patch.object(onednn, 'is_used', lambda: False),
      ):
        build()

  def test_matrix_products_keep_to_their_memory(self):
    """Where it is not so, the process ends; or numbers are others'."""
    rng = np.random.default_rng(0)
    left = rng.random([13, 1, 3, 4], np.float32)
    right = rng.random([4, 16], np.float32)
    for _ in range(50):
      np.testing.assert_allclose(
        tf.matmul(left, right), left @ right, rtol=1e-6, atol=1e-6
      )

  def test_an_embedding_takes_any_index(self):
    wrapped = functional.FunctionalModel(
      sequential(LAYERS.Embedding(4, 2), LAYERS.Flatten(), shape=(3,))
    )
    (table,) = wrapped.initial_weights
    features = np.array([[-7, 1, 900]], np.float32)
    np.testing.assert_array_equal(
      wrapped(wrapped.initial_weights, features)[0],
      np.concatenate([table[0], table[1], table[3]]),
    )


@unittest.skipUnless(keras_version.IS_KERAS_3, 'of Keras 3')
class Keras3Test(parameterized.TestCase):
  @parameterized.parameters(*models.MODELS)
  def test_nothing_is_on_the_list_of_ghost_clipping(self, name):
    spec = models.MODELS[name]
    wrapped = functional.FunctionalModel(
      spec.build((28, 28, 1), 2 if name == 'svm' else 10, 0)
    )
    self.assertFalse(ghost_list.supports(wrapped, spec.loss))
    with self.assertRaisesRegex(ValueError, 'ghost clipping knows'):
      ghost_clipping.ghost_clipped_sum(wrapped, spec.loss)

  @parameterized.parameters('mlp', 'cnn')
  def test_the_models_of_the_paper_are_clipped_one_at_a_time(self, name):
    spec = models.MODELS[name]
    wrapped = functional.FunctionalModel(spec.build((28, 28, 1), 10, 0))
    clipped_sum = example_independence.clipped_sum(wrapped, spec.loss, CLIP)
    rng = np.random.default_rng(0)
    sums = clipped_sum(
      [tf.constant(w) for w in wrapped.initial_weights],
      tf.constant(1e3 * rng.random([1, 28, 28, 1]), tf.float32),
      tf.constant([3]),
      tf.constant([True]),
      tf.constant(CLIP, tf.float64),
    )
    norm = np.linalg.norm(np.concatenate([np.ravel(s) for s in sums]))
    self.assertBetween(norm, 0.999 * CLIP, CLIP)

  @parameterized.named_parameters(
    ('dropout', LAYERS.Dropout(0.5), 'generator'),
    ('noise', LAYERS.GaussianNoise(0.5), 'generator'),
    ('normalization', LAYERS.BatchNormalization(), 'non-trainable weights'),
  )
  def test_refuses_state(self, layer, reason):
    with self.assertRaisesRegex(ValueError, reason):
      functional.FunctionalModel(sequential(layer, LAYERS.Dense(3)))

  def test_attention_is_clipped_one_at_a_time(self):
    inputs = tf.keras.Input([3, 2])
    attended = LAYERS.MultiHeadAttention(1, 2)(inputs, inputs)
    wrapped = functional.FunctionalModel(
      tf.keras.Model(inputs, LAYERS.Flatten()(attended))
    )
    clipped_sum = example_independence.clipped_sum(
      wrapped, models.CrossEntropyLoss(), CLIP
    )
    rng = np.random.default_rng(0)
    features = rng.random([16, 3, 2]).astype(np.float32)
    weights = [tf.constant(w) for w in wrapped.initial_weights]

    def summed(batch):
      sums = clipped_sum(
        *(weights, tf.constant(batch), tf.zeros([16], tf.int32)),
        *(tf.ones([16], tf.bool), tf.constant(CLIP, tf.float64)),
      )
      return np.concatenate([np.ravel(s) for s in sums])

    moved = features.copy()
    moved[3] = 1e4
    gap = np.linalg.norm(summed(features) - summed(moved))
    self.assertBetween(gap, 1e-3, 2 * CLIP)

  def test_refuses_masks_that_are_the_same_in_every_step(self):
    class Masked(tf.keras.layers.Layer):
      def call(self, x, training=False):
        if not training:
          return x
        return tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2])

    wrapped = functional.FunctionalModel(sequential(Masked(), LAYERS.Dense(3)))
    with self.assertRaisesRegex(ValueError, 'every example of a batch indep'):
      example_independence.clipped_sum(wrapped, models.CrossEntropyLoss(), CLIP)

  @parameterized.parameters('int8', 'float8')
  def test_refuses_quantized_layers(self, mode):
    model = sequential(LAYERS.Dense(16), LAYERS.Dense(3), shape=(16,))
    model.layers[0].quantize(mode)
    with self.assertRaisesRegex(ValueError, 'quantized|non-trainable'):
      functional.FunctionalModel(model)

  def test_refuses_state_that_no_layer_tells_of(self):
    counter = tf.Variable(0.0)

    class Counts(tf.keras.layers.Layer):
      def call(self, x):
        return x + counter.assign_add(1.0)

    with self.assertRaisesRegex(ValueError, 'no state but its weights'):
      functional.FunctionalModel(sequential(Counts(), LAYERS.Dense(3)))

  def test_reaches_weights_wherever_a_layer_keeps_them(self):
    class Hidden(tf.keras.layers.Layer):
      def build(self, shape):
        self.pair = [self.add_weight(name='w', shape=shape[1:])]

      def call(self, x):
        return x * self.pair[0]

    wrapped = functional.FunctionalModel(sequential(Hidden()))
    features = np.ones([2, 6], np.float32)
    weights = [np.arange(6, dtype=np.float32)]
    np.testing.assert_array_equal(wrapped(weights, features)[1], weights[0])


if __name__ == '__main__':
  absltest.main()
