"""A DPQuery whose Gaussian noise is a geometric series over the rounds.

For `tff.aggregators.DifferentiallyPrivateFactory`, and whatever else takes a
`tensorflow_privacy.SumAggregationDPQuery`. The query's global state carries the
round and the variance (`schedule_state`), in units of the clip: its standard
deviations are noise multipliers.
"""

import collections
from typing import Any

import dp_accounting
import tensorflow as tf
import tensorflow_privacy as tfp

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import bounded_value, schedule_state
from tvdp_tf.learning import noise


class GeometricGaussianSumQuery(tfp.SumAggregationDPQuery):
  """Clips records to an L2 norm, sums them, and adds the round's noise.

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
    schedule: privacy.GeometricSchedule,
    seed: int | None = None,
  ):
    """Creates the query.

    Args:
      l2_norm_clip: The norm that a record is clipped to, > 0.
      schedule: Standard deviation of the noise on the sum in every round, in
        units of `l2_norm_clip`: the noise multipliers z_m.
      seed: Makes the noise a function of seed and round, for simulations; it
        protects nothing from whoever knows it. None for fresh noise.

    Raises:
      ValueError: If a number is out of its range.
      TypeError: If the schedule is none.
    """
    if not isinstance(schedule, privacy.GeometricSchedule):
      raise TypeError(
        f'schedule must be a GeometricSchedule, got {type(schedule).__name__}'
      )
    self._l2_norm_clip = _validate.positive('l2_norm_clip', l2_norm_clip)
    self._schedule = schedule
    self._seed = (
      None if seed is None else _validate.integer('seed', seed, 0, 2**63 - 1)
    )

  def initial_global_state(self) -> Any:
    """The schedule's state, an `OrderedDict`; see `schedule_state`."""
    return schedule_state.initial(self._schedule)

  def derive_sample_params(self, global_state: Any) -> tf.Tensor:
    """The clip, the same in every round."""
    del global_state
    return tf.constant(self._l2_norm_clip, tf.float32)

  def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
    """Clips a record to the norm `params`; one that is not finite is zero."""
    clipped = bounded_value.bounded(tf.nest.flatten(record), params)
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
    flat = tf.nest.flatten(sample_state)
    noised = noise.perturb(
      flat, noise_multiplier * self._l2_norm_clip, self._key(global_state)
    )
    return (
      tf.nest.pack_sequence_as(sample_state, noised),
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
