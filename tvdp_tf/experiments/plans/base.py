"""What a mechanism means for a run: noise, ledger and statement."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvdp_tf import errors, privacy
from tvdp_tf.experiments import federation
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.learning import participation
from tvdp_tf.privacy import ledger, mechanisms

# The views of the statements.
SERVER_WORST = 'server, worst client'
SERVER_MEDIAN = 'server, median client'
OUTSIDER_WORST = 'outsider, worst client'

_ACCOUNTANTS = ('exact', 'pld', 'rdp')
_SEEDED = (
  'the noise is reproducible from --seed: it hides nothing from whoever knows '
  'the seed'
)


# A running sum of so many positive terms is good to this factor.
ROUNDED_UP = 1 + 1e-12
# Above the share of a budget that calibration leaves.
_LEFT_BY_ROUNDING = 1e-9


class BudgetSpentError(errors.TrainingFailedError):
  """Nobody's budget covers another round."""


@dataclasses.dataclass(frozen=True)
class Round:
  """The releases of one round; recorded before they happen.

  Attributes:
    number: From 1.
    clients: int64 [k], who takes part.
    noise_multipliers: float64 [k], of each client's releases.
    noise_stddev: The smallest standard deviation of noise that is added.
    noise_scales: float64 [k], as of `client_data.client_sequence`.
  """

  number: int
  clients: np.ndarray
  noise_multipliers: np.ndarray
  noise_stddev: float
  noise_scales: np.ndarray


class Plan(abc.ABC):
  """How one run is to be private, and what it has released so far.

  Attributes:
    settings: The run's settings.
    fed: The users and their data.
    mechanism: The mechanism, calibrated.
    releases_per_client: Releases of a client in a round, all with one noise.
    shares_noise: Whether all clients hide in one noise on their sum.
    replans: Whether the noise of the rounds to come is set anew if an
      interruption has cost releases, so that the budget lasts for all rounds.
    history: The releases taken so far; `take` adds to it.
  """

  mechanism: mechanisms.Mechanism
  releases_per_client: int = 1
  shares_noise: bool = False
  replans: bool = False

  def __init__(
    self,
    settings: settings_lib.TrainingSettings,
    fed: federation.Federation,
  ):
    self.settings = settings
    self.fed = fed
    self.history: list[Round] = []
    # Of each user: the sum of 1 / z**2, and z of each of its rounds.
    self._spent = np.zeros(settings.users)
    self._noise_multipliers: list[list[float]] = [
      [] for _ in range(settings.users)
    ]

  @property
  @abc.abstractmethod
  def header(self) -> ledger.LedgerHeader:
    """The ledger's header."""

  @abc.abstractmethod
  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> Round:
    """The releases of a round.

    Args:
      number: The round.
      clients: Who takes part.
      schedule_stddev: The round's standard deviation in the server's state.
    """

  def amounts(self, noise_multiplier: float) -> dict[str, Any]:
    """What the ledger is told of a client's releases in a round."""
    return {
      'noise_multiplier': noise_multiplier,
      'releases_per_client': self.releases_per_client,
    }

  def entry(self, releases: Round) -> dict[str, Any]:
    """What the ledger's record of a round says: arguments of `record`."""
    return {
      'clients': releases.clients.tolist(),
      'noise_multipliers': releases.noise_multipliers.tolist(),
      'releases_per_client': self.releases_per_client,
    }

  def recorded(self, record: ledger.LedgerRecord) -> Round:
    """The releases of a record: what `entry` has told, as it was.

    Returns:
      A `Round` for `take`. Its `noise_stddev` is NaN and its scales are ones:
      they are not on record.
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
    """Adds releases to the history; as much work as there are clients."""
    self.history.append(releases)
    with np.errstate(divide='ignore'):
      cost = self.releases_per_client * releases.noise_multipliers**-2.0
    self._spent[releases.clients] += cost
    for client, multiplier in zip(
      releases.clients.tolist(),
      releases.noise_multipliers.tolist(),
      strict=True,
    ):
      self._noise_multipliers[client].append(multiplier)

  def observe(self, state: Any) -> None:
    """Takes note of the process's state after a round."""
    del state

  def snapshot(self) -> Mapping[str, np.ndarray]:
    """What a resumed run needs beyond the settings and the history."""
    return {}

  def restore(self, snapshot: Mapping[str, np.ndarray], rounds: int) -> None:
    """Takes the state of an earlier `snapshot`.

    Args:
      snapshot: As returned by `snapshot`, maybe from a damaged file.
      rounds: The number of rounds planned then.

    Raises:
      ValueError: If it cannot be that of this plan.
    """
    del rounds
    if snapshot:
      raise ValueError(f'snapshot must be empty, got {sorted(snapshot)}')

  def refine(
    self, completed: int, new_rounds: int
  ) -> privacy.GeometricSchedule:
    """The schedule of another number of rounds; `Round`s to come follow it.

    Args:
      completed: The rounds 1..completed are over.
      new_rounds: M', above `completed`.
    """
    raise NotImplementedError(f'{type(self).__name__} has no refinement')

  @abc.abstractmethod
  def mean_noise_stddev(self, releases: Round) -> float:
    """Standard deviation of the noise in each parameter of the round's mean.

    Computed from what is public; see `round_metrics.signal_to_noise`.
    """

  @abc.abstractmethod
  def statement(self) -> privacy.PrivacyStatement:
    """The statement on all releases of the history."""

  def worst_epsilon(self) -> float:
    """Exact epsilon of the client that has spent most; view of the server."""
    return privacy.delivered_epsilon(
      self._multipliers(self._by_spending()[-1]), self.settings.delta, 'exact'
    )

  def planned(self, rounds: int | None = None) -> np.ndarray:
    """Who is to take part in rounds 1 to `rounds`, bool [users, rounds]."""
    cohorts = [
      self.fed.participation.cohort(m)
      for m in range(1, (rounds or self.settings.rounds) + 1)
    ]
    return participation.participations(cohorts, self.settings.users)

  def _spent_of(self, budget: float) -> np.ndarray:
    """The sum of 1 / z**2 of each user, rounded up; float64 [users].

    What rounding leaves of a budget is not left to spend: it would buy noise
    that drowns the model.
    """
    spent = self._spent * ROUNDED_UP
    return np.where(spent > budget * (1 - _LEFT_BY_ROUNDING), budget, spent)

  def _by_spending(self) -> list[int]:
    """Users from the one who has spent least to the one who has spent most.

    Gaussian releases compose to one of noise multiplier 1 / sqrt(sum of
    1 / z**2).
    """
    return np.argsort(self._spent, kind='stable').tolist()

  def _multipliers(self, client: int) -> np.ndarray:
    """The noise multipliers of all releases of a client."""
    rounds = np.array(self._noise_multipliers[client], np.float64)
    return np.repeat(rounds, self.releases_per_client)

  def _weights(self, clients: np.ndarray) -> np.ndarray:
    """p_k, the weights of these clients in the mean of a round."""
    sizes = self.fed.examples_per_user[clients].astype(np.float64)
    return sizes / sizes.sum()

  def _verdict(self, delivered_epsilon: float, why: str) -> tuple[bool, str]:
    """Whether a proven mechanism keeps its promise, and the reason.

    Args:
      delivered_epsilon: In the view that is promised, by a sound accountant.
      why: The reason, if it does.
    """
    if self.settings.seed is not None:
      return False, (
        'the noise is reproducible from --seed: this was a simulation'
      )
    if delivered_epsilon > self.settings.epsilon:
      return False, 'the releases have spent more than the target'
    return True, why

  def _warnings(self) -> list[str]:
    """Assumptions that the settings force on any mechanism."""
    found = []
    if self.settings.seed is not None:
      found.append(_SEEDED)
    unit = self.header.unit
    protected = (
      self.settings.users
      if unit == 'user'
      else int(self.fed.examples_per_user.sum())
    )
    if self.settings.delta >= 1 / protected:
      found.append(
        f'WARNING: delta = {self.settings.delta:g} is at least 1/n for the '
        f'{protected} {unit}s in the run, so a mechanism that publishes a '
        f'random {unit} could satisfy it'
      )
    return found


def largest_finite(noise_multipliers: np.ndarray) -> float:
  """The largest finite one; 1 if nobody can take part, and nobody will."""
  finite = noise_multipliers[np.isfinite(noise_multipliers)]
  return float(finite.max()) if len(finite) else 1.0


def delivered(
  noise_multipliers: np.ndarray, delta: float
) -> Mapping[str, float]:
  """Epsilon of unsampled releases, by accountant."""
  return {
    accountant: privacy.delivered_epsilon(noise_multipliers, delta, accountant)
    for accountant in _ACCOUNTANTS
  }
