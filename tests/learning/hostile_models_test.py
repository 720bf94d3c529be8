"""Models made to break the clip: none moves the mean by more than 2 C_g / n."""

import collections

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  keras_version,
)

LAYERS = tf.keras.layers
CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CLIP = 0.5
# Builders of Keras models by name.
ZOO = collections.OrderedDict()


def zoo(build):
  ZOO[build.__name__] = build
  return build


def sequential(*layers, shape=(6,)):
  return tf.keras.Sequential([LAYERS.InputLayer(shape), *layers])


def functional_model(call, shape=(6,)):
  inputs = tf.keras.Input(shape)
  return tf.keras.Model(inputs, call(inputs))


def add(name, function, shape=(6,)):
  """A model that applies a function to a batch before and within its layers."""

  def before():
    return sequential(
      LAYERS.Lambda(function), LAYERS.Flatten(), LAYERS.Dense(3), shape=shape
    )

  ZOO[f'{name}_before'] = before


def add_activation(name, function):
  def within():
    return sequential(LAYERS.Dense(6, activation=function), LAYERS.Dense(3))

  ZOO[f'{name}_activation'] = within


def normalized(x, axis):
  return x / (1e-6 + tf.norm(x, axis=axis, keepdims=True))


# What mixes the rows of a batch.
for name, function in {
  'mean': lambda x: x - tf.reduce_mean(x, 0),
  'faint_mean': lambda x: x + 1e-20 * tf.reduce_mean(x, 0),
  'sum': lambda x: x + tf.reduce_sum(x, 0),
  'maximum': lambda x: x - tf.reduce_max(x, 0),
  'minimum': lambda x: x - tf.reduce_min(x, 0),
  'variance': lambda x: x / (1 + tf.math.reduce_std(x, 0)),
  'product': lambda x: x * (1 + tf.reduce_prod(x, 0)),
  'any': lambda x: x + tf.cast(tf.reduce_any(x > 2.0, 0), x.dtype),
  'cumsum': lambda x: tf.cumsum(x, 0),
  'cumprod': lambda x: tf.math.cumprod(x, 0),
  'roll': lambda x: x + tf.roll(x, 1, 0),
  'reverse': lambda x: x + tf.reverse(x, [0]),
  'sort': lambda x: tf.sort(x, axis=0),
  'first': lambda x: x + x[:1],
  'last': lambda x: x + x[-1:],
  'gather': lambda x: x + tf.gather(x, tf.zeros([tf.shape(x)[0]], tf.int32)),
  'gram': lambda x: tf.matmul(tf.matmul(x, x, transpose_b=True), x),
  'einsum': lambda x: tf.einsum('ij,kj,kl->il', x, x, x),
  'softmax': lambda x: tf.nn.softmax(x, 0),
  'unit': lambda x: normalized(x, 0),
  'norm': lambda x: normalized(x, None),
  'batch_size': lambda x: x * tf.cast(tf.shape(x)[0], x.dtype),
  'position': lambda x: x * tf.cast(tf.range(tf.shape(x)[0]), x.dtype)[:, None],
  'clip_by_batch_norm': lambda x: tf.clip_by_norm(x, 1.0),
  'top': lambda x: x * tf.cast(x >= tf.reduce_max(x), x.dtype),
  'conv_over_batch': lambda x: tf.nn.avg_pool1d(x[None], 3, 1, 'SAME')[0],
  'transpose': lambda x: tf.transpose(tf.sort(tf.transpose(x), axis=1)),
  'while': lambda x: tf.while_loop(
    lambda i, _: i < 3, lambda i, y: (i + 1, y + tf.reduce_sum(y, 0)), (0, x)
  )[1],
  'cond': lambda x: tf.cond(tf.reduce_max(x) > 3, lambda: -x, lambda: x),
  'scan': lambda x: tf.scan(lambda a, b: a + b, x),
  'segment': lambda x: (
    x + tf.math.unsorted_segment_sum(x, tf.zeros([tf.shape(x)[0]], tf.int32), 1)
  ),
}.items():
  add(name, function)
  if name in ('mean', 'softmax', 'sort', 'cumsum', 'norm', 'batch_size'):
    add_activation(name, function)


@tf.custom_gradient
def coupled_gradient(x):
  return tf.identity(x), lambda dy: dy + 100 * tf.reduce_sum(dy, 0)


@tf.custom_gradient
def long_gradient(x):
  return tf.identity(x), lambda dy: 1e20 * dy


add('coupled_gradient', coupled_gradient)
add_activation('coupled_gradient', coupled_gradient)
add_activation('long_gradient', long_gradient)
# What fails, keeps or shows something.
add('check_numerics', lambda x: tf.debugging.check_numerics(x, 'x'))
add('print', lambda x: (tf.print(x), x)[1])
add(
  'python',
  lambda x: tf.ensure_shape(
    tf.py_function(lambda y: y - np.mean(y, 0), [x], tf.float32), [None, 6]
  ),
)
add(
  'numpy',
  lambda x: tf.ensure_shape(
    tf.numpy_function(lambda y: y - y.mean(0), [x], tf.float32), [None, 6]
  ),
)


def assertion(x):
  checked = tf.debugging.Assert(tf.reduce_all(x < 1e3), [x])
  with tf.control_dependencies([] if checked is None else [checked]):
    return tf.identity(x)


add('assertion', assertion)


@zoo
def gather_by_value():
  table = tf.constant(np.eye(6), tf.float32)
  return sequential(
    LAYERS.Lambda(lambda x: tf.gather(table, tf.cast(x[:, 0], tf.int32))),
    LAYERS.Dense(3),
  )


# Keras's own layers.
@zoo
def softmax_over_batch():
  return sequential(LAYERS.Softmax(axis=0), LAYERS.Dense(3))


@zoo
def unit_normalization_over_batch():
  return sequential(LAYERS.UnitNormalization(axis=0), LAYERS.Dense(3))


@zoo
def attention_over_batch():
  return functional_model(lambda x: LAYERS.Dense(3)(LAYERS.Attention()([x, x])))


@zoo
def concatenated_batches():
  return functional_model(
    lambda x: LAYERS.Dense(3)(LAYERS.Concatenate(axis=0)([x, x]))
  )


@zoo
def batch_normalization():
  return sequential(LAYERS.BatchNormalization(), LAYERS.Dense(3))


@zoo
def batch_normalization_without_weights():
  layer = LAYERS.BatchNormalization(center=False, scale=False)
  return sequential(layer, LAYERS.Dense(3))


@zoo
def frozen_layer():
  return sequential(LAYERS.Dense(4, trainable=False), LAYERS.Dense(3))


@zoo
def lstm():
  return sequential(LAYERS.LSTM(2), LAYERS.Dense(3), shape=(2, 3))


@zoo
def gru():
  return sequential(LAYERS.GRU(2), LAYERS.Dense(3), shape=(2, 3))


@zoo
def masked_words_both_ways():
  words = LAYERS.Embedding(4, 2, mask_zero=True)
  both_ways = LAYERS.Bidirectional(LAYERS.SimpleRNN(2))
  return sequential(words, both_ways, LAYERS.Dense(3), shape=(3,))


@zoo
def attention():
  inputs = tf.keras.Input((3, 4))
  hidden = LAYERS.MultiHeadAttention(2, 2)(inputs, inputs) + inputs
  hidden = LAYERS.GlobalMaxPool1D()(LAYERS.LayerNormalization()(hidden))
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


@zoo
def separable_convolution():
  layers = LAYERS.SeparableConv2D(2, 2), LAYERS.ReLU(), LAYERS.Flatten()
  return sequential(*layers, LAYERS.Dense(3), shape=(4, 4, 2))


@zoo
def stateful_rnn():
  inputs = tf.keras.Input(batch_shape=(7, 2, 3))
  hidden = LAYERS.SimpleRNN(2, stateful=True)(inputs)
  return tf.keras.Model(inputs, LAYERS.Dense(3)(hidden))


@zoo
def layer_called_twice():
  layer = LAYERS.Dense(6)
  return functional_model(lambda x: LAYERS.Dense(3)(layer(layer(x))))


@zoo
def nested_model_called_twice():
  inner = sequential(LAYERS.Dense(6, activation='tanh'))
  return functional_model(lambda x: LAYERS.Dense(3)(inner(inner(x))))


@zoo
def nested_model_that_couples():
  inner = sequential(LAYERS.Lambda(lambda x: x - tf.reduce_mean(x, 0)))
  return functional_model(lambda x: LAYERS.Dense(3)(inner(x)))


@zoo
def tied_weights():
  first, second = LAYERS.Dense(6), LAYERS.Dense(6)
  model = sequential(first, second, LAYERS.Dense(3))
  second.kernel = first.kernel
  return model


@zoo
def dense_on_sequences():
  return sequential(
    LAYERS.Dense(3), LAYERS.Flatten(), LAYERS.Dense(3), shape=(2, 3)
  )


@zoo
def convolution_on_five_dimensions():
  return sequential(
    LAYERS.Conv2D(4, 1), LAYERS.Flatten(), LAYERS.Dense(3), shape=(3, 2, 2, 1)
  )


@zoo
def convolution_in_three_dimensions():
  return sequential(
    LAYERS.Conv3D(2, 2), LAYERS.Flatten(), LAYERS.Dense(3), shape=(3, 3, 3, 1)
  )


@zoo
def grouped_convolution():
  return sequential(
    LAYERS.Conv2D(4, 2, groups=2),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
    shape=(3, 3, 2),
  )


@zoo
def cancelling_bias():
  """The bias's gradient is a small sum of large parts."""
  sign = np.where(np.arange(16) % 2, 1e8, -1e8).reshape([1, 4, 4, 1])
  return sequential(
    LAYERS.Conv2D(1, 1),
    LAYERS.Lambda(lambda x: x * tf.constant(sign, tf.float32)),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
    shape=(4, 4, 1),
  )


@zoo
def plain_convolution():
  return sequential(
    LAYERS.Conv2D(3, 2, activation='relu'),
    LAYERS.MaxPool2D(),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
    shape=(5, 5, 1),
  )


@zoo
def convolution_of_sequences():
  return sequential(
    LAYERS.Conv1D(32, 2, activation='relu', padding='same'),
    LAYERS.GlobalMaxPool1D(),
    LAYERS.Dense(3),
    shape=(5, 2),
  )


@zoo
def half_precision():
  return sequential(LAYERS.Dense(6, dtype='float16'), LAYERS.Dense(3))


@zoo
def mixed_precision():
  return sequential(LAYERS.Dense(6, dtype='mixed_float16'), LAYERS.Dense(3))


@zoo
def bfloat_inside():
  return sequential(
    LAYERS.Lambda(lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32)),
    LAYERS.Dense(3),
  )


@zoo
def double_precision():
  return sequential(LAYERS.Dense(6, dtype='float64'), LAYERS.Dense(3))


@zoo
def tiny_weights():
  """Deltas of 1e-19: their squares are no float32 numbers."""
  small = tf.keras.initializers.Constant(1e-19)
  return sequential(
    LAYERS.Dense(4, kernel_initializer='ones'),
    LAYERS.Dense(3, kernel_initializer=small),
  )


@zoo
def large_weights():
  large = tf.keras.initializers.Constant(1e19)
  return sequential(LAYERS.Dense(4, kernel_initializer=large), LAYERS.Dense(3))


@zoo
def tiny_scale():
  return sequential(
    LAYERS.Lambda(lambda x: x * 1e-30), LAYERS.Dense(4), LAYERS.Dense(3)
  )


@zoo
def embedding():
  return sequential(LAYERS.Embedding(4, 2), LAYERS.Flatten(), LAYERS.Dense(3))


@zoo
def dropout():
  return sequential(LAYERS.Dense(6), LAYERS.Dropout(0.5), LAYERS.Dense(3))


@zoo
def shared_dropout_mask():
  return sequential(
    LAYERS.Dropout(0.5, noise_shape=(1, 6)), LAYERS.Dense(6), LAYERS.Dense(3)
  )


@zoo
def random_shuffle():
  return sequential(LAYERS.Lambda(tf.random.shuffle), LAYERS.Dense(3))


@zoo
def overridden_call():
  model = sequential(LAYERS.Dense(6), LAYERS.Dense(3))
  layer = model.layers[0]
  plain = layer.call
  layer.call = lambda x: plain(x - tf.reduce_mean(x, 0))
  return model


class _SubtractsMean(tf.keras.layers.Dense):
  def call(self, inputs):
    outputs = super().call(inputs)
    return outputs - tf.reduce_mean(outputs, 0)


@zoo
def subclassed_dense():
  return sequential(_SubtractsMean(6), LAYERS.Dense(3))


class _Model(tf.keras.Sequential):
  def call(self, inputs, training=None, mask=None):
    return super().call(inputs - tf.reduce_mean(inputs, 0), training, mask)


@zoo
def subclassed_model():
  return _Model([LAYERS.InputLayer((6,)), LAYERS.Dense(3)])


@zoo
def normalization_of_each():
  return sequential(LAYERS.LayerNormalization(), LAYERS.Dense(3))


@zoo
def group_normalization():
  return sequential(
    LAYERS.GroupNormalization(2),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
    shape=(3, 3, 2),
  )


@zoo
def beyond_overflow_of_the_others():
  """What a NaN becomes is told by the others, and too large to be compared."""

  def mix(x):
    total = tf.reduce_sum(tf.where(tf.math.is_finite(x), x, 0))
    return tf.where(tf.math.is_finite(x), x, tf.where(total > 3, 1e37, -1e37))

  return sequential(LAYERS.Lambda(mix), LAYERS.Dense(3))


def hostile_pairs(shape, dtype, count, rng):
  """(features, other features) that differ in the last row."""
  plain = rng.random([count, *shape])
  repeated = np.repeat(plain[:1], count, 0)
  found = []
  for base in (plain, repeated):
    for size in (1e-22, 1.0, 1e4, 2e18, 1e30, np.inf, np.nan):
      other = base.copy()
      other[-1] = size * rng.uniform(0.9, 1.1, shape)
      found.append((base, other))
  other = np.ones_like(plain)
  other[-1] = -1e4 * rng.random(shape)
  found.append((np.ones_like(plain), other))
  return [(one.astype(dtype), two.astype(dtype)) for one, two in found]


def movement(clipped_sum, weights, shape, dtype, clip):
  """The largest movement of the mean, in units of 2 C_g / n."""
  rng = np.random.default_rng(1)

  prepared = isinstance(clipped_sum, clipping.PreparedSum)
  size = clipping.MICROBATCH_SIZE if prepared else 4

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, *shape], dtype),
      tf.TensorSpec([None], tf.int32),
    ],
    autograph=False,
  )
  def mean(features, labels):
    return clipping.clipped_mean_gradient(
      clipped_sum,
      [tf.constant(w) for w in weights],
      features,
      labels,
      example_l2_norm_clip=clip,
      microbatch_size=size,
    )

  def flat(features, labels):
    return np.concatenate([np.ravel(g) for g in mean(features, labels)])

  worst = 0.0
  for count in (1, 6):
    labels = rng.integers(0, 3, count).astype(np.int32)
    other_labels = labels.copy()
    other_labels[-1] = (labels[-1] + 1) % 3
    base, before = None, None
    for features, other in hostile_pairs(shape, dtype, count, rng):
      if base is None or not np.array_equal(features, base):
        base, before = features, flat(features, labels)
      gap = before - flat(other, other_labels)
      worst = max(worst, np.linalg.norm(gap) * count / (2 * clip))
      if not np.isfinite(gap).all():
        return np.inf
  return worst


# What is not refused.
GHOST: tuple[str, ...] = (
  *('attention', 'convolution_of_sequences', 'dense_on_sequences', 'dropout'),
  *('embedding', 'group_normalization', 'gru', 'large_weights', 'lstm'),
  *('masked_words_both_ways', 'normalization_of_each', 'plain_convolution'),
  *('separable_convolution', 'shared_dropout_mask', 'tiny_weights'),
)
ONE_BY_ONE: tuple[str, ...] = (
  *('beyond_overflow_of_the_others', 'cancelling_bias'),
  'convolution_in_three_dimensions',
  *('convolution_on_five_dimensions', 'coupled_gradient_activation'),
  *('coupled_gradient_before', 'double_precision', 'grouped_convolution'),
  *('layer_called_twice', 'long_gradient_activation'),
  *('nested_model_called_twice', 'tied_weights', 'tiny_scale'),
)
if keras_version.IS_KERAS_3:
  # What is drawn at random is refused; and Keras itself takes neither a weight
  # of another layer nor a convolution of five dimensions.
  refused = {'dropout', 'shared_dropout_mask', 'tied_weights'}
  refused.add('convolution_on_five_dimensions')
  GHOST, ONE_BY_ONE = (), tuple({*GHOST, *ONE_BY_ONE} - refused)


class HostileModelsTest(parameterized.TestCase):
  @parameterized.parameters(*ZOO)
  def test_is_refused_or_within_the_bound(self, name):
    tf.keras.utils.set_random_seed(3)
    accepted = name in GHOST + ONE_BY_ONE
    try:
      model = functional.FunctionalModel(ZOO[name]())
      clipped_sum = example_independence.clipped_sum(model, CROSS_ENTROPY, CLIP)
    except ValueError as error:
      self.assertNotIn('\n', str(error))
      self.assertLess(len(str(error)), 500)
      self.assertFalse(accepted, error)
      return
    self.assertTrue(accepted)
    is_ghost = isinstance(clipped_sum, clipping.PreparedSum)
    self.assertEqual(is_ghost, name in GHOST)
    if model.is_random:
      return  # Two draws differ; what is clipped is the same.
    worst = movement(
      clipped_sum,
      model.initial_weights,
      model.features_spec.shape[1:],
      model.features_spec.dtype.as_numpy_dtype,
      CLIP,
    )
    self.assertLessEqual(worst, 1.0)

  @parameterized.parameters((np.nan, True), (0.5, False))
  def test_only_of_a_broken_example_may_overflow_differ(self, value, same):
    features = np.full([7, 2], value, np.float32)

    def predict(weights, features):
      del weights
      # As a sum that overflows in batches alone.
      return np.full_like(features, np.inf if len(features) > 1 else -3e38)

    def mixed(weights, features):
      del weights
      return np.full([len(features), 3], len(features), np.float32)

    is_same = example_independence._same_outputs
    self.assertEqual(is_same(predict, [], features), same)
    self.assertFalse(is_same(mixed, [], features))

  def test_what_is_random_in_evaluation_is_not_called_mixing(self):
    noisy = LAYERS.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))
    model = functional.FunctionalModel(sequential(noisy, LAYERS.Dense(3)))
    with self.assertRaisesRegex(ValueError, 'a layer draws at random there'):
      example_independence.clipped_sum(model, CROSS_ENTROPY, CLIP)

  def test_the_zoo_is_large(self):
    self.assertGreaterEqual(len(ZOO), 60)

  def test_the_measure_finds_what_couples_and_what_is_too_long(self):
    def coupled(weights, features, labels, present, clip):
      del weights, labels
      kept = tf.where(present[:, tf.newaxis], features, 0)
      mixed = kept + 100 * tf.reduce_sum(kept, 0)
      scales = clip / tf.maximum(
        tf.norm(tf.cast(kept, tf.float64), axis=1), clip
      )
      return [tf.linalg.matvec(mixed, tf.cast(scales, tf.float32), True)]

    def too_long(weights, features, labels, present, clip):
      del weights, labels, clip
      kept = tf.logical_and(
        present, tf.reduce_all(tf.math.is_finite(features), 1)
      )
      return [tf.reduce_sum(tf.where(kept[:, tf.newaxis], features, 0), 0)]

    for clipped_sum in (coupled, too_long):
      worst = movement(clipped_sum, [np.zeros(6)], (6,), np.float32, CLIP)
      self.assertGreater(worst, 2)


if __name__ == '__main__':
  absltest.main()
