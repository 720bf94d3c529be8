"""The state of a ledger: the sum of its lines, replayed or being written.

A release is identified by its noise key. The same key with the same client,
round, model, settings and noise yields the same bits. Such a repeat discloses
nothing new and is not charged. The same key with anything else is refused,
because the difference of the two releases would contain no noise. The same key
in another run is always refused: repeats are recognized only within one run.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf.privacy import _chained_file, _released
from tvdp_tf.privacy import _ledger_format as format_lib
from tvdp_tf.privacy import spending as spending_lib
from tvdp_tf.privacy._ledger_format import LedgerHeader, LedgerRecord, LedgerRun


class NoiseReuseError(_chained_file.LedgerError):
  """A noise key is used again for another release."""


class BudgetExceededError(_chained_file.LedgerError):
  """A release would overspend; nothing was recorded.

  Attributes:
    client: The first client that cannot afford it.
    epsilon: The epsilon it would have spent.
    target_epsilon: The epsilon it may spend in all runs, or in this one.
  """

  def __init__(self, client: int, epsilon: float, target: float, delta: float):
    self.client = client
    self.epsilon = epsilon
    self.target_epsilon = target
    super().__init__(
      f'client {client} would reach epsilon {epsilon!r} at delta {delta!r},'
      f' above its target {target!r}: nothing was recorded, and nothing must be'
      ' released'
    )


def _release_at(record: LedgerRecord, i: int) -> tuple:
  """Everything that defines a release except its noise key."""
  clients, amounts = record.clients, record.amounts
  if len(record.noise_digests) == len(clients):
    clients = clients[i : i + 1]
    amounts = amounts[i : i + 1] if len(amounts) > 1 else amounts
  what = (record.run, record.round, record.releases_per_client)
  return (*what, record.inputs()[i], clients, amounts)


def _only(record: LedgerRecord, positions: Sequence[int]) -> LedgerRecord:
  """The record with only its releases at those positions."""
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
  """The sum of the lines applied so far.

  Attributes:
    header: The budget.
    version_1: Whether the ledger has version 1.
    runs: The runs in order; they are numbered from 1.
    spending: What the clients have spent in all runs.
    noise_distance: Sum over all runs; it has reduced the delta of `spending`.
    attempts: How often each round has been recorded, by (run, round).
    participations: Number of records that charged each client, int64 [clients].
    repeats: Number of releases that were recognized as repeats.
  """

  def __init__(self, header: LedgerHeader, version_1: bool = False):
    self.header = header
    self.version_1 = version_1
    self.runs: list[LedgerRun] = []
    self.spending = self._book(header, header.target_epsilon, 0.0)
    self.noise_distance = 0.0
    self.attempts: dict[tuple[int, int], int] = {}
    self.participations = np.zeros(header.clients, np.int64)
    self.repeats = 0
    self._records = _released.Records()
    self._run_spendings: dict[int, spending_lib.Spending] = {}

  @property
  def charged(self) -> Iterator[LedgerRecord]:
    """The records in order, without their repeats.

    A record that holds only repeats is left out.
    """
    return (_only(record, fresh) for record, fresh in self._records)

  def take(self, payload: Mapping[str, Any]):
    """Applies a line after the first.

    Raises:
      ValueError: If the line is malformed or does not fit the header.
      LedgerError: If it does not fit the lines before.
    """
    if not self.version_1 and format_lib.is_run(payload):
      self.begin(format_lib.parse_run(payload, self.header, len(self.runs) + 1))
      return
    record = format_lib.parse_record(payload, self.header, self.version_1)
    self.apply(record, self.fresh(record))

  def begin(self, run: LedgerRun):
    """Adds a run; raises as `check_run`."""
    spending = self.check_run(run)
    self.runs.append(run)
    self.noise_distance += run.noise_distance
    self.spending = spending

  def check_run(self, run: LedgerRun) -> spending_lib.Spending:
    """Checks that a run can be added.

    Returns:
      What the clients have spent, at the delta that the run's noise leaves.

    Raises:
      ValueError: If it does not fit the header.
      LedgerError: If it does not fit the runs before.
    """
    run.check(self.header)
    if self.runs:
      self._check_company(run)
    if not run.noise_distance:
      return self.spending
    distance = self.noise_distance + run.noise_distance
    spending = self._book(self.header, self.header.target_epsilon, distance)
    for record in self.charged:
      spending.charge(*self._release(record, record.noise_digests))
    if (
      self._records
      and self.header.enforced
      and spending.epsilons().max() > self.header.target_epsilon
    ):
      raise _chained_file.LedgerError(
        'the budget is spent: the releases so far leave no delta for the noise'
        ' of another run'
      )
    return spending

  def check_join(self, run: LedgerRun) -> None:
    """Like `check_run`, but for a run that is new.

    Raises:
      ValueError: As `check_run`.
      LedgerError: As `check_run`; or if its noise would leave nothing proven.
    """
    self.check_run(run)
    header = self.header
    if (
      self.runs
      and run.sensitivity_proven
      and header.enforced
      and header.target_epsilon < math.inf
      and not spending_lib.is_gaussian_enough(
        header.delta,
        header.target_epsilon,
        self.noise_distance + run.noise_distance,
      )
    ):
      raise _chained_file.LedgerError(
        'no further run can join: the noise of all runs together would be too'
        f' far from Gaussian for epsilon = {header.target_epsilon!r}'
      )

  def _book(
    self, header: LedgerHeader, target_epsilon: float, distance: float
  ) -> spending_lib.Spending:
    """An empty book, at the delta that is left for that noise distance."""
    delta = spending_lib.left_of_delta(header.delta, target_epsilon, distance)
    return spending_lib.of(header, target_epsilon, delta)

  def _check_company(self, run: LedgerRun):
    """Raises `LedgerError` if a run does not fit the earlier runs."""
    if any(run.run_id == other.run_id for other in self.runs):
      raise _chained_file.LedgerError(f'run {run.run_id} is on record already')
    # A client must hold the same data in all runs.
    if not self.header.data:
      raise _chained_file.LedgerError(
        "a ledger of several runs must have data in its header, got '':"
        ' without it, nothing shows that all runs have the same clients'
      )
    if (
      self.header.sampling == format_lib.POISSON
      and self.header.renyi_order is None
    ):
      raise _chained_file.LedgerError(
        "a ledger of several runs with sampling 'poisson' must have"
        ' renyi_order in its header, got None: an order that is chosen at the'
        ' end is valid only for noise that was fixed in advance'
      )
    # One run must not undo what the others prove.
    for name in ('seeded', 'sensitivity_proven', 'selection'):
      theirs, own = getattr(self.runs[0], name), getattr(run, name)
      if theirs != own:
        raise _chained_file.LedgerError(
          f'{name} must be {theirs!r}, as in the other runs of this ledger,'
          f' got {own!r}: a run must not undo what the others prove'
        )

  def run_number(self, run_id: str) -> int | None:
    """The number of a run, if it is on record."""
    for number, run in enumerate(self.runs, start=1):
      if run.run_id == run_id:
        return number
    return None

  def run_spending(self, number: int) -> spending_lib.Spending:
    """What the clients have spent in one run alone.

    With secret sampling, this uses the best order for the run. It is valid if
    the run's noise was fixed when it began, whatever other runs had released.
    """
    if number not in self._run_spendings:
      run = self.runs[number - 1]
      spending = self._book(
        dataclasses.replace(self.header, renyi_order=None),
        run.target_epsilon,
        run.noise_distance,
      )
      self._run_spendings[number] = spending
      for record in self.charged:
        if record.run == number:
          spending.charge(*self._release(record, record.noise_digests))
    return self._run_spendings[number]

  def limits(self, number: int) -> list[spending_lib.Spending]:
    """The targets that a release of a run must meet, as `Spending`s.

    For run 0, which has not joined yet, there is only the target of all runs.
    """
    result = [self.spending]
    if not number:
      return result
    target = self.runs[number - 1].target_epsilon
    # A single run with the whole budget has one limit; do not compute it twice.
    if len(self.runs) > 1 or target != self.header.target_epsilon:
      result.append(self.run_spending(number))
    return result

  def fresh(self, record: LedgerRecord) -> list[int]:
    """Positions in `noise_digests` of the releases that are not repeats.

    Raises:
      ValueError: If the record does not fit the header, its run does not exist,
        or its attempt is not the next one at its round.
      NoiseReuseError: If a noise key was used for another release.
      LedgerError: If sampling is 'poisson' and the round was released before
        with other noise.
    """
    record.check(self.header)
    if record.run > len(self.runs):
      raise ValueError(
        f'run must be at most {len(self.runs)}, the number of runs before it,'
        f' got {record.run}'
      )
    expected = self.attempts.get((record.run, record.round), 0) + 1
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
    earlier_uses = self.first_uses(record.noise_digests)
    for i, digest in enumerate(record.noise_digests):
      earlier = earlier_uses.get(i)
      if earlier is None:
        fresh.append(i)
        continue
      then = earlier.noise_digests.index(digest)
      if _release_at(record, i) != _release_at(earlier, then):
        raise NoiseReuseError(
          f'the noise key of {self._clients(record, i)} in round'
          f' {record.round} was used in round {earlier.round}, attempt'
          f' {earlier.attempt}{self._of_run(earlier, record)}, for another'
          ' release: the difference of the two would have no noise in it'
        )
    if fresh and expected > 1 and self.header.sampling == format_lib.POISSON:
      raise _chained_file.LedgerError(
        f'round {record.round} was already released with other noise, and'
        ' draws are independent only between rounds: repeat it with the same'
        ' noise key, or continue with the next round'
      )
    return fresh

  def _of_run(self, earlier: LedgerRecord, record: LedgerRecord) -> str:
    return '' if earlier.run == record.run else f' of run {earlier.run}'

  def _clients(self, record: LedgerRecord, i: int) -> str:
    if len(record.noise_digests) == len(record.clients):
      return f'client {record.clients[i]}'
    return f'{len(record.clients)} clients'

  def refuse_overspending(self, record: LedgerRecord, fresh: list[int]):
    """Checks fresh releases against the targets of all runs and of this one.

    Raises:
      BudgetExceededError: If a client would exceed a target.
    """
    if not fresh:
      return
    clients, amounts, count, rate = self._release(record, fresh)
    if self.header.sampling == format_lib.POISSON and not len(clients):
      clients = np.zeros(1, np.int64)
    for spending in self.limits(record.run):
      fits = spending.affordable(clients, amounts, count, rate)
      if fits.all():
        continue
      i = int(np.argmin(fits))
      client = int(clients[i])
      amount = float(amounts[i % len(amounts)])
      raise BudgetExceededError(
        client,
        spending.epsilon(client, amount, count, rate),
        spending.target_epsilon,
        self.header.delta,
      )

  def apply(self, record: LedgerRecord, fresh: list[int]):
    """Adds a record with those fresh releases, even if they exceed a target."""
    self.attempts[record.run, record.round] = record.attempt
    self.repeats += len(record.noise_digests) - len(fresh)
    if fresh:
      release = self._release(record, fresh)
      self.spending.charge(*release)
      if record.run in self._run_spendings:
        self._run_spendings[record.run].charge(*release)
      self.participations[release[0]] += 1
      self._records.add(record, fresh)

  def first_uses(self, noise_digests: Sequence[str]) -> dict[int, LedgerRecord]:
    """The records in which noise keys were first used, by position of the key.

    A key without a record is new.
    """
    return self._records.first_uses(noise_digests)

  def _release(
    self, record: LedgerRecord, fresh: Sequence
  ) -> tuple[np.ndarray, np.ndarray, int, float]:
    """The fresh releases, as arguments of `Spending.charge`."""
    clients = np.array(record.clients, np.int64)
    amounts = np.array(record.amounts, np.float64)
    rate = self.runs[record.run - 1].sampling_rate
    if len(fresh) < len(record.noise_digests) == len(clients):
      clients = clients[fresh]
      amounts = amounts[fresh] if len(amounts) > 1 else amounts
    return clients, amounts, record.releases_per_client, rate


def replay(
  path: str | os.PathLike[str], payloads: Sequence[Mapping[str, Any]]
) -> LedgerState:
  """Returns the state after all lines of a verified chain.

  Raises:
    LedgerError: If a line is not valid in a ledger. The message names the line.
  """
  path = os.fspath(path)
  number = 1
  try:
    header, run = format_lib.parse_header(payloads[0])
    state = LedgerState(header, version_1=run is not None)
    if run is not None:
      state.begin(run)
    for payload in payloads[1:]:
      number += 1
      state.take(payload)
  except (ValueError, _chained_file.LedgerError) as error:
    raise _chained_file.LedgerError(f'{path}: line {number}: {error}') from None
  return state
