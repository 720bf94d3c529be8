"""A plan: noise, what it delivers, and what it costs, before any training.

`make_report` computes everything once; `text` puts it into words and
`files` into files, so that they cannot disagree. Nothing here loads
TensorFlow.
"""

import dataclasses
import math
from typing import Any

from tvdp_tf import privacy
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import noise as planning_noise
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import settings as planning_settings

# Why secret sampling never counts here (the paper's Section "Threat model" has
# a curious server).
POISSON_CAVEAT = (
  'secret Poisson sampling amplifies privacy only if the noise is relative to'
  ' all that one user contributes (here it is relative to one example), if the'
  ' sample stays secret (here the server sees who uploads) and if only the'
  ' aggregate is seen'
)


@dataclasses.dataclass(frozen=True)
class PlanReport:
  """Everything that a plan says.

  Attributes:
    settings: What it was made for.
    rule: The sensitivity that the noise is measured against.
    proven_rule: A proven rule for the same release, where `rule` is not.
    noise: What every calibration of the mechanism comes to.
    schedule: The noise of the chosen calibration.
    views: What it delivers.
    moment_claim: Epsilon by the paper's moment bound; None for `gradient`.
    statement: What is promised, and whether it holds.
    objective: The convergence bound at the chosen calibration's budget.
    optimal_real: The best number of rounds among the real numbers.
    optimal: The best plan of all.
    plans: What each theta costs, in ascending order of theta.
    curve: The bound of each of these thetas against the number of rounds.
    pilot: What A and Theta were measured from; None if they were not.
    alternatives: What were best if A were at either end of its interval; empty
      without a pilot.
  """

  settings: planning_settings.PlanSettings
  rule: privacy.SensitivityRule
  proven_rule: privacy.SensitivityRule | None
  noise: tuple[planning_noise.CalibratedNoise, ...]
  schedule: privacy.NoiseSchedule
  views: tuple[planning_noise.View, ...]
  moment_claim: float | None
  statement: privacy.PrivacyStatement
  objective: planning_bound.Objective
  optimal_real: float
  optimal: planning_bound.BoundPoint
  plans: tuple[planning_bound.ThetaPlan, ...]
  curve: tuple[planning_bound.BoundPoint, ...]
  pilot: planning_pilot.Pilot | None = None
  alternatives: tuple[planning_bound.Alternative, ...] = ()

  @property
  def asked(self) -> planning_bound.ThetaPlan:
    """The plan with the theta that was asked for."""
    theta = self.settings.theta
    return next(plan for plan in self.plans if plan.asked.theta == theta)

  def to_json_dict(self) -> dict[str, object]:
    """The report as `json.dumps` takes it; infinity is the string 'inf'."""
    settings, rule = self.settings, self.rule
    taken = planning_noise.worst_rounds(
      settings.theta, settings.rounds, settings.block_rounds
    )
    result: dict[str, object] = {
      'settings': settings.to_json_dict(),
      'assumed': list(settings.assumed),
      'measured': self.pilot and self.pilot.to_json_dict(),
      'sensitivity': rule.to_json_dict(),
      'proven_sensitivity': self.proven_rule
      and self.proven_rule.to_json_dict(),
      'calibrations': [_noise_dict(noise, rule.value) for noise in self.noise],
      'noise': {
        'calibration': settings.calibration,
        'noise_stddevs': self.schedule.stddevs().tolist(),
        'noise_multipliers': (
          self.schedule.noise_multipliers(rule.value).tolist()
        ),
        'releases_per_round': planning_noise.releases_per_round(settings),
        'calibrated_to_rounds': taken.tolist(),
      },
      'delivered': [dataclasses.asdict(view) for view in self.views],
      'moment_claim': self.moment_claim,
      'statement': self.statement.to_json_dict(),
      'plan': {
        'objective': dataclasses.asdict(self.objective),
        'optimal': (
          dataclasses.asdict(self.optimal) | {'rounds_real': self.optimal_real}
        ),
        'alternatives': [dataclasses.asdict(a) for a in self.alternatives],
        'thetas': [dataclasses.asdict(plan) for plan in self.plans],
      },
      'curve': [dataclasses.asdict(point) for point in self.curve],
    }
    return _without_infinity(result)


def _noise_dict(noise, sensitivity: float) -> dict[str, object]:
  schedule = noise.schedule
  stddevs = schedule and [
    schedule.initial_stddev,
    schedule.stddev(schedule.rounds),
  ]
  return {
    'calibration': noise.calibration,
    'sound': noise.sound,
    'note': noise.note,
    'initial_stddev': stddevs and stddevs[0],
    'last_stddev': stddevs and stddevs[1],
    'initial_noise_multiplier': stddevs and stddevs[0] / sensitivity,
    'delivered_epsilon': noise.delivered,
  }


def _without_infinity(value: Any) -> Any:
  """JSON has no infinity."""
  if isinstance(value, dict):
    return {key: _without_infinity(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_without_infinity(item) for item in value]
  return 'inf' if value == math.inf else value


def _assumptions(settings: planning_settings.PlanSettings) -> tuple[str, ...]:
  examples = settings.users * settings.examples_per_user
  assumptions = [
    'the server is honest but curious and sees who uploads what; clients keep'
    ' their noise secret',
    f'every user has n = {settings.examples_per_user} examples or more, and n'
    ' is public',
    'noise is drawn in floating point',
  ]
  if settings.mechanism == 'paper':
    assumptions.insert(
      0,
      "CONDITIONAL on the paper's sensitivity 2C/|D_k|, which does not hold",
    )
  else:
    assumptions.insert(
      0,
      'every local step clips the gradient of each example, divides their sum'
      ' by n or more and adds fresh noise',
    )
  if settings.block_rounds > 1:
    assumptions.append(
      f'no client uploads twice in a block of {settings.block_rounds} rounds,'
      ' not even after a failure'
    )
  if settings.delta >= 1 / examples:
    assumptions.append(
      f'WARNING: delta = {settings.delta:g} is at least 1/{examples}, one over'
      ' the number of examples: publishing a random example would satisfy it'
    )
  return tuple(assumptions)


def _statement(settings, rule, views) -> privacy.PrivacyStatement:
  view = 'balanced' if settings.block_rounds > 1 else 'none'
  delivered = {
    v.name: {name: e for name, e in v.epsilons.items() if e is not None}
    for v in views
  }
  if rule.proven:
    reason = (
      'the sensitivity is proven, and a sound accountant delivers the target to'
      ' the client that pays most'
    )
  else:
    reason = (
      f'the sensitivity {rule.formula} that the noise is measured against is'
      ' not a bound'
    )
    if settings.calibration == 'printed':
      reason += ', and Theorem 1 asks for less noise than its own proof needs'
    elif settings.calibration == 'tight' and settings.sampling_rate < 1:
      reason += ', and the moment bound that sets the noise is false for q < 1'
  return privacy.PrivacyStatement(
    target_epsilon=settings.epsilon,
    delta=settings.delta,
    claimed_epsilon=settings.epsilon,
    delivered=delivered,
    unit=rule.unit,
    adjacency=rule.adjacency,
    assumptions=_assumptions(settings),
    holds=rule.proven,
    reason=reason,
    view=view,
    sensitivity=rule,
  )


def _curve(
  objective: planning_bound.Objective,
  plans: tuple[planning_bound.ThetaPlan, ...],
) -> tuple[planning_bound.BoundPoint, ...]:
  rounds = planning_bound.curve_rounds(plans, objective.block_rounds)
  return tuple(
    objective.point(plan.asked.theta, m) for plan in plans for m in rounds
  )


def _alternatives(
  objective: planning_bound.Objective,
  optimal: planning_bound.BoundPoint,
  pilot: planning_pilot.Pilot | None,
) -> tuple[planning_bound.Alternative, ...]:
  if pilot is None:
    return ()
  estimate = pilot.estimate
  ends = zip(
    estimate.contraction_interval, estimate.initial_gap_at_interval, strict=True
  )
  return tuple(objective.alternative(optimal, a, gap) for a, gap in ends)


def _measured(
  settings: planning_settings.PlanSettings, pilot: planning_pilot.Pilot
) -> planning_settings.PlanSettings:
  for name in planning_settings.MEASURED:
    if name in settings.given:
      raise ValueError(
        f'{name} must not be given where it is measured, got'
        f' {getattr(settings, name)!r}'
      )
  return dataclasses.replace(
    settings,
    contraction=pilot.estimate.contraction,
    initial_gap=pilot.estimate.initial_gap,
    measured_from=pilot.path,
  )


def make_report(
  settings: planning_settings.PlanSettings,
  pilot: planning_pilot.Pilot | None = None,
) -> PlanReport:
  """Makes the plan.

  Args:
    settings: What to plan for.
    pilot: What to measure A and Theta from, in place of those of the settings.

  Returns:
    The report.

  Raises:
    ValueError: If the chosen calibration cannot meet the target, or A or Theta
      is both given and measured.
  """
  if pilot is not None:
    settings = _measured(settings, pilot)
  rule = planning_noise.sensitivity_rule(settings)
  schedule = planning_noise.calibrated_schedule(settings, settings.calibration)
  views = planning_noise.delivered_views(settings, schedule)
  claim, proven_rule = None, None
  if settings.mechanism == 'paper':
    proven_rule = privacy.projection_rule(settings.l2_norm_clip)
    claim = privacy.delivered_epsilon(
      schedule.noise_multipliers(rule.value),
      settings.delta,
      'moments',
      sampling_rate=settings.sampling_rate,
    )
  objective = planning_bound.objective(settings, schedule)
  optimal_real, optimal = objective.optimal()
  plans = tuple(
    objective.theta_plan(theta, settings.rounds)
    for theta in planning_bound.compared_thetas(settings.theta, optimal.theta)
  )
  return PlanReport(
    settings=settings,
    rule=rule,
    proven_rule=proven_rule,
    noise=tuple(
      planning_noise.calibrated_noise(settings, calibration)
      for calibration in planning_settings.CALIBRATIONS[settings.mechanism]
    ),
    schedule=schedule,
    views=views,
    moment_claim=claim,
    statement=_statement(settings, rule, views),
    objective=objective,
    optimal_real=optimal_real,
    optimal=optimal,
    plans=plans,
    curve=_curve(objective, plans),
    pilot=pilot,
    alternatives=_alternatives(objective, optimal, pilot),
  )
