"""Keras models as pure functions of their weights.

A federated computation passes weights around as values, while a Keras model
keeps them in variables. Here the model is traced once with tensors in the place
of its variables. The result belongs to no model, session or mode of TensorFlow:
it can be called eagerly, in any graph, differentiated and vectorised. (TFF's
`functional_model_from_keras` clones the model in a TF1 graph instead, which
switches Keras's classes to their TF1 versions and breaks the caller's models.)
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def weights_replaced(
  model: tf.keras.Model, tensors: Sequence[tf.Tensor]
) -> Iterator[None]:
  """Puts tensors in the place of the trainable variables of all layers."""
  by_variable = {
    variable.ref(): tensor
    for variable, tensor in zip(model.trainable_weights, tensors, strict=True)
  }
  replaced = []
  for module in [model, *model.submodules]:
    # By way of `vars`: assignment to a layer's attribute would track the value.
    attributes = vars(module)
    for name, value in list(attributes.items()):
      if isinstance(value, tf.Variable) and value.ref() in by_variable:
        replaced.append((attributes, name, value))
        attributes[name] = by_variable[value.ref()]
  try:
    yield
  finally:
    for attributes, name, value in replaced:
      attributes[name] = value


class FunctionalModel:
  """A Keras model as a function (weights, features, training) -> outputs.

  Attributes:
    keras_model: The model that was wrapped.
    initial_weights: The model's weights when it was wrapped, numpy arrays in
      the order of `trainable_weights`.
    features_spec: Spec of a batch of features, [None, ...].
  """

  def __init__(self, model: tf.keras.Model):
    """Wraps a model, which is left as it is.

    Args:
      model: A built Keras model with one input, one output, and only trainable
        weights, which are direct attributes of its layers.

    Raises:
      ValueError: If the model has non-trainable weights, losses of its own, or
        weights that are out of reach.
    """
    if model.non_trainable_weights:
      names = ', '.join(w.name for w in model.non_trainable_weights[:3])
      raise ValueError(
        'model must have no non-trainable weights (batch normalisation shares '
        f'statistics that no noise hides), got {names}'
      )
    if model.losses:
      raise ValueError(
        'model must have no losses of its own (such as weight regularisation): '
        f'put them in the loss of its ModelSpec, got {len(model.losses)}'
      )
    self.keras_model = model
    self.initial_weights = [w.numpy() for w in model.trainable_weights]
    self.features_spec = tf.TensorSpec(model.input_shape, model.inputs[0].dtype)

    weights_spec = [tf.TensorSpec(w.shape, w.dtype) for w in model.weights]

    def trace(training):
      @tf.function(autograph=False)
      def call(weights, features):
        with weights_replaced(model, weights):
          return model(features, training=training)

      return call.get_concrete_function(weights_spec, self.features_spec)

    self._calls = {training: trace(training) for training in (False, True)}
    if self._calls[True].graph.captures:
      held = [w.name for w in model.trainable_weights]
      raise ValueError(
        'model must keep each weight in an attribute of its layer, and use no '
        f'other state; one of these is not: {", ".join(held)}'
      )

  def __call__(
    self,
    weights: Sequence[tf.Tensor | np.ndarray],
    features: tf.Tensor | np.ndarray,
    training: bool = False,
  ) -> tf.Tensor:
    """Applies the model.

    Args:
      weights: As `initial_weights`.
      features: [n, ...].
      training: Keras's `training` argument.

    Returns:
      The outputs, [n, ...].
    """
    call = self._calls[bool(training)]
    weights = [
      tf.convert_to_tensor(w, initial.dtype)
      for w, initial in zip(weights, self.initial_weights, strict=True)
    ]
    return call(weights, tf.convert_to_tensor(features))
