import functools
import itertools
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  clipping,
  discrete_gaussian,
  functional,
  ghost_clipping,
  ghost_list,
  keras_version,
  models,
  noise,
  private_training,
)
from tvdp_tf.privacy import sensitivity

KEY = np.array([7, (3 << 32) | 5], np.int64)
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mlp():
  return functional.FunctionalModel(
    models.MODELS['mlp'].build([8, 8, 1], 10, 1)
  )


def sequential(*layers):
  return functional.FunctionalModel(
    tf.keras.Sequential([tf.keras.layers.InputLayer([8, 8, 1]), *layers])
  )


def convolutional():
  return sequential(
    tf.keras.layers.Conv2D(4, 3, activation='relu', strides=2, padding='same'),
    tf.keras.layers.Conv2D(3, (2, 1), use_bias=False, activation='tanh'),
    tf.keras.layers.MaxPool2D(),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(12, activation='relu', use_bias=False),
    tf.keras.layers.Dense(10),
  )


def normalised():
  return sequential(
    tf.keras.layers.Conv2D(4, 3, activation='relu'),
    tf.keras.layers.GroupNormalization(2),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(10),
  )


def loss_of(model):
  def loss_fn(weights, features, labels):
    return LOSS(labels, model(weights, features, True))

  return loss_fn


def start(model):
  return [tf.constant(w) for w in model.initial_weights]


def vectorized(model):
  return clipping.vectorized_clipped_sum(loss_of(model))


def ghost(model):
  return ghost_clipping.ghost_clipped_sum(model, LOSS)


GHOST = () if keras_version.IS_KERAS_3 else (ghost,)


def examples(count, seed=0):
  rng = np.random.default_rng(seed)
  return (
    rng.random([count, 8, 8, 1]).astype(np.float32),
    rng.integers(0, 10, count).astype(np.int32),
  )


def gradient_of(loss_fn):
  """The gradient of the loss of a batch, traced once."""

  @tf.function(autograph=False)
  def gradient(weights, features, labels):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = loss_fn(weights, features, labels)
    return tape.gradient(loss, weights)

  return gradient


def example_gradients(gradient, weights, features, labels):
  """One after the other; float64."""
  return [
    [
      np.array(g, np.float64)
      for g in gradient(weights, features[i : i + 1], labels[i : i + 1])
    ]
    for i in range(len(labels))
  ]


def plain_mean(gradients, clip):
  """The mean of clipped gradients in the plainest way."""
  totals = [np.zeros_like(g) for g in gradients[0]]
  for of_example in gradients:
    norm = np.sqrt(sum((g**2).sum() for g in of_example))
    scale = clip / max(norm, clip)
    totals = [t + g * scale for t, g in zip(totals, of_example, strict=True)]
  return [total / len(gradients) for total in totals]


class ClippedMeanGradientTest(parameterized.TestCase):
  @parameterized.parameters(
    (vectorized, mlp),
    (vectorized, convolutional),
    (vectorized, normalised),
    *(
      (make_sum, build) for make_sum in GHOST for build in (mlp, convolutional)
    ),
  )
  def test_equals_a_loop(self, make_sum, build):
    model = build()
    weights = start(model)
    clipped_sum = make_sum(model)
    features, labels = examples(50)
    gradients = example_gradients(
      gradient_of(loss_of(model)), weights, features, labels
    )
    prepared = isinstance(clipped_sum, clipping.PreparedSum)
    for microbatch_size in (64,) if prepared else (8, 32):

      @tf.function(
        input_signature=[
          tf.TensorSpec([None, 8, 8, 1]),
          tf.TensorSpec([None], tf.int32),
          tf.TensorSpec([]),
        ]
      )
      def mean_gradient(features, labels, clip, size=microbatch_size):
        return clipping.clipped_mean_gradient(
          clipped_sum,
          weights,
          features,
          labels,
          example_l2_norm_clip=clip,
          microbatch_size=size,
        )

      for clip, count in itertools.product((0.5, 100.0), (1, 7, 32, 50)):
        actual = mean_gradient(features[:count], labels[:count], clip)
        expected = plain_mean(gradients[:count], clip)
        rounding = sensitivity.relative_rounding(count, microbatch_size)
        for one, other in zip(actual, expected, strict=True):
          np.testing.assert_allclose(
            one,
            # Unclipped ones count in full.
            other if clip > 10 else other / (1 + rounding),
            rtol=2e-4,
            atol=2e-6,
            err_msg=f'{clip} {count}',
          )

  @unittest.skipUnless(GHOST, "it is of Keras 2's layers")
  @parameterized.product(
    make_sum=GHOST or (vectorized,), build=(mlp, convolutional)
  )
  def test_any_number_of_examples(self, make_sum, build):
    # Whole microbatches and a rest of any size; more than go at once.
    model = build()
    weights = start(model)
    features, labels = examples(2048 + 63)
    means = [
      tf.function(
        functools.partial(
          clipping.clipped_mean_gradient,
          one(model),
          weights,
          example_l2_norm_clip=0.5,
        ),
        input_signature=[
          tf.TensorSpec([None, 8, 8, 1]),
          tf.TensorSpec([None], tf.int32),
        ],
      )
      for one in (make_sum, vectorized)
    ]
    for count in (*range(1, 66), 100, 128, 1023, 1024, 1025, len(labels)):
      actual, expected = (
        mean(features[-count:], labels[-count:]) for mean in means
      )
      for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
          one, other, rtol=2e-4, atol=2e-6, err_msg=str(count)
        )

  @parameterized.product(
    make_sum=(vectorized, *GHOST), build=(mlp, convolutional)
  )
  def test_one_example_moves_it_by_at_most_twice_the_clip(
    self, make_sum, build
  ):
    model = build()
    weights = start(model)
    clipped_sum = make_sum(model)
    # A whole microbatch, and a rest.
    features, labels = examples(70)

    @tf.function(autograph=False)
    def gradient(x):
      return clipping.clipped_mean_gradient(
        clipped_sum, weights, x, labels, example_l2_norm_clip=0.5
      )

    def mean_gradient(x):
      return np.concatenate(
        [np.ravel(g) for g in gradient(tf.constant(x))]
      ).astype(np.float64)

    for size, place in itertools.product(
      (1e-3, 1.0, 1e20, np.inf, np.nan), (3, 67)
    ):
      with self.subTest(size=size, place=place):
        other = features.copy()
        other[place] = size
        moved = np.linalg.norm(mean_gradient(features) - mean_gradient(other))
        self.assertLessEqual(moved, 2 * 0.5 / 70)
        self.assertGreater(moved, 0)

  @parameterized.product(make_sum=(vectorized, *GHOST))
  def test_zero_in_the_place_of_an_example(self, make_sum):
    """It moves the mean by C_g / n, what rounding may add taken off before."""
    model = mlp()
    weights = start(model)
    clipped_sum = make_sum(model)
    features, labels = examples(100)
    features *= 1e3
    zeroed = features.copy()
    zeroed[3] = np.nan

    def mean_gradient(x, y, adjacency):
      gradient = clipping.mean_gradient(
        clipped_sum,
        weights,
        clipping.examples(clipped_sum, tf.constant(x), tf.constant(y)),
        example_l2_norm_clip=0.5,
        adjacency=adjacency,
      )
      return np.concatenate([np.ravel(g) for g in gradient]).astype(np.float64)

    moved = np.linalg.norm(
      mean_gradient(features, labels, sensitivity.ZERO_OUT)
      - mean_gradient(zeroed, labels, sensitivity.ZERO_OUT)
    )
    rounding = sensitivity.gradient_rule(0.5, 100, sensitivity.ZERO_OUT)
    self.assertLessEqual(moved, 0.5 / 100)
    self.assertGreater(moved, 0.5 / 100 * (1 - 2 * rounding.rounding))
    alone = [
      np.linalg.norm(mean_gradient(features[:1], labels[:1], adjacency))
      for adjacency in (sensitivity.REPLACE_ONE, sensitivity.ZERO_OUT)
    ]
    share = sensitivity.relative_rounding(1)
    # Norms are rounded up, by less than 1e-4.
    self.assertAlmostEqual(alone[0] / (0.5 / (1 + share)), 1, delta=1e-4)
    self.assertAlmostEqual(alone[1] / (0.5 / (1 + 2 * share)), 1, delta=1e-4)
    self.assertGreater(share, 1e-3)

  @parameterized.product(
    make_sum=(vectorized, *GHOST), build=(mlp, convolutional)
  )
  def test_a_single_clipped_gradient_is_within_the_clip(self, make_sum, build):
    model = build()
    mean_gradient = tf.function(
      functools.partial(
        clipping.clipped_mean_gradient, make_sum(model), start(model)
      )
    )
    for seed, clip in enumerate(np.geomspace(1e-6, 0.3, 7)):
      gradient = mean_gradient(
        *examples(1, seed), example_l2_norm_clip=tf.constant(clip)
      )
      flat = np.concatenate([np.ravel(g) for g in gradient]).astype(np.float64)
      least = 0.9995 * clip / (1 + sensitivity.relative_rounding(1))
      self.assertBetween(np.linalg.norm(flat), least, clip)

  @unittest.skipIf(keras_version.IS_KERAS_3, 'it supports none')
  def test_which_models_ghost_clipping_supports(self):
    self.assertTrue(ghost_list.supports(mlp(), LOSS))
    self.assertTrue(ghost_list.supports(convolutional(), LOSS))
    self.assertTrue(ghost_list.supports(normalised(), LOSS))
    inputs = tf.keras.Input([8])
    shared = tf.keras.layers.Dense(8)
    twice = tf.keras.Model(inputs, shared(shared(inputs)))
    self.assertFalse(
      ghost_list.supports(functional.FunctionalModel(twice), LOSS)
    )
    sequences = tf.keras.Sequential(
      [tf.keras.layers.InputLayer([8, 8]), tf.keras.layers.Dense(3)]
    )
    self.assertFalse(
      ghost_list.supports(functional.FunctionalModel(sequences), LOSS)
    )


class PrivateLocalStepsTest(parameterized.TestCase):
  @parameterized.product(
    num_steps=(1, 3, 21),
    distribution=(noise.GAUSSIAN, noise.DISCRETE_GAUSSIAN),
  )
  def test_equals_a_loop_with_the_same_noise(self, num_steps, distribution):
    model = mlp()
    gradient_fn, weights = gradient_of(loss_of(model)), start(model)
    clipped_sum = vectorized(model)
    features, labels = examples(20)

    @tf.function(autograph=False)
    def train(weights, features, labels, stddev, key):
      return private_training.private_local_steps(
        clipped_sum,
        weights,
        features,
        labels,
        num_steps=num_steps,
        learning_rate=0.3,
        example_l2_norm_clip=1.0,
        noise_stddev=stddev,
        noise_key=key,
        noise_distribution=distribution,
      )

    actual = train(
      weights, features, labels, tf.constant(0.01, tf.float64), KEY
    )
    expected = [np.array(w, np.float64) for w in weights]
    size = sum(w.size for w in expected)
    key = tf.constant(KEY)
    if distribution == noise.GAUSSIAN:
      normals = [
        noise.standard_normal(key, size, step).numpy()
        for step in range(num_steps)
      ]
    else:
      drawn = discrete_gaussian.discrete_gaussian(key, num_steps * size).numpy()
      normals = np.split(drawn / discrete_gaussian.GRID_STDDEV, num_steps)
    for step in range(num_steps):
      here = [tf.constant(w, tf.float32) for w in expected]
      gradient = plain_mean(
        example_gradients(gradient_fn, here, features, labels),
        1.0 / (1 + sensitivity.relative_rounding(20)),
      )
      ends = np.cumsum([g.size for g in gradient])[:-1]
      expected = [
        w - 0.3 * (g + 0.01 * drawn.reshape(g.shape))
        for w, g, drawn in zip(
          expected, gradient, np.split(normals[step], ends), strict=True
        )
      ]
    for one, other in zip(actual, expected, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

  @parameterized.product(
    distribution=(noise.GAUSSIAN, noise.DISCRETE_GAUSSIAN),
    # All steps at once, and each by itself.
    most=(2**20, 20_000),
  )
  def test_steps_draw_independent_noise(self, distribution, most):
    self.enter_context(mock.patch.object(private_training, '_MOST_DRAWN', most))

    def no_loss(weights, features, labels):
      del features, labels
      return 0.0 * tf.reduce_sum(weights[0])

    def after(num_steps):
      return private_training.private_local_steps(
        clipping.vectorized_clipped_sum(no_loss),
        [tf.zeros([20_000])],
        np.zeros([1, 1], np.float32),
        np.zeros([1], np.int32),
        num_steps=num_steps,
        learning_rate=1.0,
        example_l2_norm_clip=1.0,
        noise_stddev=1.0,
        noise_key=KEY,
        noise_distribution=distribution,
      )[0].numpy()

    one, two = after(1), after(2)
    self.assertAlmostEqual(one.std(), 1.0, delta=0.03)
    self.assertAlmostEqual(two.std(), np.sqrt(2), delta=0.04)
    if (distribution, most) == (noise.DISCRETE_GAUSSIAN, 2**20):
      return  # The first step's noise of two is not that of one.
    correlation = np.corrcoef(one, two - one)[0, 1]
    self.assertLess(abs(correlation), 0.04)


if __name__ == '__main__':
  absltest.main()
