"""Who takes part in which round: pure functions of (seed, round).

Being pure they need no state: a resumed run draws the cohorts that the
interrupted one would have drawn.
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
    """The share of users in a round, q = K / U."""
    return self.users_per_round / self.users

  @abc.abstractmethod
  def cohort(self, round_number: int) -> np.ndarray:
    """The sorted indices, int64 [K], of the users of a round from 1."""


class UniformParticipation(Participation):
  """K of U users, uniformly without replacement, anew in every round.

  The paper's rule. Over M rounds a user takes part in q M rounds on average,
  q = K / U, and an unlucky one in many more: account for the participations
  that happened, not for their mean.
  """

  def cohort(self, round_number: int) -> np.ndarray:
    """K users, drawn without replacement, sorted, int64 [K]."""
    _validate.integer('round_number', round_number)
    rng = np.random.default_rng([self.seed, round_number])
    chosen = rng.choice(self.users, self.users_per_round, replace=False)
    return np.sort(chosen)


class BalancedParticipation(Participation):
  """Blocks of U / K rounds, each a fresh random partition of the users.

  Everyone takes part exactly once a block, hence in q M of M rounds when M is a
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
    """The round's part of its block's partition, sorted, int64 [K]."""
    _validate.integer('round_number', round_number)
    rounds_per_block = self.users // self.users_per_round
    block, place = divmod(round_number - 1, rounds_per_block)
    order = np.random.default_rng([self.seed, block]).permutation(self.users)
    return np.sort(order.reshape(rounds_per_block, -1)[place])


class PoissonParticipation(Participation):
  """Each user with probability q = K / U, on its own; a round may be empty.

  `users_per_round` is the expected size of a cohort. Privacy amplification by
  sampling needs the draws to be secret, and so must `seed` be.
  """

  def cohort(self, round_number: int) -> np.ndarray:
    """Those whose draws came up, sorted, int64 [any size]."""
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
  """Which user took part in which round: bool, sparse, [users, rounds].

  Five bytes for every part that somebody took.
  """
  drawn = [cohort.astype(np.int32) for cohort in cohorts]
  ends = np.cumsum([0, *map(len, drawn)])
  taken = np.concatenate([np.zeros(0, np.int32), *drawn])
  by_round = sparse.csc_array(
    (np.ones(len(taken), bool), taken, ends), shape=(users, len(drawn))
  )
  return by_round.tocsr()
