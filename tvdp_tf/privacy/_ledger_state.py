"""What a ledger's records add up to: replayed from the file, or under way.

A release is told by its noise key. The same key with the same client, round,
model, settings and noise yields the same bits: a repeat, which discloses
nothing new and is not charged. The same key with anything else is refused: the
difference of the two releases has no noise in it.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf.privacy import _chained_file, _ledger_budget
from tvdp_tf.privacy import _ledger_format as format_lib
from tvdp_tf.privacy._ledger_format import LedgerHeader, LedgerRecord


class NoiseReuseError(_chained_file.LedgerError):
  """A noise key is used again for another release."""


class BudgetExceededError(_chained_file.LedgerError):
  """A release would overspend; nothing was recorded.

  Attributes:
    client: The first client that cannot afford it.
    epsilon: What it would have spent.
    target_epsilon: What it may spend.
  """

  def __init__(self, client: int, epsilon: float, header: LedgerHeader):
    self.client = client
    self.epsilon = epsilon
    self.target_epsilon = header.target_epsilon
    super().__init__(
      f'client {client} would reach epsilon {epsilon!r} at delta'
      f' {header.delta!r}, above its target {header.target_epsilon!r}: nothing'
      ' was recorded, and nothing must be released'
    )


def _release_at(record: LedgerRecord, i: int) -> tuple:
  """All that a release is made of except its noise key."""
  clients, amounts = record.clients, record.amounts
  if len(record.noise_digests) == len(clients):
    clients = clients[i : i + 1]
    amounts = amounts[i : i + 1] if len(amounts) > 1 else amounts
  what = (record.round, record.releases_per_client, record.inputs()[i])
  return (*what, clients, amounts)


def _only(record: LedgerRecord, positions: list[int]) -> LedgerRecord:
  """The record with those of its releases alone."""
  if len(positions) == len(record.noise_digests):
    return record

  def some(values: tuple) -> tuple:
    return tuple(values[i] for i in positions) if len(values) > 1 else values

  return dataclasses.replace(
    record,
    clients=some(record.clients),
    noise_multipliers=some(record.noise_multipliers),
    noise_digests=some(record.noise_digests),
    input_digests=some(record.input_digests),
  )


class LedgerState:
  """The sum of the records applied so far.

  Attributes:
    header: What the numbers mean.
    budget: What the clients have spent.
    attempts: How often each round has been recorded, by round.
    participations: Records that charged each client, int64 [clients].
    repeats: Releases that were recognised as repeats.
    charged: The records in order, each with only those of its releases that
      are no repeats; one without any is left out.
  """

  def __init__(self, header: LedgerHeader):
    self.header = header
    self.budget = _ledger_budget.budget_of(header)
    self.attempts: dict[int, int] = {}
    self.participations = np.zeros(header.clients, np.int64)
    self.repeats = 0
    self.charged: list[LedgerRecord] = []
    self._noise: dict[str, LedgerRecord] = {}

  def fresh(self, record: LedgerRecord) -> list[int]:
    """Positions in `noise_digests` of the releases that are no repeats.

    Raises:
      ValueError: If the record does not fit the header, or does not count the
        attempts at its round.
      NoiseReuseError: If a noise key was used for another release.
      LedgerError: If the round was released before with other noise, where
        draws are secret.
    """
    record.check(self.header)
    expected = self.attempts.get(record.round, 0) + 1
    if record.attempt != expected:
      raise ValueError(
        f'attempt must be {expected} in round {record.round}, got'
        f' {record.attempt}'
      )
    if len(set(record.noise_digests)) != len(record.noise_digests):
      raise NoiseReuseError(
        f'two clients of round {record.round} have the same noise key: the'
        ' difference of their releases would have no noise in it'
      )
    fresh = []
    for i, digest in enumerate(record.noise_digests):
      earlier = self._noise.get(digest)
      if earlier is None:
        fresh.append(i)
        continue
      then = earlier.noise_digests.index(digest)
      if _release_at(record, i) != _release_at(earlier, then):
        raise NoiseReuseError(
          f'the noise key of {self._clients(record, i)} in round'
          f' {record.round} was used in round {earlier.round}, attempt'
          f' {earlier.attempt}, for another release: the difference of the two'
          ' would have no noise in it'
        )
    if fresh and expected > 1 and self.header.sampling == format_lib.POISSON:
      raise _chained_file.LedgerError(
        f'round {record.round} was released before with other noise, and draws'
        ' are independent only from round to round: repeat it with the same'
        ' noise key, or go on with the next round'
      )
    return fresh

  def _clients(self, record: LedgerRecord, i: int) -> str:
    if len(record.noise_digests) == len(record.clients):
      return f'client {record.clients[i]}'
    return f'{len(record.clients)} clients'

  def refuse_overspending(self, record: LedgerRecord, fresh: list[int]):
    """Checks the fresh releases against the target.

    Raises:
      BudgetExceededError: If one does not fit.
    """
    if not fresh:
      return
    clients, amounts = self._charged(record, fresh)
    if self.header.sampling == format_lib.POISSON and not len(clients):
      clients = np.zeros(1, np.int64)
    fits = self.budget.affordable(clients, amounts, record.releases_per_client)
    if fits.all():
      return
    i = int(np.argmin(fits))
    client = int(clients[i])
    epsilon = self.budget.epsilon(
      client, float(amounts[i % len(amounts)]), record.releases_per_client
    )
    raise BudgetExceededError(client, epsilon, self.header)

  def apply(self, record: LedgerRecord, fresh: list[int]):
    """Adds a record with those fresh releases, whether or not they fit."""
    self.attempts[record.round] = record.attempt
    self.repeats += len(record.noise_digests) - len(fresh)
    for i in fresh:
      self._noise[record.noise_digests[i]] = record
    if fresh:
      clients, amounts = self._charged(record, fresh)
      self.budget.charge(clients, amounts, record.releases_per_client)
      self.participations[clients] += 1
      self.charged.append(_only(record, fresh))

  def first_use(self, noise_digest: str) -> LedgerRecord | None:
    """The record in which a noise key was used first, if it was."""
    return self._noise.get(noise_digest)

  def _charged(self, record: LedgerRecord, fresh: list[int]):
    """(clients int [k], amounts float64 [k] or [1]) of the fresh releases."""
    clients = np.array(record.clients, np.int64)
    amounts = np.array(record.amounts, np.float64)
    if len(record.noise_digests) == len(clients):
      clients = clients[fresh]
      amounts = amounts[fresh] if len(amounts) > 1 else amounts
    return clients, amounts


def replay(
  path: str | os.PathLike[str], payloads: Sequence[Mapping[str, Any]]
) -> LedgerState:
  """The state after all lines of a verified chain.

  Raises:
    LedgerError: If a line is none that a ledger writes, with its number.
  """
  path = os.fspath(path)
  number = 1
  try:
    header = format_lib.parse_header(payloads[0])
    state = LedgerState(header)
    for payload in payloads[1:]:
      number += 1
      record = format_lib.parse_record(payload, header)
      state.apply(record, state.fresh(record))
  except (ValueError, _chained_file.LedgerError) as error:
    raise _chained_file.LedgerError(f'{path}: line {number}: {error}') from None
  return state
