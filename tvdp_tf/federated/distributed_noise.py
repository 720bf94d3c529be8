r"""Each client adds a share of the noise, and the server sees only the sum.

Client k of a round returns x_k + e_k: a vector of integers, in steps of a grid,
and its share of discrete Gaussian noise of standard deviation s = 2^31 steps.
The integers go through TFF's secure sums, modulo a public number, and the
server gets

  sum_k x_k + e_k  (mod modulus).

Let H be the number of shares that an attacker does not know. Their sum is
Gaussian noise of standard deviation s sqrt(H), up to a distance that counts as
part of delta (`privacy.noise_distance`). Further unknown shares, and the
wrap-around at the modulus, are post-processing of that sum. So the noise
multiplier is

  z = s sqrt(H) / Delta,

where Delta is the sensitivity of the sum of the x_k, in steps.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import aggregator, checked_mean, schedule_state
from tvdp_tf.learning import noise
from tvdp_tf.privacy import noise_distance

# Up to this, neither int64 nor the doubled modulus of a symmetric range
# overflows.
_MOST_MODULUS = 2**61


class DistributedGaussianFactory(tff.aggregators.WeightedAggregationFactory):
  """Sums clients' values with a share of noise from each; see above.

  The value of a client is an `aggregator.KeyedUpdate` of float64 tensors that
  is already bounded; its weight is public. The result is

    scale * (sum of values + noise) / (sum of weights, or `divisor`)

  as float32 tensors. The sum goes through
  `tff.aggregators.SecureModularSumFactory`. If there is no protocol for it,
  `secure_sums.simulated` replaces it by a plain sum.

  The state is that of `schedule_state`, in noise multipliers of the sum. The
  measurements are an `OrderedDict` of `round` (int32, from 1) and
  `noise_multiplier` (float64).
  """

  def __init__(
    self,
    schedule: privacy.NoiseSchedule,
    *,
    sensitivity: float,
    honest_clients: int,
    modulus: int,
    scale: float = 1.0,
    divisor: float | None = None,
    truncates: bool = False,
  ):
    """Creates the factory.

    Args:
      schedule: The noise multiplier of the sum in every round.
      sensitivity: Sensitivity Delta of the sum, in the unit of the values.
      honest_clients: H, the number of shares that must suffice to hide it.
      modulus: Modulus of the secure sum, larger than the range of any sum.
      scale: Factor that the mean is multiplied by.
      divisor: Divisor of the sum; no weight then leaves a client. None to
        divide by the sum of the weights.
      truncates: Whether values are truncated toward zero, so that none gets
        longer; otherwise they are rounded to the nearest step.

    Raises:
      TypeError: If the schedule is not a `NoiseSchedule`.
      ValueError: If a number is out of its range.
    """
    schedule_state.check(schedule)
    self._schedule = schedule
    self._sensitivity = _validate.positive('sensitivity', sensitivity)
    self._honest = _validate.integer('honest_clients', honest_clients)
    self._modulus = _validate.integer('modulus', modulus, 2, _MOST_MODULUS)
    self._scale = scale
    self._divisor = divisor
    self._truncates = truncates

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process, as `WeightedAggregationFactory.create`.

    Raises:
      TypeError: If the value is not a `KeyedUpdate` of float32 or float64
        tensors.
    """
    if not aggregator.is_keyed(value_type):
      raise TypeError(f'value_type must be a KeyedUpdate, got {value_type}')
    checked_mean.check_floats(value_type.value)
    specs = tff.types.type_to_tf_tensor_specs(value_type.value)

    def stddev_of_share(noise_multiplier):
      return noise_distance.share_stddev(
        noise_multiplier, self._sensitivity, self._honest
      )

    @tff.tensorflow.computation
    def first_round():
      return schedule_state.initial(self._schedule)

    state_type = first_round.type_signature.result

    @tff.tensorflow.computation(state_type)
    def round_multiplier(state):
      return schedule_state.round_stddev(state)

    @tff.tensorflow.computation(value_type, np.float64)
    def perturb(value, noise_multiplier):
      structure, noise_key = value
      stddev = stddev_of_share(noise_multiplier)
      flat = tf.nest.flatten(structure)
      to_steps = noise.truncated if self._truncates else noise.nearest
      shares = noise.discrete_steps(
        [to_steps(part, stddev) for part in flat], noise_key
      )
      return tf.nest.pack_sequence_as(structure, shares)

    # Each sign has half of the range.
    summed = tff.aggregators.SecureModularSumFactory(
      self._modulus // 2, symmetric_range=True
    ).create(perturb.type_signature.result)

    @tff.tensorflow.computation(
      *(state_type, np.float64, perturb.type_signature.result),
      *(np.float64, np.float64),
    )
    def finish_round(state, noise_multiplier, total, divisor, shares):
      new_state = schedule_state.next_round(state)
      # Fewer shares than those that must hide the sum add less noise.
      share = tf.minimum(shares / self._honest, tf.constant(1.0, tf.float64))
      used = collections.OrderedDict(
        round=new_state['round'],
        noise_multiplier=noise_multiplier * tf.sqrt(share),
      )
      step = stddev_of_share(noise_multiplier) / noise_distance.GRID_STDDEV
      factor = tf.constant(self._scale, tf.float64) * step / divisor
      result = tf.nest.map_structure(
        lambda spec, part: tf.cast(
          tf.reshape(tf.cast(part, tf.float64) * factor, spec.shape), tf.float32
        ),
        specs,
        total,
      )
      return new_state, result, used

    @tff.tensorflow.computation(weight_type)
    def as_float64(weight):
      return tf.cast(weight, tf.float64)

    @tff.federated_computation()
    def initialize():
      return tff.federated_eval(first_round, tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, value, weight):
      noise_multiplier = tff.federated_map(round_multiplier, state)
      shares = tff.federated_map(
        perturb, (value, tff.federated_broadcast(noise_multiplier))
      )
      total = summed.next(summed.initialize(), shares)
      uploads = tff.federated_sum(
        tff.federated_value(np.float64(1.0), tff.CLIENTS)
      )
      if self._divisor is None:
        divisor = tff.federated_sum(tff.federated_map(as_float64, weight))
      else:
        # Weights stay on the clients, because they may be private.
        divisor = tff.federated_value(np.float64(self._divisor), tff.SERVER)
      new_state, result, used = tff.federated_map(
        finish_round,
        (state, noise_multiplier, total.result, divisor, uploads),
      )
      return tff.templates.MeasuredProcessOutput(
        state=new_state, result=result, measurements=used
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
