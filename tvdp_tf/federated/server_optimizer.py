"""The server's part of a round in TFF (`learning.server_optimizer`)."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.learning.server_optimizer import ServerOptimizer


def build_finalizer(
  weights_type: tff.Type, optimizer: ServerOptimizer, *, adds: bool
) -> tff.learning.templates.FinalizerProcess:
  """The server's part of a round.

  Not finite values are kept: TFF's own finalizers keep the old model when the
  aggregate is not finite, but a run that has diverged must be seen.

  Args:
    weights_type: Of the model, `tff.learning.models.ModelWeights`.
    optimizer: What to do with the mean update.
    adds: Whether the aggregate is the mean update, and not the mean model.

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
  """The state and the weights after a round."""
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
    state: Of a process of `build_learning_process`, after a round or before.
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
  """D_m, from the states before and after the round; float64 arrays."""

  def arrays(structure):
    return [np.asarray(part, np.float64) for part in tf.nest.flatten(structure)]

  if optimizer.is_plain:
    old = arrays(before.global_model_weights.trainable)
    new = arrays(after.global_model_weights.trainable)
    return [b - a for a, b in zip(old, new, strict=True)]
  old = arrays(before.finalizer['velocity'])
  new = arrays(after.finalizer['velocity'])
  return [b - optimizer.momentum * a for a, b in zip(old, new, strict=True)]
