"""Ghost clipping of embeddings: rows looked up often, huge, not finite."""

import unittest
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import keras_version

LAYERS = tf.keras.layers
ROWS, PLACES = 20, 7


def embedded(*layers, dtype='int32', places=PLACES):
  return tf.keras.Sequential(
    [
      tf.keras.Input([places], dtype=dtype),
      LAYERS.Embedding(ROWS, 4),
      *layers,
    ]
  )


def averaged(dtype='int32'):
  pooling = LAYERS.GlobalAveragePooling1D()
  return embedded(pooling, LAYERS.Dense(3), dtype=dtype)


def two_embeddings():
  inputs = tf.keras.Input([PLACES], dtype='int32')
  parts = [
    LAYERS.GlobalMaxPool1D()(LAYERS.Embedding(ROWS, 4)(inputs)),
    LAYERS.Flatten()(LAYERS.Embedding(5, 2)(inputs)),
  ]
  return tf.keras.Model(inputs, LAYERS.Dense(3)(LAYERS.Concatenate()(parts)))


def of_images():
  inputs = tf.keras.Input([2, 3], dtype='int32')
  hidden = LAYERS.Flatten()(LAYERS.Embedding(ROWS, 4)(inputs))
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


MODELS: dict[str, Callable[[], tf.keras.Model]] = {
  'average': averaged,
  'int64': lambda: averaged('int64'),
  'float32': lambda: tf.keras.Sequential(
    [
      LAYERS.Embedding(ROWS, 4, input_length=PLACES),  # No word on its type.
      LAYERS.GlobalAveragePooling1D(),
      LAYERS.Dense(3),
    ]
  ),
  'maximum': lambda: embedded(LAYERS.GlobalMaxPool1D(), LAYERS.Dense(3)),
  'places': lambda: embedded(LAYERS.Flatten(), LAYERS.Dense(3)),
  'convolution': lambda: embedded(
    LAYERS.Conv1D(32, 3, activation='relu'),
    LAYERS.GlobalMaxPool1D(),
    LAYERS.Dense(3),
  ),
  'two': two_embeddings,
  'matrix': of_images,
}


def computed(indices):
  """An embedding of numbers that the model computes, or is given."""
  inputs = tf.keras.Input([PLACES])
  hidden = LAYERS.ReLU()(inputs) if indices else inputs
  hidden = LAYERS.Flatten()(LAYERS.Embedding(ROWS, 4)(hidden))
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


def dense_of(dtype):
  return tf.keras.Sequential(
    [tf.keras.Input([6], dtype=dtype), LAYERS.Dense(3)]
  )


@tf.keras.utils.register_keras_serializable('ghost_embedding_test')
class _Embedding(tf.keras.layers.Embedding):
  """Has no function of its own, which alone would be told."""


def of_class(kind):
  inputs = tf.keras.Input([PLACES], dtype='int32')
  hidden = LAYERS.Flatten()(kind(ROWS, 4)(inputs))
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostEmbeddingTest(ghost_cases.ModelTestCase):
  @parameterized.product(name=tuple(MODELS), clip=(1e6, 0.05))
  def test_is_the_sum_over_the_examples(self, name, clip):
    sums, rng = ghost_cases.sums_of(MODELS[name]), np.random.default_rng(0)
    shape = [40, *sums.model.input_shape[1:]]
    features = rng.integers(-ROWS, 2 * ROWS, shape)  # Beyond the table, too.
    features[:10] = rng.integers(2, size=[10, *shape[1:]])
    features[10] = 3  # One row alone.
    arguments = (
      features,
      rng.integers(3, size=40),
      ghost_cases.drawn_weights(sums.model, rng),
      clip,
      rng.random(40) < 0.8,
    )
    ghost, looped = sums.ghost(*arguments), sums.looped(*arguments)
    self.assertGreater(np.linalg.norm(looped), 5 * min(clip, 0.1))
    np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-5)

  @parameterized.named_parameters(
    ('computed_indices', computed, True, False),
    ('short_integers', averaged, 'int16', 'int64'),
    ('integers_as_numbers', dense_of, 'int32', 'float32'),
    ('own_class', of_class, _Embedding, LAYERS.Embedding),
  )
  def test_takes_a_model_only_without(self, build, bad, good):
    self.check_only_without(build(bad), build(good))

  def test_any_float_is_an_index(self):
    sums = ghost_cases.sums_of(MODELS['float32'])
    rng = np.random.default_rng(5)
    values = [np.nan, np.inf, -np.inf, 1e30, -1e30, 2.9, -0.5, 7.0, 4e9, -4e9]
    arguments = (
      rng.choice(values, [40, PLACES]),
      rng.integers(3, size=40),
      ghost_cases.drawn_weights(sums.model, rng),
      0.05,
    )
    ghost, looped = sums.ghost(*arguments), sums.looped(*arguments)
    self.assertGreater(np.linalg.norm(looped), 0.25)
    np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-5)

  @parameterized.parameters('average', 'places')
  def test_a_row_that_is_looked_up_again_is_one_row(self, name):
    """The deltas of its places add up: the norm of each tells too little."""
    sums, rng = ghost_cases.sums_of(MODELS[name]), np.random.default_rng(1)
    weights = [100 * w for w in ghost_cases.drawn_weights(sums.model, rng)]
    if name == 'places':  # The same delta at all of them.
      weights[1] = np.tile(weights[1][:4], [PLACES, 1])
    weights[0][:] = 1e-3 * weights[0]  # The norm is that of the embedding's.
    ghost = sums.ghost(np.full([1, PLACES], 3), [1], weights, 1.0)
    self.assertBetween(np.linalg.norm(ghost), 0.999, 1)

  def test_what_cancels_leaves_no_rounding(self):
    """Deltas of 1e7 at two places of one row, of a sum of some units."""
    model = embedded(LAYERS.Flatten(), LAYERS.Dense(3), places=2)
    sums, rng = ghost_cases.Sums(model), np.random.default_rng(2)
    for _ in range(20):
      table, kernel, bias = ghost_cases.drawn_weights(model, rng)
      kernel[:4] *= 1e7
      kernel[4:] = -kernel[:4] + rng.standard_normal([4, 3])
      features = rng.integers(ROWS, size=[1, 1]).repeat(2, axis=1)
      ghost = sums.ghost(features, [0], [0 * table, kernel, bias], 1e-3)
      self.assertBetween(np.linalg.norm(ghost), 0.9e-3, 1e-3)

  def test_what_is_not_finite_counts_as_zero(self):
    sums, rng = ghost_cases.sums_of(averaged), np.random.default_rng(3)
    table, *others = ghost_cases.drawn_weights(sums.model, rng)
    table[3] = np.inf
    features, labels = rng.integers(4, 9, [8, PLACES]), rng.integers(3, size=8)
    weights = [table, *others]
    expected = sums.ghost(features, labels, weights, 0.1, np.arange(8) != 5)
    features[5, 2] = 3
    ghost = sums.ghost(features, labels, weights, 0.1)
    np.testing.assert_array_equal(ghost, expected)

  def test_an_example_is_the_same_beside_any_others(self):
    """To the bit: what others look up moves nothing of it."""
    sums, rng = ghost_cases.sums_of(averaged), np.random.default_rng(4)
    weights = ghost_cases.drawn_weights(sums.model, rng)
    of_first = []
    for _ in range(20):
      features = rng.integers(6, size=[8, PLACES])
      features[2] = [1, 2, 1, 5, 2, 1, 1]
      labels = rng.integers(3, size=8)
      labels[2] = 0
      present = np.arange(8) == 2
      of_first.append(sums.ghost(features, labels, weights, 0.1, present))
    np.testing.assert_array_equal(of_first, of_first[:1] * 20)


if __name__ == '__main__':
  absltest.main()
