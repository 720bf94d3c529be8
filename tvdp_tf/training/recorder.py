"""Records the releases of a round in the ledger before they happen.

After an interruption the ledger may be ahead of the last checkpoint: it has
rounds that were recorded, and so may have been released, but whose state was
lost. With a seed such a round is repeated bit for bit; the ledger recognizes
the repeat and charges it once. Without a seed the lost releases cannot be
repeated: they count, and the repeated round counts as well.
"""

import hashlib
import math
import secrets
from typing import Any, NamedTuple

import numpy as np

from tvdp_tf import mechanisms
from tvdp_tf.learning import noise
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import rounds as rounds_lib


class CohortSpentError(mechanisms.BudgetSpentError):
  """Raised if no client of a round has budget left for it."""


class Drawn(NamedTuple):
  """A round before it is known whose budget covers it.

  Attributes:
    releases: The round, with its whole cohort.
    noise_keys: The noise key of each client.
  """

  releases: mechanisms.Round
  noise_keys: dict[int, np.ndarray]


class Recorded(NamedTuple):
  """A recorded round that may be run.

  Attributes:
    releases: The round, as recorded.
    noise_keys: The noise key of each client.
    dropped: How many clients of the cohort have no budget left for it.
  """

  releases: mechanisms.Round
  noise_keys: dict[int, np.ndarray]
  dropped: int


class Recorder:
  """Records the rounds of one run in its ledger."""

  def __init__(
    self,
    rounds: rounds_lib.Rounds,
    ledger: ledger_lib.PrivacyLedger,
    settings_digest: bytes,
  ):
    self._rounds = rounds
    self._plan = rounds.plan
    self._seed = rounds.plan.settings.seed
    self._ledger = ledger
    self._settings_digest = settings_digest
    self._num_charged = len(ledger.charged)

  def charged(self) -> list[mechanisms.Round]:
    """Returns all rounds that the ledger has charged to this run, in order."""
    return [self._plan.recorded(record) for record in self._ledger.charged]

  def replay(self, releases: int) -> int:
    """Adds the ledger's rounds to the plan's history.

    Args:
      releases: How many of the charged records are in a checkpoint's history.

    Returns:
      How many rounds were released in vain, and will be released again.

    Raises:
      LedgerError: If the ledger holds fewer records.
    """
    charged = self.charged()
    if releases > len(charged):
      raise ledger_lib.LedgerError(
        f'the ledger holds {len(charged)} rounds of releases, but a checkpoint'
        f' counts {releases}: the ledger was put back to an earlier state'
      )
    for past in charged[:releases]:
      self._plan.take(past)
    lost = charged[releases:]
    if self._seed is not None:
      # The run repeats them. Until then, they are only in the ledger's book and
      # in the statement.
      return 0
    for past in lost:
      self._plan.take(past)
    return len(lost)

  def draw(self, state: Any, round_number: int) -> Drawn:
    """Draws a round's cohort and its noise keys.

    Args:
      state: The learning process's state before the round.
      round_number: The number of the round.
    """
    releases = self._rounds.releases(
      state, round_number, self._rounds.cohort(round_number)
    )
    return Drawn(releases, self._rounds.noise_keys(releases))

  def record(
    self, state: Any, round_number: int, ready: Drawn | None = None
  ) -> Recorded:
    """Records a round's releases by those clients that have budget left.

    Args:
      state: The learning process's state before the round.
      round_number: The number of the round.
      ready: What `draw` returned for them, if it was called before.

    Returns:
      The round to run; its releases are those of `ready` if all have budget.

    Raises:
      CohortSpentError: If no client of the round has budget left for it.
      BudgetSpentError: If the run has no budget left for any round.
      LedgerError: If the ledger cannot be written.
    """
    drawn, keys = ready or self.draw(state, round_number)
    shared, identities = self._identities(state, drawn, keys)
    # Other runs on the ledger must not spend what this one finds left.
    with self._ledger.locked():
      self._check_draws(round_number)
      left = self._affordable(drawn, identities)
      if not left and len(drawn.clients):  # Secret draws may be of nobody.
        raise CohortSpentError(_spent(round_number))
      releases = drawn
      if len(left) < len(drawn.clients):
        releases = self._rounds.releases(
          state, round_number, np.array(left, np.int64)
        )
      try:
        self._ledger.record(
          self._number_on_record(round_number, shared),
          release_ids=[shared]
          if self._plan.shares_noise
          else [identities[client] for client in left],
          **self._plan.entry(releases),
        )
      except ledger_lib.BudgetExceededError as error:
        raise mechanisms.BudgetSpentError(_spent(round_number)) from error
      self._num_charged += 1
    return Recorded(
      releases,
      {client: keys[client] for client in left},
      len(drawn.clients) - len(left),
    )

  def any_affordable_after(self, state: Any, round_number: int) -> bool:
    """Whether a later round has a client in its cohort with budget left.

    Args:
      state: The learning process's state before the round.
      round_number: The number of a round for which nobody has.
    """
    with self._ledger.locked():
      for later in range(round_number + 1, self._rounds.total + 1):
        state = rounds_lib.without_a_round(state)
        drawn, keys = self.draw(state, later)
        if self._affordable(drawn, self._identities(state, drawn, keys)[1]):
          return True
    return False

  def _identities(
    self, state: Any, drawn: mechanisms.Round, keys: dict[int, np.ndarray]
  ) -> tuple[str, dict[int, str]]:
    """Returns what identifies a round in the ledger, and each of its clients.

    Args:
      state: The learning process's state before the round.
      drawn: The round.
      keys: The noise key of each client.
    """
    model_digest = _digest(state)

    def identity(key: bytes) -> str:
      return ledger_lib.release_id(key, model_digest, self._settings_digest)

    shared = identity(self._shared_noise_key(drawn.number))
    return shared, {
      client: shared
      if self._plan.shares_noise
      else identity(keys[client].tobytes())
      for client in drawn.clients.tolist()
    }

  def _check_draws(self, round_number: int) -> None:
    """Checks that the run's share of delta covers another round's noise draws.

    Raises:
      BudgetSpentError: If the run has drawn as much as the share covers.
    """
    settings = self._plan.settings
    covered = noise_distance.TIMES_PLANNED * settings.rounds
    if self._num_charged >= covered and self._plan.noise_distance:
      raise mechanisms.BudgetSpentError(
        f'delta covers the noise of {covered} rounds, and as many are on record'
        f' after interruptions: the run stops after {round_number - 1} rounds'
      )

  def _affordable(
    self, drawn: mechanisms.Round, identities: dict[int, str]
  ) -> list[int]:
    """Returns the clients whose budget covers, or has covered, the round."""
    clients = drawn.clients.tolist()
    header = self._ledger.header
    if not header.enforced or header.sampling != 'none':
      return clients
    # A repeat is free for those who took part the first time.
    earlier = self._ledger.first_uses(identities[client] for client in clients)
    fits = {
      clients[i] for i, use in earlier.items() if clients[i] in use.clients
    }
    fresh: dict[float, list[int]] = {}
    pairs = zip(clients, drawn.noise_multipliers.tolist(), strict=True)
    for i, (client, multiplier) in enumerate(pairs):
      if i not in earlier and math.isfinite(multiplier):
        fresh.setdefault(multiplier, []).append(client)
    for multiplier, group in fresh.items():
      amounts = self._plan.amounts(multiplier)
      fits.update(self._ledger.affordable_clients(group, **amounts))
    return [client for client in clients if client in fits]

  def _number_on_record(self, round_number: int, shared: str) -> int:
    """Returns the round's number in the ledger.

    Secret draws are independent only for different numbers, so a round that is
    drawn again gets a new number.
    """
    repeats = self._ledger.first_use(shared) is not None
    if self._ledger.header.sampling == 'none' or repeats:
      return round_number
    while self._ledger.attempts(round_number):
      round_number += 1
    return round_number

  def _shared_noise_key(self, round_number: int) -> bytes:
    if self._seed is None:
      return secrets.token_bytes(16)  # Drawn in secret.
    key = noise.seeded_noise_key(self._seed, round_number, noise.SERVER)
    return key.tobytes()


def _spent(round_number: int) -> str:
  if round_number == 1:
    return (
      'no client has budget left for round 1: the budget is spent, or the round'
      ' alone costs more'
    )
  return (
    f'no client of round {round_number} has budget left: the run stops after'
    f' {round_number - 1} rounds'
  )


def _digest(state: Any) -> bytes:
  """Returns the digest of the model that the round starts from."""
  digest = hashlib.sha256()
  for weight in state.global_model_weights.trainable:
    digest.update(np.ascontiguousarray(weight).tobytes())
  return digest.digest()
