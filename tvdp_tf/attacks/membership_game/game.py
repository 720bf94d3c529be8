"""Plays the membership game of `tvdp_tf.attacks.membership` with real training.

Targets and shadow models are runs of a sweep: the federated computation that
trains, with its mechanism and noise, compiled once for all of them. They differ
only in their coins and their noise.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate, errors, mechanisms, privacy, runtimes
from tvdp_tf.attacks import membership
from tvdp_tf.attacks.membership_game import settings as membership_settings
from tvdp_tf.learning import datasets, evaluation, model_files, participation
from tvdp_tf.mechanisms import statements
from tvdp_tf.training import federation, sweep
from tvdp_tf.training import settings as settings_lib

# Loss and accuracy only have to tell a model from noise.
_MOST_TEST_EXAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Game:
  """The result of a game.

  Attributes:
    settings: The settings of the game.
    shadows: The shadow models.
    targets: The models under attack.
    test_loss: Mean loss of the targets, on at most 2,000 test examples.
    test_accuracy: Mean accuracy of the targets on the same test examples.
    member_accuracy: Mean accuracy of the targets on their training examples.
    noise_stddev: Standard deviation of the noise added in the last round.
    delivered_epsilon: Epsilon of the worst client after the last round, in the
      server's view.
    statement: The statement on a target's releases, as if its noise were not
      simulated.
  """

  settings: membership_settings.GameSettings
  shadows: membership.Models
  targets: membership.Models
  test_loss: float
  test_accuracy: float
  member_accuracy: float
  noise_stddev: float
  delivered_epsilon: float
  statement: privacy.PrivacyStatement


class _Observer(evaluation.Evaluator):
  """An evaluator that keeps the model's outputs on the pairs."""

  def __init__(self, fed: federation.Federation):
    data, spec = fed.dataset, fed.spec
    self._model = fed.functional_model
    super().__init__(
      self._model,
      spec.loss,
      data.test_features[:_MOST_TEST_EXAMPLES],
      data.test_labels[:_MOST_TEST_EXAMPLES],
    )
    self.features = tf.constant(data.train_features[:0])
    self.outputs: list[np.ndarray] = []

  def evaluate(self, weights: Sequence) -> tuple[float, float]:
    self.outputs.append(self._model(weights, self.features).numpy())
    return super().evaluate(weights)


class _ObservedSweep(sweep.Sweep):
  """A sweep over given federations whose outputs are observed."""

  def __init__(self, context: runtimes.CompiledContext):
    super().__init__(context)
    self._observers: dict[tuple[str, str], _Observer] = {}

  def observe(
    self,
    settings: settings_lib.TrainingSettings,
    fed: federation.Federation,
    features: np.ndarray,
  ) -> tuple[sweep.Measurement, np.ndarray, mechanisms.Mechanism]:
    """Runs one simulation on the federation.

    Returns:
      The last measurement; the outputs on `features`, [rounds, n, classes]; and
      the plan of the run, with its history.

    Raises:
      TrainingFailedError: If training diverges.
    """
    self._context.forget_data()  # Runs share no data.
    self._fed = fed
    self._features = features
    measurements = self.run(settings)
    outputs = np.stack(self._observer.outputs)
    if len(outputs) < settings.rounds or not np.isfinite(outputs).all():
      raise errors.TrainingFailedError(
        'training diverges: learning_rate must be smaller, got '
        f'{settings.learning_rate!r}'
      )
    return measurements[-1], outputs, self._plan

  def _federation_of(self, settings):
    return self._fed

  def _evaluator_of(self, plan, fed):
    key = (plan.settings.dataset, plan.settings.model)
    if key not in self._observers:
      self._observers[key] = _Observer(fed)
    self._plan, self._observer = plan, self._observers[key]
    self._observer.features = tf.constant(self._features)
    self._observer.outputs = []
    return self._observer


def _coins(
  rng: np.random.Generator, settings: membership_settings.GameSettings
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the member of each pair, for shadows [s, n] and targets [t, n].

  Each example is in half of the shadow models, as in Carlini et al. The coins
  of the targets are fair and independent, as the bound on epsilon requires.
  """
  n = settings.examples
  halves = np.tile(np.arange(settings.shadow_models) % 2, [n, 1])
  shadows = rng.permuted(halves, axis=1).T ^ rng.integers(2, size=n)
  return shadows, rng.integers(2, size=[settings.trials, n])


def _statement(plan: mechanisms.Mechanism) -> privacy.PrivacyStatement:
  """Returns the statement as if the noise had been drawn without a seed."""
  plan.settings = dataclasses.replace(plan.settings, seed=None)
  return statements.of(plan)


class Games:
  """Plays games one after the other in one process.

  Args:
    context: Executes the runs; it must be installed.
  """

  def __init__(self, context: runtimes.CompiledContext):
    self._sweep = _ObservedSweep(context)
    self._dataset: datasets.Dataset | None = None

  def play(self, settings: membership_settings.GameSettings) -> Game:
    """Trains shadow models and targets.

    Args:
      settings: The settings of the game.

    Returns:
      The result.

    Raises:
      ValueError: If a setting does not fit the data.
      DatasetUnavailableError: If the data set cannot be loaded.
      TrainingFailedError: If training diverges.
    """
    training, n = settings.training, settings.examples
    dataset = self._load(training)
    _validate.integer('examples', n, 1, len(dataset.train_labels) // 2)
    assert training.seed is not None
    rng = np.random.default_rng(training.seed)
    pairs = rng.permutation(len(dataset.train_labels))[: 2 * n].reshape(n, 2)
    coins = np.concatenate(_coins(rng, settings))
    features = dataset.train_features[pairs.ravel()]
    outputs, measurements = [], []
    for own, seed in zip(
      coins, rng.integers(2**63, size=len(coins)).tolist(), strict=True
    ):
      fed = self._federation(training, pairs[np.arange(n), own])
      measurement, said, plan = self._sweep.observe(
        dataclasses.replace(training, seed=seed), fed, features
      )
      outputs.append(said.reshape(*said.shape[:1], n, 2, -1))
      measurements.append(measurement)
    members = coins[..., np.newaxis] == np.arange(2)
    shadows, targets = (
      membership.Models(
        np.stack(outputs[part]), dataset.train_labels[pairs], members[part]
      )
      for part in (
        slice(settings.shadow_models),
        slice(settings.shadow_models, None),
      )
    )
    of_targets = measurements[settings.shadow_models :]
    return Game(
      settings=settings,
      shadows=shadows,
      targets=targets,
      test_loss=float(np.mean([m.test_loss for m in of_targets])),
      test_accuracy=float(np.mean([m.test_accuracy for m in of_targets])),
      member_accuracy=_accuracy(targets),
      noise_stddev=of_targets[-1].noise_stddev,
      delivered_epsilon=of_targets[-1].delivered_epsilon,
      statement=_statement(plan),
    )

  def _load(self, training: settings_lib.TrainingSettings) -> datasets.Dataset:
    if self._dataset is None or self._dataset.name != training.dataset:
      self._dataset = datasets.load(training.dataset, training.data_dir)
    return self._dataset

  def _federation(
    self, training: settings_lib.TrainingSettings, members: np.ndarray
  ) -> federation.Federation:
    """Deals the members to the users; all else is public."""
    assert self._dataset is not None and training.seed is not None
    return federation.Federation(
      dataset=self._dataset,
      spec=model_files.find(training.model),
      examples=np.array_split(members, training.users),
      participation=participation.PARTICIPATIONS[training.participation](
        training.users, training.users_per_round, training.seed
      ),
      public_seed=training.seed,
    )


def _accuracy(targets: membership.Models) -> float:
  """Computes the accuracy of the last models on their members."""
  members = targets.members
  labels = np.broadcast_to(targets.labels, members.shape)[members]
  predicted = evaluation.predicted_classes(
    tf.constant(targets.outputs[:, -1][members]), tf.int64
  )
  return float(np.mean(predicted.numpy() == labels))
