"""A TFF aggregator: a weighted mean of values with each client's own noise.

The noise of round m has the variance theta**(m-1) * initial_variance (the
paper's varTheta(m)). It is added before anything leaves the client
(eq-noised-parameter). The server sees the perturbed values and their mean
(eq_global_weight).

The schedule is in the server state (`schedule_state`).

The value that the noise hides must be bounded before the noise is added, by the
`l2_norm_clip` of the factory, or by TFF's `clipping_factory` and
`zeroing_factory` around it. docs/DROP_IN.md says which nestings keep a
guarantee, and docs/BAD_CLIENTS.md what happens to clients that fail.
"""

import collections
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import (
  bounded_value,
  checked_mean,
  nesting,
  schedule_state,
)
from tvdp_tf.learning import noise
from tvdp_tf.privacy import sensitivity

# Probability that an honest upload is rejected as too long.
_FALSE_ALARM = 1e-15


class KeyedUpdate(NamedTuple):
  """A client's value, and the key of the noise that is added to it.

  Attributes:
    value: A structure of float32 or float64 tensors.
    noise_key: int64 [2]; see `tvdp_tf.learning.noise`.
  """

  value: Any
  noise_key: Any


def is_keyed(value_type: tff.Type) -> bool:
  """Whether a type is that of a `KeyedUpdate`."""
  return (
    isinstance(value_type, tff.StructWithPythonType)
    and value_type.python_container is KeyedUpdate
  )


def _norm_quantile(distribution: str, dimension: int) -> float:
  """A norm that noise of standard deviation 1 almost never exceeds."""
  if distribution == 'gaussian':
    return math.sqrt(stats.chi2.isf(_FALSE_ALARM, dimension))
  largest = math.log(dimension / _FALSE_ALARM) / math.sqrt(2)
  return math.sqrt(dimension) * largest


def _dimension(value_type: tff.Type) -> int:
  specs = tff.structure.flatten(tff.types.type_to_tf_tensor_specs(value_type))
  return sum(spec.shape.num_elements() for spec in specs)


class _Settings:
  """The common settings of the two factories."""

  def __init__(
    self,
    schedule: privacy.NoiseSchedule,
    inner: Any,
    inner_kind: type,
    distribution: str,
    l2_norm_clip: float | None,
  ):
    schedule_state.check(schedule)
    if inner is not None and not isinstance(inner, inner_kind):
      raise TypeError(
        f'inner must be a {inner_kind.__name__}, got {type(inner).__name__}'
      )
    if l2_norm_clip is not None:
      l2_norm_clip = _validate.positive('l2_norm_clip', l2_norm_clip)
      if l2_norm_clip < sensitivity.LEAST_CLIP:  # Squares of less may be 0.
        raise ValueError(
          f'l2_norm_clip must be at least {sensitivity.LEAST_CLIP:g}, got'
          f' {l2_norm_clip!r}'
        )
    self.schedule = schedule
    self.inner = inner
    self.distribution = _validate.one_of(
      'distribution', distribution, tuple(noise.CONTINUOUS)
    )
    self.l2_norm_clip = l2_norm_clip

  @property
  def checks_norms(self) -> bool:
    """Whether the largest norm of an honest upload is known and the unit."""
    return self.inner is None and self.l2_norm_clip is not None

  def inner_factory(self, weight_type: tff.Type | None) -> Any:
    """Returns the inner aggregator, for values in that unit."""
    if self.inner is not None:
      return self.inner
    max_l2_norm = 1.0 if self.checks_norms else None
    if weight_type is None:
      return checked_mean.UnweightedCheckedMeanFactory(max_l2_norm)
    return checked_mean.CheckedMeanFactory(max_l2_norm)


def _create(
  settings: _Settings,
  value_type: tff.Type,
  weight_type: tff.Type | None,
) -> tff.templates.AggregationProcess:
  keyed = is_keyed(value_type)
  result_type = value_type.value if keyed else value_type
  checked_mean.check_floats(result_type)
  weight_types = () if weight_type is None else (weight_type,)
  inner = settings.inner_factory(weight_type).create(result_type, *weight_types)
  inner_state_type = inner.initialize.type_signature.result.member
  if nesting.clips_or_zeroes(inner_state_type):
    raise ValueError(
      'inner must not clip or zero, because that bounds nothing after the'
      ' noise: wrap this factory in clipping_factory or zeroing_factory, or'
      ' give it an l2_norm_clip'
    )
  quantile = _norm_quantile(settings.distribution, _dimension(result_type))

  def unit(noise_stddev):
    """The largest norm of an honest upload, the unit of uploads."""
    return settings.l2_norm_clip + noise_stddev * quantile

  def times(value, factor):
    return tf.nest.map_structure(
      lambda part: tf.cast(tf.cast(part, tf.float64) * factor, part.dtype),
      value,
    )

  @tff.tensorflow.computation
  def first_round():
    return schedule_state.initial(settings.schedule)

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
    upload = noise.perturb(
      bounded_value.bounded(tf.nest.flatten(value), settings.l2_norm_clip),
      noise_stddev,
      noise_key,
      distribution=settings.distribution,
    )
    if settings.checks_norms:
      upload = times(upload, 1 / unit(noise_stddev))
    return tf.nest.pack_sequence_as(value, upload)

  @tff.tensorflow.computation(
    state_type, inner_state_type, np.float64, result_type
  )
  def finish_round(state, inner_state, noise_stddev, mean):
    new_state = schedule_state.next_round(state)
    new_state['inner'] = inner_state
    used = collections.OrderedDict(
      round=new_state['round'], noise_stddev=noise_stddev
    )
    if settings.checks_norms:
      mean = times(mean, unit(noise_stddev))
    return new_state, used, mean

  def run(state, value, weights):
    noise_stddev = tff.federated_map(round_stddev, state)
    perturbed = tff.federated_map(
      perturb, (value, tff.federated_broadcast(noise_stddev))
    )
    inner_output = inner.next(state['inner'], perturbed, *weights)
    new_state, used, mean = tff.federated_map(
      finish_round,
      (state, inner_output.state, noise_stddev, inner_output.result),
    )
    return tff.templates.MeasuredProcessOutput(
      state=new_state,
      result=mean,
      measurements=tff.federated_zip(
        collections.OrderedDict(
          round=used['round'],
          noise_stddev=used['noise_stddev'],
          inner=inner_output.measurements,
        )
      ),
    )

  types = [
    initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
    *(tff.FederatedType(t, tff.CLIENTS) for t in weight_types),
  ]
  if weight_type is None:

    @tff.federated_computation(*types)
    def next_fn(state, value):
      return run(state, value, [])
  else:

    @tff.federated_computation(*types)
    def next_fn(state, value, weight):
      return run(state, value, [weight])

  return tff.templates.AggregationProcess(initialize, next_fn)


class TimeVaryingGaussianFactory(tff.aggregators.WeightedAggregationFactory):
  """Perturbs each client's value with the round's noise, then averages.

  The value of a client is either a structure of float32 or float64 tensors,
  whose noise comes from the system's entropy, or a `KeyedUpdate` of such a
  structure, whose noise comes from the given key; only its value is aggregated.
  Without keys, the factory can be the `model_aggregator` of
  `tff.learning.algorithms.build_weighted_fed_avg`.

  With an `l2_norm_clip` C, values are clipped before noise is added: two of
  them differ by at most 2 C (`privacy.update_rule`), whatever the client's
  data. Without it, the caller must bound the sensitivity. A value that is not
  finite counts as zero, with noise like any other.

  Weights leave the client without noise. For a guarantee against the server
  they must be public. `UnweightedTimeVaryingGaussianFactory` needs no weights.

  The state is an `OrderedDict` of the fields of `schedule_state` and `inner`,
  the state of the inner aggregator.

  The measurements are an `OrderedDict` of `round` (int32, from 1),
  `noise_stddev` (float64, as used in that round) and `inner`: by default
  `used_clients` and `excluded_clients` (int32).
  """

  def __init__(
    self,
    schedule: privacy.NoiseSchedule,
    inner: tff.aggregators.WeightedAggregationFactory | None = None,
    *,
    distribution: str = 'gaussian',
    l2_norm_clip: float | None = None,
  ):
    """Creates the factory.

    Args:
      schedule: The noise of every round: standard deviation of each added
        value, in the unit of the client's value, before the weighted mean.
      inner: Aggregates the perturbed values; by default the mean of those that
        are finite and, with an `l2_norm_clip`, not longer than any honest one
        (`checked_mean`).
      distribution: 'gaussian', or 'laplace' with the same standard deviation.
      l2_norm_clip: The norm that values are clipped to before noise is added;
        None for no clipping.

    Raises:
      TypeError: If an argument has the wrong type.
      ValueError: If there is no such distribution, the clip is out of range, or
        float32 could round noise to zero.
    """
    self._settings = _Settings(
      schedule,
      inner,
      tff.aggregators.WeightedAggregationFactory,
      distribution,
      l2_norm_clip,
    )

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process, as `WeightedAggregationFactory.create`.

    Args:
      value_type: Type of a client's value, float32 or float64 tensors of
        static shapes, or of a `KeyedUpdate` of it.
      weight_type: Type of a client's weight.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If the value has other leaves.
      ValueError: If a shape is not static, or the inner aggregator clips or
        zeroes values that already have their noise.
    """
    return _create(self._settings, value_type, weight_type)


class UnweightedTimeVaryingGaussianFactory(
  tff.aggregators.UnweightedAggregationFactory
):
  """Like `TimeVaryingGaussianFactory`, but every client has the same weight.

  Use it with `tff.learning.algorithms.build_unweighted_fed_avg`. Only the
  perturbed value leaves a client.
  """

  def __init__(
    self,
    schedule: privacy.NoiseSchedule,
    inner: tff.aggregators.UnweightedAggregationFactory | None = None,
    *,
    distribution: str = 'gaussian',
    l2_norm_clip: float | None = None,
  ):
    """Creates the factory; arguments as for `TimeVaryingGaussianFactory`."""
    self._settings = _Settings(
      schedule,
      inner,
      tff.aggregators.UnweightedAggregationFactory,
      distribution,
      l2_norm_clip,
    )

  def create(
    self, value_type: tff.Type, weight_type: tff.Type | None = None
  ) -> tff.templates.AggregationProcess:
    """Creates the process, as `UnweightedAggregationFactory.create`.

    Args:
      value_type: As for `TimeVaryingGaussianFactory`.
      weight_type: None; TFF's weighted algorithms pass a type.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: As `TimeVaryingGaussianFactory`, or if there are weights.
      ValueError: As `TimeVaryingGaussianFactory`.
    """
    if weight_type is not None:
      raise TypeError(
        'the aggregator must be used without weights, got a weighted'
        ' algorithm: use its unweighted form, or pass'
        ' tff.aggregators.as_weighted_aggregator(aggregator), which drops the'
        ' weights'
      )
    return _create(self._settings, value_type, None)
