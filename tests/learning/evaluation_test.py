import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.learning import evaluation, functional, models
from tvdp_tf.training import settings


class ModelsTest(parameterized.TestCase):
  def test_names_match_the_flags(self):
    self.assertEqual(tuple(models.MODELS), settings.MODELS)

  def test_mlp_is_the_papers(self):
    model = models.build_mlp([28, 28, 1], 10, seed=0)
    self.assertEqual(model.count_params(), 25450)
    shapes = [tuple(weight.shape) for weight in model.trainable_weights]
    self.assertEqual(shapes, [(784, 32), (32,), (32, 10), (10,)])
    # Linear hidden units: the map is affine.
    x, y = np.random.default_rng(0).random([2, 5, 28, 28, 1], np.float32)
    zero = model(np.zeros_like(x))
    np.testing.assert_allclose(
      model(x + y) - zero, (model(x) - zero) + (model(y) - zero), atol=1e-5
    )

  def test_cnn_is_lenet(self):
    self.assertEqual(
      models.build_cnn([32, 32, 3], 10, seed=0).count_params(), 62006
    )
    self.assertEqual(
      models.build_cnn([28, 28, 1], 10, seed=0).count_params(), 44426
    )

  def test_svm_is_linear_and_its_loss_the_hinge(self):
    model = models.build_svm([108], 2, seed=0)
    self.assertEqual(model.count_params(), 109)
    spec = models.MODELS['svm']
    labels = np.array([0, 1, 1, 0], np.int32)
    scores = np.array([[-2.0], [0.5], [-1.0], [0.25]], np.float32)
    # Margins 2, .5, -1, -.25.
    self.assertAlmostEqual(
      float(spec.loss(labels, scores)), (0 + 0.5 + 2 + 1.25) / 4, places=6
    )
    self.assertGreater(spec.l2_regularization, 0)

  @parameterized.parameters(
    (
      models.build_svm,
      [8, 8, 1],
      10,
      'model must be mlp, linear or cnn for 10 classes',
    ),
    (
      models.build_cnn,
      [8, 8, 1],
      10,
      'model must be mlp, linear or svm for inputs',
    ),
    (models.build_cnn, [108], 2, 'model must be mlp, linear or svm for inputs'),
  )
  def test_refuses_data_that_does_not_fit(self, build, shape, classes, message):
    with self.assertRaisesRegex(ValueError, message):
      build(shape, classes, 0)

  def test_seed_fixes_the_weights(self):
    weights = [
      models.build_mlp([8], 3, seed).get_weights() for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(weights[0][0], weights[1][0])
    self.assertNotEqual(weights[0][0].tolist(), weights[2][0].tolist())


class EvaluatorTest(parameterized.TestCase):
  @parameterized.parameters(1, 2499, 2500, 2501, 6000)
  def test_equals_numpy(self, size):
    rng = np.random.default_rng(0)
    features = rng.normal(size=[size, 6]).astype(np.float32)
    labels = rng.integers(0, 4, size).astype(np.int32)
    model = models.build_mlp([6], 4, seed=3)
    weights = [w + 0.1 for w in model.get_weights()]
    evaluator = evaluation.Evaluator(
      functional.FunctionalModel(model),
      models.MODELS['mlp'].loss,
      features,
      labels,
    )
    loss, accuracy = evaluator.evaluate(weights)

    hidden = features.astype(np.float64) @ weights[0] + weights[1]
    logits = hidden @ weights[2] + weights[3]
    log_sum = np.log(np.exp(logits).sum(axis=1))
    losses = log_sum - logits[np.arange(size), labels]
    self.assertAlmostEqual(loss, losses.mean(), places=5)
    self.assertAlmostEqual(accuracy, (logits.argmax(1) == labels).mean())


class ScoreTest(absltest.TestCase):
  def test_the_sign_of_a_score_is_the_class(self):
    model = models.build_svm([2], 2, seed=0)
    features = np.array([[1, 0], [0, 1], [3, 1]], np.float32)
    evaluator = evaluation.Evaluator(
      functional.FunctionalModel(model),
      models.MODELS['svm'].loss,
      features,
      np.array([1, 0, 0], np.int32),
    )
    weights = [np.array([[1.0], [-1.0]], np.float32), np.zeros(1, np.float32)]
    loss, accuracy = evaluator.evaluate(weights)
    self.assertAlmostEqual(accuracy, 2 / 3, places=6)
    self.assertAlmostEqual(loss, (0 + 0 + 3) / 3, places=6)


if __name__ == '__main__':
  absltest.main()
