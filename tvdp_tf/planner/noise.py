"""The noise that a plan adds, and what it delivers to whom.

  paper     one release a round: the parameters, sensitivity 2C/n (not proven)
  gradient  tau releases a round: the mean gradients, sensitivity 2 C_g/n

The tau releases of a round are equivalent to one with noise multiplier
z / sqrt(tau). With balanced participation every user takes part exactly once in
each block of U/K rounds; the worst user does so in the round of least noise of
every block, and `gradient` is calibrated to that user. Everything else is
calibrated to a client in every round: being left out is luck.
"""

import dataclasses
import math

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.privacy import statement as statement_lib

# Accountants in the order that they are shown.
ACCOUNTANTS = ('exact', 'pld', 'rdp')

# What an epsilon is worth, `View.promise`.
GUARANTEED = 'guaranteed'
CONDITIONAL = 'conditional'  # on a sensitivity that is not proven
OTHER_PARTICIPATION = 'other participation'
NOT_GRANTED = 'NOT GRANTED'

# With sampling every distinct noise level costs these accountants time.
_MOST_LEVELS = {'pld': 200, 'rdp': 2000}


def worst_rounds(theta: float, rounds: int, block_rounds: int) -> np.ndarray:
  """The rounds, from 1, of the user who pays most; int64 [blocks].

  Args:
    theta: Ratio of the noise variances of successive rounds, > 0.
    rounds: M >= 1.
    block_rounds: Rounds in a block, of which every user takes part in one; 1
      for a client in every round.

  Returns:
    The round of least noise of every block; the last block may be shorter.
  """
  first = np.arange(1, rounds + 1, block_rounds)
  last = np.minimum(first + block_rounds - 1, rounds)
  return first if theta >= 1 else last


def log_sum_exp(exponents: np.ndarray) -> float:
  """Ln of the sum of e^x over the array."""
  largest = exponents.max()
  return float(largest + np.log(np.exp(exponents - largest).sum()))


def log_precision(theta: float, taken: np.ndarray) -> float:
  """Ln of the sum of theta^(1-m) over the rounds m that are taken."""
  return log_sum_exp((1 - taken) * math.log(theta))


def sensitivity_rule(
  settings: planning_settings.PlanSettings,
) -> privacy.SensitivityRule:
  """The sensitivity that the mechanism's noise is measured against."""
  if settings.mechanism == 'paper':
    return privacy.paper_rule(settings.l2_norm_clip, settings.examples_per_user)
  return privacy.gradient_rule(
    settings.example_l2_norm_clip, settings.examples_per_user
  )


def releases_per_round(settings: planning_settings.PlanSettings) -> int:
  """How often a client that takes part releases something in a round."""
  return 1 if settings.mechanism == 'paper' else settings.local_steps


def round_multipliers(
  settings: planning_settings.PlanSettings, schedule: privacy.NoiseSchedule
) -> np.ndarray:
  """Noise multiplier of all a round's releases together, float64 [rounds].

  It is z / sqrt(releases), rounded down.
  """
  multipliers = schedule.noise_multipliers(sensitivity_rule(settings).value)
  releases = releases_per_round(settings)
  if releases == 1:
    return multipliers
  return np.nextafter(multipliers / math.sqrt(releases), 0)


def _worst_multipliers(settings, schedule) -> np.ndarray:
  taken = worst_rounds(settings.theta, settings.rounds, settings.block_rounds)
  return round_multipliers(settings, schedule)[taken - 1]


def _paper_schedule(settings, calibration) -> privacy.NoiseSchedule:
  return privacy.schedule_for_every_round(
    calibration,
    epsilon=settings.epsilon,
    delta=settings.delta,
    theta=settings.theta,
    rounds=settings.rounds,
    sampling_rate=settings.sampling_rate,
    sensitivity=sensitivity_rule(settings).value,
  )


def _gradient_schedule(settings, calibration) -> privacy.NoiseSchedule:
  """The worst user's releases meet the target, and no more."""
  target = (settings.epsilon, settings.delta)
  single = privacy.calibrate(*target, 1.0, 1, accountant=calibration)
  taken = worst_rounds(settings.theta, settings.rounds, settings.block_rounds)
  releases = releases_per_round(settings)
  log_precision_sum = log_precision(settings.theta, taken) + math.log(releases)
  stddev = (
    single.initial_stddev
    * sensitivity_rule(settings).value
    * float(np.exp(log_precision_sum / 2))
  )
  nudge = 1e-15  # For rounding.
  while True:
    schedule = privacy.GeometricSchedule(
      settings.theta, settings.rounds, stddev
    )
    multipliers = _worst_multipliers(settings, schedule)
    if (
      privacy.delivered_epsilon(multipliers, settings.delta, calibration)
      <= settings.epsilon
    ):
      return schedule
    stddev *= 1 + nudge
    nudge *= 2


def calibrated_schedule(
  settings: planning_settings.PlanSettings, calibration: str
) -> privacy.NoiseSchedule:
  """The noise of every round under a calibration.

  Args:
    settings: The plan's inputs.
    calibration: One of `planning_settings.CALIBRATIONS` of the mechanism.

  Returns:
    Standard deviations in the unit of what is released: the parameters, or the
    mean gradient of a local step.

  Raises:
    ValueError: If the target is out of the accountant's reach or the noise of a
      round is not representable.
  """
  build = {'paper': _paper_schedule, 'gradient': _gradient_schedule}
  try:
    with np.errstate(over='ignore'):
      return build[settings.mechanism](settings, calibration)
  except ValueError as error:
    if str(error).startswith('epsilon must'):
      raise
    name = 'epsilon' if settings.theta == 1 else 'theta'
    raise ValueError(
      f'{name} must leave the noise of all {settings.rounds} rounds'
      f' representable, got {getattr(settings, name)!r} ({error})'
    ) from error


@dataclasses.dataclass(frozen=True)
class CalibratedNoise:
  """What one calibration comes to.

  Attributes:
    calibration: Its name.
    schedule: The noise; None if the target is out of the accountant's reach.
    sound: Whether the rule is one that an epsilon may rest on, if the
      sensitivity is proven.
    delivered: The exact epsilon of the client that is calibrated to.
    note: Why it is sound or not, or has no schedule.
  """

  calibration: str
  schedule: privacy.NoiseSchedule | None
  sound: bool
  delivered: float | None
  note: str


def _soundness(settings, calibration) -> tuple[bool, str]:
  own = privacy.moment_bound_epsilon(
    settings.epsilon * settings.epsilon / (2 * -math.log(settings.delta)),
    settings.delta,
  )
  if calibration == 'printed':
    delivered = statement_lib.format_epsilon(own)
    return False, f'Theorem 1; its own moment bound gives epsilon {delivered}'
  if calibration == 'tight':
    if settings.sampling_rate == 1:
      return True, 'moment bound, which holds for q = 1'
    return False, 'moment bound linear in q, which is false for q < 1'
  accountants = {
    'exact': 'exact Gaussian curve',
    'rdp': 'Renyi accountant',
    'pld': 'privacy loss distribution',
  }
  return True, accountants[calibration]


def calibrated_noise(
  settings: planning_settings.PlanSettings, calibration: str
) -> CalibratedNoise:
  """`calibrated_schedule` with what it is worth."""
  sound, note = _soundness(settings, calibration)
  try:
    schedule = calibrated_schedule(settings, calibration)
  except ValueError as error:
    return CalibratedNoise(calibration, None, sound, None, str(error))
  delivered = privacy.delivered_epsilon(
    _worst_multipliers(settings, schedule), settings.delta, 'exact'
  )
  return CalibratedNoise(calibration, schedule, sound, delivered, note)


@dataclasses.dataclass(frozen=True)
class View:
  """What an adversary sees, and the epsilon that is delivered against it.

  Attributes:
    name: 'none' (a client in every round), 'balanced', 'visible' or 'poisson'.
    title: The same in words.
    promise: What the epsilon is worth in this plan, in words.
    epsilons: By accountant of `ACCOUNTANTS`; None where there is none or where
      it would take too long.
  """

  name: str
  title: str
  promise: str
  epsilons: dict[str, float | None]


def _epsilons(multipliers, delta, sampling='none', q=1.0):
  levels = len(np.unique(multipliers))
  result: dict[str, float | None] = {}
  for accountant in ACCOUNTANTS:
    result[accountant] = None
    if sampling != 'none':
      if accountant == 'exact' and (sampling == 'poisson' or levels > 1):
        continue
      if levels > _MOST_LEVELS.get(accountant, levels):
        continue
    result[accountant] = privacy.delivered_epsilon(
      multipliers, delta, accountant, sampling, q
    )
  return result


def delivered_views(
  settings: planning_settings.PlanSettings, schedule: privacy.NoiseSchedule
) -> tuple[View, ...]:
  """The epsilon delivered in every view.

  Args:
    settings: The plan's inputs.
    schedule: The noise of every round.

  Returns:
    The views; without sampling (K = U) there is only one.
  """
  q, delta = settings.sampling_rate, settings.delta
  multipliers = round_multipliers(settings, schedule)
  bound = GUARANTEED if sensitivity_rule(settings).proven else CONDITIONAL
  balanced = settings.participation == 'balanced'
  views = [
    View('none', 'client in every round', bound, _epsilons(multipliers, delta))
  ]
  if q == 1:
    return tuple(views)
  if settings.can_balance:
    block = settings.users // settings.users_per_round
    taken = worst_rounds(settings.theta, settings.rounds, block)
    views.append(
      View(
        'balanced',
        'balanced, worst user',
        bound if balanced else OTHER_PARTICIPATION,
        _epsilons(multipliers[taken - 1], delta),
      )
    )
  views.append(
    View(
      'visible',
      f'visible, q = {q:.6g}',
      OTHER_PARTICIPATION if balanced else f'{bound}, averaged',
      _epsilons(multipliers, delta, 'visible', q),
    )
  )
  views.append(
    View(
      'poisson',
      f'secret Poisson, q = {q:.6g}',
      NOT_GRANTED,
      _epsilons(multipliers, delta, 'poisson', q),
    )
  )
  return tuple(views)
