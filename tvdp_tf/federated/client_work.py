"""The work of clients in a round, as TFF `ClientWorkProcess`es.

The result of a client is a structure of tensors and a weight. The structure is
its local model or, for central noise, the difference to the global model.
"""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import privacy
from tvdp_tf.federated import (
  aggregator,
  bounded_value,
  client_data,
  models,
  schedule_state,
)
from tvdp_tf.learning import (
  clipping,
  example_independence,
  local_training,
  private_training,
  views,
)

# (weights, batch) -> the local model.
_Trainer = Callable[[list[tf.Tensor], Any], list[tf.Tensor]]


def _loss_fn(
  model: tff.learning.models.FunctionalModel,
) -> local_training.LossFn:
  def loss_fn(weights, features, labels):
    outputs = model.predict_on_batch((tuple(weights), ()), features, True)
    return model.loss(outputs, labels)

  return loss_fn


def _types(model: tff.learning.models.FunctionalModel):
  data_type = tff.SequenceType(
    tff.types.tensorflow_to_type(client_data.element_spec(model))
  )
  return models.weights_type(model), data_type


def _num_examples(batch) -> tf.Tensor:
  return tf.cast(tf.shape(batch['y'])[0], tf.float32)


def _stateless(
  model: tff.learning.models.FunctionalModel,
  train_batch: Callable[[list[tf.Tensor], Any], Any],
) -> tff.learning.templates.ClientWorkProcess:
  """Client work without server state.

  Args:
    model: The model.
    train_batch: (global weights, batch) -> the client's result.

  Returns:
    The process.
  """
  weights_type, data_type = _types(model)

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, dataset):
    batch = dataset.get_single_element()
    return tff.learning.templates.ClientResult(
      update=train_batch(tf.nest.flatten(weights.trainable), batch),
      update_weight=_num_examples(batch),
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


def _local_trainer(
  model: tff.learning.models.FunctionalModel,
  local_steps: int,
  learning_rate: float,
  l2_norm_clip: float | None,
  l2_regularization: float,
) -> _Trainer:
  loss_fn = _loss_fn(model)
  features_spec, labels_spec = model.input_spec
  example_independence.check_steps(
    loss_fn,
    model.initial_weights[0],
    features_spec,
    labels_spec,
    learning_rate=learning_rate,
  )

  def train(weights, batch):
    return local_training.local_steps(
      loss_fn,
      weights,
      batch['x'],
      batch['y'],
      num_steps=local_steps,
      learning_rate=learning_rate,
      l2_norm_clip=l2_norm_clip,
      l2_regularization=l2_regularization,
    )

  return train


def build_projected(
  model: tff.learning.models.FunctionalModel,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float,
  l2_norm_clip: float | None,
  keyed: bool,
) -> tff.learning.templates.ClientWorkProcess:
  """Algorithm 1: projected full-batch steps; a client returns w_k(tau m).

  Args:
    model: The model.
    local_steps: tau.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.
    l2_norm_clip: C; None for no projection.
    keyed: Whether to return an `aggregator.KeyedUpdate`, to be perturbed. It is
      finite whatever the data, unless the global model is not.

  Returns:
    The process.
  """
  train = _local_trainer(
    model, local_steps, learning_rate, l2_norm_clip, l2_regularization
  )

  def train_batch(weights, batch):
    update = train(weights, batch)
    if not keyed:
      return tuple(update)
    # Noise does not hide a NaN: a client whose training fails returns what it
    # was sent, and the server is not told.
    finite = tf.math.is_finite(tf.linalg.global_norm(update))
    update = [
      bounded_value.chosen(finite, trained, sent)
      for trained, sent in zip(update, weights, strict=True)
    ]
    return aggregator.KeyedUpdate(tuple(update), batch['noise_key'])

  return _stateless(model, train_batch)


def build_difference(
  model: tff.learning.models.FunctionalModel,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float,
  keyed: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
  """Plain full-batch steps; a client returns w_k - w(m-1), to be clipped.

  Args:
    model: The model.
    local_steps: tau.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.
    keyed: Whether to return an `aggregator.KeyedUpdate`, to be perturbed.

  Returns:
    The process.
  """
  train = _local_trainer(
    model, local_steps, learning_rate, None, l2_regularization
  )

  def train_batch(weights, batch):
    trained = train(weights, batch)
    update = tuple(new - old for new, old in zip(trained, weights, strict=True))
    return (
      aggregator.KeyedUpdate(update, batch['noise_key']) if keyed else update
    )

  return _stateless(model, train_batch)


def clipped_sum(
  model: tff.learning.models.FunctionalModel,
  example_l2_norm_clip: float,
  views_name: str = views.NONE,
) -> clipping.ClippedSum:
  """Returns how training sums the clipped gradients of a batch.

  Args:
    model: The model and its loss.
    example_l2_norm_clip: C_g.
    views_name: A key of `views.VIEWS`. An example's gradient is the mean over
      its views.

  Raises:
    ValueError: If the model mixes the examples of a batch or cannot be clipped
      (`example_independence`), or if its examples have no such views.
  """
  if isinstance(model, models.KerasFunctionalModel):
    return example_independence.clipped_sum(
      model.source, model.keras_loss, example_l2_norm_clip, views_name
    )
  features_spec, labels_spec = model.input_spec
  return example_independence.example_clipped_sum(
    _loss_fn(model),
    model.initial_weights[0],
    features_spec,
    num_labels=2,
    labels_spec=labels_spec,
    example_l2_norm_clip=example_l2_norm_clip,
    views_name=views_name,
  )


def build_gradient_sum(
  model: tff.learning.models.FunctionalModel,
  *,
  example_l2_norm_clip: float,
  adjacency: str,
  views_name: str = views.NONE,
) -> tff.learning.templates.ClientWorkProcess:
  """The sum of a client's clipped gradients, without noise, for a noisy sum.

  Args:
    model: The model.
    example_l2_norm_clip: C_g.
    adjacency: As for `clipping.gradient_sum`.
    views_name: As for `clipped_sum`.

  Returns:
    The process. A client returns an `aggregator.KeyedUpdate` of float64
    tensors; its weight is the number of its examples.

  Raises:
    ValueError: As `build_private`.
  """
  clipping.require_full_precision()
  summed = clipped_sum(model, example_l2_norm_clip, views_name)

  def train_batch(weights, batch):
    totals = clipping.gradient_sum(
      summed,
      weights,
      clipping.examples(summed, batch['x'], batch['y']),
      example_l2_norm_clip=example_l2_norm_clip,
      adjacency=adjacency,
    )
    return aggregator.KeyedUpdate(tuple(totals), batch['noise_key'])

  return _stateless(model, train_batch)


def clipped_update(
  model: tff.learning.models.FunctionalModel,
  *,
  l2_norm_clip: float,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float,
) -> _Trainer:
  """Returns the training of a client: (weights, batch) -> clipped update.

  Args:
    model: The model.
    l2_norm_clip: C_u.
    local_steps: tau.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.

  Returns:
    A function that returns float64 tensors of the shapes of the weights.
  """
  train = _local_trainer(
    model, local_steps, learning_rate, None, l2_regularization
  )

  def update(weights, batch):
    differences = [
      tf.cast(new, tf.float64) - tf.cast(old, tf.float64)
      for new, old in zip(train(weights, batch), weights, strict=True)
    ]
    return bounded_value.bounded(differences, l2_norm_clip)

  return update


def build_bounded_difference(
  model: tff.learning.models.FunctionalModel, **steps: Any
) -> tff.learning.templates.ClientWorkProcess:
  """Like `build_difference`, but clipped to a norm, for a noisy sum.

  Args:
    model: The model.
    **steps: As for `clipped_update`.

  Returns:
    The process. A client returns an `aggregator.KeyedUpdate` of float64
    tensors.
  """
  update = clipped_update(model, **steps)

  def train_batch(weights, batch):
    return aggregator.KeyedUpdate(
      tuple(update(weights, batch)), batch['noise_key']
    )

  return _stateless(model, train_batch)


def build_private(
  model: tff.learning.models.FunctionalModel,
  *,
  schedule: privacy.NoiseSchedule,
  example_l2_norm_clip: float,
  noise_distribution: str,
  adjacency: str,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float,
  views_name: str = views.NONE,
) -> tff.learning.templates.ClientWorkProcess:
  """Steps on clipped, noisy gradients; a client returns its local model.

  The state is that of `schedule_state`, in noise multipliers. A client's noise
  is `noise_scale` (of its data) times as large. The measurements are an
  `OrderedDict` of `round` (int32, from 1) and `noise_multiplier` (float64, of
  the schedule).

  Args:
    model: The model.
    schedule: The noise multiplier of every round.
    example_l2_norm_clip: C_g.
    noise_distribution: As for `noise.perturb`.
    adjacency: As for `clipping.mean_gradient`.
    views_name: As for `clipped_sum`.
    local_steps: tau, which is also the number of releases in a round.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.

  Returns:
    The process.

  Raises:
    ValueError: If the model mixes the examples of a batch or cannot be clipped
      (`example_independence`), or if this process reduces the precision of
      float32.
  """
  clipping.require_full_precision()
  weights_type, data_type = _types(model)
  train_batch = private_training.batch_trainer(
    clipped_sum(model, example_l2_norm_clip, views_name),
    local_steps=local_steps,
    learning_rate=learning_rate,
    l2_regularization=l2_regularization,
    example_l2_norm_clip=example_l2_norm_clip,
    noise_distribution=noise_distribution,
    adjacency=adjacency,
  )

  @tff.tensorflow.computation
  def first_round():
    return schedule_state.initial(schedule)

  state_type = first_round.type_signature.result

  @tff.tensorflow.computation(weights_type, data_type, np.float64)
  def train(weights, dataset, noise_multiplier):
    batch = dataset.get_single_element()
    trained = train_batch(
      tf.nest.flatten(weights.trainable), batch, noise_multiplier
    )
    return tff.learning.templates.ClientResult(
      update=tuple(trained), update_weight=_num_examples(batch)
    )

  @tff.tensorflow.computation(state_type)
  def round_multiplier(state):
    return schedule_state.round_stddev(state)

  @tff.tensorflow.computation(state_type, np.float64)
  def finish_round(state, noise_multiplier):
    new_state = schedule_state.next_round(state)
    used = collections.OrderedDict(
      round=new_state['round'], noise_multiplier=noise_multiplier
    )
    return new_state, used

  @tff.federated_computation()
  def initialize():
    return tff.federated_eval(first_round, tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, dataset):
    noise_multiplier = tff.federated_map(round_multiplier, state)
    result = tff.federated_map(
      train, (weights, dataset, tff.federated_broadcast(noise_multiplier))
    )
    new_state, used = tff.federated_map(finish_round, (state, noise_multiplier))
    return tff.templates.MeasuredProcessOutput(
      state=new_state, result=result, measurements=used
    )

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
