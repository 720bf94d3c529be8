"""Rounds of a plan on a learning process: who, with which noise, how many."""

from typing import Any

import numpy as np
import tensorflow_federated as tff

from tvdp_tf import federated, privacy
from tvdp_tf.experiments import plans, plateau
from tvdp_tf.federated import client_data, schedule_state
from tvdp_tf.learning import noise

# A tff.learning.templates.LearningAlgorithmState, which has no static type.
State = Any


def build_process(plan: plans.Plan) -> tff.learning.templates.LearningProcess:
  """The learning process of a plan, from its federation's initial model."""
  settings, fed = plan.settings, plan.fed
  return federated.build_learning_process(
    federated.functional_model(fed.spec, fed.initial_model()),
    plan.mechanism,
    local_steps=settings.local_steps,
    learning_rate=settings.learning_rate,
    l2_regularization=fed.spec.l2_regularization,
  )


class Rounds:
  """The rounds of one run.

  Attributes:
    plan: How the run is to be private.
    process: What runs a round.
    history: The releases of the rounds that were begun.
    total: The number of rounds planned now; a refinement changes it.
  """

  def __init__(
    self, plan: plans.Plan, process: tff.learning.templates.LearningProcess
  ):
    self.plan = plan
    self.process = process
    self.history: list[plans.Round] = []
    self.total = plan.settings.rounds
    self._plateau = plateau.PlateauDetector()

  def cohort(self, round_number: int) -> np.ndarray:
    """Who is drawn for a round."""
    return self.plan.fed.participation.cohort(round_number)

  def releases(
    self, state: State, round_number: int, clients: np.ndarray
  ) -> plans.Round:
    """The releases of a round by these clients, with the state's noise."""
    schedule = schedule_state.of(state)
    stddev = 0.0 if schedule is None else float(schedule['variance']) ** 0.5
    return self.plan.round(round_number, clients, stddev)

  def noise_keys(self, releases: plans.Round) -> dict[int, np.ndarray]:
    """A key for each client: fresh, or of the run's seed."""
    seed = self.plan.settings.seed
    return {
      client: (
        noise.fresh_noise_key()
        if seed is None
        else noise.seeded_noise_key(seed, releases.number, client)
      )
      for client in releases.clients.tolist()
    }

  def run(
    self,
    state: State,
    releases: plans.Round,
    noise_keys: dict[int, np.ndarray],
  ) -> State:
    """Runs a round; the releases are in the history before they happen."""
    self.history.append(releases)
    data = [
      client_data.client_sequence(
        *self.plan.fed.user_data(client), noise_keys[client], float(scale)
      )
      for client, scale in zip(
        releases.clients.tolist(), releases.noise_scales, strict=True
      )
    ]
    state = self.process.next(state, data).state
    self.plan.observe(state)
    return state

  def refined(self, state: State, loss: float) -> State:
    """The state with another schedule, if the loss calls for one.

    Args:
      state: After a round.
      loss: Its test loss.

    Returns:
      The state for the next round, if `total` leaves one.
    """
    settings, completed = self.plan.settings, len(self.history)
    if settings.refinement == 'none' or not self._plateau.update(loss):
      return state
    new_rounds = privacy.new_maximum_rounds(settings.alpha_d, self.total)
    self.total = max(new_rounds, completed)
    if self.total == completed:
      return state
    current = schedule_state.of(state)
    assert current is not None  # Only noise is refined.
    schedule = self.plan.refine(self.history, self.total)
    return schedule_state.put(state, schedule_state.refined(current, schedule))
