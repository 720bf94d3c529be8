"""A TFF aggregator: each client adds its own noise, then a weighted mean.

The noise of round m has the variance theta**(m-1) * initial_variance (the
paper's varTheta(m)); it is added before anything leaves the client
(eq-noised-parameter), and the server sees the perturbed values and their mean
(eq_global_weight).

The schedule lives in the server state (`schedule_state`).
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import schedule_state
from tvdp_tf.learning import noise


class KeyedUpdate(NamedTuple):
  """A client's value, and the key of the noise that will hide it.

  Attributes:
    value: A structure of float tensors.
    noise_key: int64 [2]; see `tvdp_tf.learning.noise`.
  """

  value: Any
  noise_key: Any


def _is_keyed(value_type: tff.Type) -> bool:
  return (
    isinstance(value_type, tff.StructWithPythonType)
    and value_type.python_container is KeyedUpdate
  )


class TimeVaryingGaussianFactory(tff.aggregators.WeightedAggregationFactory):
  """Perturbs each client's value with the round's noise, then averages.

  The value of a client is a structure of float tensors, perturbed with noise
  from the system's entropy; or a `KeyedUpdate` of one, perturbed with the noise
  of the given key, and the aggregate is of the value alone. Without keys it
  plugs into `tff.learning.algorithms.build_weighted_fed_avg` as
  `model_aggregator`.

  This class adds noise; it bounds no sensitivity. What the noise hides is up to
  the caller, who must bound the client's value before.

  The state is an `OrderedDict` of the fields of `schedule_state` and `inner`,
  the state of the inner aggregator.

  The measurements are an `OrderedDict` of `round` (int32, from 1),
  `noise_stddev` (float64, as used in that round) and `inner`.
  """

  def __init__(
    self,
    schedule: privacy.GeometricSchedule,
    inner: tff.aggregators.WeightedAggregationFactory | None = None,
    *,
    distribution: str = 'gaussian',
  ):
    """Creates the factory.

    Args:
      schedule: The noise of every round: standard deviation of each added
        value, in the units of the client's value, before the weighted mean.
      inner: Aggregates the perturbed values; by default a weighted mean.
      distribution: 'gaussian', or 'laplace' of the same standard deviation.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If there is no such distribution.
    """
    if not isinstance(schedule, privacy.GeometricSchedule):
      raise TypeError(
        f'schedule must be a GeometricSchedule, got {type(schedule).__name__}'
      )
    if inner is None:
      inner = tff.aggregators.MeanFactory()
    if not isinstance(inner, tff.aggregators.WeightedAggregationFactory):
      raise TypeError(
        'inner must be a WeightedAggregationFactory, got '
        f'{type(inner).__name__}'
      )
    self._schedule = schedule
    self._inner = inner
    self._distribution = _validate.one_of(
      'distribution', distribution, noise.DISTRIBUTIONS
    )

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process, as `WeightedAggregationFactory.create`.

    Args:
      value_type: Type of a client's value, float tensors of static shapes, or
        of a `KeyedUpdate` of it.
      weight_type: Type of a client's weight.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If the value has other leaves than float tensors.
      ValueError: If a shape is not static.
    """
    keyed = _is_keyed(value_type)
    result_type = value_type.value if keyed else value_type
    _check_perturbable(result_type)
    inner = self._inner.create(result_type, weight_type)
    schedule, distribution = self._schedule, self._distribution

    @tff.tensorflow.computation
    def first_round():
      return schedule_state.initial(schedule)

    inner_state_type = inner.initialize.type_signature.result.member

    @tff.tensorflow.computation(
      first_round.type_signature.result, inner_state_type
    )
    def with_inner_state(state, inner_state):
      return collections.OrderedDict(state, inner=inner_state)

    @tff.federated_computation()
    def initialize():
      return tff.federated_map(
        with_inner_state,
        (tff.federated_eval(first_round, tff.SERVER), inner.initialize()),
      )

    state_type = initialize.type_signature.result.member

    @tff.tensorflow.computation(state_type)
    def round_stddev(state):
      return schedule_state.round_stddev(state)

    @tff.tensorflow.computation(value_type, np.float64)
    def perturb(value, noise_stddev):
      if keyed:
        value, noise_key = value
      else:
        noise_key = noise.system_noise_key()
      perturbed = noise.perturb(
        tf.nest.flatten(value),
        noise_stddev,
        noise_key,
        distribution=distribution,
      )
      return tf.nest.pack_sequence_as(value, perturbed)

    @tff.tensorflow.computation(state_type, inner_state_type, np.float64)
    def finish_round(state, inner_state, noise_stddev):
      new_state = schedule_state.next_round(state)
      new_state['inner'] = inner_state
      used = collections.OrderedDict(
        round=new_state['round'], noise_stddev=noise_stddev
      )
      return new_state, used

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      noise_stddev = tff.federated_map(round_stddev, state)
      perturbed = tff.federated_map(
        perturb, (value, tff.federated_broadcast(noise_stddev))
      )
      inner_output = inner.next(state['inner'], perturbed, weight)
      new_state, used = tff.federated_map(
        finish_round, (state, inner_output.state, noise_stddev)
      )
      return tff.templates.MeasuredProcessOutput(
        state=new_state,
        result=inner_output.result,
        measurements=tff.federated_zip(
          collections.OrderedDict(
            round=used['round'],
            noise_stddev=used['noise_stddev'],
            inner=inner_output.measurements,
          )
        ),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def _check_perturbable(value_type: tff.Type) -> None:
  if not tff.types.is_structure_of_floats(value_type):
    raise TypeError(f'only float tensors can be perturbed, got {value_type}')
  for leaf in tff.structure.flatten(
    tff.types.type_to_tf_tensor_specs(value_type)
  ):
    if not leaf.shape.is_fully_defined():
      raise ValueError(f'only static shapes can be perturbed, got {leaf}')
