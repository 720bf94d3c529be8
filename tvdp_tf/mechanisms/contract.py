"""The base class of mechanisms: options, noise, ledger, statement and graph.

Each mechanism is a subclass of `Mechanism` in a file of its own. Training,
planner, attacks and reports use only this interface. Nothing here loads
TensorFlow except `GraphMechanism.parts`.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from tvdp_tf import errors, privacy
from tvdp_tf.learning import participation, views
from tvdp_tf.mechanisms import statements
from tvdp_tf.mechanisms.interfaces import GraphMechanism, Population, Round
from tvdp_tf.privacy import calibration, ledger, noise_distance, sensitivity
from tvdp_tf.privacy import spending as spending_lib

# The views of the statements.
SERVER_WORST = 'server, worst client'
SERVER_MEDIAN = 'server, median client'
OUTSIDER_WORST = 'outsider, worst client'


class BudgetSpentError(errors.TrainingFailedError):
  """Nobody's budget covers another round."""


class Mechanism(abc.ABC):
  """The privacy mechanism of one run, and what it has released so far.

  The class describes the mechanism and its options. An instance is the
  mechanism calibrated for a run.

  Attributes:
    name: The name of the mechanism, as in `--mechanism`.
    summary: Where the noise is added, in a few words, for --help and reports.
    noise_on: What the noise of a release is added to.
    graph: The type of `mechanism`.
    participations: The supported kinds of participation, the default first.
    noises: How the noise may be drawn; empty if there is no choice.
    is_sound: Whether its statement may hold. If so, its ledger must enforce the
      target, and the distance of its noise from Gaussian noise is subtracted
      from delta before calibration.
    clips_examples: Whether each step releases a mean of clipped gradients.
    example_views: The `views.VIEWS` that it may average before clipping.
    takes_schedule: Whether you can choose the shape of its noise schedule.
    sums_securely: Whether its process has secure sums, simulated here.
    unit: What is protected, 'example' or 'user'.
    adjacencies: Its neighboring relations from `sensitivity.ADJACENCIES`, the
      default first.
    defaults: Its default `local_steps` and `learning_rate`, where they differ.
    adjacency: The neighboring relation of the run.
    settings: The run's settings, a `TrainingSettings`.
    fed: The users.
    mechanism: The calibrated `GraphMechanism`.
    releases_per_client: The number of releases of a client in a round, all with
      equal noise.
    shares_noise: Whether a single noise on the sum protects all clients.
    noise: One of `noise_distance.NOISES`.
    delta: The part of the target that is left for the accountant
      (`privacy.noise_distance`).
    noise_distance: The largest distance of the drawn noise from Gaussian
      noise.
    replans: Whether the noise of later rounds is recalibrated if an
      interruption has cost releases, so that the budget lasts for all rounds.
    renyi_order: With secret sampling, the order, fixed in advance, at which the
      ledger enforces the target; None if it is chosen at the end.
    history: The releases taken so far; `take` adds to it.
  """

  name: ClassVar[str]
  summary: ClassVar[str] = 'a mechanism of your own'
  noise_on: ClassVar[str] = 'what is released'
  graph: ClassVar[type[GraphMechanism]] = GraphMechanism
  participations: ClassVar[tuple[str, ...]] = ('uniform', 'balanced')
  noises: ClassVar[tuple[str, ...]] = (noise_distance.CONTINUOUS,)
  is_sound: ClassVar[bool] = True
  clips_examples: ClassVar[bool] = False
  example_views: ClassVar[tuple[str, ...]] = (views.NONE,)
  takes_schedule: ClassVar[bool] = True
  sums_securely: ClassVar[bool] = False
  unit: ClassVar[str] = 'example'
  adjacencies: ClassVar[tuple[str, ...]] = (sensitivity.REPLACE_ONE,)
  defaults: ClassVar[Mapping[str, Any]] = {
    'local_steps': 10,
    'learning_rate': 1.0,
  }

  mechanism: GraphMechanism
  releases_per_client: int = 1
  shares_noise: bool = False
  noise: str = noise_distance.CONTINUOUS
  delta: float
  noise_distance: float = 0.0
  replans: bool = False
  renyi_order: float | None = None

  def __init__(self, settings: Any, fed: Population):
    self.settings = settings
    self.fed = fed
    self.history: list[Round] = []
    self.adjacency: str = settings.adjacency
    self.delta = settings.delta
    self.releases_per_client = self.releases_in_a_round(settings)
    # Whether the noise is Gaussian as far out as the promise needs it.
    self.reaches_far_enough = True
    if self.is_sound:
      self._choose_noise()

  @classmethod
  def calibrations(cls, participation_name: str) -> tuple[str, ...]:
    """The rules that may set the noise, the default first; empty if none."""
    del participation_name
    return calibration.ACCOUNTED

  @classmethod
  def refinements(cls, participation_name: str) -> tuple[str, ...]:
    """How the number of rounds may change during the run."""
    del participation_name
    return ('none',)

  @classmethod
  def check(cls, settings: Any) -> None:
    """Checks additional requirements on the settings.

    Raises:
      ValueError: If a setting is out of its range.
    """
    del settings

  @classmethod
  def releases_in_a_round(cls, settings: Any) -> int:
    """The number of releases of a client in a round, with equal noise."""
    del settings
    return 1

  @property
  def schedule(self) -> privacy.NoiseSchedule | None:
    """The noise of every round, in the mechanism's unit; None without noise."""
    return getattr(self.mechanism, 'schedule', None)

  def graph_key(self) -> Hashable:
    """Equal for runs whose mechanisms differ at most in the schedule."""
    fields = {
      field.name: getattr(self.mechanism, field.name)
      for field in dataclasses.fields(self.mechanism)
      if field.name not in self.mechanism.IN_STATE
    }
    # Each kind of schedule has its own fields in the state, and its own graph.
    schedule = self.schedule
    kind: Hashable = type(schedule).__name__
    if isinstance(schedule, privacy.ListedSchedule):
      kind = (kind, schedule.rounds)
    return (type(self.mechanism), kind, *sorted(fields.items()))

  @classmethod
  def _given_noise(cls, settings: Any) -> str:
    return cls.noises[0] if len(cls.noises) == 1 else settings.noise

  @classmethod
  def may_draw_discretely(cls, settings: Any) -> bool:
    """Whether the settings allow discrete noise.

    If the settings name no noise, the choice also depends on delta
    (`_choose_noise`).

    Args:
      settings: The settings of a training run with this mechanism.
    """
    if noise := cls._given_noise(settings):
      return noise == noise_distance.DISCRETE
    # TFF's worker has no compiler to fuse the generator's ops: there it takes
    # several times as long as the continuous noise.
    return (
      noise_distance.DISCRETE in cls.noises
      and settings.seed is None
      and settings.runtime == 'compiled'
    )

  def _choose_noise(self) -> None:
    """Sets `noise` and `delta`, from the settings and the tail of the noise.

    Raises:
      ValueError: If delta is too small for the drawn noise.
    """
    settings = self.settings
    releases = self.releases_per_client * settings.rounds
    values = self.fed.num_parameters * releases
    if not values:
      self.noise = settings.noise or self.noise
      return
    share = functools.partial(
      noise_distance.share_of_delta, settings.epsilon, values
    )
    self.noise = self._given_noise(settings)
    if not self.noise:
      self.noise = noise_distance.CONTINUOUS
      if self.may_draw_discretely(settings) and (
        share(noise_distance.DISCRETE) <= settings.delta / 1000
      ):
        self.noise = noise_distance.DISCRETE
    self.noise_distance = noise_distance.distance(values, self.noise)
    # No useful delta is large enough: at such an epsilon, values beyond the end
    # of the noise tell the data sets apart.
    self.reaches_far_enough = share(self.noise) < noise_distance.LARGEST_SHARE
    if self.reaches_far_enough:
      self.delta = noise_distance.accounted_delta(
        settings.delta, settings.epsilon, values, self.noise
      )

  @property
  def header(self) -> ledger.LedgerHeader:
    """The header of a ledger for this run only: its budget."""
    return ledger.LedgerHeader(
      unit=self.unit,
      adjacency=self.adjacency,
      target_epsilon=self.settings.epsilon,
      delta=self.settings.delta,
      clients=self.settings.users,
    )

  @functools.cached_property
  def spending(self) -> spending_lib.Spending:
    """What the releases of the history have spent.

    This is the spending of the run at its current round. The ledger may be
    ahead: after an interruption, it contains rounds that a run with a seed
    still has to repeat, with the same noise and metrics.
    """
    header = self.header
    return spending_lib.of(header, header.target_epsilon, self.delta)

  @property
  def _sampling_rate(self) -> float:
    """The rate of secret sampling; 1 if sampling is not secret."""
    secret = self.header.sampling == 'poisson'
    return self.settings.sampling_rate if secret else 1.0

  @property
  @abc.abstractmethod
  def sensitivity_on_record(self) -> tuple[str, bool]:
    """The sensitivity in words with numbers, and whether it is proven."""

  @property
  def proven_rule(self) -> sensitivity.SensitivityRule | None:
    """A proven sensitivity of its releases, if its own is not proven."""
    return None

  def ledger_run(
    self, settings_digest: bytes, run_id: str, selection: str = ''
  ) -> ledger.LedgerRun:
    """The entry of the run in the ledger.

    Args:
      settings_digest: The digest of the run's configuration.
      run_id: As for `LedgerRun`.
      selection: As for `LedgerRun`.
    """
    formula, proven = self.sensitivity_on_record
    if not self._is_ours():
      formula = ledger.claimed(formula, type(self).__module__)
    return ledger.LedgerRun(
      mechanism=self.settings.mechanism,
      sensitivity=formula,
      sensitivity_proven=proven,
      target_epsilon=self.header.target_epsilon,
      seeded=self.settings.seed is not None,
      noise=self.noise,
      noise_distance=self.noise_distance,
      settings_digest=settings_digest.hex(),
      sampling_rate=self._sampling_rate,
      selection=selection,
      run_id=run_id,
    )

  def sensitivities(self) -> np.ndarray:
    """The L2 sensitivity of each user's release, float64 [users]."""
    raise NotImplementedError

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> Round:
    """The releases of a round; here each client adds the schedule's noise.

    Args:
      number: The round.
      clients: The clients that take part.
      schedule_stddev: The round's standard deviation in the server's state.
    """
    return Round(
      number,
      clients,
      schedule_stddev / self.sensitivities()[clients],
      schedule_stddev,
      np.ones(len(clients)),
    )

  def amounts(self, noise_multiplier: float) -> dict[str, Any]:
    """A client's releases in a round, as arguments of the ledger."""
    return {
      'noise_multiplier': noise_multiplier,
      'releases_per_client': self.releases_per_client,
    }

  def entry(self, releases: Round) -> dict[str, Any]:
    """A round's releases, as arguments of the ledger's `record`."""
    return {
      'clients': releases.clients.tolist(),
      'noise_multipliers': releases.noise_multipliers.tolist(),
      'releases_per_client': self.releases_per_client,
    }

  def recorded(self, record: ledger.LedgerRecord) -> Round:
    """The releases of a ledger record, the inverse of `entry`.

    Returns:
      A `Round` for `take`. Its `noise_stddev` is NaN and its scales are ones,
      because the ledger does not record them.
    """
    clients = np.array(record.clients, np.int64)
    return Round(
      record.round,
      clients,
      self._recorded_multipliers(record, max(1, len(clients))),
      math.nan,
      np.ones(len(clients)),
    )

  def _recorded_multipliers(
    self, record: ledger.LedgerRecord, count: int
  ) -> np.ndarray:
    return np.broadcast_to(np.array(record.noise_multipliers), [count])

  def take(self, releases: Round) -> None:
    """Adds releases to the history; linear in the number of clients."""
    self.history.append(releases)
    self.spending.record(rate=self._sampling_rate, **self.entry(releases))

  def retake(self, history: Iterable[Round]) -> None:
    """Replaces the history by these releases.

    Use it after an interrupt, which may have happened in the middle of `take`.
    """
    self.history.clear()
    self.__dict__.pop('spending', None)
    for releases in history:
      self.take(releases)

  def observe(self, state: Any) -> None:
    """Records the process's state after a round."""
    del state

  def snapshot(self) -> Mapping[str, np.ndarray]:
    """The state that a resumed run needs besides settings and history."""
    return {}

  def restore(self, snapshot: Mapping[str, np.ndarray], rounds: int) -> None:
    """Restores the state of an earlier `snapshot`.

    Args:
      snapshot: The result of `snapshot`, possibly from a damaged file.
      rounds: The number of rounds that were planned at that time.

    Raises:
      ValueError: If the snapshot cannot belong to this plan.
    """
    del rounds
    if snapshot:
      raise ValueError(f'snapshot must be empty, got {sorted(snapshot)}')

  def refine(self, completed: int, new_rounds: int) -> privacy.NoiseSchedule:
    """The schedule for a new number of rounds, which later rounds follow.

    Args:
      completed: The rounds 1..completed are complete.
      new_rounds: M', above `completed`.
    """
    raise NotImplementedError(f'{type(self).__name__} has no refinement')

  def mean_noise_stddev(self, releases: Round) -> float:
    """Standard deviation of the noise in each parameter of the round's mean.

    Computed from public values; see `metrics.signal_to_noise`. Here every
    upload has the round's noise. If a custom mechanism protects users, their
    numbers of examples are private, so all users have equal weight.
    """
    weights = self._weights(releases.clients)
    if self.unit == 'user' and not self._is_ours():
      weights = np.full(len(weights), 1 / max(1, len(weights)))
    return releases.noise_stddev * float(np.linalg.norm(weights))

  @abc.abstractmethod
  def statement(self) -> privacy.PrivacyStatement:
    """The statement on all releases of the history; see `statements.of`."""

  def worst_epsilon(self) -> float:
    """Epsilon of the client that has spent the most, in the server's view."""
    return self.spending.worst_epsilon()

  def planned(self, rounds: int | None = None) -> sparse.csr_array:
    """The planned cohorts of rounds 1 to `rounds`, bool [users, rounds]."""
    cohorts = (
      self.fed.participation.cohort(m)
      for m in range(1, (rounds or self.settings.rounds) + 1)
    )
    return participation.participations(cohorts, self.settings.users)

  @functools.cached_property
  def _calibrated_budget(self) -> float:
    """The sum of 1/z^2 over a user's releases that delivers the target."""
    settings = self.settings
    z_eff = calibration.equivalent_noise_multiplier(
      settings.epsilon, self.delta, settings.calibration
    )
    return z_eff**-2.0

  def _initial_multipliers(self, rounds: int, completed: int = 0) -> np.ndarray:
    """z_{k,1} with which each user spends the rest of the budget, [users]."""
    budget = self._calibrated_budget
    return calibration.initial_noise_multipliers(
      self.planned(rounds),
      self.settings.noise_shape,
      self.releases_per_client,
      budget,
      self.spending.spent_of(budget) if self.history else 0.0,
      completed,
    )

  def _schedule_of(
    self, initial: np.ndarray, rounds: int
  ) -> privacy.NoiseSchedule:
    """The schedule of the user with the most noise, given all z_{k,1}."""
    finite = initial[np.isfinite(initial)]
    # If nobody can take part, the noise does not matter.
    largest = float(finite.max()) if len(finite) else 1.0
    return self.settings.noise_shape.schedule(rounds, largest)

  def _for_worst_user(
    self, rounds: int, completed: int = 0
  ) -> privacy.NoiseSchedule:
    """The schedule with which the user with the least budget left spends it.

    If all clients share one noise; see also `calibration.without_lost_round`.
    """
    initial = self._initial_multipliers(rounds, completed)
    if self.history:
      initial = calibration.without_lost_round(
        initial, self.planned(rounds), self.settings.noise_shape, completed
      )
    return self._schedule_of(initial, rounds)

  def _weights(self, clients: np.ndarray) -> np.ndarray:
    """p_k, the weights of these clients in the mean of a round."""
    sizes = self.fed.examples_per_user[clients].astype(np.float64)
    return sizes / sizes.sum()

  def delivered_views(
    self, worst: str, median: str
  ) -> dict[str, Mapping[str, float]]:
    """The proven delivered epsilons of the worst and the median user.

    Args:
      worst: The name of the view for the user who has spent the most.
      median: The name of the view for the median user.
    """
    order = self.spending.by_spending()
    return {
      view: self._proven(
        statements.delivered(self.spending.noise_multipliers(user), self.delta)
      )
      for view, user in ((worst, order[-1]), (median, order[len(order) // 2]))
    }

  def sound_statement(
    self,
    views: Mapping[str, Mapping[str, float]],
    view: str,
    *,
    why: str,
    assumptions: Sequence[str],
    rule: sensitivity.SensitivityRule,
  ) -> privacy.PrivacyStatement:
    """The statement of a mechanism whose sensitivity is proven.

    Args:
      views: The epsilons by view and accountant.
      view: The promised view.
      why: The reason why it holds, if no more than the target was spent.
      assumptions: Assumptions in addition to those of every statement.
      rule: The sensitivity.
    """
    settings = self.settings
    holds, reason = statements.verdict(self, min(views[view].values()), why)
    return privacy.PrivacyStatement(
      target_epsilon=settings.epsilon,
      delta=settings.delta,
      claimed_epsilon=settings.epsilon,
      delivered=views,
      unit=self.unit,
      adjacency=self.adjacency,
      assumptions=(
        *assumptions,
        *statements.assumptions(self),
        *statements.warnings(self),
      ),
      holds=holds,
      reason=reason,
      view=view,
      sensitivity=rule,
      units=self.units,
    )

  @property
  def units(self) -> int:
    """The number of examples or users that the run protects."""
    if self.header.unit == 'user':
      return self.settings.users
    return int(self.fed.examples_per_user.sum())

  @property
  def as_planned(self) -> bool:
    """Whether every round was run, once, with the noise of the first plan.

    Each round must also have had its whole cohort. Otherwise the number of
    releases, or their noise, may have been chosen by looking at earlier
    releases.
    """
    numbers = [past.number for past in self.history]
    cohort_size = self.settings.users_per_round
    return (
      self.settings.refinement == 'none'
      and numbers == list(range(1, self.settings.rounds + 1))
      and self._follows_plan
      and (
        self.header.sampling == 'poisson'
        or all(len(past.clients) == cohort_size for past in self.history)
      )
    )

  @functools.cached_property
  def planned_multipliers(self) -> tuple[float, ...]:
    """The noise multipliers of all planned rounds, with secret sampling."""
    nobody = np.zeros(0, np.int64)
    stddevs = [] if self.schedule is None else self.schedule.stddevs().tolist()
    return tuple(
      float(self.round(m, nobody, stddev).noise_multipliers[0])
      for m, stddev in enumerate(stddevs, start=1)
    )

  @property
  def _follows_plan(self) -> bool:
    """Whether the noise of secret samples is that of the first rounds planned.

    In the ledger, an interrupted round that is released again gets a number of
    its own, so only the noise shows it.
    """
    if self.header.sampling != 'poisson':
      return True
    taken = [past.noise_multipliers[0] for past in self.history]
    planned = self.planned_multipliers[: len(taken)]
    return len(taken) == len(planned) and np.allclose(taken, planned, 1e-9, 0)

  @property
  def covers_changes(self) -> bool:
    """Whether the target is proven no matter why the run stopped or changed.

    With secret sampling and noise that may depend on earlier releases, it is
    proven only at an order that was fixed in advance. The noise of the first
    rounds of a plan does not depend on releases, and neither does noise that is
    always the same.
    """
    if self._follows_plan or self.renyi_order is not None:
      return True
    taken = {float(past.noise_multipliers[0]) for past in self.history}
    return len(taken) == 1 and len({*self.planned_multipliers}) == 1

  def _proven(self, by_accountant: Mapping[str, float]) -> Mapping[str, float]:
    """What is proven, given epsilons that were computed at the end of the run.

    The sum of what was spent is known when the run stops. But if the data have
    decided when it stops, it is only proven that the sum stays within the
    target (a privacy filter; Rogers et al., 2016), not that it is that small.
    """
    if self.as_planned or not self.header.enforced:
      return by_accountant
    return {
      accountant: max(epsilon, self.settings.epsilon)
      for accountant, epsilon in by_accountant.items()
    }

  @classmethod
  def _is_ours(cls) -> bool:
    return cls.__module__.startswith('tvdp_tf.mechanisms.')
