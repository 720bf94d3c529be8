"""Algorithm 1 of the paper, and its sound variants, as `LearningProcess`es.

The server broadcasts w(m-1). Each client trains and sends its local model or
its update. The new model w(m) is their mean, weighted by p_k, or the result of
the server's optimizer (`learning.server_optimizer`) on that mean.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import models
from tvdp_tf.learning.server_optimizer import ServerOptimizer


def build_finalizer(
  weights_type: tff.Type, optimizer: ServerOptimizer, *, adds: bool
) -> tff.learning.templates.FinalizerProcess:
  """The server's part of a round.

  Values that are not finite are kept. TFF's own finalizers keep the old model
  in this case, but here a run that has diverged must be visible.

  Args:
    weights_type: Type of the weights, `tff.learning.models.ModelWeights`.
    optimizer: What to do with the mean update.
    adds: Whether the aggregate is the mean update, not the mean model.

  Returns:
    The process. Its state is empty for a plain optimizer, and otherwise an
    `OrderedDict` of `round` (int32), `velocity` and `average` (as the trainable
    weights).
  """
  trainable_type = weights_type.trainable
  zeros = tf.nest.map_structure(
    lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype),
    tff.types.type_to_tf_tensor_specs(trainable_type),
  )

  @tff.tensorflow.computation
  def initial_state():
    if optimizer.is_plain:
      return ()
    return collections.OrderedDict(
      round=tf.constant(0, tf.int32),
      velocity=tf.nest.map_structure(tf.constant, zeros),
      average=tf.nest.map_structure(tf.constant, zeros),
    )

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type, trainable_type)
  def finalize(state, weights, mean):
    old = weights.trainable
    if optimizer.is_plain:
      new = tf.nest.map_structure(tf.add, old, mean) if adds else mean
    else:
      update = mean
      if not adds:
        update = tf.nest.map_structure(tf.subtract, mean, old)
      state, new = _step(optimizer, state, old, update)
    return state, tff.learning.models.ModelWeights(
      trainable=new, non_trainable=weights.non_trainable
    )

  @tff.federated_computation()
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(trainable_type, tff.SERVER),
  )
  def next_fn(state, weights, mean):
    new_state, result = tff.federated_map(finalize, (state, weights, mean))
    return tff.templates.MeasuredProcessOutput(
      state=new_state,
      result=result,
      measurements=tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)


def _step(optimizer: ServerOptimizer, state, weights, update):
  """Returns the state and the weights after a round."""
  m = tf.cast(state['round'], tf.float32)
  share = tf.minimum(1.0, m / max(1, optimizer.rounds - 1))
  step = 1 - (1 - optimizer.final_step) * share
  # The weight of w_m in the average: 1 in the first round.
  gamma = optimizer.average
  newest = (1 - gamma) / (1 - tf.pow(gamma, m + 1))

  def cast(value, like):
    return tf.cast(value, like.dtype)

  velocity = tf.nest.map_structure(
    lambda v, d: cast(optimizer.momentum, v) * v + d, state['velocity'], update
  )
  new = tf.nest.map_structure(
    lambda w, d, v: w + cast(step, w) * (d + cast(optimizer.momentum, w) * v),
    weights,
    update,
    velocity,
  )
  average = tf.nest.map_structure(
    lambda a, w: a + cast(newest, a) * (w - a), state['average'], new
  )
  return collections.OrderedDict(
    round=state['round'] + 1, velocity=velocity, average=average
  ), new


def released_weights(
  state: tff.learning.templates.LearningAlgorithmState,
) -> Any:
  """The trainable weights to evaluate and export: the average, if there is one.

  Args:
    state: State of a process of `build_learning_process`, after any number of
      rounds.
  """
  finalizer = state.finalizer
  if not finalizer or int(finalizer['round']) == 0:
    return state.global_model_weights.trainable
  return finalizer['average']


def mean_update(
  optimizer: ServerOptimizer,
  before: tff.learning.templates.LearningAlgorithmState,
  after: tff.learning.templates.LearningAlgorithmState,
) -> Sequence[np.ndarray]:
  """Computes D_m from the states before and after the round; float64 arrays."""

  def arrays(structure):
    return [np.asarray(part, np.float64) for part in tf.nest.flatten(structure)]

  if optimizer.is_plain:
    old = arrays(before.global_model_weights.trainable)
    new = arrays(after.global_model_weights.trainable)
    return [b - a for a, b in zip(old, new, strict=True)]
  old = arrays(before.finalizer['velocity'])
  new = arrays(after.finalizer['velocity'])
  return [b - optimizer.momentum * a for a, b in zip(old, new, strict=True)]


class Parts(NamedTuple):
  """The parts of the process that depend on the mechanism.

  Attributes:
    work: The work of a client.
    factory: The aggregation of the clients' results.
    brings_update: Whether the result of a client is an update, not a model.
  """

  work: tff.learning.templates.ClientWorkProcess
  factory: tff.aggregators.WeightedAggregationFactory
  brings_update: bool = False


class Build(NamedTuple):
  """The inputs from which a mechanism creates its `Parts`.

  Attributes:
    model: The model and its loss.
    local_steps: Arguments of the client's work: `local_steps`, `learning_rate`
      and `l2_regularization`.
    unchecked_mean: The mean, if the server leaves out nothing; None if the
      server must check uploads (`checked_mean`).
    max_upload_l2_norm: As for `build_learning_process`.
  """

  model: tff.learning.models.FunctionalModel
  local_steps: dict[str, Any]
  unchecked_mean: tff.aggregators.MeanFactory | None
  max_upload_l2_norm: float | None


class Mechanism(Protocol):
  """The mechanism that hides the examples; see `tvdp_tf.mechanisms`."""

  def parts(self, build: Any) -> Any:
    """Returns the `Parts` for a `Build`."""


def build_learning_process(
  model: tff.learning.models.FunctionalModel,
  mechanism: Mechanism,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float = 0.0,
  check_uploads: bool = True,
  max_upload_l2_norm: float | None = None,
  server_optimizer: ServerOptimizer | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds federated training under a mechanism.

  Args:
    model: The model and its loss, without non-trainable weights.
    mechanism: The mechanism that hides the examples.
    local_steps: tau, the number of full-batch steps in a round, at least 1.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.
    check_uploads: Whether the server leaves out unusable uploads
      (`checked_mean`). False for TFF 0.87's `DistributeAggregateForm`, which
      accepts no custom aggregation.
    max_upload_l2_norm: The largest norm of a local model that the server uses
      with a `GradientMechanism`; None for any finite one. With the other
      mechanisms it follows from the clip.
    server_optimizer: What the server does with the mean update; by default it
      is added.

  Returns:
    A `tff.learning.templates.LearningProcess`. `next(state, data)` takes one
    `client_data.client_sequence` per client. `schedule_state.of(state)` is the
    schedule's state, which says which round is next and with how much noise.

  Raises:
    ValueError: If a number is out of range, or the mechanism has no `Parts`.
    TypeError: If `mechanism` is not a mechanism.
  """
  if not hasattr(mechanism, 'parts'):
    raise TypeError(
      f'mechanism must be one of tvdp_tf.mechanisms, got '
      f'{type(mechanism).__name__}'
    )
  steps = {
    'local_steps': _validate.integer('local_steps', local_steps),
    'learning_rate': _validate.positive('learning_rate', learning_rate),
    'l2_regularization': _validate.non_negative(
      'l2_regularization', l2_regularization
    ),
  }
  parts = mechanism.parts(
    Build(
      model,
      steps,
      None if check_uploads else tff.aggregators.MeanFactory(),
      max_upload_l2_norm,
    )
  )
  if not isinstance(parts, Parts):
    raise ValueError(
      f'mechanism must return Parts from parts, got {type(parts).__name__}'
    )
  weights_type = models.weights_type(model)
  result_type = parts.work.next.type_signature.result.result.member

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
    parts.work,
    parts.factory.create(result_type.update, result_type.update_weight),
    build_finalizer(
      weights_type,
      server_optimizer or ServerOptimizer(),
      adds=parts.brings_update,
    ),
  )
