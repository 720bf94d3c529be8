import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf import federated
from tvdp_tf.attacks import canaries, clipped_mean, one_run
from tvdp_tf.learning import clipping, datasets, models


def _recurrent(input_shape, num_classes, seed):
  del seed
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      tf.keras.Input(input_shape),
      layers.Reshape(input_shape[:2]),
      layers.GRU(3, recurrent_activation='tanh'),
      layers.Dense(num_classes),
    ]
  )


# TensorFlow vectorizes no gradient of its loop.
_RECURRENT = models.ModelSpec('gru', _recurrent, models.CrossEntropyLoss())


def _model(name='mlp', dataset='digits'):
  data = datasets.load(dataset)
  spec = _RECURRENT if name == 'gru' else models.MODELS[name]
  keras_model = spec.build(data.train_features.shape[1:], data.num_classes, 0)
  return federated.functional_model(spec, keras_model), data


class PairsTest(parameterized.TestCase):
  @parameterized.parameters(*canaries.FAMILIES)
  def test_pairs(self, family):
    _, data = _model()
    count = 100
    features, labels = data.train_features[:count], data.train_labels[:count]
    rng = np.random.default_rng(0)
    first, own, second, other = pairs = canaries.make_pairs(
      family, features, labels, 10, rng
    )
    for values in (first, second):
      self.assertEqual(values.shape, features.shape)
      self.assertEqual(values.dtype, np.float32)
    for values in (own, other):
      self.assertEqual(values.dtype, np.int32)
      self.assertBetween(values.min(), 0, 9)
      self.assertBetween(values.max(), 0, 9)
    if family.opposite:
      np.testing.assert_array_equal(first, -second)
      np.testing.assert_array_equal(own, other)
    else:
      np.testing.assert_array_equal(first, second)
      self.assertTrue((own != other).all())
    # No two pairs are the same.
    rows = np.column_stack([first.reshape(count, -1), own, other])
    self.assertLen(np.unique(rows, axis=0), count)
    coins = rng.random(count) < 0.5
    used, used_labels = canaries.chosen(pairs, coins)
    np.testing.assert_array_equal(used[coins], first[coins])
    np.testing.assert_array_equal(used[~coins], second[~coins])
    np.testing.assert_array_equal(used_labels, np.where(coins, own, other))
    self.assertNotEmpty(str(family))


class ClippedGradientsTest(parameterized.TestCase):
  @parameterized.parameters(('mlp', 0.01), ('mlp', 3.0), ('gru', 0.1))
  def test_are_those_of_training(self, name, clip):
    model, data = _model(name)
    gradients = canaries.ClippedGradients(model, clip)
    weights = [np.asarray(w) for w in model.initial_weights[0]]
    features, labels = data.train_features[:70], data.train_labels[:70]
    features = features * np.linspace(0, 10, 70, dtype=np.float32).reshape(
      [-1, 1, 1, 1]
    )

    def loss_fn(weights, x, y):
      return model.loss(
        model.predict_on_batch((tuple(weights), ()), x, True), y
      )

    @tf.function(autograph=False)
    def mean_gradient(weights, features, labels):
      return clipping.clipped_mean_gradient(
        clipping.looped_clipped_sum(loss_fn),
        *(weights, features, labels),
        example_l2_norm_clip=clip,
      )

    mean = mean_gradient(
      [tf.constant(w) for w in weights],
      tf.constant(features),
      tf.constant(labels),
    )
    rows = gradients(weights, features, labels)
    self.assertEqual(rows.shape, (70, gradients.parameters))
    # Training sets a little of the clip aside for rounding.
    wanted = clipped_mean.flat(mean) * 70
    np.testing.assert_allclose(
      rows.sum(axis=0), wanted, atol=2e-3 * clip * np.sqrt(70)
    )
    np.testing.assert_allclose(
      gradients.sum(weights, features, labels), rows.sum(axis=0), atol=1e-4
    )
    norms = np.linalg.norm(rows, axis=1)
    self.assertBetween(norms.max(), 0.99 * clip, clip * (1 + 1e-5))

  def test_what_is_not_finite_counts_as_zero(self):
    model, data = _model()
    gradients = canaries.ClippedGradients(model, 1.0)
    features = data.train_features[:3].copy()
    features[1] = np.nan
    features[2] = 1e30
    rows = gradients(model.initial_weights[0], features, data.train_labels[:3])
    self.assertTrue(np.isfinite(rows).all())
    self.assertEqual(np.abs(rows[1]).max(), 0)
    self.assertAlmostEqual(np.linalg.norm(rows[2]), 1, places=5)

  def test_rows_are_weights(self):
    model, _ = _model()
    gradients = canaries.ClippedGradients(model, 1.0)
    weights = model.initial_weights[0]
    for found, weight in zip(
      gradients.split(clipped_mean.flat(weights)), weights, strict=True
    ):
      np.testing.assert_array_equal(found, weight)


class EvidenceTest(absltest.TestCase):
  def _differences(self, count, overlap=0.0):
    rng = np.random.default_rng(0)
    rows = np.linalg.qr(rng.normal(size=[400, count]))[0].T
    rows += overlap * rows.mean(axis=0) * np.sqrt(count)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)

  def _separation_of(self, scores, coins):
    """Of scores N(+-mu^2 / 2, mu^2), by their mean."""
    return np.sqrt(2 * np.mean(np.where(coins, scores, -scores)))

  def test_scores_are_likelihood_ratios(self):
    rng = np.random.default_rng(1)
    differences, mu = self._differences(300), 1.2
    found = []
    for _ in range(20):
      coins = rng.random(300) < 0.5
      evidence = canaries.Evidence(300)
      for _ in range(2):  # Two releases, each with twice the variance.
        noise = rng.normal(size=400) * 2 / mu * np.sqrt(2)
        residual = np.where(coins, 1, -1) @ differences + noise
        evidence.add(differences, residual, 2 / mu * np.sqrt(2))
      found.append((evidence.scores(), coins))
    scores, coins = (np.concatenate(part) for part in zip(*found, strict=True))
    self.assertAlmostEqual(
      self._separation_of(scores, coins), mu, delta=4 / np.sqrt(6000) * mu
    )
    np.testing.assert_allclose(evidence.separations(), mu, rtol=1e-3)
    planned = canaries.planned_separations(differences, mu, 1.0)
    np.testing.assert_allclose(planned, mu, rtol=1e-3)

  def test_pairs_that_overlap_do_not_disturb_each_other(self):
    rng = np.random.default_rng(1)
    differences, mu = self._differences(300, overlap=0.7), 1.5
    self.assertGreater(float(differences[0] @ differences[1]), 0.2)
    coins = rng.random(300) < 0.5
    residual = np.where(coins, 1, -1) @ differences
    residual += rng.normal(size=400) * 2 / mu
    evidence = canaries.Evidence(300)
    evidence.add(differences, residual, 2 / mu)
    joint, _ = one_run.count_right(evidence.scores(), coins, 300)
    alone, _ = one_run.count_right(differences @ residual, coins, 300)
    self.assertGreater(joint, alone + 30)


class BestFamilyTest(parameterized.TestCase):
  @parameterized.parameters(('mlp', 0.9), ('svm', 0.97))
  def test_is_nearly_as_good_as_can_be(self, name, share):
    model, data = _model(
      name, 'generated_mnist' if name == 'mlp' else 'generated_adult'
    )
    gradients = canaries.ClippedGradients(model, 1.0)
    family, separations = canaries.best_family(
      gradients,
      model.initial_weights[0],
      data.train_features[:80],
      data.train_labels[:80],
      data.num_classes,
      0.9,
      np.random.default_rng(0),
    )
    self.assertIn(family, canaries.FAMILIES)
    self.assertLen(separations, 80)
    self.assertGreater(separations.mean(), share * 0.9)
    self.assertLessEqual(separations.max(), 0.9 * (1 + 1e-4))

  def test_a_model_without_gradients(self):
    model, data = _model()
    gradients = canaries.ClippedGradients(model, 1.0)
    with self.assertRaisesRegex(ValueError, 'model must have a gradient'):
      canaries.best_family(
        gradients,
        model.initial_weights[0],
        data.train_features[:5],
        data.train_labels[:5],
        10,
        0.9,
        np.random.default_rng(0),
        families=[],
      )


if __name__ == '__main__':
  absltest.main()
