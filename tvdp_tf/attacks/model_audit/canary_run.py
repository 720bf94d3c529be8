r"""A training run with canaries, and what the server sees of it.

The view of the server depends on the mechanism. With `gradient`, it sees every
upload. To obtain an upload, a round is run with only one client and the key
that this client has in the full round; the result is the client's upload.

With `distributed`, the server sees the sum of all uploads, modulo the
protocol's modulus. The attacker has all that the settings allow: in every
round, `dropouts` clients drop out, and `colluders` clients reveal their data
and noise, which it subtracts from the sum. The remainder is the sum of the
others with their shares, which is the result of a round with only these
clients. With `distributed_users`, the same holds for updates: all data of a
user are one canary with one coin, so many users are needed to show much. The
attacker chooses who colludes and who drops out: always the first users, so that
the others are in as many sums as possible.
"""

import dataclasses
import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import tqdm

from tvdp_tf import _validate, errors, federated, mechanisms
from tvdp_tf.attacks import canaries, clipped_mean
from tvdp_tf.attacks.model_audit import settings as settings_lib
from tvdp_tf.federated import client_data, schedule_state
from tvdp_tf.privacy import calibration
from tvdp_tf.training import federation
from tvdp_tf.training import rounds as rounds_lib


@dataclasses.dataclass
class Group:
  """Users whose canaries are estimated together.

  Attributes:
    places: User -> places of its canaries in the group; they are the user's
      first examples.
    pairs: The canaries.
    coins: bool [c].
    others: User -> its other features and labels.
    evidence: Evidence from what was seen.
  """

  places: dict[int, slice]
  pairs: canaries.Pairs
  coins: np.ndarray
  others: dict[int, tuple[np.ndarray, np.ndarray]]
  evidence: canaries.Evidence


def _planned_multipliers(plan: mechanisms.Mechanism) -> np.ndarray:
  """Returns noise multipliers of all releases of the most frequent user."""
  assert plan.schedule is not None  # There is noise.
  planned = plan.planned()
  user = int(np.argmax(planned.sum(axis=1)))
  rounds = (planned[[user]].indices + 1).tolist()
  of_rounds = [
    plan.round(
      number,
      # The noise may come from the whole cohort.
      plan.fed.participation.cohort(number)
      if plan.shares_noise
      else np.array([user]),
      plan.schedule.stddev(number),
    ).noise_multipliers[0]
    for number in rounds
  ]
  return np.repeat(of_rounds, plan.releases_per_client)


class CanaryRun:
  """A run whose server sees every upload, step by step.

  Attributes:
    settings: The audit's settings.
    plan: The run's mechanism, for the data without canaries.
    noise_multipliers: Noise multipliers of all releases of the user who takes
      part most often, including `noise_scale`.
    ideal_mu: As in `audit.OneRunAudit`.
    family: The kind of canaries.
    separations: Expected separation of each canary, float64 [m].
    groups: The users with canaries.
  """

  def __init__(self, settings: settings_lib.ModelAuditSettings):
    self.settings = settings
    training = settings.training
    self._public = np.random.default_rng(training.seed)
    secret = secrets.randbits(127) if training.seed is None else training.seed
    # Separate from the public generator that draws the pairs.
    self._secret = np.random.default_rng([secret, 1])
    fed = federation.assemble(training)
    model = federated.functional_model(fed.spec, fed.functional_model)
    self._weights = model.initial_weights[0]
    self._spec = fed.spec
    self._gradients = self._known_gradients(model)
    self.plan = mechanisms.build(training, fed)
    self.noise_multipliers = settings.noise_scale * _planned_multipliers(
      self.plan
    )
    self.ideal_mu = 1 / (
      settings.noise_scale
      * calibration.equivalent_noise_multiplier(
        training.epsilon, training.delta, training.calibration
      )
    )
    self._counts = self._count(fed)
    self.family, self.separations = self._choose_family(fed)
    self.groups: list[Group] = []
    self._fed = self._with_canaries(fed)

  def _known_gradients(self, model: Any) -> canaries.ClippedGradients:
    """Returns what the attacker knows about canaries."""
    return canaries.ClippedGradients(
      model, self.settings.training.example_l2_norm_clip
    )

  def _survivors(self, cohort: Sequence[int]) -> list[int]:
    """Returns the clients of a cohort whose uploads arrive."""
    return list(cohort)

  def _views(self, cohort: Sequence[int]) -> list[list[int]]:
    """Returns the sets of clients whose sums of uploads the server sees."""
    return [[user] for user in cohort]

  def _members(self, users: Sequence[int]) -> list[list[int]]:
    """Splits the users that are seen into groups."""
    return [[user] for user in users]

  def _noise_stddev(self, number: int, view: Sequence[int]) -> float:
    """Noise in each value of a view's mean gradient, with `noise_scale`."""
    assert self.plan.schedule is not None
    stddev = self.plan.schedule.stddev(number) * self.settings.noise_scale
    (scale,) = self.plan.round(number, np.array(view), stddev).noise_scales
    # For the mean over the steps, which have independent noise.
    return stddev * float(scale) / math.sqrt(self.settings.training.local_steps)

  def _seen(self, fed: federation.Federation) -> list[int]:
    """Returns the users whose uploads are seen in any round."""
    seen: set[int] = set()
    for number in range(1, self.settings.training.rounds + 1):
      for view in self._views(fed.participation.cohort(number).tolist()):
        seen.update(view)
    return sorted(seen)

  def _count(self, fed: federation.Federation) -> dict[int, int]:
    """Returns the number of canaries of each user that is seen."""
    wanted = self.settings.canaries
    sizes = {user: int(fed.examples_per_user[user]) for user in self._seen(fed)}
    if wanted is not None:
      _validate.integer('canaries', wanted, 1, min(sizes.values()))
      return dict.fromkeys(sizes, wanted)
    most = canaries.most_canaries(self._gradients.parameters)
    return {
      user: min(max(1, most // len(group)), (sizes[user] + 1) // 2)
      for group in self._members(list(sizes))
      for user in group
    }

  def _held(self, user: int, size: int) -> int:
    """Returns how many of a user's examples its canaries replace."""
    del size
    return self._counts[user]

  def _own(
    self, fed: federation.Federation, users: Sequence[int]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples that canaries replace."""
    data = [
      [part[: self._counts[user]] for part in fed.user_data(user)]
      for user in users
    ]
    features, labels = zip(*data, strict=True)
    return np.concatenate(features), np.concatenate(labels)

  def _choose_family(
    self, fed: federation.Federation
  ) -> tuple[canaries.Family, np.ndarray]:
    """Chooses the kind of canary; also returns all planned separations."""
    largest = max(
      self._members(list(self._counts)),
      key=lambda users: sum(self._counts[user] for user in users),
    )
    family, found = canaries.best_family(
      self._gradients,
      self._weights,
      *self._own(fed, largest),
      fed.dataset.num_classes,
      self.ideal_mu,
      self._public,
    )
    total = sum(self._counts.values())
    return family, np.resize(np.sort(found)[::-1], total)

  def _with_canaries(self, fed: federation.Federation) -> federation.Federation:
    """Returns a federation whose users hold what their coins have chosen."""
    features = np.array(fed.dataset.train_features)
    labels = fed.dataset.train_labels.copy()
    for users in self._members(list(self._counts)):
      pairs = canaries.make_pairs(
        self.family,
        *self._own(fed, users),
        fed.dataset.num_classes,
        self._public,
      )
      count = len(pairs[1])
      coins = self._secret.integers(2, size=count).astype(bool)
      chosen = canaries.chosen(pairs, coins)
      group = Group({}, pairs, coins, {}, canaries.Evidence(count))
      start = 0
      for user in users:
        indices = np.asarray(fed.examples[user])
        place = slice(start, start + self._counts[user])
        own, rest = np.split(indices, [self._held(user, len(indices))])
        features[own], labels[own] = (part[place] for part in chosen)
        group.places[user] = place
        group.others[user] = features[rest], labels[rest]
        start = place.stop
      self.groups.append(group)
    dataset = dataclasses.replace(
      fed.dataset, train_features=features, train_labels=labels
    )
    return dataclasses.replace(fed, dataset=dataset)

  def _observe(
    self, view: Sequence[int], sent: Any, seen: Any, noise_stddev: float
  ) -> None:
    """Adds the evidence from what the server sees of some clients.

    Args:
      view: The clients.
      sent: The global model they started from.
      seen: The mean of their local models, weighted by their sizes.
      noise_stddev: Standard deviation of the noise on each value of their mean
        gradient.
    """
    training = self.settings.training
    (group,) = (g for g in self.groups if view[0] in g.places)
    start, end = map(clipped_mean.flat, (sent, seen))
    if not np.isfinite(end).all():
      raise errors.TrainingFailedError(
        'training diverges: learning_rate must be smaller, got '
        f'{training.learning_rate!r}'
      )
    middle, mean = self._gradient_seen(start, end)
    weights = self._gradients.split(middle)
    places = np.concatenate(
      [np.arange(len(group.coins))[group.places[user]] for user in view]
    )
    of_view, known = self._gradients.differences(
      weights, tuple(part[places] for part in group.pairs)
    )
    differences = np.zeros([len(group.coins), of_view.shape[1]], np.float32)
    differences[places] = of_view
    size = len(places)
    for user in view:
      others = group.others[user]
      known = known + self._gradients.sum(weights, *others)
      size += len(others[1])
    size = self._divisor(size)
    group.evidence.add(differences, size * mean - known, size * noise_stddev)

  def _divisor(self, size: int) -> int:
    """Returns the divisor of a sum over this many examples."""
    return size

  def _gradient_seen(
    self, start: np.ndarray, end: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights and the mean gradient there, without regularization."""
    training = self.settings.training
    steps, rate = training.local_steps, training.learning_rate
    # Mean position of the steps; exact for one step.
    middle = start + (steps - 1) / (2 * steps) * (end - start)
    mean = (start - end) / (
      rate * steps
    ) - self._spec.l2_regularization * middle
    return middle, mean

  def run(self, progress: bool) -> mechanisms.Mechanism:
    """Executes the run, and observes what the server sees.

    Returns:
      The plan, with its history of the calibrated noise.
    """
    training = self.settings.training
    plan = mechanisms.build(training, self._fed)
    process = rounds_lib.build_process(plan, self._fed)
    rounds = rounds_lib.Rounds(plan, self._fed, process)
    state = self._scaled(plan, process.initialize())
    with tqdm.tqdm(
      total=training.rounds, unit='round', disable=not progress
    ) as bar:
      for number in range(1, training.rounds + 1):
        releases = plan.round(
          number,
          rounds.cohort(number),
          plan.schedule.stddev(number),  # type: ignore[union-attr]
        )
        keys = rounds.noise_keys(releases)
        scales = dict(
          zip(
            releases.clients.tolist(),
            releases.noise_scales.tolist(),
            strict=True,
          )
        )

        def data(users, keys=keys, scales=scales):
          return [
            client_data.client_sequence(
              *self._fed.user_data(user), keys[user], scales[user]
            )
            for user in users
          ]

        cohort = releases.clients.tolist()
        sent = state.global_model_weights.trainable
        for view in self._views(cohort):
          output = process.next(state, data(view))
          # Excluded uploads give the server no other evidence.
          if not federated.excluded_clients(output.metrics):
            seen = output.state.global_model_weights.trainable
            self._observe(view, sent, seen, self._noise_stddev(number, view))
        plan.take(releases)
        state = process.next(state, data(self._survivors(cohort))).state
        bar.update()
    return plan

  def _scaled(self, plan: mechanisms.Mechanism, state: Any) -> Any:
    """Returns the state with its noise multiplied by `noise_scale`."""
    schedule, scale = plan.schedule, self.settings.noise_scale
    if schedule is None or scale == 1:
      return state
    scaled = schedule.shape.schedule(
      schedule.rounds, scale * schedule.initial_stddev
    )
    current = schedule_state.of(state)
    assert current is not None
    return schedule_state.put(state, schedule_state.refined(current, scaled))


class SumRun(CanaryRun):
  """A run whose server sees only the sum of what clients send."""

  def _survivors(self, cohort):
    dropouts = self.settings.training.dropouts
    dropped = [u for u in cohort if not self._colludes(u)][:dropouts]
    return [user for user in cohort if user not in dropped]

  def _colludes(self, user: int) -> bool:
    return user < self.settings.training.colluders

  def _views(self, cohort):
    return [[u for u in self._survivors(cohort) if not self._colludes(u)]]

  def _members(self, users):
    return [list(users)]

  def _noise_stddev(self, number, view):
    assert self.plan.schedule is not None
    stddev = self.plan.schedule.stddev(number) * self.settings.noise_scale
    return self.plan.round(number, np.array(view), stddev).noise_stddev


class UserSumRun(SumRun):
  """A `SumRun` of updates: all data of a user are one canary."""

  def _known_gradients(self, model):
    training = self.settings.training
    return canaries.ClippedUpdates(
      clipped_mean.update_subject(
        *('canaries', model, training.l2_norm_clip),
        federation.local_steps(training, self._spec),
      )
    )

  def _count(self, fed):
    return dict.fromkeys(self._seen(fed), 1)

  def _held(self, user, size):
    return size

  def _divisor(self, size):
    del size  # The sum's divisor is fixed.
    return self.settings.training.users_per_round

  def _gradient_seen(self, start, end):
    return start, start - end


def of(settings: settings_lib.ModelAuditSettings) -> CanaryRun:
  """Creates the run for the settings, as the server sees it.

  Raises:
    ValueError: If a setting does not fit the data or the model.
    DatasetUnavailableError: If the data set cannot be loaded.
  """
  kind = mechanisms.MECHANISMS[settings.training.mechanism]
  if not kind.sums_securely:
    return CanaryRun(settings)
  return (UserSumRun if kind.unit == 'user' else SumRun)(settings)
