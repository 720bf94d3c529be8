"""What is otherwise under Keras 3: `make check-keras3`."""

import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  example_independence,
  functional,
  ghost_clipping,
  keras_version,
  models,
)

LAYERS = tf.keras.layers
CLIP = 0.5


def sequential(*layers, shape=(6,)):
  return tf.keras.Sequential([tf.keras.Input(shape), *layers])


class VersionTest(absltest.TestCase):
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
    self.assertFalse(ghost_clipping.supports(wrapped, spec.loss))
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

  def test_refuses_masks_that_are_the_same_in_every_step(self):
    class Masked(tf.keras.layers.Layer):
      def call(self, x, training=False):
        if not training:
          return x
        return tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2])

    wrapped = functional.FunctionalModel(sequential(Masked(), LAYERS.Dense(3)))
    with self.assertRaisesRegex(ValueError, 'every example of a batch on its'):
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
