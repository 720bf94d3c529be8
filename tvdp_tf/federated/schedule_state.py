"""The noise schedule as server state: the round and its variance.

The schedule is in the state, not in the graph: a checkpoint restores it, the
host can refine it between rounds, and one compiled process serves every
schedule. The variance of a round is a pure function of the round and of the
initial variance, never an accumulated product.

The state is an `OrderedDict`:
  round: int32, the number of completed rounds.
  rounds: int32, M; a further round is an error, because the schedule's budget
    would not cover its release.
  theta: float64, ratio of the variances of successive rounds.
  initial_variance: float64, the variance of round 1.
  variance: float64, the variance of the next round.

A listed schedule has, instead of `theta` and `initial_variance`,
  variances: float64 [n], the variances of all rounds; NaN beyond M.
"""

import collections
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf import privacy

State = Mapping[str, Any]
# A tff.learning.templates.LearningAlgorithmState, or a tuple of its fields.
ProcessState = Any


# Noise of this standard deviation does not underflow in float32, not even a
# draw of 1e-7 standard deviations.
_LEAST_STDDEV = 1e-30


def check(schedule: privacy.NoiseSchedule) -> None:
  """Checks the schedule of an aggregator.

  Raises:
    TypeError: If it is no `NoiseSchedule`.
    ValueError: If float32 could round the noise of a round to zero.
  """
  if not isinstance(schedule, privacy.NoiseSchedule):
    raise TypeError(
      f'schedule must be a NoiseSchedule, got {type(schedule).__name__}'
    )
  least = float(np.min(schedule.stddevs()))
  if not least >= _LEAST_STDDEV:
    raise ValueError(
      f'schedule must have standard deviations of at least {_LEAST_STDDEV}, got'
      f' {least}: float32 would round such noise to zero'
    )


def initial(schedule: privacy.NoiseSchedule) -> State:
  """The state before round 1, as tensors."""
  common = collections.OrderedDict(
    round=tf.constant(0, tf.int32),
    rounds=tf.constant(schedule.rounds, tf.int32),
  )
  variance = tf.constant(schedule.variance(1), tf.float64)
  if isinstance(schedule, privacy.GeometricSchedule):
    return collections.OrderedDict(
      common,
      theta=tf.constant(schedule.theta, tf.float64),
      initial_variance=variance,
      variance=variance,
    )
  return collections.OrderedDict(
    common,
    variances=tf.constant(schedule.stddevs() ** 2, tf.float64),
    variance=variance,
  )


def round_stddev(state: State) -> tf.Tensor:
  """Standard deviation of the next round.

  It is an error if no round is left, or if the state's variance is no noise.
  """
  has_round = tf.debugging.assert_less(
    state['round'],
    state['rounds'],
    message='the noise schedule has no further round',
  )
  variance = tf.convert_to_tensor(state['variance'], tf.float64)
  with tf.control_dependencies([has_round]):  # Otherwise it may be NaN.
    # Not so small that a product with it is flushed to zero.
    is_noise = tf.debugging.assert_equal(
      tf.logical_and(variance >= sys.float_info.min, variance < math.inf),
      True,
      message='the noise variance of the round is not a normal number',
    )
  with tf.control_dependencies([has_round, is_noise]):
    return tf.sqrt(variance)


def _variance(
  initial_variance: tf.Tensor, theta: tf.Tensor, completed: tf.Tensor
) -> tf.Tensor:
  """Returns initial_variance theta^completed, whatever the power's size."""
  exponent = tf.cast(completed, tf.float64)
  power = tf.pow(theta, exponent)
  fits = tf.logical_and(power >= sys.float_info.min, power < math.inf)
  # The power may leave the range of normal numbers where the product does not.
  # Its fourth root never does, and each product is between the first and the
  # last.
  root = tf.pow(theta, exponent / 4)
  in_steps = initial_variance * root * root * root * root
  return tf.where(fits, initial_variance * power, in_steps)


def next_round(state: State) -> collections.OrderedDict:
  """The state after the next round; additional fields are kept."""
  completed = state['round'] + 1
  if 'variances' in state:
    # After the last round, the variance is never used.
    variances = state['variances']
    at = tf.minimum(completed, tf.shape(variances)[0] - 1)
    variance = tf.gather(variances, at)
  else:
    variance = _variance(state['initial_variance'], state['theta'], completed)
  return collections.OrderedDict(state, round=completed, variance=variance)


def refined(state: State, schedule: privacy.NoiseSchedule) -> State:
  """The state with another schedule for future rounds.

  Args:
    state: The state at the host between rounds, of values, not tensors.
    schedule: The new schedule. Its exponents also count from round 1, so the
      next round has the variance schedule.variance(round + 1).

  Returns:
    The new state.

  Raises:
    ValueError: If the schedule is shorter than the completed rounds, is of
      another kind, or is longer than the list in the state.
  """
  completed = int(state['round'])
  if schedule.rounds < completed:
    raise ValueError(
      f'schedule must have at least the {completed} rounds completed, got '
      f'{schedule.rounds}'
    )
  left = schedule.rounds > completed
  common = {
    'rounds': schedule.rounds,
    # Without a further round, the variance is never used.
    'variance': schedule.variance(completed + 1) if left else math.nan,
  }
  if isinstance(schedule, privacy.GeometricSchedule) and 'theta' in state:
    return collections.OrderedDict(
      state,
      theta=schedule.theta,
      initial_variance=schedule.variance(1),
      **common,
    )
  room = len(state['variances']) if 'variances' in state else 0
  if schedule.rounds > room:
    raise ValueError(
      'schedule must be of the kind that the process was built with, and not'
      f' longer, got {schedule.rounds} rounds for {room}'
    )
  variances = np.full([room], math.nan)
  variances[: schedule.rounds] = schedule.stddevs() ** 2
  return collections.OrderedDict(state, variances=variances, **common)


def of(state: ProcessState) -> State | None:
  """The schedule's state in the state of a process; None without noise.

  Args:
    state: State of a process of `build_learning_process`, at the host.

  Returns:
    The part that `refined` takes; None if there is none.
  """
  if isinstance(state.client_work, Mapping):
    return state.client_work
  if isinstance(state.aggregator, Mapping):
    return state.aggregator if 'variance' in state.aggregator else None
  query_state = getattr(state.aggregator, 'query_state', None)
  numerator_state = getattr(query_state, 'numerator_state', None)
  # Queries of other libraries have different states.
  return numerator_state if isinstance(numerator_state, Mapping) else None


def put(state: ProcessState, schedule_state: State) -> ProcessState:
  """The process's state with another schedule's state in place of `of`."""
  if isinstance(state.client_work, Mapping):
    return state._replace(client_work=schedule_state)
  if isinstance(state.aggregator, Mapping):
    return state._replace(aggregator=schedule_state)
  query_state = state.aggregator.query_state._replace(
    numerator_state=schedule_state
  )
  return state._replace(
    aggregator=state.aggregator._replace(query_state=query_state)
  )
