"""TensorFlow Privacy's fast gradient clipping, which TFF brings along.

One form, `fast`: the local steps of a client in one `tf.function`, clients one
after the other, each on all cores. Its registry of layers does not support
convolutions, so it only does the mlp.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from importlib import metadata

import numpy as np
import tensorflow as tf
from tensorflow_privacy.privacy.fast_gradient_clipping import (
  clip_grads,
  layer_registry,
)

from benchmarks.harness import program as program_lib


class TensorFlowPrivacy(program_lib.Program):
  """The form above."""

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    self._users = [
      (tf.constant(features), tf.constant(labels))
      for features, labels in zip(server.features, server.labels, strict=True)
    ]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    self._model = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer(work.input_shape),
        *(tf.keras.layers.Dense(layer.kernel[-1]) for layer in work.layers),
      ]
    )
    self._model.compile(loss=loss)
    registry = layer_registry.make_default_layer_registry()
    self._noise_stddev = tf.Variable(0.0)
    variables = self._model.trainable_variables

    @tf.function
    def train(weights, features, labels):
      for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
      for _ in range(work.local_steps):
        # The loss is a mean of weighted losses, so its gradient is the mean of
        # the clipped gradients.
        gradients, _, _ = clip_grads.compute_clipped_gradients_and_outputs(
          self._model,
          work.example_l2_norm_clip,
          registry,
          features,
          labels,
          clipping_loss=loss,
        )
        for variable, gradient in zip(variables, gradients, strict=True):
          noise = tf.random.normal(variable.shape, stddev=self._noise_stddev)
          variable.assign_sub(work.learning_rate * (gradient + noise))
      return [tf.identity(variable) for variable in variables]

    self._train = train

  def reset(self, noise_stddev):
    self._noise_stddev.assign(noise_stddev)
    self._weights = list(map(tf.constant, self._work.initial_weights()))

  def round(self, round_number):
    uploads = [
      self._train(self._weights, *self._users[user])
      for user in self._work.cohort(round_number)
    ]
    self._weights = [
      tf.add_n(parts) / len(parts) for parts in zip(*uploads, strict=True)
    ]

  def weights(self):
    return [np.array(w) for w in self._weights]


if __name__ == '__main__':
  server = program_lib.start('fast')
  server.serve(
    TensorFlowPrivacy(server),
    tensorflow=tf.__version__,
    tensorflow_privacy=metadata.version('tensorflow_privacy'),
  )
