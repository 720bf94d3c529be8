"""The paper's models as Keras models, with their losses.

To train a model of your own, make a `ModelSpec`: a function that builds an
uncompiled Keras model without non-trainable weights, and its loss.
"""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """How to build a model, and the loss that it is trained with.

  Attributes:
    name: The word of `--model`.
    build: (input shape, number of classes, seed) -> an uncompiled Keras model
      of outputs [n, classes]; equal arguments give equal weights.
    loss: Keras loss of (labels [n], outputs [n, classes]), averaged over n.
  """

  name: str
  build: Callable[[Sequence[int], int, int], tf.keras.Model]
  loss: tf.keras.losses.Loss


def build_mlp(
  input_shape: Sequence[int], num_classes: int, seed: int
) -> tf.keras.Model:
  """The paper's MLP: 32 linear hidden units, then a softmax over the classes.

  The model's outputs are logits; the softmax is in the loss, where it is
  numerically stable. 784-32-10 for MNIST: 25,450 parameters.
  """

  def initializer(offset):
    return tf.keras.initializers.GlorotUniform(seed=seed + offset)

  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=tuple(input_shape)),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(
        32, name='hidden', kernel_initializer=initializer(0)
      ),
      tf.keras.layers.Dense(
        num_classes, name='logits', kernel_initializer=initializer(1)
      ),
    ],
    name='mlp',
  )


MODELS = {
  spec.name: spec
  for spec in (
    ModelSpec(
      name='mlp',
      build=build_mlp,
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ),
  )
}
