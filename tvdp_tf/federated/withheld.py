"""Replacements for the counts and metrics that TFF sends without noise.

Noise on an update does not protect other values that leave the client. TFF's
`clipping_factory` and `zeroing_factory` count the clients that they clipped or
zeroed, and TFF's algorithms report training metrics. These depend on a client's
data and have no noise. The replacements keep them on the client.
"""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

# Field of the state by which `check_nesting` recognizes a withheld value.
WITHHELD = 'withheld'


class WithheldCountFactory(tff.aggregators.UnweightedAggregationFactory):
  """An integer that no client sends; the server reads -1.

  Use it as `clipped_count_sum_factory` and `zeroed_count_sum_factory`. It has
  no state.
  """

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process, as `UnweightedAggregationFactory.create`.

    Args:
      value_type: A scalar integer.

    Raises:
      TypeError: If it is of another type.
    """
    if not tff.types.is_structure_of_integers(value_type) or not isinstance(
      value_type, tff.TensorType
    ):
      raise TypeError(f'only an integer can be withheld, got {value_type}')

    @tff.federated_computation()
    def initialize():
      return tff.federated_value(
        collections.OrderedDict([(WITHHELD, ())]), tff.SERVER
      )

    @tff.tensorflow.computation
    def withheld():
      return tf.constant(-1, value_type.dtype)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      del value
      return tff.templates.MeasuredProcessOutput(
        state=state,
        result=tff.federated_eval(withheld, tff.SERVER),
        measurements=tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def withheld_metrics(metric_finalizers: Any, *unused_types: Any) -> Any:
  """A `metrics_aggregator` of TFF's algorithms that reports nothing.

  Args:
    metric_finalizers: The argument that TFF passes; not used.
    *unused_types: Other arguments of TFF; not used.

  Returns:
    A function that maps the clients' metrics to an empty structure at the
    server.
  """
  del metric_finalizers, unused_types

  def aggregate(unfinalized_metrics):
    del unfinalized_metrics
    return tff.federated_value(collections.OrderedDict(), tff.SERVER)

  return aggregate
