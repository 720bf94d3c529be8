from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from tensorflow.python.framework import config as tf_config

from tvdp_tf.learning import failing_ops, models


def losses_and_gradient(labels, scores):
  scores = tf.constant(scores, tf.float32)
  loss = models.CrossEntropyLoss()
  with tf.GradientTape() as tape:
    tape.watch(scores)
    losses = loss.call(tf.constant(labels), scores)
  return losses.numpy(), tape.gradient(losses, scores).numpy()


class CrossEntropyTest(absltest.TestCase):
  def test_of_a_softmax(self):
    scores = np.random.default_rng(0).normal(size=[5, 3])
    labels = np.array([0, 2, 1, 1, 0])
    exponentials = np.exp(scores)
    shares = exponentials / exponentials.sum(axis=1, keepdims=True)
    losses, gradient = losses_and_gradient(labels, scores)
    rows = np.arange(5)
    np.testing.assert_allclose(losses, -np.log(shares[rows, labels]), rtol=1e-5)
    shares[rows, labels] -= 1
    np.testing.assert_allclose(gradient, shares, rtol=1e-4, atol=1e-6)

  def test_a_label_that_is_no_class_has_no_gradient(self):
    scores = [[1.0, 2.0, 3.0], [np.nan, np.inf, 1e38]]
    for label in (-1, 3, 2**31 - 1, -(2**31)):
      losses, gradient = losses_and_gradient([label] * 2, scores)
      np.testing.assert_allclose(losses, np.log(3), rtol=1e-6)
      np.testing.assert_array_equal(gradient, np.zeros([2, 3]))
    # Nor do others change beside it.
    mixed = losses_and_gradient([1, 5], [scores[0], scores[0]])
    alone = losses_and_gradient([1], scores[:1])
    for one, other in zip(mixed, alone, strict=True):
      np.testing.assert_array_equal(one[:1], other)

  def test_where_ops_have_to_be_deterministic(self):
    with mock.patch.object(
      tf_config, 'is_op_determinism_enabled', return_value=True
    ):
      self.test_of_a_softmax()
      self.test_a_label_that_is_no_class_has_no_gradient()
      with tf.Graph().as_default() as graph:
        labels = tf.compat.v1.placeholder(tf.int32, [None])
        scores = tf.compat.v1.placeholder(tf.float32, [None, 3])
        tf.gradients(models.CrossEntropyLoss().call(labels, scores), scores)
      failing_ops.check('loss', graph, [labels, scores])


if __name__ == '__main__':
  absltest.main()
