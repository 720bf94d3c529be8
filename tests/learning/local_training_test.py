import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import local_training


def quadratic(weights, features, labels):
  """Mean of (x . w - y)**2 / 2 over the batch."""
  residual = tf.linalg.matvec(features, weights[0]) + weights[1] - labels
  return tf.reduce_mean(residual**2) / 2


def numpy_steps(weights, features, labels, *, num_steps, clip):
  w, b = (np.array(part, np.float64) for part in weights)
  for _ in range(num_steps):
    residual = features @ w + b - labels
    w = w - 0.1 * features.T @ residual / len(labels)
    b = b - 0.1 * residual.mean()
    norm = np.sqrt((w**2).sum() + b**2)
    w, b = w / max(1, norm / clip), b / max(1, norm / clip)
  return w, b


class ProjectTest(parameterized.TestCase):
  @parameterized.parameters(0.5, 4.9, 5.0, 5.1, 1e6)
  def test_norm_is_at_most_the_clip(self, clip):
    weights = [tf.constant([3.0, 0.0]), tf.constant([[4.0]])]
    projected = local_training.project(weights, clip)
    scale = min(1.0, clip / 5.0)
    np.testing.assert_allclose(projected[0], [3 * scale, 0], rtol=1e-6)
    np.testing.assert_allclose(projected[1], [[4 * scale]], rtol=1e-6)

  def test_zero_stays_zero(self):
    projected = local_training.project([tf.zeros([3])], 1.0)
    np.testing.assert_array_equal(projected[0], [0, 0, 0])


class LocalStepsTest(parameterized.TestCase):
  @parameterized.product(
    num_steps=(1, 5, 20, 21, 50), clip=(0.3, 100.0), graph=(False, True)
  )
  def test_equals_numpy(self, num_steps, clip, graph):
    rng = np.random.default_rng(0)
    features = rng.normal(size=[30, 4])
    labels = rng.normal(size=[30]) + 2
    weights = [tf.constant(rng.normal(size=[4])), tf.constant(0.1, tf.float64)]

    def run():
      return local_training.local_steps(
        quadratic,
        weights,
        tf.constant(features),
        tf.constant(labels),
        num_steps=num_steps,
        learning_rate=0.1,
        l2_norm_clip=clip,
      )

    actual = tf.function(run)() if graph else run()
    expected = numpy_steps(
      [w.numpy() for w in weights],
      features,
      labels,
      num_steps=num_steps,
      clip=clip,
    )
    for one, other in zip(actual, expected, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-10)
    norm = np.sqrt(sum((np.array(w) ** 2).sum() for w in actual))
    self.assertLessEqual(norm, clip * (1 + 1e-12))

  def test_l2_regularization_shrinks_the_weights(self):
    stepped = local_training.local_steps(
      lambda weights, features, labels: 0.0 * tf.reduce_sum(weights[0]),
      [tf.constant([2.0, -1.0])],
      tf.zeros([1, 1]),
      tf.zeros([1]),
      num_steps=3,
      learning_rate=0.5,
      l2_norm_clip=None,
      l2_regularization=0.2,
    )
    np.testing.assert_allclose(
      stepped[0], np.array([2, -1]) * 0.9**3, rtol=1e-6
    )

  def test_weights_that_the_loss_ignores_stay(self):
    weights = [tf.constant([1.0]), tf.constant([2.0])]
    stepped = local_training.gradient_step(
      lambda w, x, y: tf.reduce_sum(w[0] * x * y),
      weights,
      tf.constant([1.0]),
      tf.constant([1.0]),
      learning_rate=0.5,
      l2_norm_clip=100.0,
    )
    np.testing.assert_allclose(stepped, [[0.5], [2.0]])


if __name__ == '__main__':
  absltest.main()
