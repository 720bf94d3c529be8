r"""The one-run audit of a training run, through the process that trains.

A fair coin decides for each of many examples, the canaries, which of two it is
(`attacks.canaries`). Then the run takes place: the federated computation that
trains, with the users, cohorts, calibrated noise and local steps of the
settings. The attacker is the server. It knows all but the coins and the noise,
and sees every upload: a round of one client alone, with the key that the client
has in the round of all, is a round of the same computation, and its result is
that client's upload.

From each user's uploads it estimates that user's coins; the surest guesses of
all users make one test (`attacks.one_run`, which says why they may).
"""

import dataclasses
import math
import secrets
import time
from typing import Any

import numpy as np
import tqdm

from tvdp_tf import _validate, errors, federated, mechanisms, privacy
from tvdp_tf.attacks import canaries, one_run
from tvdp_tf.attacks.model_audit import settings as settings_lib
from tvdp_tf.federated import client_data, schedule_state
from tvdp_tf.privacy import participation_budget
from tvdp_tf.training import federation
from tvdp_tf.training import rounds as rounds_lib


@dataclasses.dataclass(frozen=True)
class OneRunAudit:
  """What was found in one run.

  Attributes:
    settings: What was audited.
    family: What the canaries are, in words.
    users: How many users held any.
    scores: Of all canaries, float64 [m]: above 0 where the first example is
      believed in.
    coins: bool [m]: whether it was the first.
    planned_mu: How far the two values of a score were expected to be apart, in
      standard deviations of the noise: the mean over the canaries.
    ideal_mu: The same of canaries that move an upload as much as any can.
    delivered_epsilon: To the worst user, of the noise as calibrated.
    true_epsilon: The same of the noise as added, `noise_scale` included.
    bound: What the guesses show, whatever the mechanism.
    gaussian_bound: What they show if the trade-off is Gaussian.
    seconds: How long it took.
  """

  settings: settings_lib.ModelAuditSettings
  family: str
  users: int
  scores: np.ndarray
  coins: np.ndarray
  planned_mu: float
  ideal_mu: float
  delivered_epsilon: float
  true_epsilon: float
  bound: one_run.OneRunBound
  gaussian_bound: one_run.OneRunBound
  seconds: float

  @property
  def claimed(self) -> float:
    """What is promised: the larger of the target and what is delivered."""
    return max(self.settings.training.epsilon, self.delivered_epsilon)

  @property
  def refuted(self) -> bool:
    """Whether more was shown than is promised."""
    return self.bound.epsilon_lower_bound > self.claimed

  def to_json_dict(self) -> dict[str, Any]:
    """All but the scores, ready for `json.dumps`."""
    return {
      'canary': self.family,
      'users_with_canaries': self.users,
      'planned_mu': self.planned_mu,
      'ideal_mu': self.ideal_mu,
      'delivered_epsilon': self.delivered_epsilon,
      'epsilon_of_the_noise_as_added': self.true_epsilon,
      'lower_bound': self.bound.to_json_dict(),
      'lower_bound_if_gaussian': self.gaussian_bound.to_json_dict(),
      'refuted': self.refuted,
      'seconds': self.seconds,
    }


@dataclasses.dataclass
class _User:
  """What one user's canaries are, and what is known of them.

  Attributes:
    pairs: The canaries; they are the user's first examples.
    coins: bool [c].
    others: The user's other features and labels.
    evidence: Of its uploads.
  """

  pairs: canaries.Pairs
  coins: np.ndarray
  others: tuple[np.ndarray, np.ndarray]
  evidence: canaries.Evidence

  @property
  def size(self) -> int:
    return len(self.coins) + len(self.others[1])


class _Audit:
  """The audit of one run, step by step."""

  def __init__(self, settings: settings_lib.ModelAuditSettings):
    self.settings = settings
    training = settings.training
    self._public = np.random.default_rng(training.seed)
    secret = secrets.randbits(127) if training.seed is None else training.seed
    # Not the public generator, from which the pairs are drawn.
    self._secret = np.random.default_rng([secret, 1])
    fed = federation.assemble(training)
    model = federated.functional_model(fed.spec, fed.initial_model())
    self.weights = model.initial_weights[0]
    self._l2_regularization = fed.spec.l2_regularization
    self.gradients = canaries.ClippedGradients(
      model, training.example_l2_norm_clip
    )
    plan = mechanisms.build(training, fed)
    self.taking_part = np.flatnonzero(plan.planned().any(axis=1)).tolist()
    self.noise_multipliers = settings.noise_scale * _planned_multipliers(plan)
    self.noise_kind = plan.noise
    self.counts = self._counts(fed.examples_per_user)
    self.ideal_mu = 1 / (
      settings.noise_scale
      * participation_budget.equivalent_noise_multiplier(
        training.epsilon, training.delta, training.calibration
      )
    )
    self.family, self.separations = self._choose_family(fed)
    self.users: dict[int, _User] = {}
    self.fed = self._with_canaries(fed)

  def _counts(self, sizes: np.ndarray) -> dict[int, int]:
    """How many canaries each user holds who takes part."""
    wanted = self.settings.canaries
    if wanted is not None:
      smallest = int(sizes[self.taking_part].min())
      _validate.integer('canaries', wanted, 1, smallest)
      return dict.fromkeys(self.taking_part, wanted)
    most = canaries.most_canaries(self.gradients.parameters)
    return {
      user: int(min(most, (sizes[user] + 1) // 2)) for user in self.taking_part
    }

  def _choose_family(
    self, fed: federation.Federation
  ) -> tuple[canaries.Family, np.ndarray]:
    """The kind of canary, and the planned separations of all canaries."""
    largest = max(self.taking_part, key=self.counts.__getitem__)
    features, labels = fed.user_data(largest)
    family, found = canaries.best_family(
      self.gradients,
      self.weights,
      features[: self.counts[largest]],
      labels[: self.counts[largest]],
      fed.dataset.num_classes,
      self.ideal_mu,
      self._public,
    )
    total = sum(self.counts.values())
    return family, np.resize(np.sort(found)[::-1], total)

  def _with_canaries(self, fed: federation.Federation) -> federation.Federation:
    """The federation whose users hold what their coins have chosen."""
    features = fed.dataset.train_features.copy()
    labels = fed.dataset.train_labels.copy()
    for user, count in self.counts.items():
      indices = np.asarray(fed.examples[user])
      own, rest = indices[:count], indices[count:]
      pairs = canaries.make_pairs(
        self.family,
        features[own],
        labels[own],
        fed.dataset.num_classes,
        self._public,
      )
      coins = self._secret.integers(2, size=count).astype(bool)
      features[own], labels[own] = canaries.chosen(pairs, coins)
      self.users[user] = _User(
        pairs, coins, (features[rest], labels[rest]), canaries.Evidence(count)
      )
    dataset = dataclasses.replace(
      fed.dataset, train_features=features, train_labels=labels
    )
    return dataclasses.replace(fed, dataset=dataset)

  def observe(
    self, user: int, sent: Any, upload: Any, noise_stddev: float
  ) -> None:
    """Takes what an upload says.

    Args:
      user: Whose.
      sent: The global model it started from.
      upload: The local model.
      noise_stddev: Of the noise on each value of a mean gradient.
    """
    training, held = self.settings.training, self.users[user]
    steps, rate = training.local_steps, training.learning_rate
    start, end = map(self.gradients.flatten, (sent, upload))
    if not np.isfinite(end).all():
      raise errors.TrainingFailedError(
        'training diverges: learning_rate must be smaller, got '
        f'{training.learning_rate!r}'
      )
    # Where the steps were on average: exact for one step.
    middle = start + (steps - 1) / (2 * steps) * (end - start)
    weights = self.gradients.split(middle)
    differences, residual = self.gradients.differences(weights, held.pairs)
    known = residual + self.gradients.sum(weights, *held.others)
    mean = (start - end) / (rate * steps) - self._l2_regularization * middle
    held.evidence.add(
      differences,
      held.size * mean - known,
      held.size * noise_stddev / math.sqrt(steps),
    )

  def run(self, progress: bool) -> mechanisms.Mechanism:
    """Runs the run, and observes every upload.

    Returns:
      The plan, with its history of the calibrated noise.
    """
    training = self.settings.training
    plan = mechanisms.build(training, self.fed)
    process = rounds_lib.build_process(plan, self.fed)
    rounds = rounds_lib.Rounds(plan, self.fed, process)
    state = process.initialize()
    total = int(plan.planned().sum())
    with tqdm.tqdm(total=total, unit='upload', disable=not progress) as bar:
      for number in range(1, training.rounds + 1):
        releases = rounds.releases(state, number, rounds.cohort(number))
        keys = rounds.noise_keys(releases)
        releases = dataclasses.replace(
          releases,
          noise_scales=releases.noise_scales * self.settings.noise_scale,
        )
        schedule = schedule_state.of(state)
        assert schedule is not None  # There is noise.
        stddev = math.sqrt(schedule['variance'])
        sent = state.global_model_weights.trainable
        for user, scale in zip(
          releases.clients.tolist(), releases.noise_scales.tolist(), strict=True
        ):
          alone = client_data.client_sequence(
            *self.fed.user_data(user), keys[user], scale
          )
          output = process.next(state, [alone])
          # What the server leaves out tells it no more than that.
          if not federated.excluded_clients(output.metrics):
            upload = output.state.global_model_weights.trainable
            self.observe(user, sent, upload, stddev * scale)
          bar.update()
        state = rounds.run(state, releases, keys)
    return plan


def _planned_multipliers(plan: mechanisms.Mechanism) -> np.ndarray:
  """Noise multipliers of all releases of the most frequent participant."""
  assert plan.schedule is not None  # There is noise.
  planned = plan.planned()
  user = int(np.argmax(planned.sum(axis=1)))
  rounds = np.flatnonzero(planned[user]) + 1
  of_rounds = [
    plan.round(
      int(number),
      np.array([user]),
      plan.schedule.stddev(int(number)),
    ).noise_multipliers[0]
    for number in rounds
  ]
  return np.repeat(of_rounds, plan.releases_per_client)


def _worst_epsilon(plan: mechanisms.Mechanism, noise_scale: float) -> float:
  """To the user who has spent most, had all noise been so many times it."""
  mu = math.sqrt(plan.spending.squared_mu.max())
  return privacy.delivered_epsilon([noise_scale / mu], plan.delta, 'exact')


class PreparedAudit:
  """An audit whose canaries are drawn and whose guesses are counted."""

  def __init__(self, settings: settings_lib.ModelAuditSettings):
    """See `prepare`."""
    self._began = time.monotonic()
    self._settings = settings
    self._run = run = _Audit(settings)
    delta, confidence = settings.training.delta, settings.confidence
    # Now: the numbers of guesses must not depend on the run.
    self._guesses, _ = one_run.planned_guesses(
      run.separations, delta, confidence
    )
    self._gaussian_guesses, _ = one_run.planned_guesses(
      run.separations, delta, confidence, one_run.gaussian_lower_bound
    )
    # Of the user with most releases, `noise_scale` included.
    self.noise_multipliers = run.noise_multipliers
    self.noise_kind = run.noise_kind
    self._seconds = time.monotonic() - self._began

  def finish(self, progress: bool = False) -> OneRunAudit:
    """Runs the run, attacks it, and counts the right guesses.

    Args:
      progress: Whether to show a bar.

    Raises:
      TrainingFailedError: If training diverges.
    """
    began = time.monotonic()
    run, settings = self._run, self._settings
    plan = run.run(progress)
    users = list(run.users.values())
    scores = np.concatenate([user.evidence.scores() for user in users])
    coins = np.concatenate([user.coins for user in users])

    def shown(guesses, bound):
      right, _ = one_run.count_right(scores, coins, guesses)
      return bound(
        *(right, guesses, len(scores)),
        settings.training.delta,
        settings.confidence,
      )

    return OneRunAudit(
      settings=settings,
      family=str(run.family),
      users=len(users),
      scores=scores,
      coins=coins,
      planned_mu=float(np.mean(run.separations)),
      ideal_mu=run.ideal_mu,
      delivered_epsilon=plan.worst_epsilon(),
      true_epsilon=_worst_epsilon(plan, settings.noise_scale),
      bound=shown(self._guesses, one_run.epsilon_lower_bound),
      gaussian_bound=shown(
        self._gaussian_guesses, one_run.gaussian_lower_bound
      ),
      seconds=self._seconds + time.monotonic() - began,
    )


def prepare(settings: settings_lib.ModelAuditSettings) -> PreparedAudit:
  """Draws the canaries, and sets how many coins are guessed.

  Args:
    settings: What to audit.

  Returns:
    The audit, ready for its run.

  Raises:
    ValueError: If a setting does not fit the data or the model.
    DatasetUnavailableError: If the data set cannot be loaded.
  """
  return PreparedAudit(settings)
