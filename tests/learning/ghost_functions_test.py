"""Ghost clipping of models that call TensorFlow's functions."""

import unittest
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import keras_version

LAYERS = tf.keras.layers
# Of as many steps as there are examples when a copy is tried: what is put in
# another's place is no error.
SQUARE = (3, 3)
TABLE = (8,)


def model_of(build, batch_size=None):
  """The function of a dense layer's outputs, and a dense layer of it."""
  inputs = tf.keras.Input(SQUARE, batch_size)
  outputs = build(LAYERS.Dense(3, activation='tanh')(inputs))
  return tf.keras.Model(inputs, LAYERS.Dense(3)(LAYERS.Flatten()(outputs)))


def of_model(build):
  """The same in a model of its own, that the model calls."""
  inputs = tf.keras.Input(SQUARE)
  return model_of(tf.keras.Model(inputs, build(inputs)))


def table():
  """Numbers, and three columns of categories, in one input."""
  inputs = tf.keras.Input(TABLE)
  categories = [
    LAYERS.Embedding(ghost_cases.VOCABULARY, 2)(
      tf.cast(inputs[:, column], tf.int32)[:, tf.newaxis]
    )[:, 0]
    for column in (5, 6)
  ]
  one_hot = tf.one_hot(tf.cast(inputs[:, 7], 'int32'), ghost_cases.VOCABULARY)
  values = LAYERS.Concatenate()([inputs[:, :5], *categories, one_hot])
  hidden = LAYERS.Dense(6, activation='tanh')(values)
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


def of_each_value(x):
  x = tf.clip_by_value(x, -0.9, 0.8) + tf.abs(x) - (-x)
  x = tf.maximum(x, tf.square(x)) * tf.minimum(tf.exp(x), 2.0)
  x = tf.math.add_n([tf.math.log1p(tf.nn.relu(x)), tf.sin(x) * tf.cos(x), x])
  x = tf.where(x > 0.1, tf.sqrt(tf.abs(x) + 1.0), (x - 0.5) ** 2)
  return tf.identity(x) * tf.cast(tf.less_equal(x, 1.5), tf.float32)


def along_axes(x):
  mean = tf.reduce_mean(x, axis=1, keepdims=True)
  largest = tf.reduce_max(x, axis=[-1], keepdims=True)
  least = tf.expand_dims(tf.reduce_min(x, axis=2), -1)
  total = tf.squeeze(tf.reduce_sum(x, axis=[1], keepdims=True), axis=1)
  rows = tf.nn.softmax(x, axis=1) + tf.nn.log_softmax(x)
  rows = tf.math.l2_normalize(rows - mean, axis=-1) + largest * least
  return tf.concat([rows, tf.stack([total, total * total], axis=1)], axis=-2)


def moved(x):
  first, second, third = tf.unstack(x, axis=2)
  one, two = tf.split(x, [1, 2], axis=-1)
  x = tf.concat([tf.stack([first, third, second], axis=1), one, two], axis=-1)
  x = tf.reshape(tf.transpose(x, [0, 2, 1]), [-1, 9, 2])
  return tf.concat([x[:, ::-2, 0], x[..., 1], x[:, None, 2:3, 0][:, 0]], axis=1)


def attention(x):
  scores = tf.matmul(x, LAYERS.Dense(3)(x), transpose_b=True)
  return tf.nn.softmax(scores) @ LAYERS.Dense(2)(x)


MODELS: dict[str, Callable[..., tf.keras.Model]] = {
  'of_each_value': lambda: model_of(of_each_value),
  'along_axes': lambda: model_of(along_axes),
  'moved': lambda: model_of(moved),
  'in_a_model': lambda: of_model(along_axes),
  'attention': lambda: model_of(attention),
  'last_step': lambda: model_of(
    lambda x: LAYERS.LSTM(3, return_sequences=True)(x)[:, -1, :]
  ),
  'table': table,
}


def from_no_axis(function):
  """A function of an example's single number, that has no axis of its own."""

  def build(x):
    number = LAYERS.Reshape(())(LAYERS.Dense(1)(LAYERS.Flatten()(x)))
    return LAYERS.Reshape((1,))(function(number))

  return build


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostFunctionsTest(ghost_cases.ModelTestCase):
  @parameterized.parameters(*MODELS)
  def test_is_the_sum_over_the_examples(self, name):
    self.check_sum(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters('of_each_value', 'along_axes')
  def test_a_single_gradient_is_within_the_clip(self, name):
    self.check_single(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters(*MODELS)
  def test_an_example_is_nothing_to_the_others(self, name):
    self.check_apart(ghost_cases.sums_of(MODELS[name]))

  @parameterized.named_parameters(
    ('mean', lambda x: tf.reduce_mean(x, 0, keepdims=True) * x),
    ('sum', lambda x: tf.reduce_sum(x, axis=[1, -3], keepdims=True) * x),
    ('mean_of_all', lambda x: tf.reduce_mean(x, keepdims=True) * x),
    ('softmax', lambda x: tf.nn.softmax(x, axis=0)),
    ('log_softmax', lambda x: tf.nn.log_softmax(x, -3)),
    ('norm', lambda x: tf.math.l2_normalize(x, 0)),
    ('norm_by_its_old_name', lambda x: tf.math.l2_normalize(x, dim=0)),
    ('rows', lambda x: x[::-1]),
    ('rows_of_several', lambda x: x[::-1, 0:2]),
    ('row', lambda x: x[0:1] + 0.0 * x),
    ('new_rows', lambda x: x[tf.newaxis, :, :, 0]),
    ('rows_behind_an_ellipsis', lambda x: x[..., ::-1, :, :]),
    ('more_rows', lambda x: tf.concat([x, x], axis=0)),
    ('stacked', lambda x: tf.stack([x, x], axis=0)[0]),
    ('stacked_from_the_end', lambda x: tf.stack([x, x], axis=-4)[0]),
    ('split', lambda x: tf.split(x, 1)[0]),
    ('transposed', lambda x: tf.transpose(x, [1, 0, 2])),
    ('transposed_at_all', tf.transpose),
    ('expanded', lambda x: tf.expand_dims(x, 0)[0]),
    ('expanded_from_the_end', lambda x: tf.expand_dims(x, -4)[0]),
    ('one_hot', lambda x: tf.one_hot(tf.cast(x, tf.int32), 3, axis=0)[0]),
    ('other_ranks', lambda x: tf.maximum(x, tf.reduce_max(x, axis=1))),
    (
      'product_of_rows',
      lambda x: tf.matmul(x[:, 0], x[:, 1], transpose_b=True),
    ),
    ('softmax_without_an_axis', from_no_axis(tf.nn.softmax)),
    ('log_softmax_of_a_layer', from_no_axis(LAYERS.Activation('log_softmax'))),
    (
      'a_layer_of_ranks',
      lambda x: LAYERS.Multiply()([tf.reduce_max(x, axis=[1, 2]), x[:, 0]]),
    ),
    ('a_list_of_ranks', lambda x: tf.math.add_n([x, x[0] * 0.0 + x])),
    ('other_functions', tf.sort),
  )
  def test_takes_no_function_of_other_rows(self, build):
    # Of batches of three, or some of these could not be built.
    good = model_of(LAYERS.Flatten(), batch_size=3)
    self.check_only_without(model_of(build, batch_size=3), good)

  @parameterized.parameters(
    ([-1, 9], True),
    ([-1, 3, 3, 1], True),
    ([3, 9], False),
    ([3, -1], False),
    ([9, 3], False),
  )
  def test_reshapes_within_rows(self, shape, is_taken):
    inputs = tf.keras.Input(SQUARE, 3)
    rows = tf.reshape(inputs, shape)
    outputs = LAYERS.Dense(3)(LAYERS.Flatten()(rows))
    model = tf.keras.Model(inputs, outputs)
    self.assertEqual(ghost_cases.supported_whatever_its_ops(model), is_taken)

  @parameterized.parameters((tf.float32, True), (tf.float64, False))
  def test_computes_in_float32(self, dtype, is_taken):
    model = model_of(
      lambda x: tf.cast(tf.nn.tanh(tf.cast(x, dtype)), tf.float32)
    )
    self.assertEqual(ghost_cases.supported_whatever_its_ops(model), is_taken)

  def test_looks_up_what_was_cast_whatever_it_is(self):
    sums = ghost_cases.sums_of(table)
    features, labels, weights, clip = self.arguments(sums.model, 0.05)
    rng = np.random.default_rng(1)
    features[:, 5:] = rng.integers(ghost_cases.VOCABULARY, size=[30, 3])
    features[3, 5:] = np.nan, 1e20, -5
    ghost, looped = (
      one(features, labels, weights, clip) for one in (sums.ghost, sums.looped)
    )
    self.assertGreater(np.linalg.norm(looped), clip)
    np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-6)


if __name__ == '__main__':
  absltest.main()
