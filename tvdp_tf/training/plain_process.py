"""A learning process without TFF: a loop over the clients, in TensorFlow.

It is a `rounds.Process` for any version of TensorFlow, with Keras 2 or 3. It
supports mechanisms that implement the work of a client in plain TensorFlow
(`GraphMechanism.plain_work`). Clients train one after the other, and the server
averages the usable uploads, with the same ops and in the same order as TFF's
process. Everything runs on the CPU: nothing here is proven on a GPU.
"""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tvdp_tf import mechanisms
from tvdp_tf.federated import client_data, schedule_state, usable_sums
from tvdp_tf.learning import functional, noise, onednn
from tvdp_tf.training import federation


class ModelWeights(NamedTuple):
  """Like `tff.learning.models.ModelWeights`."""

  trainable: tuple[np.ndarray, ...]
  non_trainable: tuple[np.ndarray, ...] = ()


class State(NamedTuple):
  """Like `tff.learning.templates.LearningAlgorithmState`."""

  global_model_weights: ModelWeights
  distributor: tuple[()]
  client_work: schedule_state.State
  aggregator: Mapping[str, Any]
  finalizer: tuple[()]


class Output(NamedTuple):
  """The result of a round: a `rounds.Output`."""

  state: State
  metrics: Mapping[str, Any]


class PlainBuild(NamedTuple):
  """The inputs from which a mechanism builds a client's work.

  Attributes:
    model: The model.
    loss: Keras loss of (labels [n], outputs [n, ...]), averaged over n.
    local_steps: `local_steps`, `learning_rate` and `l2_regularization`.
  """

  model: functional.FunctionalModel
  loss: tf.keras.losses.Loss
  local_steps: dict[str, Any]


def _arrays(structure: Any) -> Any:
  return tf.nest.map_structure(lambda tensor: tensor.numpy(), structure)


def _guarantees(plan: mechanisms.Mechanism) -> Hashable:
  """All that a guarantee depends on in a process, except its state."""
  return plan.graph_key(), plan.settings.local_steps


class PlainProcess:
  """The process described above; see `build_process`."""

  def __init__(
    self,
    plan: mechanisms.Mechanism,
    model: functional.FunctionalModel,
    work: Callable[..., Sequence[tf.Tensor]],
  ):
    """Creates the process.

    Args:
      plan: The plan to run; its schedule is part of the state.
      model: The model, with its initial weights.
      work: The result of `GraphMechanism.plain_work`.

    Raises:
      ValueError: If the plan has no schedule.
    """
    if plan.schedule is None:
      raise ValueError(f'mechanism must have a noise schedule, got {plan.name}')
    self._made_for = _guarantees(plan)
    self._schedule = plan.schedule
    self._initial = tuple(model.initial_weights)
    weights_spec = [tf.TensorSpec(w.shape, w.dtype) for w in self._initial]
    spec = client_data.element(
      model.features_spec,
      tf.TensorSpec([None], tf.int32),
      noise.NOISE_KEY_SPEC,
      tf.TensorSpec([], tf.float64),
    )

    @tf.function(
      autograph=False,
      input_signature=[weights_spec, spec, tf.TensorSpec([], tf.float64)],
    )
    def upload(weights, batch, multiplier):
      count = tf.cast(tf.shape(batch['y'])[0], tf.float32)
      return tuple(work(weights, batch, multiplier)), count

    @tf.function(autograph=False)
    def add(sums, update, count):
      return usable_sums.accumulated(sums, update, count, None)

    self._upload, self._add = upload, add

  def check_plan(self, plan: mechanisms.Mechanism) -> None:
    """Checks that this process runs rounds as a plan describes them.

    Raises:
      ValueError: If the plan has another clip, noise, neighboring relation or
        number of local steps.
    """
    if self._made_for != _guarantees(plan):
      raise ValueError(
        'process must be built for the plan, got one for another mechanism,'
        ' clip, noise, adjacency or number of local steps'
      )

  def initialize(self) -> State:
    """Returns the state before round 1."""
    return State(
      ModelWeights(self._initial),
      (),
      _arrays(schedule_state.initial(self._schedule)),
      {},
      (),
    )

  def next(
    self, state: State, data: Sequence[Sequence[Mapping[str, Any]]]
  ) -> Output:
    """Runs a round.

    Args:
      state: The state from `initialize` or from the previous round.
      data: A `client_data.client_sequence` for each client.

    Raises:
      tf.errors.InvalidArgumentError: If the schedule has no more rounds.
    """
    onednn.require_sound()  # Of this thread, which may be another.
    with tf.device('/device:CPU:0'):
      # The host may have replaced them by its own numbers.
      schedule = collections.OrderedDict(
        (name, tf.constant(state.client_work[name], like.dtype))
        for name, like in schedule_state.initial(self._schedule).items()
      )
      multiplier = schedule_state.round_stddev(schedule)
      weights = [tf.constant(w) for w in state.global_model_weights.trainable]
      sums = usable_sums.of_nobody(tuple(tf.zeros_like(w) for w in weights))
      for (element,) in data:
        batch = tf.nest.map_structure(tf.constant, element)
        sums = self._add(sums, *self._upload(weights, batch, multiplier))
      new = state._replace(
        global_model_weights=ModelWeights(_arrays(usable_sums.mean(sums))),
        client_work=_arrays(schedule_state.next_round(schedule)),
      )
    used, excluded = sums['used_clients'], sums['excluded_clients']
    return Output(
      new,
      {
        'aggregator': {
          'used_clients': used.numpy(),
          'excluded_clients': excluded.numpy(),
        }
      },
    )


def build_process(
  plan: mechanisms.Mechanism, fed: federation.Federation
) -> PlainProcess:
  """Like `rounds.build_process`, without TFF.

  Raises:
    ValueError: If the mechanism or the server's optimizer needs TFF, or the
      mechanism cannot hide what the model does (`example_independence`).
  """
  settings = plan.settings
  if not settings.server_optimizer.is_plain:
    raise ValueError(
      'server_momentum, server_average and server_final_step must keep their'
      ' default values without TFF'
    )
  model = fed.functional_model
  steps = federation.local_steps(settings, fed.spec)
  try:
    work = plan.mechanism.plain_work(PlainBuild(model, fed.spec.loss, steps))
  except NotImplementedError as error:
    raise ValueError(
      f'mechanism {plan.name} needs TFF: its noise is in its own aggregation'
    ) from error
  return PlainProcess(plan, model, work)
