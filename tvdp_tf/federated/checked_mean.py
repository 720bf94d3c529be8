"""Sums and means that leave out unusable uploads.

The server checks every upload as it arrives, in the step that TFF calls
`accumulate`, so that one broken client does not spoil the round. An upload that
is not finite, is longer than any honest one, or has no valid weight is left out
of the sum and of the weights (`usable_sums`).

If clients add their own noise, this is post-processing of their releases: it
costs no privacy, the releases stay on record, and the means count what they
leave out. With central noise, such a record counts as zero, which clipping
could also have made of it. The sum then has no counts, because the numbers of
records and of failures have no noise yet. This is no defense against a client
that lies within the limits: its weight is trusted.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import bounded_value, usable_sums

# Field of the state by which `check_nesting` recognizes a weighted mean.
WEIGHTS = 'weights'


def _zero_of(value_type: tff.Type) -> Any:
  return tf.nest.map_structure(
    lambda spec: tf.zeros(spec.shape, spec.dtype),
    tff.types.type_to_tf_tensor_specs(value_type),
  )


def _create(
  value_type: tff.Type,
  weight_type: tff.Type,
  max_l2_norm: float | None,
  divides: bool,
  state: Any = (),
) -> tff.templates.AggregationProcess:
  if divides or not tff.types.is_structure_of_integers(value_type):
    check_floats(value_type)

  @tff.tensorflow.computation
  def zero():
    return usable_sums.of_nobody(_zero_of(value_type))

  sums_type = zero.type_signature.result

  @tff.tensorflow.computation(sums_type, tff.to_type((value_type, weight_type)))
  def accumulate(sums, upload):
    value, weight = upload
    return usable_sums.accumulated(sums, value, weight, max_l2_norm)

  @tff.tensorflow.computation(sums_type, sums_type)
  def merge(one, other):
    return tf.nest.map_structure(tf.add, one, other)

  @tff.tensorflow.computation(sums_type)
  def report(sums):
    if not divides:
      return sums
    return collections.OrderedDict(sums, total=usable_sums.mean(sums))

  @tff.federated_computation()
  def initialize():
    return tff.federated_value(state, tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
    tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(state, value, weight):
    sums = tff.federated_aggregate(
      tff.federated_zip((value, weight)), zero(), accumulate, merge, report
    )
    return tff.templates.MeasuredProcessOutput(
      state=state,
      result=sums['total'],
      measurements=tff.federated_zip(
        collections.OrderedDict(
          used_clients=sums['used_clients'],
          excluded_clients=sums['excluded_clients'],
        )
      )
      if divides
      else tff.federated_value((), tff.SERVER),
    )

  return tff.templates.AggregationProcess(initialize, next_fn)


class CheckedMeanFactory(tff.aggregators.WeightedAggregationFactory):
  """The weighted mean of the usable uploads.

  Without usable uploads, the mean is NaN: 0 / 0. TFF's own finalizers then keep
  the old model; that of `build_learning_process` lets the NaN show.

  The state is empty. The measurements are an `OrderedDict` of `used_clients`
  and `excluded_clients` (int32).
  """

  def __init__(self, max_l2_norm: float | None = None):
    """Creates the factory.

    Args:
      max_l2_norm: The largest norm of a usable upload; None if any finite
        upload is usable.

    Raises:
      ValueError: If it is not a finite number > 0.
    """
    self._max_l2_norm = _limit(max_l2_norm)

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process, as `WeightedAggregationFactory.create`.

    Args:
      value_type: Type of an upload, float32 or float64 tensors of static
        shapes.
      weight_type: Type of its weight, a scalar.

    Raises:
      TypeError: If the value has other leaves.
      ValueError: If a shape is not static.
    """
    return _create(
      value_type,
      weight_type,
      self._max_l2_norm,
      divides=True,
      state=collections.OrderedDict([(WEIGHTS, ())]),
    )


class _Unweighted(tff.aggregators.UnweightedAggregationFactory):
  """Every upload has the weight 1."""

  def __init__(self, max_l2_norm: float | None, divides: bool):
    self._max_l2_norm = _limit(max_l2_norm)
    self._divides = divides

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process, as `UnweightedAggregationFactory.create`."""
    weighted = _create(
      value_type, tff.TensorType(np.float32), self._max_l2_norm, self._divides
    )

    @tff.federated_computation(
      weighted.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      return weighted.next(state, value, tff.federated_value(1.0, tff.CLIENTS))

    return tff.templates.AggregationProcess(weighted.initialize, next_fn)


class UnweightedCheckedMeanFactory(_Unweighted):
  """Like `CheckedMeanFactory`, but every upload has the same weight."""

  def __init__(self, max_l2_norm: float | None = None):
    """Creates the factory, with the argument of `CheckedMeanFactory`."""
    super().__init__(max_l2_norm, divides=True)


class CheckedSumFactory(_Unweighted):
  """The sum of the usable uploads, or zero without any.

  It has no measurements, because the sum has no noise yet.

  Use it as the `record_aggregation_factory` of TFF's
  `DifferentiallyPrivateFactory`. If a platform's clients clip, this is how the
  server checks their work.
  """

  def __init__(self, max_l2_norm: float | None = None):
    """Creates the factory, with the argument of `CheckedMeanFactory`."""
    super().__init__(max_l2_norm, divides=False)


def _limit(max_l2_norm: float | None) -> float | None:
  return (
    None
    if max_l2_norm is None
    else _validate.positive('max_l2_norm', max_l2_norm)
  )


def check_floats(value_type: tff.Type, name: str = '') -> None:
  """Checks that a type has only float32 or float64 tensors of static shapes.

  Args:
    value_type: The type.
    name: Where it is in the value, for the error; '' for the whole value.

  Raises:
    TypeError: If it has other leaves.
    ValueError: If a shape is not static.
  """
  if isinstance(value_type, tff.StructType):
    for i, (own, leaf_type) in enumerate(
      tff.structure.iter_elements(value_type)
    ):
      check_floats(leaf_type, f'{name}.{own or i}'.lstrip('.'))
    return
  got = f'{name}={value_type}' if name else str(value_type)
  is_tensor = isinstance(value_type, tff.TensorType)
  bounded_value.check_dtype(
    tf.as_dtype(value_type.dtype) if is_tensor else None, got
  )
  if not tf.TensorShape(value_type.shape).is_fully_defined():
    raise ValueError(f'values must have static shapes, got {got}')
