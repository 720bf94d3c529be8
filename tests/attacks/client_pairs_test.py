import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.attacks import audit_settings, releases
from tvdp_tf.learning import datasets, ghost_list


def _gradient(pair, data):
  """Of the example that differs, at the initial weights."""
  weights = [tf.constant(w) for w in pair.model.initial_weights]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = pair.loss_fn(weights, *(tf.constant(part[:1]) for part in data))
  gradients = tape.gradient(loss, weights)
  return np.concatenate([np.ravel(g) for g in gradients])


class ClientPairsTest(parameterized.TestCase):
  def test_settings_know_the_clients(self):
    self.assertSameElements(releases.CLIENTS, audit_settings.CLIENTS)

  @parameterized.parameters(*releases.CLIENTS)
  def test_one_example_differs(self, name):
    pair = releases.CLIENTS[name](20)
    self.assertEqual(pair.examples, 20)
    same = np.ones(20, bool)
    for mine, other in zip(pair.data, pair.alternative, strict=True):
      self.assertLen(mine, 20)
      self.assertEqual(mine.dtype, other.dtype)
      same &= (mine == other).reshape(20, -1).all(axis=1)
    self.assertEqual(same.tolist(), [False] + [True] * 19)
    self.assertLen(pair.common[1], 19)

  @parameterized.parameters(*releases.CLIENTS)
  def test_gradients_are_opposite_and_clipped(self, name):
    pair = releases.CLIENTS[name](20)
    gradient = _gradient(pair, pair.data)
    np.testing.assert_allclose(
      gradient, -_gradient(pair, pair.alternative), rtol=1e-5
    )
    self.assertGreater(np.linalg.norm(gradient), 5)

  def test_trains_as_models_do(self):
    pair = releases.digits_pair(3)
    self.assertTrue(ghost_list.supports(pair.model, pair.loss))

  def test_all_digits(self):
    train = datasets.load('digits').train_labels
    settings = audit_settings.AuditSettings(examples=len(train))
    pair = releases.digits_pair(settings.num_examples)
    np.testing.assert_array_equal(pair.common[1], train[1:] >= 5)
    with self.assertRaisesRegex(ValueError, 'examples must be'):
      releases.digits_pair(len(train) + 1)
    with self.assertRaisesRegex(ValueError, 'examples must be'):
      audit_settings.AuditSettings(examples=len(train) + 1)

  def test_digits_are_in_their_range(self):
    features, _ = releases.digits_pair(30).data
    self.assertEqual((features.min(), features.max()), (0, 1))
    self.assertEqual(np.linalg.norm(features[0]), 8)

  def test_outlier(self):
    pair = releases.outlier_pair(600)
    _, points = pair.data
    _, others = pair.alternative
    self.assertEqual((points[0], others[0]), (6000, -6000))
    self.assertFalse(points[1:].any())
    loss = pair.loss_fn([tf.constant([[2.0]])], *map(tf.constant, pair.common))
    self.assertEqual(loss, 2)

  def test_more_than_one_difference_is_refused(self):
    pair = releases.outlier_pair(5)
    features, points = pair.alternative
    with self.assertRaisesRegex(ValueError, 'alternative must be equal'):
      dataclasses.replace(pair, alternative=(features, points + 1))


if __name__ == '__main__':
  absltest.main()
