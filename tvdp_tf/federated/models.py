"""Keras models as TFF functional models."""

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.learning import functional, models


class KerasFunctionalModel(tff.learning.models.FunctionalModel):
  """A Keras model and its loss, for TFF.

  Attributes:
    source: The model as a function of its weights.
    keras_loss: The loss, a function of (labels [n], outputs [n, ...]).
  """

  def __init__(
    self,
    spec: models.ModelSpec,
    keras_model: tf.keras.Model | functional.FunctionalModel,
  ):
    source = keras_model
    if not isinstance(source, functional.FunctionalModel):
      source = functional.FunctionalModel(source)
    self.source = source
    self.keras_loss = spec.loss

    @tf.function(autograph=False)
    def predict_on_batch(model_weights, x, training=True):
      trainable, _ = model_weights
      return source(trainable, x, training)

    @tf.function(autograph=False)
    def loss(output, label, sample_weight=None):
      return spec.loss(label, output, sample_weight)

    super().__init__(
      initial_weights=(tuple(source.initial_weights), ()),
      predict_on_batch_fn=predict_on_batch,
      loss_fn=loss,
      input_spec=(source.features_spec, tf.TensorSpec([None], tf.int32)),
    )


def functional_model(
  spec: models.ModelSpec,
  keras_model: tf.keras.Model | functional.FunctionalModel,
) -> KerasFunctionalModel:
  """Wraps a Keras model so that TFF can train it on whole client data sets.

  Args:
    spec: The model's spec; training uses its loss.
    keras_model: A built Keras model with one input; its current weights become
      the initial weights. You can still use it afterwards. Or a functional
      model that was made from such a model.

  Returns:
    A `tff.learning.models.FunctionalModel` for batches (x [n, ...], y [n]).

  Raises:
    ValueError: If the model has more state than trainable weights.
  """
  return KerasFunctionalModel(spec, keras_model)


def weights_type(
  model: tff.learning.models.FunctionalModel,
) -> tff.StructWithPythonType:
  """The TFF type of a model's weights (`tff.learning.models.ModelWeights`)."""
  trainable, non_trainable = (
    tuple(tff.TensorType(w.dtype, w.shape) for w in weights)
    for weights in model.initial_weights
  )
  return tff.to_type(tff.learning.models.ModelWeights(trainable, non_trainable))
