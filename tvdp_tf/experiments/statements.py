"""The privacy statement of a run, from the releases that really happened."""

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.experiments import settings as settings_lib

_ACCOUNTANTS = ('exact', 'pld', 'rdp')
_SEEDED = (
  'the noise is reproducible from --seed: it hides nothing from whoever knows '
  'the seed'
)


def spending_order(
  taken: np.ndarray, noise_stddevs: np.ndarray, sensitivities: np.ndarray
) -> np.ndarray:
  """Users from the one who has spent least to the one who has spent most.

  Args:
    taken: bool [users, rounds], who released in which round.
    noise_stddevs: float [rounds], as used.
    sensitivities: float [users].

  Returns:
    int [users], sorted by the sum of 1 / z**2 over a user's releases: Gaussian
    releases compose to one of noise multiplier 1 / sqrt(sum).
  """
  return np.argsort((taken @ noise_stddevs**-2.0) * sensitivities**2)


def worst_epsilon(
  taken: np.ndarray,
  noise_stddevs: np.ndarray,
  sensitivities: np.ndarray,
  delta: float,
) -> float:
  """The exact epsilon of the user who has spent most; arguments as above."""
  worst = spending_order(taken, noise_stddevs, sensitivities)[-1]
  multipliers = noise_stddevs[taken[worst]] / sensitivities[worst]
  return privacy.delivered_epsilon(multipliers, delta, 'exact')


def _delivered(noise_multipliers: np.ndarray, delta: float) -> dict[str, float]:
  return {
    accountant: privacy.delivered_epsilon(noise_multipliers, delta, accountant)
    for accountant in _ACCOUNTANTS
  }


def noiseless_statement(
  settings: settings_lib.TrainingSettings,
) -> privacy.PrivacyStatement:
  """The statement of a run without noise: there is no guarantee."""
  return privacy.PrivacyStatement(
    target_epsilon=np.inf,
    delta=settings.delta,
    claimed_epsilon=np.inf,
    delivered={'server': {'exact': np.inf}},
    unit='example',
    adjacency='replace-one',
    assumptions=(),
    holds=False,
    reason='no noise is added',
  )


def paper_statement(
  settings: settings_lib.TrainingSettings,
  examples_per_user: np.ndarray,
  taken: np.ndarray,
  noise_stddevs: np.ndarray,
) -> privacy.PrivacyStatement:
  """The statement of a run of the paper's mechanism: it never holds.

  Args:
    settings: The run's settings.
    examples_per_user: int [users].
    taken: bool [users, rounds], who released in which round.
    noise_stddevs: float [rounds], as used.

  Returns:
    The statement; every epsilon in it is conditional on a sensitivity that
    does not hold.
  """
  delta = settings.delta
  sensitivities = 2 * settings.l2_norm_clip / examples_per_user
  multipliers = noise_stddevs / sensitivities[:, np.newaxis]
  by_spending = spending_order(taken, noise_stddevs, sensitivities)
  worst, median = by_spending[-1], by_spending[len(by_spending) // 2]
  largest = multipliers[sensitivities.argmax()]
  delivered = {
    'server, worst client of this run': _delivered(
      multipliers[worst, taken[worst]], delta
    ),
    'server, median client of this run': _delivered(
      multipliers[median, taken[median]], delta
    ),
    'server, a client that takes part in every round': _delivered(
      largest, delta
    ),
  }
  if settings.participation == 'uniform':
    delivered['server, a client before the cohorts are drawn'] = {
      accountant: privacy.delivered_epsilon(
        largest,
        delta,
        accountant,
        sampling='visible',
        sampling_rate=settings.sampling_rate,
      )
      for accountant in ('pld', 'rdp')
    }
  assumptions = [
    "CONDITIONAL on the paper's sensitivity 2C/|D_k|, which does not hold: "
    'several gradient steps on all examples can move the parameters by up to '
    '2C, whatever |D_k|',
    'the server is honest but curious and sees who uploads what; clients keep '
    'their noise secret',
    'the size |D_k| of each data set is public',
    'noise is drawn in floating point',
  ]
  reasons = [
    'the sensitivity 2C/|D_k| that the noise is scaled to is not a bound'
  ]
  if settings.calibration in ('printed', 'tight'):
    reasons.append(
      "and the paper's moment bound understates epsilon whenever a user's "
      'participation is visible to the server'
    )
  if settings.seed is not None:
    assumptions.append(_SEEDED)
  if delta >= 1 / examples_per_user.sum():
    assumptions.append(
      f'WARNING: delta = {delta:g} is at least 1/n for the '
      f'{examples_per_user.sum()} examples in the run, so a mechanism that '
      'publishes a random example could satisfy it'
    )
  return privacy.PrivacyStatement(
    target_epsilon=settings.epsilon,
    delta=delta,
    claimed_epsilon=settings.epsilon,
    delivered=delivered,
    unit='example',
    adjacency='replace-one',
    assumptions=tuple(assumptions),
    holds=False,
    reason=', '.join(reasons),
    sensitivity=privacy.paper_rule(
      settings.l2_norm_clip, int(examples_per_user.min())
    ),
  )
