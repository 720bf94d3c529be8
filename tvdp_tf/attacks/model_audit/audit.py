r"""The audit of a model: hostile pairs, noise, and canaries in one run.

The audit in one run uses the process that trains. For each of many canaries, a
fair coin chooses which of two examples is used (`attacks.canaries`). Then the
run takes place: the federated computation that trains, with the users, cohorts,
calibrated noise and local steps of the settings. The attacker is the server. It
knows all but the coins and the noise, and sees what the mechanism reveals to it
(`model_audit.canary_run`): every upload, or their sum.

From this it estimates the coins. The most confident guesses over all users form
one test (`attacks.one_run` explains why this is valid).
"""

import dataclasses
import math
import secrets
import time
from typing import Any

import numpy as np

from tvdp_tf import federated, mechanisms, privacy
from tvdp_tf.attacks import (
  audit_report,
  clipped_mean,
  hostile_pairs,
  lower_bound,
  noise_reach,
  one_run,
  pair_distinguisher,
)
from tvdp_tf.attacks.model_audit import canary_run
from tvdp_tf.attacks.model_audit import settings as settings_lib
from tvdp_tf.output import machine
from tvdp_tf.privacy import noise_distance, statement
from tvdp_tf.training import federation
from tvdp_tf.training import settings as training_settings


@dataclasses.dataclass(frozen=True)
class OneRunAudit:
  """The result of the audit in one run.

  Attributes:
    settings: The audit's settings.
    family: A description of the canaries.
    users: How many users held canaries.
    scores: Scores of all canaries, float64 [m]: above 0 if the attacker
      believes in the first example.
    coins: bool [m]: whether the first example was used.
    planned_mu: Expected distance of a score's two values, in standard
      deviations of the noise: the mean over the canaries.
    ideal_mu: The same for canaries that move an upload as much as possible.
    delivered_epsilon: Epsilon of the worst user, with the calibrated noise.
    true_epsilon: The same with the added noise, including `noise_scale`.
    bound: What the guesses show, for any mechanism.
    gaussian_bound: What the guesses show if the trade-off is Gaussian.
    seconds: Duration of the audit.
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
    """The claimed epsilon: the larger of the target and the delivered one."""
    return max(self.settings.training.epsilon, self.delivered_epsilon)

  @property
  def refuted(self) -> bool:
    """Whether the bound is above the claim."""
    return self.bound.epsilon_lower_bound > self.claimed

  def to_json_dict(self) -> dict[str, Any]:
    """Returns all but the scores, ready for `json.dumps`."""
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


def _worst_epsilon(plan: mechanisms.Mechanism, noise_scale: float) -> float:
  """Returns the worst user's epsilon if all noise is multiplied by a scale."""
  mu = math.sqrt(plan.spending.squared_mu.max())
  return privacy.delivered_epsilon([noise_scale / mu], plan.delta, 'exact')


class PreparedAudit:
  """An audit with canaries drawn, and with the number of guesses fixed."""

  def __init__(self, settings: settings_lib.ModelAuditSettings):
    """Draws the canaries, and fixes how many coins to guess.

    Args:
      settings: The audit's settings.

    Raises:
      ValueError: If a setting does not fit the data or the model.
      DatasetUnavailableError: If the data set cannot be loaded.
    """
    self._began = time.monotonic()
    self._settings = settings
    self._run = run = canary_run.of(settings)
    delta, confidence = settings.training.delta, settings.confidence
    # Fixed now, because the number of guesses must not depend on the run.
    self._guesses, _ = one_run.planned_guesses(
      run.separations, delta, confidence
    )
    self._gaussian_guesses, _ = one_run.planned_guesses(
      run.separations, delta, confidence, one_run.gaussian_lower_bound
    )
    # Those of the user with most releases, including `noise_scale`.
    self.noise_multipliers = run.noise_multipliers
    self.plan = run.plan
    self._seconds = time.monotonic() - self._began

  def finish(self, progress: bool = False) -> OneRunAudit:
    """Executes the run, attacks it, and counts the right guesses.

    Args:
      progress: Whether to show a progress bar.

    Raises:
      TrainingFailedError: If training diverges.
    """
    began = time.monotonic()
    run, settings = self._run, self._settings
    plan = run.run(progress)
    scores = np.concatenate([g.evidence.scores() for g in run.groups])
    coins = np.concatenate([group.coins for group in run.groups])

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
      users=sum(len(group.places) for group in run.groups),
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


# Share of the allowed error for the distinguisher of the worst pair; the rest
# is for the canaries, so that both bounds hold at once.
_PAIR_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class ModelAudit:
  """The result of an audit.

  Attributes:
    settings: The audit's settings.
    search: The result of the search for hostile pairs.
    pair_bound: What the uploads of the worst pair show; None if they were not
      examined.
    reach: How far the noise reaches; None for discrete noise, whose distance
      from the Gaussian is proven.
    one_run: The result of the audit in one run.
    seconds: Duration of the whole audit.
  """

  settings: settings_lib.ModelAuditSettings
  search: hostile_pairs.SearchResult
  pair_bound: lower_bound.LowerBound | None
  reach: noise_reach.Reach | None
  one_run: OneRunAudit
  seconds: float

  @property
  def could_refute(self) -> bool:
    """Whether error-free guesses or trials would show more than is claimed.

    This excludes the movement of the pairs, which needs no noise.
    """
    found = self.one_run.bound
    best = one_run.epsilon_lower_bound(
      found.guesses,
      *(found.guesses, found.canaries, found.delta, found.confidence),
    )
    if best.epsilon_lower_bound > self.one_run.claimed:
      return True
    pairs = self.pair_bound
    return pairs is not None and (
      lower_bound.largest_lower_bound(
        pairs.trials, pairs.delta, pairs.confidence
      )
      > self.settings.training.epsilon
    )

  @property
  def refuted(self) -> bool:
    """Whether any result shows more than is claimed."""
    return bool(self.refutations)

  @property
  def refutations(self) -> list[str]:
    """Returns what is wrong, one line each."""
    found = []
    training = self.settings.training
    moved, most = self.settings.moved
    if self.search.worst is not None and self.search.refuted:
      found.append(
        f'replacing one {self.settings.unit} moves the clipped {moved} by'
        f' {_rounded_down(self.search.ratio)} times the stated sensitivity'
        f' {most} ({self.search.subject.name}, n ='
        f' {self.search.worst.examples})'
      )
    if (
      self.pair_bound is not None
      and self.pair_bound.epsilon_lower_bound > training.epsilon
    ):
      shown = _rounded_down(self.pair_bound.epsilon_lower_bound)
      found.append(
        f'a hostile pair shows epsilon >= {shown} in one release that is '
        f'calibrated for {statement.format_epsilon(training.epsilon)}'
      )
    if self.one_run.refuted:
      shown = _rounded_down(self.one_run.bound.epsilon_lower_bound)
      found.append(
        f'epsilon is at least {shown}, not '
        f'{statement.format_epsilon(self.one_run.claimed)}, as the guesses of '
        'one run show'
      )
    if self.reach is not None and self.reach.refuted:
      found.append(
        f'the noise never exceeds {self.reach.largest:.4g} standard'
        f' deviations: a delta of {_rounded_down(self.reach.delta)} is spent'
        f' beyond them, not {training.delta!r}'
      )
    error = self.search.gradient_error
    if error is not None and self.search.wrong_gradient:
      found.append(
        'training does not use the mean of the clipped gradients of the model:'
        f' it is off by {_rounded_down(error)} times C_g'
      )
    return found

  def to_json_dict(self) -> dict[str, Any]:
    """Returns all but examples and scores, ready for `json.dumps`."""
    settings = dataclasses.asdict(self.settings)
    return {
      'settings': settings,
      'claimed_epsilon': self.one_run.claimed,
      'delta': self.settings.training.delta,
      'one_run': self.one_run.to_json_dict(),
      'hostile_pairs': self.search.to_json_dict(),
      'worst_pair_lower_bound': (
        None if self.pair_bound is None else self.pair_bound.to_json_dict()
      ),
      'noise': None if self.reach is None else self.reach.to_json_dict(),
      'refuted': self.refuted,
      'refutations': self.refutations,
      'seconds': self.seconds,
      'host': machine.describe(),
    }


def _rounded_down(value: float) -> str:
  if math.isinf(value):
    return 'infinitely many'
  return audit_report.format_lower_bound(value)


def _others(training: training_settings.TrainingSettings) -> int:
  """The number of other clients whose noise shares help to hide an upload."""
  if not mechanisms.MECHANISMS[training.mechanism].sums_securely:
    return 0
  return training.users_per_round - training.dropouts - training.colluders - 1


def audit(
  settings: settings_lib.ModelAuditSettings, progress: bool = False
) -> ModelAudit:
  """Audits a model in the installed runtime.

  Args:
    settings: The audit's settings.
    progress: Whether to show progress bars.

  Returns:
    The result.

  Raises:
    ValueError: If a setting does not fit the data or the model.
    DatasetUnavailableError: If the data set cannot be loaded.
    TrainingFailedError: If training diverges.
  """
  began = time.monotonic()
  training = settings.training
  error = 1 - settings.confidence
  # First, because it may refuse the settings.
  run = PreparedAudit(
    dataclasses.replace(settings, confidence=1 - error * (1 - _PAIR_SHARE))
  )
  fed = federation.assemble(training)
  model = federated.functional_model(fed.spec, fed.functional_model)
  name, probe = f'model {training.model}', None
  if settings.unit == 'user':
    target = clipped_mean.update_subject(
      *(name, model, training.l2_norm_clip),
      federation.local_steps(training, fed.spec),
    )
  else:
    clip = training.example_l2_norm_clip
    target = clipped_mean.subject(name, model, clip)
    probe = clipped_mean.subject(
      'a model of one weight', hostile_pairs.linear_probe(), clip
    )
  seed = secrets.randbits(63) if training.seed is None else training.seed
  search = hostile_pairs.search(
    target,
    data=(np.asarray(fed.dataset.train_features), fed.dataset.train_labels),
    seed=seed,
    probe=probe,
    seconds=settings.search_seconds,
    progress=progress,
  )
  pair_bound = None
  if search.worst is not None:
    pair_bound = pair_distinguisher.distinguish(
      search.subject,
      search.worst,
      run.plan.mechanism,
      others=_others(training),
      epsilon=training.epsilon,
      delta=training.delta,
      confidence=1 - error * _PAIR_SHARE,
      noise_scale=settings.noise_scale,
      seed=training.seed,
      seconds=settings.search_seconds / 2,
      progress=progress,
    )
  reach = None
  if run.plan.noise == noise_distance.CONTINUOUS:
    reach = noise_reach.reach(run.noise_multipliers, training.delta)
  one_run = run.finish(progress)
  return ModelAudit(
    settings, search, pair_bound, reach, one_run, time.monotonic() - began
  )
