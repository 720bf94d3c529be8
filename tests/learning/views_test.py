"""Views averaged before the clip, against plain loops and exact sums."""

import functools
import itertools
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import private_training_test as plain
from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  keras_version,
  view_gradients,
  views,
)
from tvdp_tf.learning import ghost_clipping as ghost_lib
from tvdp_tf.privacy import sensitivity

_mlp, _cnn = plain.mlp, plain.convolutional


def _linear():
  return plain.sequential(tf.keras.layers.Flatten(), tf.keras.layers.Dense(10))


def _wide():
  return plain.sequential(
    tf.keras.layers.Conv2D(32, 3, strides=2, activation='relu'),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
  )


def _averaged(model):
  return view_gradients.averaged(plain.loss_of(model), views.MIRROR)


def _vectorized(model):
  return clipping.vectorized_clipped_sum(_averaged(model))


def _looped(model):
  return clipping.looped_clipped_sum(_averaged(model))


def _ghost(model):
  return ghost_lib.ghost_clipped_sum(model, plain.LOSS, views_name=views.MIRROR)


# It takes Keras 2's layers alone.
_GHOST = () if keras_version.IS_KERAS_3 else (_ghost,)
of_ghost = unittest.skipUnless(_GHOST, "ghost clipping is of Keras 2's layers")


def _flat(parts):
  return np.concatenate([np.ravel(p) for p in parts]).astype(np.float64)


@functools.cache
def _model(build):
  return build()


@functools.cache
def _mean_of(make_sum, build):
  """Of (features, labels, clip), traced once for all tests."""
  model = _model(build)
  clipped_sum, weights = make_sum(model), plain.start(model)

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 8, 8, 1]),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([], tf.float64),
    ]
  )
  def mean(features, labels, clip):
    return clipping.clipped_mean_gradient(
      clipped_sum, weights, features, labels, example_l2_norm_clip=clip
    )

  return mean


@functools.cache
def _gradient_of(build):
  return plain.gradient_of(plain.loss_of(_model(build)))


def _expected(build, features, labels, clip):
  """The plainest way: both views' gradients, their mean, clipped."""
  gradient, weights = _gradient_of(build), plain.start(_model(build))
  of_views = [
    plain.example_gradients(gradient, weights, x, labels)
    for x in (features, features[:, :, ::-1])
  ]
  means = [
    [(one + other) / 2 for one, other in zip(*both, strict=True)]
    for both in zip(*of_views, strict=True)
  ]
  clip /= 1 + sensitivity.relative_rounding(len(labels))
  return plain.plain_mean(means, clip)


class ClippedMeanTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product((_vectorized, _looped, *_GHOST), (_mlp, _cnn, _linear)),
    *((make_sum, _wide) for make_sum in _GHOST),
  )
  def test_equals_a_plain_loop(self, make_sum, build):
    for clip, count in ((0.5, 1), (0.5, 70), (100.0, 70)):
      features, labels = plain.examples(count)
      actual = _mean_of(make_sum, build)(features, labels, clip)
      expected = _expected(build, features, labels, clip)
      for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=2e-6)

  @parameterized.product(make_sum=(_vectorized, *_GHOST), build=(_mlp, _cnn))
  def test_mirrored_data_has_the_same_gradient(self, make_sum, build):
    features, labels = plain.examples(20)
    mean = functools.partial(_mean_of(make_sum, build), clip=0.5)
    one, other = mean(features, labels), mean(features[:, :, ::-1], labels)
    np.testing.assert_allclose(_flat(one), _flat(other), rtol=1e-3, atol=1e-6)
    upside_down = _flat(mean(features[:, ::-1], labels))
    self.assertGreater(np.linalg.norm(_flat(one) - upside_down), 1e-3)

  @parameterized.product(make_sum=(_vectorized, *_GHOST), build=(_mlp, _cnn))
  def test_one_example_moves_it_by_at_most_twice_the_clip(
    self, make_sum, build
  ):
    features, labels = plain.examples(10)
    mean = functools.partial(_mean_of(make_sum, build), clip=0.5)
    before = _flat(mean(features, labels))
    for size in (1e-3, 1.0, 1e15, 1e25, np.inf, np.nan):
      other = features.copy()
      # Its views are not the same.
      other[3, :, :5] = size
      moved = np.linalg.norm(before - _flat(mean(other, labels)))
      self.assertLessEqual(moved, 2 * 0.5 / 10, size)
      self.assertGreater(moved, 0, size)

  @parameterized.product(make_sum=(_vectorized, *_GHOST), build=(_mlp, _cnn))
  def test_a_single_clipped_gradient_is_within_the_clip(self, make_sum, build):
    mean = _mean_of(make_sum, build)
    for seed, clip in enumerate(np.geomspace(1e-5, 0.1, 4)):
      gradient = _flat(mean(*plain.examples(1, seed), clip))
      least = 0.9995 * clip / (1 + sensitivity.relative_rounding(1))
      self.assertBetween(np.linalg.norm(gradient), least, clip)

  @of_ghost
  def test_views_that_cancel(self):
    """What is left of them is no rounding: only the bias learns."""
    model = _linear()
    features, labels = plain.examples(9)
    features[:, :, 4:] = -features[:, :, 3::-1]
    features *= 1e3
    weights = [tf.zeros_like(w) for w in plain.start(model)]
    kernel, bias = clipping.clipped_mean_gradient(
      _ghost(model), weights, features, labels, example_l2_norm_clip=0.5
    )
    np.testing.assert_allclose(kernel, np.zeros([64, 10]), atol=1e-6)
    self.assertAlmostEqual(
      float(tf.norm(bias)),
      np.linalg.norm(np.bincount(labels, minlength=10) / 9 - 0.1)
      * 0.5
      / np.sqrt(0.9),
      delta=1e-3,
    )

  @of_ghost
  def test_as_many_rows_are_added_up_in_float32(self):
    self.assertEqual(plain.ghost(_mlp()).microbatches, 16)
    self.assertEqual(_ghost(_mlp()).microbatches, 8)
    self.assertEqual(_ghost(_cnn()).microbatches, 1)


class SelfCheckTest(parameterized.TestCase):
  @parameterized.parameters(_mlp, _cnn, plain.normalised)
  def test_sums_over_the_views(self, build):
    def checked(model):
      return example_independence.clipped_sum(
        model, plain.LOSS, 0.5, views.MIRROR
      )

    features, labels = plain.examples(5)
    expected = _flat(_expected(build, features, labels, 0.5))
    actual = _flat(_mean_of(checked, build)(features, labels, 0.5))
    np.testing.assert_allclose(actual, expected, rtol=3e-4, atol=2e-6)
    of_one_view = plain.example_gradients(
      _gradient_of(build), plain.start(_model(build)), features, labels
    )
    without = _flat(plain.plain_mean(of_one_view, 0.5))
    self.assertGreater(np.linalg.norm(without - actual), 1e-3)

  @of_ghost
  def test_a_sum_of_something_else_is_refused(self):
    def one_view(inputs, deltas):
      return inputs, deltas * [[1.0], [0.0]]

    with (
      mock.patch.object(view_gradients, 'orthogonal_terms', one_view),
      self.assertRaisesRegex(ValueError, 'the sum of its clipped gradients'),
    ):
      example_independence.clipped_sum(_mlp(), plain.LOSS, 0.5, views.MIRROR)

  @parameterized.parameters(
    (views.MIRROR, [12], 'for examples that are not images'),
    (views.MIRROR, [8, 8], 'got mirror for \\(8, 8\\)'),
    ('rotated', [8, 8, 1], 'views must be one of none, mirror, got .rotated'),
  )
  def test_no_such_views(self, name, shape, message):
    flat = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer(shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
      ]
    )
    model = functional.FunctionalModel(flat)
    with self.assertRaisesRegex(ValueError, message):
      example_independence.clipped_sum(model, plain.LOSS, 0.5, name)
    with self.assertRaisesRegex(ValueError, message):
      example_independence.example_clipped_sum(
        plain.loss_of(model),
        model.initial_weights,
        model.features_spec,
        10,
        0.5,
        views_name=name,
      )
    self.assertEqual(views.check(views.NONE, shape), views.NONE)


def _exact(b, e):
  """Squared norms of the sum and of each of its terms, [n] and [n, 2]."""
  b, e = b.numpy().astype(np.longdouble), e.numpy().astype(np.longdouble)
  grams = [x @ x.transpose(0, 2, 1) for x in (b, e)]
  products = grams[0] * grams[1]
  return products.sum((1, 2)), np.diagonal(products, axis1=1, axis2=2)


class OrthogonalTermsTest(parameterized.TestCase):
  def _terms(self, inputs, deltas):
    b, e = view_gradients.orthogonal_terms(
      tf.constant(inputs, tf.float32), tf.constant(deltas, tf.float32)
    )
    squares = clipping.stacked_squared_norms(tf.unstack(b, axis=1))
    more = clipping.stacked_squared_norms(tf.unstack(e, axis=1))
    bound = view_gradients.squared_norms_of_sums(
      b, [*tf.unstack(squares), *tf.unstack(more)]
    )
    return b, e, bound.numpy()

  def _check(self, inputs, deltas, most=np.inf):
    b, e, bound = self._terms(inputs, deltas)
    of_sum, of_terms = _exact(b, e)
    self.assertTrue((bound >= of_sum).all(), (bound, of_sum))
    self.assertTrue((bound >= of_terms.max(axis=1)).all())
    if np.isfinite(most):
      self.assertTrue((bound <= most * of_sum).all(), (bound, of_sum))
    return b, e

  @parameterized.product(
    k=(1, 5, 784, 5000), size=(1e-18, 1.0, 1e15), tilt=(0.0, 1e-3, 1.0, -1.0)
  )
  def test_is_never_less_and_hardly_more(self, k, size, tilt):
    rng = np.random.default_rng(k)
    inputs, deltas = rng.normal(size=[40, 2, k]), rng.normal(size=[40, 2, 7])
    # From parallel and the same to opposite.
    inputs[:, 1] = (1 - abs(tilt)) * inputs[:, 0] + tilt * inputs[:, 1]
    inputs = inputs * size
    # Tiny squares are rounded up by what may vanish.
    tight = k > 1 and tilt and size > 1e-10
    b, e = self._check(inputs, deltas, 1.01 if tight else np.inf)
    expected = np.einsum('nvi,nvo->nio', inputs, deltas)
    actual = np.einsum(
      'nvi,nvo->nio', b.numpy().astype(np.float64), e.numpy().astype(np.float64)
    )
    scale = np.abs(inputs).max() * np.abs(deltas).max()
    np.testing.assert_allclose(actual, expected, atol=1e-5 * scale)

  @parameterized.parameters(1e-42, 1e-30, 1e-18, 1.0, 1e12, 1e18, 1e30, 3e38)
  @of_ghost
  def test_views_that_cancel(self, size):
    """Their terms do not: none is longer than what they are clipped to."""
    rng = np.random.default_rng(0)
    one = rng.uniform(-1, 1, [20, 50])
    delta = rng.normal(size=[20, 9])
    for gap in (0.0, 1e-7, 1e-4):
      other = -one * (1 + gap * rng.normal(size=one.shape))
      inputs = np.stack([one, other], axis=1) * size
      self._check(inputs, np.stack([delta, delta], axis=1))
      self._check(inputs, np.stack([delta, -delta], axis=1))

  def test_views_of_very_different_lengths(self):
    rng = np.random.default_rng(0)
    for ratio in (0.0, 1e-30, 1e-12, 1e-3, 1e12, 1e30):
      inputs = rng.normal(size=[20, 2, 30])
      inputs[:, 1] = (inputs[:, 0] + 1e-3 * inputs[:, 1]) * ratio
      self._check(inputs, rng.normal(size=[20, 2, 9]))
      self._check(inputs[:, ::-1], rng.normal(size=[20, 2, 9]))

  def test_terms_that_are_not_orthogonal(self):
    """Whatever they are, theirs is the bound."""
    rng = np.random.default_rng(0)
    parallel = np.repeat(rng.normal(size=[2, 1, 50]), 2, axis=1)
    # Of alternating signs, their float32 product is not a number.
    huge = 1e25 * np.repeat((-1.0) ** np.arange(50)[None, None], 2, axis=1)
    huge[:, 0] = 1e25
    # One large product, then thousands that float32 swallows.
    long = np.full([1, 2, 5000], 2.0**-13)
    long[:, :, 0] = 1
    for inputs in (parallel, -parallel, huge, long):
      deltas = np.ones([len(inputs), 2, 1])
      for signs in ([1, 1], [1, -1]):
        terms = inputs * np.array(signs)[:, None], deltas
        with mock.patch.object(
          view_gradients, 'orthogonal_terms', lambda *given: given
        ):
          self._check(*terms)

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_what_is_not_finite_is_seen(self, value):
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
      parts = [np.ones([3, 2, 4]), np.ones([3, 2, 5])]
      parts[place[0]][1, place[1], 2] = value
      *_, bound = self._terms(*parts)
      np.testing.assert_array_equal(np.isfinite(bound), [True, False, True])

  def test_an_example_does_not_depend_on_the_others(self):
    rng = np.random.default_rng(0)
    inputs, deltas = rng.normal(size=[6, 2, 60]), rng.normal(size=[6, 2, 9])
    alone = self._terms(inputs, deltas)
    for other in (1e30, np.nan, 1e-30, 0.0):
      mixed = inputs.copy()
      mixed[::2] = other
      for one, before in zip(self._terms(mixed, deltas), alone, strict=True):
        np.testing.assert_array_equal(one[1::2], before[1::2])


if __name__ == '__main__':
  absltest.main()
