"""A plan: noise, delivered epsilon and convergence bound, before training.

`plan` computes everything once; `text` formats it for a terminal and
`files` writes it to files, so that they always agree. The plan uses the same
mechanism, and makes the same statement, as training would. Nothing here loads
TensorFlow.
"""

import dataclasses
import math
from typing import Any

from tvdp_tf import mechanisms, privacy
from tvdp_tf.learning import datasets, participation
from tvdp_tf.mechanisms import statements
from tvdp_tf.planner import best_schedule, correlated, simulation
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.privacy import calibration as calibration_lib
from tvdp_tf.training import population as population_lib
from tvdp_tf.training import settings as training_settings

# A plan whose bound is this many times the best one gets a warning.
_HOPELESS = 10.0


@dataclasses.dataclass(frozen=True)
class CalibratedNoise:
  """The noise of one calibration.

  Attributes:
    calibration: The name of the rule; empty for a mechanism without a choice.
    sound: Whether the rule gives a sound epsilon, if the sensitivity is proven;
      None if there is no choice.
    note: Why it is sound or not, or why there is no such noise.
    noise_stddevs: The smallest noise of a client in the first and the last
      round; None if the accountant cannot reach the target.
    noise_multipliers: The same, relative to the sensitivity.
    delivered: Epsilon of the client that spends the most.
  """

  calibration: str
  sound: bool | None
  note: str
  noise_stddevs: tuple[float, float] | None = None
  noise_multipliers: tuple[float, float] | None = None
  delivered: float | None = None


@dataclasses.dataclass(frozen=True)
class PlanReport:
  """The results of a plan.

  Attributes:
    settings: The settings of the plan.
    population: What is public about the users.
    simulation: The mechanism after all its rounds.
    statement: What training will state if every round happens as planned.
    noise: The noise of every calibration that the mechanism allows.
    objective: The convergence bound.
    optimal: The best plan of all.
    plans: The cost of each theta, in ascending order of theta.
    advice: The noise that other schedules would leave in the model; None if the
      schedule cannot be chosen.
    correlated: The noise that other mechanisms, including correlated noise,
      would leave, by `correlated.compare`; empty unless one server adds noise.
    pilot: The pilot that A and Theta were measured from; None if there is none.
    alternatives: The best plans for A at both ends of its interval; empty
      without a pilot.
  """

  settings: planning_settings.PlanSettings
  population: population_lib.Population
  simulation: simulation.Simulation
  statement: privacy.PrivacyStatement
  noise: tuple[CalibratedNoise, ...]
  objective: planning_bound.Objective
  optimal: planning_bound.BoundPoint
  plans: tuple[planning_bound.ThetaPlan, ...]
  advice: best_schedule.Advice | None = None
  correlated: tuple[tuple[str, float], ...] = ()
  pilot: planning_pilot.Pilot | None = None
  alternatives: tuple[planning_bound.Alternative, ...] = ()

  @property
  def mechanism(self) -> mechanisms.Mechanism:
    """The mechanism after all its rounds."""
    return self.simulation.mechanism

  @property
  def asked(self) -> planning_bound.ThetaPlan:
    """The plan with the theta that was asked for."""
    theta = self.settings.theta
    return next(plan for plan in self.plans if plan.asked.theta == theta)

  @property
  def has_noise(self) -> bool:
    """Whether there is any noise to plan."""
    return bool(self.simulation.mean_noise_stddevs.any())

  @property
  def asked_plan(self) -> str:
    """The plan that was asked for, in words: its noise and its rounds."""
    if self.settings.schedule:
      return f'a schedule of your own, M = {self.settings.rounds}'
    return self.plan_in_words(self.asked.asked)

  def plan_in_words(self, plan: planning_bound.BoundPoint) -> str:
    """A plan's rounds and, if it matters, theta."""
    theta = f'theta = {plan.theta:.6g}, ' if self.theta_matters else ''
    return f'{theta}M = {plan.rounds}'

  @property
  def theta_matters(self) -> bool:
    """Whether the mechanism uses theta."""
    return len(self.plans) > 1

  @property
  def drawn_anew(self) -> tuple[str, ...]:
    """What training will draw differently from the plan, in words."""
    settings = self.settings
    if settings.seed is not None:
      return ()
    found = []
    # Secret sampling costs every user the same.
    secret = self.mechanism.header.sampling == 'poisson'
    if settings.sampling_rate < 1 and not secret:
      found.append('who takes part when')
    if settings.split == 'dirichlet' and settings.examples_per_user is None:
      found.append('who holds how much')
    return tuple(found)

  @property
  def warnings(self) -> tuple[str, ...]:
    """Reasons against training as it was asked for, in sentences."""
    asked, best = self.asked.asked, self.optimal
    gap = self.objective.initial_gap
    found = []
    if asked.bound >= gap:
      found.append(
        f'the bound after {asked.rounds} rounds, {asked.bound:#.4g}, is not'
        f' below Theta = {gap:#.4g}, where training starts: it promises no'
        f' progress (the best plan has {best.bound:#.4g})'
      )
    if asked.bound > _HOPELESS * best.bound:
      found.append(
        f'the plan you asked for ({self.asked_plan}) has a bound'
        f' {asked.bound / best.bound:.3g} times that of the best plan'
        f' ({self.plan_in_words(best)})'
      )
    return tuple(found)

  @property
  def curve(self) -> tuple[planning_bound.BoundPoint, ...]:
    """The bound of the compared thetas, wherever it was computed."""
    thetas = {plan.asked.theta for plan in self.plans}
    return tuple(
      self.objective.point(theta, rounds)
      for theta, rounds in self.objective.noise.plans()
      if theta in thetas
    )

  def to_json_dict(self) -> dict[str, object]:
    """The report, ready for `json.dumps`; infinity is the string 'inf'."""
    settings, mechanism = self.settings, self.mechanism
    sizes = self.population.examples_per_user
    formula, proven = mechanism.sensitivity_on_record
    result: dict[str, object] = {
      'settings': settings.to_json_dict(),
      'assumed': list(settings.assumed),
      'measured': self.pilot and self.pilot.to_json_dict(),
      'population': {
        'examples_per_user': [int(sizes.min()), int(sizes.max())],
        'num_parameters': self.population.num_parameters,
        'drawn_anew': list(self.drawn_anew),
      },
      'sensitivity': {'formula': formula, 'proven': proven},
      'calibrations': [dataclasses.asdict(noise) for noise in self.noise],
      'noise': {
        'calibration': settings.calibration,
        'kind': mechanism.noise,
        'accounted_delta': mechanism.delta,
        'noise_stddevs': self.simulation.noise_stddevs.tolist(),
        'noise_multipliers': self.simulation.noise_multipliers.tolist(),
        'mean_noise_stddevs': self.simulation.mean_noise_stddevs.tolist(),
        'releases_per_client': mechanism.releases_per_client,
      },
      'statement': self.statement.to_json_dict(),
      'plan': {
        'noise_weight': self.objective.noise_weight,
        'optimal': dataclasses.asdict(self.optimal),
        'alternatives': [dataclasses.asdict(a) for a in self.alternatives],
        'thetas': [dataclasses.asdict(plan) for plan in self.plans],
        'warnings': list(self.warnings),
      },
      'schedule': self.advice and dataclasses.asdict(self.advice),
      'correlated': dict(self.correlated),
      'curve': [dataclasses.asdict(point) for point in self.curve],
    }
    return _without_infinity(result)


def _without_infinity(value: Any) -> Any:
  """Replaces infinity by 'inf', because JSON has no infinity."""
  if isinstance(value, dict):
    return {key: _without_infinity(entry) for key, entry in value.items()}
  if isinstance(value, list | tuple):
    return [_without_infinity(entry) for entry in value]
  return 'inf' if value == math.inf else value


def _noise_of(
  sim: simulation.Simulation, sound: bool | None, note: str
) -> CalibratedNoise:
  stddevs, multipliers = (
    (float(values[0]), float(values[-1]))
    for values in (sim.noise_stddevs, sim.noise_multipliers)
  )
  mechanism = sim.mechanism
  return CalibratedNoise(
    calibration=mechanism.settings.calibration,
    sound=sound,
    note=note,
    noise_stddevs=stddevs,
    noise_multipliers=multipliers,
    delivered=mechanism.worst_epsilon(),
  )


def calibrated_noise(
  settings: planning_settings.PlanSettings,
  population: population_lib.Population,
  chosen: simulation.Simulation,
) -> tuple[CalibratedNoise, ...]:
  """The noise of every calibration that the mechanism allows.

  Args:
    settings: The settings of the plan.
    population: The users of the plan.
    chosen: The simulation of the settings.

  Returns:
    The noise for each; only one for a mechanism without a choice.
  """
  allowed = type(chosen.mechanism).calibrations(settings.participation)
  if not allowed:
    return (_noise_of(chosen, None, ''),)
  found = []
  for calibration in allowed:
    sound, note = calibration_lib.soundness(
      calibration,
      epsilon=settings.epsilon,
      delta=settings.delta,
      sampling_rate=settings.sampling_rate,
    )
    try:
      sim = chosen
      if calibration != settings.calibration:
        other = dataclasses.replace(settings, calibration=calibration)
        sim = simulation.run(other, population)
      found.append(_noise_of(sim, sound, note))
    except ValueError as error:
      found.append(CalibratedNoise(calibration, sound, str(error)))
  return tuple(found)


def _complete(
  settings: planning_settings.PlanSettings,
  pilot: planning_pilot.Pilot | None,
) -> planning_settings.PlanSettings:
  """Returns the settings with A and Theta filled in."""
  if pilot is not None:
    for name in planning_settings.MEASURED:
      if name in settings.given:
        raise ValueError(
          f'{name} must not be given if a pilot measures it, got'
          f' {getattr(settings, name)!r}'
        )
    return dataclasses.replace(
      settings,
      contraction=pilot.estimate.contraction,
      initial_gap=pilot.estimate.initial_gap,
      measured_from=pilot.path,
    )
  if settings.initial_gap is not None:
    return settings
  facts = datasets.facts(settings.dataset, settings.data_dir)
  return dataclasses.replace(
    settings, initial_gap=math.log(max(2, facts.num_classes))
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


def plan(
  settings: training_settings.TrainingSettings,
  pilot: planning_pilot.Pilot | None = None,
  progress: bool = False,
) -> PlanReport:
  """Predicts the noise, privacy and convergence of a run before training.

  Args:
    settings: The settings of the run; `PlanSettings` also have the inputs of
      the prediction.
    pilot: A pilot run from which to measure A and Theta, instead of taking them
      from the settings.
    progress: Whether to show on a terminal how many plans were compared.

  Returns:
    The report.

  Raises:
    ValueError: If no noise meets the target, a setting does not fit the data
      set, or A or Theta is both given and measured.
    DatasetUnavailableError: If the data set is needed and cannot be loaded.
  """
  settings = _complete(planning_settings.PlanSettings.of(settings), pilot)
  assert settings.initial_gap is not None
  population = population_lib.expected(
    settings, settings.examples_per_user, settings.dimension
  )
  weight = planning_bound.noise_weight(
    settings.smoothness, population.num_parameters
  )
  sim = simulation.run(settings, population)
  noise = planning_bound.Noise(settings, population, progress)
  noise.add(sim)
  objective = planning_bound.Objective(
    contraction=settings.contraction,
    initial_gap=settings.initial_gap,
    noise_weight=weight,
    noise=noise,
    block_rounds=settings.block_rounds,
    coarse=settings.calibration == 'pld'
    or sim.mechanism.header.sampling == 'poisson',
  )
  optimal, plans = _compared(objective, settings)
  alternatives = _alternatives(objective, optimal, pilot)
  noise.close()
  return PlanReport(
    settings=settings,
    population=population,
    simulation=sim,
    statement=statements.of(sim.mechanism),
    noise=calibrated_noise(settings, population, sim),
    objective=objective,
    optimal=optimal,
    plans=plans,
    advice=_advice(settings, sim.mechanism),
    correlated=_correlated(settings, sim),
    pilot=pilot,
    alternatives=alternatives,
  )


def _advice(
  settings: planning_settings.PlanSettings, mechanism: mechanisms.Mechanism
) -> best_schedule.Advice | None:
  """Advice on schedules, if a record may be in every release.

  Otherwise the best schedule depends on the rounds that a record is in.
  """
  if not mechanism.takes_schedule or settings.sampling_rate < 1:
    return None
  response = best_schedule.impulse_response(
    settings.server_optimizer, settings.contraction, settings.rounds
  )
  return best_schedule.advise(response, settings.noise_shape)


def _correlated(
  settings: planning_settings.PlanSettings, sim: simulation.Simulation
) -> tuple[tuple[str, float], ...]:
  """Compares correlated noise, which a server that sees all data may add."""
  mechanism = sim.mechanism
  if not mechanism.shares_noise or mechanism.sums_securely:
    return ()
  if settings.users % settings.users_per_round:
    return ()  # The comparison needs balanced participation.
  cohorts = participation.BalancedParticipation(
    settings.users, settings.users_per_round, 0
  )
  z_eff = calibration_lib.equivalent_noise_multiplier(
    settings.epsilon, mechanism.delta
  )
  return correlated.compare(
    best_schedule.impulse_response(
      settings.server_optimizer, settings.contraction, settings.rounds
    ),
    participation.participations(
      [cohorts.cohort(m) for m in range(1, settings.rounds + 1)],
      settings.users,
    ).toarray(),
    z_eff**-2.0,
    sim.noise_multipliers,
  )


def _compared(
  objective: planning_bound.Objective,
  settings: planning_settings.PlanSettings,
) -> tuple[planning_bound.BoundPoint, tuple[planning_bound.ThetaPlan, ...]]:
  """The best plan, and the costs of some thetas."""
  theta, rounds = settings.theta, settings.rounds
  asked = objective.point(theta, rounds)
  if not objective.theta_matters(theta):
    best = objective.best_rounds(theta)
    return best, (planning_bound.ThetaPlan(asked, best),)
  optimal = objective.optimal()
  plans = [
    planning_bound.ThetaPlan(
      objective.point(other, rounds),
      objective.best_rounds(other, optimal.rounds),
    )
    for other in planning_bound.compared_thetas(
      theta, optimal.theta, objective.coarse
    )
  ]
  # No plan in the table may beat the best one, even without whole blocks.
  shown = [plan.best for plan in plans]
  if not settings.schedule:  # It has no theta.
    shown = [asked, *shown, *(plan.asked for plan in plans)]
  best = min(shown, key=lambda point: point.bound)
  is_better = best.bound < optimal.bound * (1 - 1e-6)
  return best if is_better else optimal, tuple(plans)
