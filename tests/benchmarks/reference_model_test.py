"""The NumPy models are the Keras models."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from benchmarks.harness import reference_model
from benchmarks.harness import work as work_lib
from tvdp_tf.learning import models


class ReferenceModelTest(parameterized.TestCase):
  @parameterized.parameters('mlp-round', 'cnn-round')
  def test_equals_keras(self, name):
    work = work_lib.SMOKE_WORKS[name]
    spec = models.MODELS[work.model]
    keras_model = spec.build(work.input_shape, work_lib.NUM_CLASSES, 0)
    rng = np.random.default_rng(0)
    weights = [
      w + rng.normal(0, 0.1, w.shape).astype(np.float32)
      for w in work.initial_weights()
    ]
    keras_model.set_weights(weights)
    features, labels = work.features()[0], work.labels()[0]
    outputs = keras_model(features)
    np.testing.assert_allclose(
      reference_model.logits(work, weights, features),
      outputs,
      rtol=1e-4,
      atol=1e-5,
    )
    expected = tf.reduce_mean(spec.loss(labels, outputs))
    actual = reference_model.loss(work, weights, features, labels)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


if __name__ == '__main__':
  absltest.main()
