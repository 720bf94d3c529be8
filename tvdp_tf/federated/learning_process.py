"""Algorithm 1 of the paper, and its sound siblings, as `LearningProcess`es.

Broadcast w(m-1); each client trains, brings its local model or its update; the
server's new model w(m) is their mean, weighted by p_k.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tvdp_tf import _validate
from tvdp_tf.federated import (
  aggregator,
  checked_mean,
  client_work,
  models,
  sum_query,
)
from tvdp_tf.privacy import mechanisms


def _build_finalizer(
  weights_type: tff.Type, *, adds: bool
) -> tff.learning.templates.FinalizerProcess:
  """Takes the aggregate for the new model, or adds it, finite or not.

  TFF's own finalizers keep the old model when the aggregate is not finite; a
  run that has diverged must be seen, not papered over.
  """
  trainable_type = weights_type.trainable

  @tff.tensorflow.computation(weights_type, trainable_type)
  def finalize(weights, mean):
    if adds:
      mean = tf.nest.map_structure(tf.add, weights.trainable, mean)
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
      result=tff.federated_map(finalize, (weights, mean)),
      measurements=tff.federated_value((), tff.SERVER),
    )

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)


class _Parts(NamedTuple):
  """What distinguishes the mechanisms."""

  work: tff.learning.templates.ClientWorkProcess
  factory: tff.aggregators.WeightedAggregationFactory
  brings_update: bool = False


def _parts(
  model: tff.learning.models.FunctionalModel,
  mechanism: mechanisms.Mechanism,
  steps: dict,
  check_uploads: bool,
  max_upload_l2_norm: float | None,
) -> _Parts:
  unchecked = None if check_uploads else tff.aggregators.MeanFactory()
  if isinstance(
    mechanism, mechanisms.PaperMechanism | mechanisms.LaplaceMechanism
  ):
    laplace = isinstance(mechanism, mechanisms.LaplaceMechanism)
    return _Parts(
      client_work.build_projected(
        model, l2_norm_clip=mechanism.l2_norm_clip, keyed=True, **steps
      ),
      aggregator.TimeVaryingGaussianFactory(
        mechanism.schedule,
        unchecked,
        distribution='laplace' if laplace else 'gaussian',
        l2_norm_clip=mechanism.l2_norm_clip,
      ),
    )
  if isinstance(mechanism, mechanisms.NoMechanism):
    return _Parts(
      client_work.build_projected(
        model, l2_norm_clip=mechanism.l2_norm_clip, keyed=False, **steps
      ),
      # Projected, and rounded.
      unchecked
      or checked_mean.CheckedMeanFactory(mechanism.l2_norm_clip * (1 + 1e-5)),
    )
  if isinstance(mechanism, mechanisms.GradientMechanism):
    return _Parts(
      client_work.build_private(model, mechanism, **steps),
      unchecked or checked_mean.CheckedMeanFactory(max_upload_l2_norm),
    )
  if isinstance(mechanism, mechanisms.CentralMechanism):
    query = sum_query.GeometricGaussianSumQuery(
      mechanism.l2_norm_clip,
      mechanism.schedule,
      mechanism.seed,
      noise_distribution=client_work.NOISE_DISTRIBUTIONS[mechanism.noise],
    )
    # Integers are within their bound by construction.
    longest = (
      mechanism.l2_norm_clip
      if mechanism.noise == mechanisms.CONTINUOUS
      else None
    )
    return _Parts(
      client_work.build_difference(model, **steps),
      tff.aggregators.as_weighted_aggregator(
        tff.aggregators.DifferentiallyPrivateFactory(
          tfp.NormalizedQuery(query, mechanism.denominator),
          checked_mean.CheckedSumFactory(longest) if check_uploads else None,
        )
      ),
      brings_update=True,
    )
  raise TypeError(
    f'mechanism must be one of tvdp_tf.privacy.mechanisms, got '
    f'{type(mechanism).__name__}'
  )


def build_learning_process(
  model: tff.learning.models.FunctionalModel,
  mechanism: mechanisms.Mechanism,
  *,
  local_steps: int,
  learning_rate: float,
  l2_regularization: float = 0.0,
  check_uploads: bool = True,
  max_upload_l2_norm: float | None = None,
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

  Returns:
    A `tff.learning.templates.LearningProcess`. `next(state, data)` takes a
    `client_data.client_sequence` a client. The schedule's state, that says
    which round is next and with how much noise, is `schedule_state.of(state)`.

  Raises:
    ValueError: If a number is out of its range.
    TypeError: If the mechanism is none that is known.
  """
  steps = {
    'local_steps': _validate.integer('local_steps', local_steps),
    'learning_rate': _validate.positive('learning_rate', learning_rate),
    'l2_regularization': _validate.non_negative(
      'l2_regularization', l2_regularization
    ),
  }
  parts = _parts(model, mechanism, steps, check_uploads, max_upload_l2_norm)
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
    _build_finalizer(weights_type, adds=parts.brings_update),
  )
