r"""The one-run audit of a training run, through the process that trains.

A fair coin decides for each of many examples, the canaries, which of two it is
(`attacks.canaries`). Then the run takes place: the federated computation that
trains, with the users, cohorts, calibrated noise and local steps of the
settings. The attacker is the server. It knows all but the coins and the noise,
and sees what the mechanism lets it see (`model_audit.canary_run`): every
upload, or their sum.

From all that it estimates the coins; the surest guesses of all users make one
test (`attacks.one_run`, which says why they may).
"""

import dataclasses
import math
import time
from typing import Any

import numpy as np

from tvdp_tf import mechanisms, privacy
from tvdp_tf.attacks import one_run
from tvdp_tf.attacks.model_audit import canary_run
from tvdp_tf.attacks.model_audit import settings as settings_lib


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
    self._run = run = canary_run.of(settings)
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
    self.plan = run.plan
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
