"""Keras models as TFF functional models."""

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.learning import functional, models


def functional_model(
  spec: models.ModelSpec,
  keras_model: tf.keras.Model,
) -> tff.learning.models.FunctionalModel:
  """Wraps a Keras model so that TFF can train it on whole client data sets.

  Args:
    spec: The model's spec, whose loss is trained.
    keras_model: A built Keras model with one input; its current weights become
      the initial ones. It stays usable.

  Returns:
    A `tff.learning.models.FunctionalModel` of batches (x [n, ...], y [n]).

  Raises:
    ValueError: If the model has more state than trainable weights.
  """
  model = functional.FunctionalModel(keras_model)

  @tf.function(autograph=False)
  def predict_on_batch(model_weights, x, training=True):
    trainable, _ = model_weights
    return model(trainable, x, training)

  @tf.function(autograph=False)
  def loss(output, label, sample_weight=None):
    return spec.loss(label, output, sample_weight)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(model.initial_weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    input_spec=(model.features_spec, tf.TensorSpec([None], tf.int32)),
  )


def weights_type(
  model: tff.learning.models.FunctionalModel,
) -> tff.StructWithPythonType:
  """The TFF type of a model's weights (`tff.learning.models.ModelWeights`)."""
  trainable, non_trainable = (
    tuple(tff.TensorType(w.dtype, w.shape) for w in weights)
    for weights in model.initial_weights
  )
  return tff.to_type(tff.learning.models.ModelWeights(trainable, non_trainable))
