"""Rules for who takes part in which round: pure functions of (seed, round).

They need no state, so a resumed run draws the same cohorts as the interrupted
run would have drawn.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from scipy import sparse

from tvdp_tf import _validate


@dataclasses.dataclass(frozen=True)
class Participation(abc.ABC):
  """A rule that draws K of U users for every round.

  Attributes:
    users: U.
    users_per_round: K, at most U.
    seed: Seed of the draws, in [0, 2**63).
  """

  users: int
  users_per_round: int
  seed: int

  def __post_init__(self):
    _validate.integer('users', self.users)
    _validate.integer('users_per_round', self.users_per_round, 1, self.users)
    _validate.integer('seed', self.seed, 0, 2**63 - 1)

  @property
  def sampling_rate(self) -> float:
    """The fraction of users in a round, q = K / U."""
    return self.users_per_round / self.users

  @abc.abstractmethod
  def cohort(self, round_number: int) -> np.ndarray:
    """Returns sorted user indices, int64 [K]; rounds are counted from 1."""


class UniformParticipation(Participation):
  """Draws K of U users uniformly without replacement in every round.

  This is the paper's rule. Over M rounds, a user takes part in q M rounds on
  average, q = K / U, but an unlucky one in many more: account for the actual
  participations, not for their mean.
  """

  def cohort(self, round_number: int) -> np.ndarray:
    """Draws K users without replacement; sorted, int64 [K]."""
    _validate.integer('round_number', round_number)
    rng = np.random.default_rng([self.seed, round_number])
    chosen = rng.choice(self.users, self.users_per_round, replace=False)
    return np.sort(chosen)


class BalancedParticipation(Participation):
  """Partitions the users at random in each block of U / K rounds.

  Everyone takes part exactly once per block, hence in q M of M rounds if M is a
  multiple of U / K, and nobody depends on luck.
  """

  def __post_init__(self):
    super().__post_init__()
    if self.users % self.users_per_round:
      raise ValueError(
        'users_per_round must divide users with balanced participation, got '
        f'{self.users_per_round} of {self.users}'
      )

  def cohort(self, round_number: int) -> np.ndarray:
    """Returns the round's part of the block's partition; sorted, int64 [K]."""
    _validate.integer('round_number', round_number)
    rounds_per_block = self.users // self.users_per_round
    block, place = divmod(round_number - 1, rounds_per_block)
    order = np.random.default_rng([self.seed, block]).permutation(self.users)
    return np.sort(order.reshape(rounds_per_block, -1)[place])


class PoissonParticipation(Participation):
  """Includes each user independently with probability q = K / U.

  A round may be empty; `users_per_round` is the expected cohort size. Privacy
  amplification by sampling needs secret draws, so `seed` must be secret.
  """

  def cohort(self, round_number: int) -> np.ndarray:
    """Returns the users that were drawn; sorted, int64 [any size]."""
    _validate.integer('round_number', round_number)
    rng = np.random.default_rng([self.seed, round_number])
    return np.flatnonzero(rng.random(self.users) < self.sampling_rate)


PARTICIPATIONS: dict[str, Callable[[int, int, int], Participation]] = {
  'uniform': UniformParticipation,
  'balanced': BalancedParticipation,
  'poisson': PoissonParticipation,
}


def participations(
  cohorts: Iterable[np.ndarray], users: int
) -> sparse.csr_array:
  """Returns which user took part in which round: sparse bool [users, rounds].

  Takes five bytes per participation.
  """
  drawn = [cohort.astype(np.int32) for cohort in cohorts]
  ends = np.cumsum([0, *map(len, drawn)])
  taken = np.concatenate([np.zeros(0, np.int32), *drawn])
  by_round = sparse.csc_array(
    (np.ones(len(taken), bool), taken, ends), shape=(users, len(drawn))
  )
  return by_round.tocsr()
