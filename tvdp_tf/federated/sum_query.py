"""A DPQuery whose Gaussian noise is a geometric series over the rounds.

Use it with `tff.aggregators.DifferentiallyPrivateFactory`, or anything else
that takes a `tensorflow_privacy.SumAggregationDPQuery`. The query's global
state holds the round and the variance (`schedule_state`), in units of the clip:
its standard deviations are noise multipliers.
"""

import collections
from typing import Any

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import bounded_value, schedule_state
from tvdp_tf.learning import noise
from tvdp_tf.privacy import sensitivity


class GeometricGaussianSumQuery(tfp.SumAggregationDPQuery):
  """Clips records to an L2 norm, sums them, and adds the round's noise.

  Records are summed in float64, where the sum of thousands of users is not
  rounded by more than `privacy.update_rule` allows for. With discrete noise,
  they are summed in integers: multiples of 2^-31 standard deviations of the
  noise, truncated toward zero, so that no record gets longer. The aggregation
  of the records must keep their dtype.

  Each call of `get_noised_result` is a round: it returns that round's
  `dp_accounting.GaussianDpEvent`, whose noise multiplier is
  theta**((m-1)/2) * z_1. Adding or removing one record moves the sum by at most
  the clip. A round beyond the schedule's last is an error.

  The noise comes from the operating system's entropy, not from TensorFlow's
  random ops, which a process seeds with a 32-bit number.
  """

  def __init__(
    self,
    l2_norm_clip: float,
    schedule: privacy.NoiseSchedule,
    seed: int | None = None,
    *,
    noise_distribution: str = noise.GAUSSIAN,
    dtype: tf.DType = tf.float32,
  ):
    """Creates the query.

    Args:
      l2_norm_clip: The norm that a record is clipped to, > 0.
      schedule: Standard deviation of the noise on the sum in every round, in
        units of `l2_norm_clip`: the noise multipliers z_m.
      seed: Makes the noise a function of seed and round, for simulations. It
        protects nothing from anyone who knows the seed. None for fresh noise.
      noise_distribution: 'gaussian' or 'discrete_gaussian'.
      dtype: Dtype of the noisy sum.

    Raises:
      ValueError: If a number is out of its range.
      TypeError: If the schedule is not a `NoiseSchedule`.
    """
    schedule_state.check(schedule)
    self._l2_norm_clip = sensitivity.check_clip('l2_norm_clip', l2_norm_clip)
    self._schedule = schedule
    self._seed = (
      None if seed is None else _validate.integer('seed', seed, 0, 2**63 - 1)
    )
    self._distribution = _validate.one_of(
      'noise_distribution',
      noise_distribution,
      (noise.GAUSSIAN, noise.DISCRETE_GAUSSIAN),
    )
    self._dtype = dtype

  def initial_global_state(self) -> Any:
    """The schedule's state, an `OrderedDict`; see `schedule_state`."""
    return schedule_state.initial(self._schedule)

  @property
  def _record_dtype(self) -> tf.DType:
    discrete = self._distribution == noise.DISCRETE_GAUSSIAN
    return tf.int64 if discrete else tf.float64

  def initial_sample_state(self, template: Any) -> Any:
    """Returns zeros of the dtype of the preprocessed records.

    Raises:
      TypeError: If a record has leaves other than float32 or float64.
    """
    _check_dtypes(template)
    return tf.nest.map_structure(
      lambda leaf: tf.zeros(leaf.shape, self._record_dtype), template
    )

  def derive_sample_params(self, global_state: Any) -> Any:
    """The clip, the same in every round, and the noise's standard deviation."""
    # If no round is left, no record is used any more.
    noise_multiplier = tf.sqrt(tf.cast(global_state['variance'], tf.float64))
    clip = tf.constant(self._l2_norm_clip, tf.float64)
    return collections.OrderedDict(
      l2_norm_clip=clip, noise_stddev=clip * noise_multiplier
    )

  def preprocess_record(self, params: Any, record: Any) -> Any:
    """Clips a record; a record that is not finite becomes zero.

    Raises:
      TypeError: If it has leaves other than float32 or float64.
    """
    record = tf.nest.map_structure(tf.convert_to_tensor, record)
    _check_dtypes(record)
    clipped = bounded_value.bounded(
      [tf.cast(part, tf.float64) for part in tf.nest.flatten(record)],
      params['l2_norm_clip'],
    )
    if self._distribution == noise.DISCRETE_GAUSSIAN:
      clipped = [
        noise.truncated(part, params['noise_stddev']) for part in clipped
      ]
    return tf.nest.pack_sequence_as(record, clipped)

  def get_noised_result(
    self, sample_state: Any, global_state: Any
  ) -> tuple[Any, Any, dp_accounting.DpEvent]:
    """Adds the round's noise.

    Args:
      sample_state: The sum of the clipped records.
      global_state: The state before the round.

    Returns:
      The noisy sum, the state after the round, and the round's event.
    """
    noise_multiplier = schedule_state.round_stddev(global_state)
    noised = noise.perturb(
      tf.nest.flatten(sample_state),
      noise_multiplier * tf.constant(self._l2_norm_clip, tf.float64),
      self._key(global_state),
      distribution=self._distribution,
    )
    return (
      tf.nest.pack_sequence_as(
        sample_state, [tf.cast(part, self._dtype) for part in noised]
      ),
      schedule_state.next_round(global_state),
      dp_accounting.GaussianDpEvent(noise_multiplier),
    )

  def derive_metrics(self, global_state: Any) -> collections.OrderedDict:
    """The number of completed rounds."""
    return collections.OrderedDict(round=global_state['round'])

  def _key(self, global_state: Any) -> tf.Tensor:
    if self._seed is None:
      return noise.system_noise_key()
    round_number = tf.cast(global_state['round'], tf.int64) + 1
    return tf.stack(
      [
        tf.constant(self._seed, tf.int64),
        tf.bitwise.bitwise_or(
          tf.bitwise.left_shift(round_number, tf.constant(32, tf.int64)),
          tf.constant(noise.SERVER, tf.int64),
        ),
      ]
    )


def _check_dtypes(record: Any) -> None:
  """Checks that records are float32 or float64, as for all aggregators.

  A cast to float64 would drop the imaginary part of a complex number.
  """
  for leaf in tf.nest.flatten(record):
    bounded_value.check_dtype(leaf.dtype, f'{leaf.dtype.name}{leaf.shape}')
