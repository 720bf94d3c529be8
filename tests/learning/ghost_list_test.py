"""Each line of ghost clipping's list, and the self-check, on its own.

What one layer of defence lets through, another mostly catches, so a model that
is refused in the end tells nothing about a single line. Here the others are out
of the way: the list is asked by itself, with all ops of the model on it.
"""

import functools
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  ghost_clipping,
  ghost_list,
  keras_version,
)

LAYERS = tf.keras.layers
CROSS_ENTROPY = ghost_cases.CROSS_ENTROPY
of_keras_2 = unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')


def sequential(*layers, shape=(6,)):
  return tf.keras.Sequential([LAYERS.InputLayer(shape), *layers])


def convolution_of_rank(rank):
  """A convolution of images (rank 4, with the batch) or of more at once."""
  shape = (3, 2, 2, 1)[1 - rank :]
  return sequential(LAYERS.Conv2D(2, 1), LAYERS.Flatten(), shape=shape)


def convolution_in_groups(groups):
  convolution = LAYERS.Conv2D(4, 2, groups=groups)
  return sequential(convolution, LAYERS.Flatten(), shape=(3, 3, 2))


def dense_of_type(dtype):
  return sequential(LAYERS.Dense(3, dtype=dtype))


def reshape_of_type(dtype):
  # Computes in what it gets: only its policy tells.
  shaped = LAYERS.Reshape([6], dtype=dtype, autocast=False)
  return sequential(shaped, LAYERS.Dense(3))


def dense_with(replaced):
  """A dense layer, whose `call` may be replaced in the object."""
  model = sequential(LAYERS.Dense(3))
  layer = model.layers[0]
  plain = layer.call
  if replaced:
    layer.call = lambda x: plain(x - tf.reduce_mean(x, 0))
  return model


def concatenated(axis):
  inputs = tf.keras.Input([6])
  parts = [LAYERS.Dense(3)(inputs), LAYERS.Dense(3)(inputs)]
  return tf.keras.Model(inputs, LAYERS.Concatenate(axis)(parts))


class Sequential(tf.keras.Sequential):
  """Has the name of Keras's class, and a `call` of its own."""

  def call(self, inputs, training=None, mask=None):
    return super().call(inputs - tf.reduce_mean(inputs, 0), training, mask)


class SequentialByName(tf.keras.Sequential):
  """Has a property of its own, and no function."""

  losses = property(lambda self: [])


SequentialByName.__name__ = 'Sequential'


@tf.keras.utils.register_keras_serializable('ghost_list_test')
def centered(x):
  return x - tf.reduce_mean(x, 0)


@tf.keras.utils.register_keras_serializable('ghost_list_test')
class EqualActivation:
  """An activation that says of itself that it is any other."""

  __name__ = 'tanh'
  __hash__ = object.__hash__

  def __eq__(self, other):
    return True

  def __call__(self, values):
    return centered(values)

  def get_config(self):
    return {}


class EqualToAny(type):
  """Of classes that say that they are any other."""

  __hash__ = type.__hash__

  def __eq__(cls, other):
    return True


def disguised(name, metaclass, **attributes):
  """A layer that mixes, of a class that has no function of its own."""
  register = tf.keras.utils.register_keras_serializable('ghost_list_test')
  attributes['call'] = functools.partial(centered)
  return register(metaclass(name, (LAYERS.Layer,), attributes))()


def dense_activated(activation):
  return sequential(LAYERS.Dense(3, activation=activation))


def ended_by(layer):
  return sequential(LAYERS.Dense(3), layer)


def model_of_class(kind):
  return kind([LAYERS.InputLayer([6]), LAYERS.Dense(3)])


def upsampled(interpolation):
  return sequential(
    LAYERS.UpSampling2D(interpolation=interpolation),
    LAYERS.Flatten(),
    LAYERS.Dense(3),
    shape=(2, 2, 1),
  )


def rescaled(scale):
  return sequential(LAYERS.Rescaling(scale, 0.5), LAYERS.Dense(3))


class NamedLikeCrossEntropy(tf.keras.losses.SparseCategoricalCrossentropy):
  def call(self, y_true, y_pred):
    return super().call(y_true, y_pred - tf.reduce_mean(y_pred, 0))


@of_keras_2
class GhostListTest(ghost_cases.ModelTestCase):
  @parameterized.named_parameters(
    ('convolution_of_rank', convolution_of_rank, 5, 4),
    ('groups', convolution_in_groups, 2, 1),
    ('type', dense_of_type, 'float64', 'float32'),
    ('policy_alone', reshape_of_type, 'float64', 'float32'),
    ('replaced_call', dense_with, True, False),
    ('concatenated_batch', concatenated, 0, 1),
    ('concatenated_batch_from_the_end', concatenated, -2, -1),
    ('own_class', model_of_class, Sequential, tf.keras.Sequential),
    ('own_property', model_of_class, SequentialByName, tf.keras.Sequential),
    ('own_activation', dense_activated, centered, 'tanh'),
    ('equal_activation', dense_activated, EqualActivation(), 'tanh'),
    (
      'name_of_a_function',
      ended_by,
      disguised('TFOpLambda', type, symbol='math.add'),
      LAYERS.ReLU(),
    ),
    ('equal_class', ended_by, disguised('Same', EqualToAny), LAYERS.ReLU()),
    # One for each example of a batch of three, as the copy is tried on.
    ('scale_of_a_row', rescaled, [[2.0], [3.0], [4.0]], 2.0),
    ('unknown', ended_by, LAYERS.Softmax(0), LAYERS.Activation('softmax')),
  )
  def test_takes_a_model_only_without(self, build, bad, good):
    self.check_only_without(build(bad), build(good))

  def test_trains_on_keras_code_alone(self):
    """A function of a layer, replaced in the object, that lies in wait."""
    model = sequential(
      LAYERS.Conv2D(2, 2), LAYERS.Flatten(), LAYERS.Dense(3), shape=(3, 3, 1)
    )
    layer = model.layers[0]
    plain = layer.convolution_op

    def mixing(x, kernel):
      largest = tf.reduce_max(x, 0, keepdims=True)
      return plain(x + tf.where(largest >= 1e6, largest, 0.0), kernel)

    layer.convolution_op = mixing
    wrapped = functional.FunctionalModel(model)
    # All else looks as it should.
    self.assertLessEqual(wrapped.ops, ghost_list.OPS)
    self.assertTrue(ghost_list.supports(wrapped, CROSS_ENTROPY))
    clip = 0.5
    clipped_sum = example_independence.clipped_sum(wrapped, CROSS_ENTROPY, clip)
    features = np.random.default_rng(0).random([64, 3, 3, 1], np.float32)
    other = features.copy()
    other[0] = 1e7
    sums = [
      clipped_sum(
        [tf.constant(w) for w in wrapped.initial_weights],
        tf.constant(x),
        tf.constant(np.arange(64) % 3, tf.int32),
        tf.ones([64], tf.bool),
        tf.constant(clip, tf.float64),
      )
      for x in (features, other)
    ]
    moved = np.concatenate(
      [np.ravel(a - b) for a, b in zip(*sums, strict=True)]
    )
    self.assertLessEqual(np.linalg.norm(moved), 2 * clip * 1.001)

  @parameterized.parameters('build', 'get_config')
  def test_takes_no_class_of_keras_that_was_changed(self, name):
    def changed(self, *args, **kwargs):
      return plain(self, *args, **kwargs)

    plain = getattr(LAYERS.Dense, name)
    with mock.patch.object(LAYERS.Dense, name, changed):
      model = functional.FunctionalModel(sequential(LAYERS.Dense(3)))
      self.assertFalse(ghost_list.supports(model, CROSS_ENTROPY))
    self.assertTrue(ghost_list.supports(model, CROSS_ENTROPY))

  def test_takes_no_class_of_an_activation_that_was_changed(self):
    plain = LAYERS.LeakyReLU.call

    def changed(self, inputs):
      return plain(self, inputs)

    with mock.patch.object(LAYERS.LeakyReLU, 'call', changed):
      model = dense_activated(LAYERS.LeakyReLU())
      wrapped = functional.FunctionalModel(model)
      self.assertFalse(ghost_list.supports(wrapped, CROSS_ENTROPY))
    self.assertTrue(ghost_list.supports(wrapped, CROSS_ENTROPY))

  def test_takes_no_class_of_a_loss_that_was_changed(self):
    model = functional.FunctionalModel(sequential(LAYERS.Dense(3)))
    kind = tf.keras.losses.SparseCategoricalCrossentropy
    self.assertTrue(ghost_list.supports(model, CROSS_ENTROPY))
    plain = kind.call
    with mock.patch.object(
      kind, 'call', lambda self, y, p: plain(self, y, p - tf.reduce_mean(p, 0))
    ):
      self.assertFalse(ghost_list.supports(model, CROSS_ENTROPY))

  @parameterized.parameters('call', 'fn', '__call__')
  def test_takes_no_loss_with_a_function_replaced(self, name):
    model = functional.FunctionalModel(sequential(LAYERS.Dense(3)))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    self.assertTrue(ghost_list.supports(model, loss))
    setattr(loss, name, lambda *args, **kwargs: 0.0)
    self.assertFalse(ghost_list.supports(model, loss))

  @parameterized.parameters(
    LAYERS.AlphaDropout, LAYERS.GaussianDropout, LAYERS.GaussianNoise
  )
  def test_takes_what_draws_for_each_value(self, kind):
    model = functional.FunctionalModel(sequential(kind(0.3), LAYERS.Dense(3)))
    self.assertTrue(model.is_random)
    self.assertTrue(ghost_list.supports(model, CROSS_ENTROPY))

  @parameterized.parameters(
    (LAYERS.LeakyReLU, True),
    (LAYERS.PReLU, False),
    (lambda: LAYERS.Softmax(axis=0), False),
  )
  def test_takes_listed_layers_as_activations(self, build, is_taken):
    model = sequential(LAYERS.Dense(4, activation=build()), LAYERS.Dense(3))
    wrapped = functional.FunctionalModel(model)
    with mock.patch.object(ghost_list, 'OPS', ghost_list.OPS | wrapped.ops):
      self.assertEqual(ghost_list.supports(wrapped, CROSS_ENTROPY), is_taken)

  @parameterized.parameters((-1, True), (0, False), ((0, 1), False))
  def test_takes_no_normalization_that_knows_the_row(self, axis, is_taken):
    inputs = tf.keras.Input([4], 3)
    rows = LAYERS.Normalization(axis, mean=1.0, variance=2.0)(inputs)
    model = tf.keras.Model(inputs, LAYERS.Dense(3)(rows))
    wrapped = functional.FunctionalModel(model)
    self.assertEqual(ghost_list.supports(wrapped, CROSS_ENTROPY), is_taken)

  def test_takes_no_op_that_is_not_listed(self):
    # Of the same listed layer.
    nearest, bilinear = (
      functional.FunctionalModel(upsampled(name))
      for name in ('nearest', 'bilinear')
    )
    self.assertTrue(ghost_list.supports(nearest, CROSS_ENTROPY))
    self.assertFalse(ghost_list.supports(bilinear, CROSS_ENTROPY))

  def test_takes_no_loss_that_is_not_listed(self):
    model = functional.FunctionalModel(sequential(LAYERS.Dense(3)))
    self.assertTrue(ghost_list.supports(model, CROSS_ENTROPY))
    for loss in (
      tf.keras.losses.MeanSquaredError(),
      NamedLikeCrossEntropy(from_logits=True),
    ):
      self.assertFalse(ghost_list.supports(model, loss), loss)

  def test_takes_no_loss_of_a_class_that_is_not_listed(self):
    """Whatever else its class looks like."""
    model = functional.FunctionalModel(sequential(LAYERS.Dense(3)))
    loss = NamedLikeCrossEntropy(from_logits=True)
    with mock.patch.object(ghost_list, '_is_kerass_own', lambda kind: True):
      self.assertTrue(ghost_list.supports(model, CROSS_ENTROPY))
      self.assertFalse(ghost_list.supports(model, loss))


@of_keras_2
class ModelsInModelsTest(parameterized.TestCase):
  def supports(self, build):
    inputs = tf.keras.Input([6])
    model = tf.keras.Model(inputs, LAYERS.Dense(3)(build(inputs)))
    return ghost_cases.supported_whatever_its_ops(model)

  @parameterized.parameters(
    ({}, True), ({'training': None}, True), ({'training': False}, False)
  )
  def test_are_called_with_their_inputs_alone(self, named, is_taken):
    """Without dropout in training it would be another model."""
    inner = sequential(LAYERS.Dropout(0.5))
    self.assertEqual(self.supports(lambda x: inner(x, **named)), is_taken)

  @parameterized.parameters((1, True), (2, False))
  def test_are_called_once(self, times, is_taken):
    inner = sequential(LAYERS.Dense(6))

    def build(x):
      return functools.reduce(lambda y, _: inner(y), range(times), x)

    self.assertEqual(self.supports(build), is_taken)

  @parameterized.parameters((1, True), (2, False))
  def test_keep_the_order_of_the_weights(self, layers, is_taken):
    """Those of a normalization are all alike at first."""

    def branch():
      kinds = [LAYERS.LayerNormalization() for _ in range(layers)]
      return sequential(*kinds)

    self.assertEqual(
      self.supports(lambda x: LAYERS.Add()([branch()(x), branch()(x)])),
      is_taken,
    )

  def test_are_of_keras(self):
    class Own(tf.keras.Sequential):
      def call(self, inputs, **kwargs):
        return super().call(inputs - tf.reduce_mean(inputs, 0), **kwargs)

    kinds = tf.keras.Sequential, Own
    made = [kind([LAYERS.InputLayer([6]), LAYERS.Dense(6)]) for kind in kinds]
    self.assertEqual(list(map(self.supports, made)), [True, False])

  def test_are_of_listed_layers(self):
    made = [
      sequential(LAYERS.Dense(6, activation=one)) for one in ('tanh', centered)
    ]
    self.assertEqual(list(map(self.supports, made)), [True, False])

  def test_with_a_function_replaced_are_not_taken(self):
    inner = sequential(LAYERS.Dense(6))
    inner.call = lambda x, **kwargs: LAYERS.Dense.call(inner.layers[0], x) * 2
    self.assertFalse(self.supports(inner))


@of_keras_2
class PreparedTest(parameterized.TestCase):
  def ghost(self, model):
    return ghost_clipping.ghost_clipped_sum(
      functional.FunctionalModel(model), CROSS_ENTROPY
    )

  @parameterized.parameters(
    ((LAYERS.Flatten(), LAYERS.Dense(3), LAYERS.Dense(2)), 1),
    ((LAYERS.Reshape([6]), LAYERS.Dense(2)), 1),
    ((LAYERS.Dropout(0.5), LAYERS.Dense(3)), 0),
    ((LAYERS.ReLU(), LAYERS.Dense(3)), 0),
  )
  def test_only_what_is_moved_is_prepared(self, layers, prepared):
    clipped_sum = self.ghost(sequential(*layers))
    self.assertEqual(clipped_sum.prepare(tf.ones([4, 6])).shape, [4, prepared])

  @parameterized.product(name=('a', 'zz'), size=(1e10, 1e30))
  def test_the_norm_is_of_the_very_input_that_is_added_up(self, name, size):
    """x + 1e-9 x - x in another order is nothing, or is 1e-9 x.

    TensorFlow makes one sum of both additions, in an order of its own in each
    graph, by the names of its ops. So whatever is computed in two graphs may be
    two things.
    """
    inputs = tf.keras.Input([4])
    small = LAYERS.LeakyReLU(1e-9, name='b_small')(inputs)
    minus = LAYERS.Subtract(name='a_minus')([small, inputs])
    both = LAYERS.Add(name='c_all')([inputs, minus, small])
    outputs = LAYERS.Dense(2, use_bias=False, kernel_initializer='zeros')(both)
    clipped_sum = self.ghost(tf.keras.Model(inputs, outputs, name=name))

    @tf.function(
      autograph=False,
      input_signature=[
        [tf.TensorSpec([4, 2])],
        tf.TensorSpec([None, 4]),
        tf.TensorSpec([None], tf.int32),
      ],
    )
    def mean(w, x, y):
      return clipping.clipped_mean_gradient(
        clipped_sum, w, x, y, example_l2_norm_clip=1.0
      )

    (gradient,) = mean(
      [tf.zeros([4, 2])], tf.fill([3, 4], -size), tf.zeros([3], tf.int32)
    )
    self.assertLessEqual(np.linalg.norm(gradient), 1.0)

  def test_every_layer_has_its_own_norms(self):
    inputs = tf.keras.Input([4, 4, 1])
    small = LAYERS.Flatten()(LAYERS.Cropping2D(1)(inputs))
    outputs = LAYERS.Add()(
      [LAYERS.Dense(3)(LAYERS.Flatten()(inputs)), LAYERS.Dense(3)(small)]
    )
    model = tf.keras.Model(inputs, outputs)
    clipped_sum = self.ghost(model)
    rng = np.random.default_rng(0)
    features = tf.constant(rng.random([8, 4, 4, 1], np.float32))
    prepared = clipped_sum.prepare(features)
    self.assertEqual(prepared.shape, [8, 2])
    arguments = (
      [tf.constant(w) for w in model.get_weights()],
      features,
      tf.constant(rng.integers(3, size=8), tf.int32),
      tf.ones([8], tf.bool),
      tf.constant(0.1, tf.float64),
    )
    wrapped = functional.FunctionalModel(model)

    def loss_fn(weights, x, y):
      return CROSS_ENTROPY(y, wrapped(weights, x, True))

    looped = clipping.looped_clipped_sum(loss_fn)(*arguments)
    for one, other, expected in zip(
      clipped_sum(*arguments, prepared),
      clipped_sum(*arguments),
      looped,
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)
      np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-5)


@of_keras_2
class SelfCheckTest(absltest.TestCase):
  def test_refuses_what_a_list_would_let_through(self):
    # Seven outputs, and as many examples: the labels [7] of all meet the
    # outputs [7, 7] of each.
    loss = tf.keras.losses.MeanSquaredError()
    model = functional.FunctionalModel(sequential(LAYERS.Dense(7), shape=(2,)))
    with (
      mock.patch.object(ghost_list, '_is_known_loss', lambda loss: True),
      mock.patch.object(example_independence, '_DRAWS', 1),
      self.assertRaisesRegex(ValueError, 'single examples by .* clips'),
    ):
      example_independence.clipped_sum(model, loss, 0.5)


if __name__ == '__main__':
  absltest.main()
