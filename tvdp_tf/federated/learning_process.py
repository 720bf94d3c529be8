"""Algorithm 1 of the paper as a TFF `LearningProcess`.

Broadcast w(m-1); each client runs tau local steps, brings its perturbed model;
the server's new model w(m) is their mean, weighted by p_k.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import aggregator, client_data, models
from tvdp_tf.learning import local_training
from tvdp_tf.privacy import mechanisms


def _build_client_work(
  model: tff.learning.models.FunctionalModel,
  *,
  local_steps: int,
  learning_rate: float,
  l2_norm_clip: float,
  keyed: bool,
) -> tff.learning.templates.ClientWorkProcess:
  """Local training: the result of a client is its local model w_k(tau m)."""
  weights_type = models.weights_type(model)
  data_type = tff.SequenceType(
    tff.types.tensorflow_to_type(client_data.element_spec(model))
  )

  def loss_fn(weights, features, labels):
    outputs = model.predict_on_batch((tuple(weights), ()), features, True)
    return model.loss(outputs, labels)

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, dataset):
    batch = dataset.get_single_element()
    local_weights = local_training.local_steps(
      loss_fn,
      tf.nest.flatten(weights.trainable),
      batch['x'],
      batch['y'],
      num_steps=local_steps,
      learning_rate=learning_rate,
      l2_norm_clip=l2_norm_clip,
    )
    update = tuple(local_weights)
    if keyed:
      update = aggregator.KeyedUpdate(update, batch['noise_key'])
    return tff.learning.templates.ClientResult(
      update=update,
      update_weight=tf.cast(tf.shape(batch['y'])[0], tf.float32),
    )

  @tff.federated_computation()
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, dataset):
    return tff.templates.MeasuredProcessOutput(
      state=state,
      result=tff.federated_map(train, (weights, dataset)),
      measurements=tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def _build_finalizer(
  weights_type: tff.Type,
) -> tff.learning.templates.FinalizerProcess:
  """Takes the aggregate for the new model, finite or not.

  TFF's own finalizers keep the old model when the aggregate is not finite; a
  run that has diverged must be seen, not papered over.
  """
  trainable_type = weights_type.trainable

  @tff.tensorflow.computation(weights_type, trainable_type)
  def replace(weights, mean):
    return tff.learning.models.ModelWeights(
      trainable=mean, non_trainable=weights.non_trainable
    )

  @tff.federated_computation()
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(trainable_type, tff.SERVER),
  )
  def next_fn(state, weights, mean):
    return tff.templates.MeasuredProcessOutput(
      state=state,
      result=tff.federated_map(replace, (weights, mean)),
      measurements=tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)


def build_learning_process(
  model: tff.learning.models.FunctionalModel,
  mechanism: mechanisms.PaperMechanism | mechanisms.NoMechanism,
  *,
  local_steps: int,
  learning_rate: float,
) -> tff.learning.templates.LearningProcess:
  """Builds Algorithm 1.

  Args:
    model: The model and its loss, without non-trainable weights.
    mechanism: How a client hides its examples.
    local_steps: tau, full-batch steps in a round, at least 1.
    learning_rate: eta.

  Returns:
    A `tff.learning.templates.LearningProcess`. `next(state, data)` takes a
    `client_data.client_sequence` a client; `state.aggregator` is the state of
    `TimeVaryingGaussianFactory`, and its measurements are those of
    `metrics['aggregator']`.

  Raises:
    ValueError: If a number is out of its range.
    TypeError: If the mechanism is none that is known.
  """
  _validate.integer('local_steps', local_steps)
  _validate.positive('learning_rate', learning_rate)
  if isinstance(mechanism, mechanisms.PaperMechanism):
    factory = aggregator.TimeVaryingGaussianFactory(mechanism.schedule)
  elif isinstance(mechanism, mechanisms.NoMechanism):
    factory = tff.aggregators.MeanFactory()
  else:
    raise TypeError(
      'mechanism must be a PaperMechanism or a NoMechanism, got '
      f'{type(mechanism).__name__}'
    )
  weights_type = models.weights_type(model)
  client_work = _build_client_work(
    model,
    local_steps=local_steps,
    learning_rate=learning_rate,
    l2_norm_clip=mechanism.l2_norm_clip,
    keyed=isinstance(mechanism, mechanisms.PaperMechanism),
  )
  client_result_type = client_work.next.type_signature.result.result.member

  @tff.tensorflow.computation
  def initial_weights():
    trainable, non_trainable = model.initial_weights
    return tff.learning.models.ModelWeights(
      trainable=tf.nest.map_structure(tf.constant, tuple(trainable)),
      non_trainable=tuple(non_trainable),
    )

  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    client_work,
    factory.create(client_result_type.update, client_result_type.update_weight),
    _build_finalizer(weights_type),
  )
