r"""An empirical privacy audit: how much do a client's releases disclose?

The attacker is the curious server. It knows all settings, the models that it
broadcasts, D and D', and sees every upload of one client. It has to tell which
of the two data sets the client holds. From each broadcast w(m-1), it trains on
both without noise. So it knows the upload without noise, a_m under D and b_m
under D', and sums over the rounds

  score = sum_m <upload_m - (a_m + b_m) / 2, a_m - b_m> / v_m

with v_m the variance of the noise in the upload. If the noise is added last, as
in Algorithm 1, this is the log-likelihood ratio, and no attack is better. With
noise in every local step, this is true as far as the steps are linear. A lower
bound is valid for any score.

The broadcasts are those of a noiseless run on the examples that D and D' share,
and are the same in all trials. An accountant's epsilon holds for any
broadcasts, so also for these.
"""

import dataclasses
import secrets
from typing import Any

import numpy as np

from tvdp_tf import _json, errors, mechanisms, privacy
from tvdp_tf.attacks import audit_settings, lower_bound, releases
from tvdp_tf.learning import noise
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import population
from tvdp_tf.training import settings as settings_lib


@dataclasses.dataclass(frozen=True)
class Delivered:
  """An epsilon of the calibrated noise.

  Attributes:
    epsilon: The epsilon, by the exact accountant.
    sensitivity: The sensitivity that it is based on.
  """

  epsilon: float
  sensitivity: privacy.SensitivityRule


def build_mechanism(
  settings: audit_settings.AuditSettings,
) -> Any:
  """Builds the mechanism, calibrated for a client that is in every round.

  Returns:
    A `GraphMechanism`.

  Raises:
    ValueError: If no noise meets the target.
  """
  training = settings_lib.TrainingSettings(
    users=1,
    users_per_round=1,
    noise=noise_distance.CONTINUOUS,
    **{name: getattr(settings, name) for name in audit_settings.OF_TRAINING},
  )
  with mechanisms.named_after_a_setting(settings):
    # One client, and no values to draw, so that the noise counts as exact.
    alone = population.Population(
      population.draw(training, 0), np.array([settings.num_examples]), 0
    )
    return mechanisms.build(training, alone).mechanism


def delivered_epsilons(
  settings: audit_settings.AuditSettings, mechanism: mechanisms.GraphMechanism
) -> tuple[Delivered, ...]:
  """Computes the epsilon of the calibrated noise, by each sensitivity rule.

  Args:
    settings: The audit's settings.
    mechanism: The audited mechanism.

  Returns:
    One for each rule of `GraphMechanism.client_multipliers`.

  Raises:
    ValueError: If a noise multiplier is not representable.
  """
  kind = mechanisms.MECHANISMS[settings.mechanism]
  releases = kind.releases_in_a_round(settings)
  with mechanisms.named_after_a_setting(settings):
    noise = mechanism.client_multipliers(settings.num_examples)
  return tuple(
    Delivered(
      privacy.delivered_epsilon(
        np.repeat(z, releases), settings.delta, 'exact'
      ),
      rule,
    )
    for rule, z in noise
  )


# Number of trials to run at once.
_CHUNK = 1000


@dataclasses.dataclass(frozen=True)
class AuditResult:
  """The claim, and what the audit found.

  Attributes:
    settings: The audit's settings.
    seed: Seed of the noise; the same seed gives the same result.
    pair_description: A description of the example that differs.
    delivered: The accountant's epsilons, before `noise_scale`.
    bound: What the trials show, for any mechanism.
    gaussian_bound: What the trials show if the trade-off is Gaussian.
    scores: Scores of the trials with D, float64 [trials].
    alternative_scores: Scores of the trials with D', float64 [trials].
  """

  settings: audit_settings.AuditSettings
  seed: int
  pair_description: str
  delivered: tuple[Delivered, ...]
  bound: lower_bound.LowerBound
  gaussian_bound: lower_bound.LowerBound
  scores: np.ndarray
  alternative_scores: np.ndarray

  @property
  def largest_bound(self) -> float:
    """The most that `bound` could have shown with this many trials."""
    settings = self.settings
    return lower_bound.largest_lower_bound(
      settings.trials, settings.delta, settings.confidence
    )

  @property
  def refuted(self) -> bool:
    """Whether the claim is below what was shown with confidence."""
    return self.bound.epsilon_lower_bound > self.settings.epsilon

  def to_json_dict(self) -> dict[str, Any]:
    """All but the scores, ready for `json.dumps`."""
    return {
      'settings': dataclasses.asdict(self.settings),
      'seed': self.seed,
      'example_that_differs': self.pair_description,
      'claimed_epsilon': self.settings.epsilon,
      'delta': self.settings.delta,
      'delivered': [
        {
          'epsilon': _json.number(delivered.epsilon),
          'sensitivity': delivered.sensitivity.to_json_dict(),
        }
        for delivered in self.delivered
      ],
      'lower_bound': self.bound.to_json_dict(),
      'lower_bound_if_gaussian': self.gaussian_bound.to_json_dict(),
      'largest_lower_bound_possible': self.largest_bound,
      'refuted': self.refuted,
    }


def _round_scores(client, weights, difference, middle, stddev, keys, trials):
  """Returns the scores of one round, under D and under D', [trials] each."""
  results = []
  variance = client.upload_variance(stddev)
  worlds = (client.pair.data, client.pair.alternative)
  for world, data in enumerate(worlds):
    parts = []
    for start in range(0, trials, _CHUNK):
      count = min(_CHUNK, trials)  # A fixed size avoids retracing.
      key = keys(2 * (start // _CHUNK) + world)
      stacked = client.uploads(weights, data, stddev, key, count)
      uploads = releases.flatten(stacked, count)[: trials - start]
      parts.append((uploads - middle) @ difference / variance)
    results.append(np.concatenate(parts))
  return results


def attack_scores(
  client: releases.Releases,
  rounds: int,
  trials: int,
  seed: int,
  noise_scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
  """Computes the scores of the attack above on independent runs.

  Args:
    client: The client's uploads, which are attacked.
    rounds: M; the client takes part in every round.
    trials: Number of runs with each of the two data sets.
    seed: Seed of the noise.
    noise_scale: Factor by which the noise is multiplied.

  Returns:
    Scores under D and under D', float64 [trials] each.
  """
  totals = np.zeros([2, trials])
  weights = client.pair.model.initial_weights
  for m in range(1, rounds + 1):
    with_d, with_alternative = (
      releases.flatten(client.noiseless(weights, data))[0]
      for data in (client.pair.data, client.pair.alternative)
    )
    totals += _round_scores(
      client,
      weights,
      with_d - with_alternative,
      (with_d + with_alternative) / 2,
      client.noise_stddev(m) * noise_scale,
      lambda index, m=m: noise.seeded_noise_key(seed, m, index),
      trials,
    )
    weights = client.noiseless(weights, client.pair.common)
  return totals[0], totals[1]


def audit(settings: audit_settings.AuditSettings) -> AuditResult:
  """Runs the client's releases many times, and attacks them.

  Args:
    settings: The audit's settings.

  Returns:
    The result.

  Raises:
    ValueError: If no noise meets the target.
    TrainingFailedError: If training diverges.
  """
  mechanism = build_mechanism(settings)
  delivered = delivered_epsilons(settings, mechanism)
  pair = releases.CLIENTS[settings.client](settings.num_examples)
  client = releases.build(
    pair, mechanism, settings.local_steps, settings.learning_rate
  )
  seed = secrets.randbits(63) if settings.seed is None else settings.seed
  with np.errstate(over='ignore', divide='ignore', invalid='ignore'):
    scores, alternative_scores = attack_scores(
      client, settings.rounds, settings.trials, seed, settings.noise_scale
    )
  if not np.isfinite([scores, alternative_scores]).all():
    raise errors.TrainingFailedError(
      'the scores are not finite: either training diverges and needs a smaller'
      ' learning_rate, or there is almost no noise'
    )
  evidence = (scores, alternative_scores, settings.delta, settings.confidence)
  return AuditResult(
    settings=settings,
    seed=seed,
    pair_description=pair.description,
    delivered=delivered,
    bound=lower_bound.empirical_lower_bound(*evidence),
    gaussian_bound=lower_bound.gaussian_lower_bound(*evidence),
    scores=scores,
    alternative_scores=alternative_scores,
  )
