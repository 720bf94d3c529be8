"""The noise schedule as server state: which round, and its variance.

The schedule lives in the state, not in the graph: a checkpoint restores it, the
host can refine it between rounds, and one compiled process serves every
schedule. The variance of a round is a pure function of the round and of the
initial variance, never an accumulated product.

The state is an `OrderedDict`:
  round: int32, the number of completed rounds.
  rounds: int32, M; a further round is an error, for its release would not be
    covered by the schedule's budget.
  theta: float64, ratio of the variances of successive rounds.
  initial_variance: float64, the variance of round 1.
  variance: float64, the variance of the next round.
"""

import collections
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import privacy

State = Mapping[str, Any]


def initial(schedule: privacy.GeometricSchedule) -> State:
  """The state before round 1, as tensors."""
  variance = tf.constant(schedule.variance(1), tf.float64)
  return collections.OrderedDict(
    round=tf.constant(0, tf.int32),
    rounds=tf.constant(schedule.rounds, tf.int32),
    theta=tf.constant(schedule.theta, tf.float64),
    initial_variance=variance,
    variance=variance,
  )


def round_stddev(state: State) -> tf.Tensor:
  """Standard deviation of the next round; an error if there is none."""
  has_round = tf.debugging.assert_less(
    state['round'],
    state['rounds'],
    message='the noise schedule has no further round',
  )
  with tf.control_dependencies([has_round]):
    return tf.sqrt(state['variance'])


def next_round(state: State) -> collections.OrderedDict:
  """The state after the next round; further fields are kept as they are."""
  completed = state['round'] + 1
  exponent = tf.cast(completed, tf.float64)
  return collections.OrderedDict(
    state,
    round=completed,
    variance=state['initial_variance'] * tf.pow(state['theta'], exponent),
  )


def refined(state: State, schedule: privacy.GeometricSchedule) -> State:
  """The state with another schedule for the rounds to come.

  Args:
    state: Of values, not tensors, as the host has it between rounds.
    schedule: The new schedule; its exponents count from round 1 too, so that
      the next round has the variance schedule.variance(round + 1).

  Returns:
    The new state.

  Raises:
    ValueError: If the schedule ends before the rounds completed.
  """
  completed = int(state['round'])
  if schedule.rounds < completed:
    raise ValueError(
      f'schedule must have at least the {completed} rounds completed, got '
      f'{schedule.rounds}'
    )
  left = schedule.rounds > completed
  return collections.OrderedDict(
    state,
    rounds=schedule.rounds,
    theta=schedule.theta,
    initial_variance=schedule.variance(1),
    # Without a further round it is never used.
    variance=schedule.variance(completed + 1) if left else math.nan,
  )


def of(state: tff.learning.templates.LearningAlgorithmState) -> State | None:
  """The schedule's state within that of a process of ours; None without noise.

  Args:
    state: Of `build_learning_process`, at the host.

  Returns:
    The part that `refined` takes.
  """
  if isinstance(state.client_work, Mapping):
    return state.client_work
  if isinstance(state.aggregator, Mapping):
    return state.aggregator if 'variance' in state.aggregator else None
  query_state = getattr(state.aggregator, 'query_state', None)
  return None if query_state is None else query_state.numerator_state


def put(
  state: tff.learning.templates.LearningAlgorithmState, schedule_state: State
) -> tff.learning.templates.LearningAlgorithmState:
  """The process's state with another schedule's state in the place of `of`."""
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
