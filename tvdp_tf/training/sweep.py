"""Many runs in one process, compiled once.

The differences between two runs of a sweep (theta, epsilon, the number of
rounds, the noise) are in the state of the learning process, not in its graph.
So one compiled process serves all runs of a model on a data set.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import mechanisms, runtimes
from tvdp_tf.federated import learning_process, schedule_state
from tvdp_tf.learning import evaluation
from tvdp_tf.training import federation
from tvdp_tf.training import rounds as rounds_lib
from tvdp_tf.training import settings as settings_lib

# Settings that a run's federation depends on.
_FEDERATION = (
  'dataset',
  'data_dir',
  'features',
  'model',
  'users',
  'users_per_round',
  'split',
  'dirichlet_concentration',
  'participation',
  'seed',
)
# Settings that `rounds.build_process` reads besides the mechanism.
_GRAPH = ('dataset', 'features', 'model', 'local_steps', 'learning_rate')


def _key(
  settings: settings_lib.TrainingSettings, names: tuple[str, ...]
) -> tuple[Hashable, ...]:
  return tuple(getattr(settings, name) for name in names)


@dataclasses.dataclass(frozen=True)
class Measurement:
  """The measurements of a run after a round.

  Attributes:
    round: The round, counted from 1.
    test_loss: Loss on the test set.
    test_accuracy: Accuracy on the test set.
    noise_stddev: Standard deviation of the noise added in the round.
    delivered_epsilon: Epsilon of the worst client so far, in the server's view.
    rounds: The number of rounds planned when the round began.
  """

  round: int
  test_loss: float
  test_accuracy: float
  noise_stddev: float
  delivered_epsilon: float
  rounds: int


class Sweep:
  """Runs simulations one after the other; every run needs a seed.

  Nothing is written and no ledger is kept: seeded noise protects nobody.

  Args:
    context: Executes the runs; it must be installed.
    test_part: Which test examples to use, as for `datasets.with_test_part`.
  """

  def __init__(self, context: runtimes.CompiledContext, test_part: str = 'all'):
    self._context = context
    self._test_part = test_part
    self._federation: tuple[Hashable, Any] = (None, None)
    self._processes: dict[Hashable, Any] = {}
    self._evaluators: dict[Hashable, evaluation.Evaluator] = {}

  def run(
    self, settings: settings_lib.TrainingSettings, every_round: bool = True
  ) -> list[Measurement]:
    """Runs one simulation.

    Args:
      settings: The settings of the run, with a seed.
      every_round: Whether to evaluate after every round or only after the last.

    Returns:
      The measurements. The list ends early if the loss is not finite.

    Raises:
      ValueError: If the settings have no seed or do not fit the data.
      DatasetUnavailableError: If the data set cannot be loaded.
    """
    if settings.seed is None:
      raise ValueError('seed must be given for a run of a sweep, got None')
    fed = self._federation_of(settings)
    plan = mechanisms.build(settings, fed)
    process, initial = self._process_of(plan, fed)
    rounds = rounds_lib.Rounds(plan, fed, process)
    evaluator = self._evaluator_of(plan, fed)
    state = _start(initial, plan, fed)
    measurements: list[Measurement] = []
    while len(rounds.history) < rounds.total:
      m = len(rounds.history) + 1
      total = rounds.total
      releases = rounds.releases(state, m, rounds.cohort(m))
      state = rounds.run(state, releases, rounds.noise_keys(releases))
      if every_round or m == rounds.total or settings.refinement != 'none':
        loss, accuracy = evaluator.evaluate(
          learning_process.released_weights(state)
        )
        measurements.append(
          Measurement(
            m,
            loss,
            accuracy,
            releases.noise_stddev,
            plan.worst_epsilon(),
            total,
          )
        )
        if not abs(loss) < float('inf'):
          break
        state = rounds.refined(state, loss)
    return measurements

  def _federation_of(
    self, settings: settings_lib.TrainingSettings
  ) -> federation.Federation:
    key, fed = self._federation
    if key != _key(settings, _FEDERATION):
      # Keep only one, because a federation is a copy of its data set.
      self._context.forget_data()
      fed = federation.assemble(settings, test_part=self._test_part)
      self._federation = (_key(settings, _FEDERATION), fed)
    return fed

  def _process_of(
    self, plan: mechanisms.Mechanism, fed: federation.Federation
  ) -> tuple[Any, Any]:
    """Returns the process, and its initial state before weights and noise."""
    key = (
      *_key(plan.settings, _GRAPH),
      plan.settings.server_optimizer,
      plan.graph_key(),
    )
    if key not in self._processes:
      process = rounds_lib.build_process(plan, fed)
      self._processes[key] = (process, process.initialize())
    return self._processes[key]

  def _evaluator_of(
    self, plan: mechanisms.Mechanism, fed: federation.Federation
  ) -> evaluation.Evaluator:
    key = _key(plan.settings, ('dataset', 'features', 'model'))
    if key not in self._evaluators:
      self._evaluators[key] = evaluation.Evaluator(
        fed.functional_model,
        fed.spec.loss,
        fed.dataset.test_features,
        fed.dataset.test_labels,
      )
    return self._evaluators[key]


def _start(
  initial: rounds_lib.State,
  plan: mechanisms.Mechanism,
  fed: federation.Federation,
) -> rounds_lib.State:
  """Returns the state before round 1, with the run's own weights and noise."""
  weights = tff.learning.models.ModelWeights(
    trainable=tuple(map(tf.constant, fed.initial_weights)),
    non_trainable=(),
  )
  state = initial._replace(global_model_weights=weights)
  current = schedule_state.of(state)
  if current is None or plan.schedule is None:
    return state
  return schedule_state.put(
    state, schedule_state.refined(current, plan.schedule)
  )
