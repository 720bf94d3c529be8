"""What a mechanism means for a run: noise, ledger and statement."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf import privacy
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
  """How one run is to be private.

  Attributes:
    settings: The run's settings.
    fed: The users and their data.
    mechanism: The mechanism, calibrated.
    releases_per_client: Releases of a client in a round, all with one noise.
    shares_noise: Whether all clients hide in one noise on their sum.
  """

  mechanism: mechanisms.Mechanism
  releases_per_client: int = 1
  shares_noise: bool = False

  def __init__(
    self,
    settings: settings_lib.TrainingSettings,
    fed: federation.Federation,
  ):
    self.settings = settings
    self.fed = fed

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

  def observe(self, state: Any) -> None:
    """Takes note of the process's state after a round."""
    del state

  def refine(
    self, history: Sequence[Round], new_rounds: int
  ) -> privacy.GeometricSchedule:
    """The schedule of another number of rounds; `Round`s to come follow it.

    Args:
      history: The rounds completed.
      new_rounds: M', above their number.
    """
    raise NotImplementedError(f'{type(self).__name__} has no refinement')

  @abc.abstractmethod
  def statement(self, history: Sequence[Round]) -> privacy.PrivacyStatement:
    """The statement on all releases that happened."""

  def worst_epsilon(self, history: Sequence[Round]) -> float:
    """Exact epsilon of the client that has spent most; view of the server."""
    multipliers = self._multipliers(history)
    worst = by_spending(multipliers)[-1]
    return privacy.delivered_epsilon(
      multipliers[worst], self.settings.delta, 'exact'
    )

  def planned(self, rounds: int | None = None) -> np.ndarray:
    """Who is to take part in rounds 1 to `rounds`, bool [users, rounds]."""
    cohorts = [
      self.fed.participation.cohort(m)
      for m in range(1, (rounds or self.settings.rounds) + 1)
    ]
    return participation.participations(cohorts, self.settings.users)

  def _multipliers(self, history: Sequence[Round]) -> list[np.ndarray]:
    """Of each user, the noise multipliers of all its releases."""
    lists: list[list[float]] = [[] for _ in range(self.settings.users)]
    for past in history:
      for client, multiplier in zip(
        past.clients.tolist(), past.noise_multipliers.tolist(), strict=True
      ):
        lists[client] += [multiplier] * self.releases_per_client
    return [np.array(values) for values in lists]

  def _spent(self, history: Sequence[Round]) -> np.ndarray:
    """Of each user, the sum of 1 / z**2 over its releases, rounded up."""
    return spent(self._multipliers(history)) * (1 + 1e-14)

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


def spent(multipliers: Iterable[np.ndarray]) -> np.ndarray:
  """Sum of 1 / z**2 over each user's noise multipliers, float64 [users]."""
  return np.array([np.sum(z**-2.0) for z in multipliers])


def by_spending(multipliers: Iterable[np.ndarray]) -> list[int]:
  """Users from the one who has spent least to the one who has spent most.

  Args:
    multipliers: Of each user, the noise multipliers of its releases.

  Returns:
    Indices of the users, sorted by the sum of 1 / z**2: Gaussian releases
    compose to one of noise multiplier 1 / sqrt(sum).
  """
  return np.argsort(spent(multipliers), kind='stable').tolist()


def delivered(
  noise_multipliers: np.ndarray, delta: float
) -> Mapping[str, float]:
  """Epsilon of unsampled releases, by accountant."""
  return {
    accountant: privacy.delivered_epsilon(noise_multipliers, delta, accountant)
    for accountant in _ACCOUNTANTS
  }
