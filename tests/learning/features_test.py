import functools
import pathlib
import unittest
import warnings
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf import mechanisms
from tvdp_tf.learning import datasets, features, synthetic_images
from tvdp_tf.training import federation, population, train
from tvdp_tf.training import settings as settings_lib

_SMALL: dict[str, Any] = {
  'users': 4,
  'users_per_round': 4,
  'rounds': 2,
  'local_steps': 1,
}


def images(count=6, shape=(28, 28, 1), seed=0):
  return np.random.default_rng(seed).random([count, *shape]).astype(np.float32)


def halves(image):
  """Means of rows: a function of one example."""
  return image.mean(axis=1).ravel()


_calls = []


def counted(image):
  _calls.append(1)
  return np.concatenate([image.ravel(), [len(_calls)]])


def setUpModule():
  """What is fitted is fitted to fewer images: half a minute less."""
  features._fitted.cache_clear()
  fewer = mock.patch.object(features, '_SYNTHETIC_IMAGES', 200)
  fewer.start()
  unittest.addModuleCleanup(features._fitted.cache_clear)
  unittest.addModuleCleanup(fewer.stop)


class ScatteringTest(parameterized.TestCase):
  @parameterized.parameters(
    ((28, 28, 1), 81 * 7 * 7), ((32, 32, 3), 243 * 8 * 4), ((8, 8, 1), 9 * 16)
  )
  def test_shape_and_norm(self, shape, size):
    found = features.scattering(images(3, shape))
    self.assertEqual(found.shape, (3, size))
    self.assertEqual(found.dtype, np.float32)
    self.assertEqual(features.output_shape('scattering', shape), (size,))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)

  @parameterized.parameters(((28, 28, 1),), ((32, 32, 3),), ((8, 8, 1),))
  def test_an_example_alone(self, shape):
    """Bit for bit the same among any others, in any place."""
    some = images(5, shape)
    together = features.scattering(some)
    for i in range(5):
      alone = features.scattering(some[i : i + 1])
      np.testing.assert_array_equal(alone[0], together[i])
      others = images(5, shape, seed=1) * 1e30
      others[i] = some[i]
      with np.errstate(all='ignore'):
        among = features.scattering(others)
      np.testing.assert_array_equal(among[i], together[i])

  def test_of_the_mirrored_image(self):
    image = synthetic_images.dead_leaves(20, 32, 32, 3, seed=5)
    transform = features._transform(32, 32)

    def maps(x):
      planes = np.ascontiguousarray(np.moveaxis(x, 3, 1))
      return transform(planes).reshape(20, -1, 8, 8)

    found = features.mirrored(maps(image), 2)
    expected = maps(np.ascontiguousarray(image[:, :, ::-1]))
    self.assertGreater(np.corrcoef(found.ravel(), expected.ravel())[0, 1], 0.99)
    inner = np.corrcoef(found[:, 1:].ravel(), expected[:, 1:].ravel())[0, 1]
    self.assertGreater(inner, 0.97)
    # A mirrored image has nearly the same features.
    one, other = (
      features.scattering(image),
      features.scattering(np.ascontiguousarray(image[:, :, ::-1])),
    )
    self.assertGreater(np.mean(np.sum(one * other, axis=1)), 0.9)

  def test_a_blank_image_is_no_error(self):
    self.assertTrue(np.isfinite(features.scattering(images() * 0)).all())

  def test_groups_have_mean_0_and_variance_1(self):
    maps = images(4, (6, 5, 5)) * 7 + 3
    found = features.group_normalized(maps, [2, 2, 2]).reshape(4, 3, -1)
    np.testing.assert_allclose(found.mean(axis=2), 0, atol=1e-5)
    np.testing.assert_allclose(found.var(axis=2), 1, rtol=1e-4)

  def test_refuses_what_is_no_image(self):
    with self.assertRaisesRegex(ValueError, 'features must be none for'):
      features.output_shape('scattering', (108,))


class UnitNormTest(absltest.TestCase):
  def test_direction_stays(self):
    some = 5 * images(4, (7,)) - 1
    some[2] = 0
    found = features.unit_norm(some)
    norms = np.linalg.norm(some, axis=1, keepdims=True)
    np.testing.assert_allclose(found * norms, some, rtol=1e-5)
    np.testing.assert_array_equal(found[2], 0)
    self.assertEqual(features.output_shape('unit_norm', (7, 3)), (21,))
    dataset = datasets.load('generated_adult')
    features.check(features.FEATURES['unit_norm'], dataset.test_features)


def pretrained(**changes):
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      tf.keras.Input((4, 2)),
      *(layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5)),
      layers.Flatten(),
    ],
    **{'name': 'public-1.0', **changes},
  )


class PretrainedTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.dict(features.FEATURES))
    self.model = pretrained()
    self.some = images(20, (4, 2))
    self.model.layers[1].moving_mean.assign([1.0, 2.0, 3.0])

  def test_what_it_predicts_of_each_example_alone(self):
    name = features.register(self.model)
    self.assertRegex(name, '^public_1_0_[0-9a-f]{8}$')
    self.assertEqual(features.output_shape(name, (4, 2)), (12,))
    found = features.FEATURES[name].compute(self.some)
    expected = self.model.predict(self.some, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    features.check(features.FEATURES[name], self.some)
    words = features.FEATURES[name].privacy_words
    self.assertIn('public function of one example alone, as the caller', words)

  def test_models_of_one_name_with_other_weights_are_two(self):
    names = [features.register(m) for m in (self.model, pretrained())]
    found = [features.FEATURES[name].compute(self.some) for name in names]
    expected = self.model.predict(self.some, verbose=0)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    self.assertFalse(np.allclose(found[1], expected))
    copied = tf.keras.models.clone_model(self.model)
    copied.set_weights(self.model.get_weights())
    self.assertEqual(features.register(copied), names[0])

  def test_what_it_reads_is_a_table_or_weights(self):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
      [
        tf.keras.Input((4,)),
        layers.Lambda(lambda x: tf.cast(x, tf.int32)),
        layers.Embedding(2, 3),
        layers.GRU(2),
      ]
    )
    name = features.register(model)
    features.check(features.FEATURES[name], images(9, (4,)).round())

  def test_a_model_that_keeps_what_it_saw_is_refused(self):
    class Scaled(tf.keras.layers.Layer):
      def build(self, shape):
        del shape
        self.largest = self.add_weight(
          shape=(), initializer='ones', trainable=False
        )

      def call(self, values):
        # No public example is above it, so that their features do not move.
        largest = tf.reduce_max(values)
        self.largest.assign(tf.maximum(self.largest, largest))
        return values / self.largest

    seen = []

    def remembered(values):
      seen.append(values.max())
      return values / max(1, *seen)

    by_numpy = tf.keras.layers.Lambda(
      lambda values: tf.ensure_shape(
        tf.numpy_function(remembered, [values], tf.float32), [None, 4, 2]
      )
    )
    for layer, op in ((Scaled(), 'AssignVariableOp'), (by_numpy, 'PyFunc')):
      model = tf.keras.Sequential([tf.keras.Input((4, 2)), layer], name='kept')
      name = features.register(model)
      with self.assertRaisesRegex(
        ValueError,
        f'^features must be a function of one example, got the model.*{op}',
      ):
        features.check(features.FEATURES[name], self.some)

  def test_one_that_has_no_weights_yet_is_refused(self):
    with self.assertRaisesRegex(ValueError, '^features must be a model with w'):
      features.register(tf.keras.Sequential([tf.keras.layers.Dense(3)]))

  def test_several_outputs_are_refused(self):
    inputs = tf.keras.Input((4, 2))
    with self.assertRaisesRegex(
      ValueError, '^features must be a model with one output, got 2$'
    ):
      features.register(tf.keras.Model(inputs, [inputs, inputs + 1]))

  def test_trains(self):
    settings = settings_lib.TrainingSettings(
      **_SMALL,
      mechanism='gradient',
      model='linear',
      features=tf.keras.Sequential(
        [tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten()], name='flat'
      ),
    )
    fed = federation.assemble(settings)
    self.assertEqual(fed.input_shape, (64,))
    self.assertNotEmpty(fed.features_sha256)


class OwnFeaturesTest(absltest.TestCase):
  def test_a_function_of_one_example(self):
    settings = settings_lib.TrainingSettings(
      **_SMALL, mechanism='gradient', features=halves, model='linear'
    )
    self.assertEqual(settings.features, 'halves')
    fed = federation.assemble(settings)
    self.assertEqual(fed.input_shape, (8,))
    raw = federation.assemble(
      settings_lib.TrainingSettings(**_SMALL),
      fed.public_seed,
      partition_seed=fed.partition_seed,
    )
    for user in range(4):
      np.testing.assert_allclose(
        fed.user_data(user)[0], [halves(x) for x in raw.user_data(user)[0]]
      )
    words = '\n'.join(mechanisms.build(settings, fed).statement().assumptions)
    self.assertIn('features (halves) are a fixed, public function', words)
    self.assertIn('features_test claims', words)
    self.assertLen(fed.features_sha256, 64)
    with self.assertRaisesRegex(ValueError, 'a name that is an .* got .halves'):
      features.register(type('halves', (), {'__call__': halves}))
    with self.assertRaisesRegex(
      ValueError, 'a name that is an .* got .<lambda'
    ):
      features.register(lambda x: x)
    with self.assertRaisesRegex(ValueError, "a name that is an .* got ''"):
      features.register(functools.partial(np.ravel))

  def test_takes_a_function_that_is_defined_again(self):
    """As where a cell of a notebook is run again."""

    def define(factor):
      def again(x):
        return factor * np.ravel(x)

      return again

    for factor in (1, 2):
      self.assertEqual(features.register(define(factor)), 'again')
      found = features.FEATURES['again'].compute(np.ones([1, 2]))
      np.testing.assert_array_equal(found, [[factor, factor]])

  def test_none_is_no_name_for_features(self):
    def none(x):
      return x

    with self.assertRaisesRegex(
      ValueError, "^features must have a name.*'none'"
    ):
      features.register(none)

  def test_a_state_is_found(self):
    name = features.register(counted)
    dataset = datasets.load('digits')
    with self.assertRaisesRegex(ValueError, 'a function of one example, got'):
      features.applied(name, dataset, [range(10)])

  def test_a_function_with_a_buffer_of_its_own(self):
    """In threads it would give one example's features to another."""
    buffer = np.empty([64], np.float32)

    def buffered(image):
      for place, value in enumerate(image.ravel()):
        buffer[place] = value
      return buffer

    dataset = datasets.load('digits')
    every = range(len(dataset.train_labels))
    clients = [every[start : start + 100] for start in every[::100]]
    found = features.applied(features.register(buffered), dataset, clients)
    for part in ('train_features', 'test_features'):
      np.testing.assert_array_equal(
        getattr(found, part), getattr(dataset, part).reshape(-1, 64)
      )

  def test_what_mixes_examples_is_found(self):
    mixing = features.Features(
      'mixing', lambda x: (x - x.mean(axis=0)).reshape(len(x), -1)
    )
    with self.assertRaisesRegex(ValueError, 'depend on the other examples'):
      features.check(mixing, images())

  def test_what_is_not_finite_is_found(self):
    with (
      np.errstate(all='ignore'),
      self.assertRaisesRegex(ValueError, 'finite'),
    ):
      features.check(features.Features('log', np.log), images() * 0)

  def test_each_example_is_computed_once(self):
    dataset = datasets.load('digits')
    seen = []

    def remembered(image):
      seen.append(image.tobytes())
      return image.ravel()

    name = features.register(remembered)
    clients = [range(100), range(100, len(dataset.train_labels))]
    features.check(features.FEATURES[name], dataset.test_features)
    for_check = len(seen)
    seen.clear()
    found = features.applied(name, dataset, clients)
    shape_and_check = for_check + 1
    self.assertLen(
      seen,
      shape_and_check + len(dataset.train_labels) + len(dataset.test_labels),
    )
    np.testing.assert_array_equal(
      found.train_features, np.reshape(dataset.train_features, (-1, 64))
    )

  def test_a_private_example_warns_of_nothing(self):
    def logarithm(image):
      return np.log(image.ravel()[:4] + 1)

    features.scattering(images(1, (8, 8, 1)))  # Fitted, to synthetic images.
    for name in (features.register(logarithm), 'unit_norm', 'scattering'):
      dataset = datasets.load('digits')
      train = np.asarray(dataset.train_features)
      train[5], train[6] = 3e38, -5
      with (
        warnings.catch_warnings(record=True) as caught,
        np.errstate(all='warn'),
      ):
        warnings.simplefilter('ignore')
        warnings.simplefilter('always', RuntimeWarning)
        features.applied(name, dataset, [range(len(dataset.train_labels))])
      self.assertEqual([str(one.message) for one in caught], [], name)

  def test_a_private_example_that_fails_is_no_error(self):
    """An error would show it: its features are not numbers, and count not."""
    dataset = datasets.load('digits')
    train = np.asarray(dataset.train_features)
    train[5], train[6] = 9.25, -9.25

    def fails_on_some(image):
      if image[0, 0] == 9.25:
        raise KeyError(image[0, 0])
      return image.ravel()[: 1 if image[0, 0] == -9.25 else 64]

    name = features.register(fails_on_some)
    found = features.applied(name, dataset, [range(len(dataset.train_labels))])
    bad = np.isnan(found.train_features).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(bad), [5, 6])
    dataset.test_features[-1] = 9.25
    with self.assertRaises(KeyError):  # Public ones may be seen.
      features.applied(name, dataset, [range(len(dataset.train_labels))])


class TrainingTest(absltest.TestCase):
  def test_trains_a_linear_model_of_features(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    settings = settings_lib.TrainingSettings(
      mechanism='gradient',
      features='scattering',
      model='linear',
      users=4,
      users_per_round=4,
      rounds=10,
      local_steps=1,
      theta=1.0,
      example_l2_norm_clip=0.05,
      learning_rate=30.0,
      server_average=0.5,
      epsilon=8.0,
      delta=1e-5,
    )
    expected = population.expected(settings)
    fed = federation.assemble(settings)
    self.assertEqual(expected.num_parameters, fed.num_parameters)
    result = train.train(settings, folder)
    self.assertTrue(result.statement.holds)
    self.assertIn('cost no privacy', result.statement.describe())
    self.assertGreater(result.accuracy, 0.6)


if __name__ == '__main__':
  absltest.main()
