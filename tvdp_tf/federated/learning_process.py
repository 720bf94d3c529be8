"""Algorithm 1 of the paper, and its sound siblings, as `LearningProcess`es.

Broadcast w(m-1); each client trains, brings its local model or its update; the
server's new model w(m) is their mean, weighted by p_k.
"""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import models
from tvdp_tf.federated import server_optimizer as server_optimizer_lib


class Parts(NamedTuple):
  """What a mechanism puts into the process: what distinguishes it.

  Attributes:
    work: What a client does, and brings.
    factory: How the server joins what clients bring.
    brings_update: Whether that is an update, and not a model.
  """

  work: tff.learning.templates.ClientWorkProcess
  factory: tff.aggregators.WeightedAggregationFactory
  brings_update: bool = False


class Build(NamedTuple):
  """What a mechanism makes its `Parts` from.

  Attributes:
    model: The model and its loss.
    local_steps: Arguments of the client's work: `local_steps`, `learning_rate`
      and `l2_regularization`.
    unchecked_mean: The mean, if the server leaves out nothing; None if it is to
      check uploads (`checked_mean`).
    max_upload_l2_norm: Of `build_learning_process`.
  """

  model: tff.learning.models.FunctionalModel
  local_steps: dict[str, Any]
  unchecked_mean: tff.aggregators.MeanFactory | None
  max_upload_l2_norm: float | None


class Mechanism(Protocol):
  """What hides the examples: see `tvdp_tf.mechanisms`."""

  def parts(self, build: Any) -> Any:
    """The `Parts` of a `Build`."""


def build_learning_process(
  model: tff.learning.models.FunctionalModel,
  mechanism: Mechanism,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float = 0.0,
  check_uploads: bool = True,
  max_upload_l2_norm: float | None = None,
  server_optimizer: server_optimizer_lib.ServerOptimizer | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds federated training under a mechanism.

  Args:
    model: The model and its loss, without non-trainable weights.
    mechanism: What hides the examples.
    local_steps: tau, full-batch steps in a round, at least 1.
    learning_rate: eta.
    l2_regularization: lambda of lambda/2 ||w||^2, added to the loss.
    check_uploads: Whether the server leaves out uploads that cannot be used
      (`checked_mean`). False for TFF 0.87's `DistributeAggregateForm`, which
      takes no aggregation of one's own.
    max_upload_l2_norm: The norm of the longest local model that the server uses
      with a `GradientMechanism`; None for any that is finite. With the other
      mechanisms it follows from the clip.
    server_optimizer: What the server does with the mean update; by default it
      is added.

  Returns:
    A `tff.learning.templates.LearningProcess`. `next(state, data)` takes a
    `client_data.client_sequence` a client. The schedule's state, that says
    which round is next and with how much noise, is `schedule_state.of(state)`.

  Raises:
    ValueError: If a number is out of its range.
    TypeError: If the mechanism is none.
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
    server_optimizer_lib.build_finalizer(
      weights_type,
      server_optimizer or server_optimizer_lib.ServerOptimizer(),
      adds=parts.brings_update,
    ),
  )
