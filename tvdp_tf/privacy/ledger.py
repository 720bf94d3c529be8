r"""The privacy ledger: every release on record before it happens.

A guarantee is a statement about all releases that ever took place, those of
crashed runs and retried rounds included. The ledger is the one place where they
are counted, per client, by the client's *actual* participations and the noise
that each of them really had:

  with PrivacyLedger.create('run/ledger.jsonl', header) as ledger:
    ...
    ledger.record(round_number, clients, release_ids, noise_multipliers=z)
    # On the disk now, or an exception. Only then:
    release(...)

`record` refuses a release that would take a client above its target, before
anything is written. Without sampling that is a privacy filter: noise and number
of rounds may depend on earlier releases (`refine_stddev`).

A retry is told from a new release by its `release_id`. One with the same noise
key and the same inputs is bit-identical: it is recorded, recognised and not
charged. A fresh key is a new release, and charged. The same key with another
input is refused. Keys never enter the file, only SHA-256 of them.

The file is evidence by itself: `ledger_audit.audit` recomputes every client's
epsilon from it. It is chained, and its length pinned by a second file
(`_chained_file` says against what that helps, and against what not).
"""

import fractions
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import (
  _chained_file,
  _ledger_format,
  _ledger_state,
  _release_id,
)
from tvdp_tf.privacy._chained_file import LedgerError
from tvdp_tf.privacy._ledger_format import LedgerHeader, LedgerRecord
from tvdp_tf.privacy._ledger_state import BudgetExceededError, NoiseReuseError
from tvdp_tf.privacy._release_id import release_id

__all__ = [
  'BudgetExceededError',
  'LedgerError',
  'LedgerHeader',
  'LedgerRecord',
  'NoiseReuseError',
  'PrivacyLedger',
  'laplace_epsilon_of_release',
  'release_id',
]


def laplace_epsilon_of_release(target_epsilon: float, releases: int) -> float:
  """The largest pure epsilon that so many releases of it stay within a target.

  Not `target_epsilon / releases`, which may be rounded up.

  >>> laplace_epsilon_of_release(1.0, 10) < 1.0 / 10
  True

  Args:
    target_epsilon: > 0.
    releases: Number of releases of one client, >= 1.

  Raises:
    ValueError: If an argument is out of range or nothing is left.
  """
  target = _validate.positive('target_epsilon', target_epsilon)
  releases = _validate.integer('releases', releases)
  epsilon = float(fractions.Fraction(target) / releases)
  while fractions.Fraction(epsilon) * releases > fractions.Fraction(target):
    epsilon = math.nextafter(epsilon, 0.0)
  return _validate.positive('epsilon of one release', epsilon)


def _amounts(
  noise_multipliers: Any, laplace_epsilon: float | None
) -> tuple[tuple[float, ...], float | None]:
  """(noise multipliers, pure epsilon), one of them given."""
  if (noise_multipliers is None) == (laplace_epsilon is None):
    raise ValueError(
      'one of noise_multipliers and laplace_epsilon must be given, got'
      f' {noise_multipliers!r} and {laplace_epsilon!r}'
    )
  if noise_multipliers is None:
    if laplace_epsilon == math.inf:
      return (), math.inf
    return (), _validate.positive('laplace_epsilon', laplace_epsilon)
  if not np.iterable(noise_multipliers):
    noise_multipliers = [noise_multipliers]
  # + 0.0: no negative zero.
  return tuple(
    _validate.non_negative('noise_multipliers', z) + 0.0
    for z in noise_multipliers
  ), None


class PrivacyLedger:
  """A ledger that is being written; made by `create` or `open`.

  Holds the file locked until `close`, or the end of a `with` block. Not
  thread-safe.
  """

  def __init__(
    self, file: _chained_file.ChainedFile, state: _ledger_state.LedgerState
  ):
    self._file = file
    self._state = state

  @classmethod
  def create(
    cls, path: str | os.PathLike, header: LedgerHeader
  ) -> 'PrivacyLedger':
    """Starts a ledger; its folder must exist.

    Args:
      path: Where; `<path>.head` is written beside it.
      header: What its numbers will mean, for good.

    Raises:
      LedgerError: If there is one already, or it cannot be written.
    """
    state = _ledger_state.LedgerState(header)
    payload = _ledger_format.header_payload(header)
    return cls(_chained_file.ChainedFile.create(path, payload), state)

  @classmethod
  def open(
    cls, path: str | os.PathLike, header: LedgerHeader | None = None
  ) -> 'PrivacyLedger':
    """Goes on with a ledger, after a restart.

    Args:
      path: The ledger.
      header: What the run takes it to be; None to take it as it is.

    Raises:
      LedgerError: If it is missing, damaged, cut short, without its head, open
        for writing elsewhere, or not of that header.
    """
    file, chain = _chained_file.ChainedFile.open(path)
    try:
      ledger = cls(file, _ledger_state.replay(path, chain.payloads))
      if header is not None:
        ledger._refuse_other_header(header)
    except BaseException:
      file.close()
      raise
    return ledger

  def _refuse_other_header(self, expected: LedgerHeader):
    found = _ledger_format.header_payload(self.header)
    for name, value in _ledger_format.header_payload(expected).items():
      if found[name] != value:
        raise LedgerError(
          f'{self._file.path}: line 1: {name} is {found[name]!r}, but this run'
          f' has {value!r}'
        )

  def __enter__(self) -> 'PrivacyLedger':
    return self

  def __exit__(self, *exc_info):
    self.close()

  def close(self):
    """Releases the file; what was recorded stays. May be called again."""
    self._file.close()

  @property
  def header(self) -> LedgerHeader:
    """What the numbers of the ledger mean."""
    return self._state.header

  @property
  def head_hash(self) -> str:
    """Hash of the last line: printed or kept elsewhere, it pins the ledger."""
    return self._file.head_hash

  @property
  def charged(self) -> Sequence[LedgerRecord]:
    """What has counted so far: the records in order, without repeats.

    Each holds only those of its clients whose release was no repeat; a record
    of repeats alone is left out.
    """
    return tuple(self._state.charged)

  def first_use(self, identity: str) -> LedgerRecord | None:
    """The record that used the noise key of a release first, if one did.

    To record that very release again would be a repeat, and free.

    Raises:
      ValueError: If `identity` is none of `release_id`.
    """
    (noise_digest,), _ = _release_id.split_ids([identity])
    return self._state.first_use(noise_digest)

  def attempts(self, round_number: int) -> int:
    """How often a round has been recorded, repeats included."""
    return self._state.attempts.get(round_number, 0)

  def record(
    self,
    round_number: int,
    clients: Iterable[int],
    release_ids: Iterable[str],
    noise_multipliers: Iterable[float] | float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
  ) -> LedgerRecord:
    """Puts the releases of one attempt at a round on record.

    To be called before anything computed with the noise leaves the client, for
    every attempt: what is not known to have been lost counts as released.

    Args:
      round_number: From 1. Rounds may come again, and in any order.
      clients: Distinct numbers from 0 of those who take part, [k]; may be empty
        with sampling 'poisson', where an empty draw is a release too.
      release_ids: Of `release_id`, [k]; or one, where all clients hide in one
        noise on their sum. With sampling 'poisson' always one.
      noise_multipliers: Noise standard deviation over sensitivity of each
        release, [k] or one for all; 0 where nothing is hidden.
      releases_per_client: Releases of each client with that noise: the local
        steps of the gradient mechanism. 1 with sampling 'poisson'.
      laplace_epsilon: Pure epsilon of each release, in place of
        `noise_multipliers`; cf. `laplace_epsilon_of_release`.

    Returns:
      The record as written, with the number of the attempt.

    Raises:
      ValueError: If an argument is out of range.
      BudgetExceededError: If a client would exceed its target and the header
        says `enforced`. Nothing was written; the ledger can go on.
      NoiseReuseError: If a noise key was used for another release. The same.
      LedgerError: If the record cannot be written; the ledger is unusable then,
        and must be opened again. Or if, with sampling 'poisson', the round was
        released before with other noise; nothing was written.
    """
    round_number = _validate.integer('round_number', round_number)
    noise_digests, input_digests = _release_id.split_ids(release_ids)
    multipliers, laplace_epsilon = _amounts(noise_multipliers, laplace_epsilon)
    numbers = tuple(_validate.integer('clients', c, 0) for c in clients)
    if len(multipliers) == len(numbers) and len(set(multipliers)) == 1:
      multipliers = multipliers[:1]
    record = LedgerRecord(
      round=round_number,
      attempt=self.attempts(round_number) + 1,
      clients=numbers,
      noise_multipliers=multipliers,
      laplace_epsilon=laplace_epsilon,
      releases_per_client=_validate.integer(
        'releases_per_client', releases_per_client
      ),
      noise_digests=noise_digests,
      input_digests=input_digests,
    )
    fresh = self._state.fresh(record)
    if self.header.enforced:
      self._state.refuse_overspending(record, fresh)
    try:
      self._file.append(_ledger_format.record_payload(record))
      self._state.apply(record, fresh)
    except BaseException:
      # The file and the state may differ: only the file counts.
      self.close()
      raise
    return record

  def affordable_clients(
    self,
    clients: Iterable[int],
    noise_multiplier: float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
  ) -> list[int]:
    """Those of `clients` whose target leaves room for fresh releases.

    Whether or not the header says `enforced`; the arguments are `record`'s.
    """
    multipliers, epsilon = _amounts(noise_multiplier, laplace_epsilon)
    if (epsilon is not None) != (
      self.header.accounting == _ledger_format.LAPLACE
    ):
      raise ValueError(
        'noise_multiplier or laplace_epsilon must be given as the ledger has'
        f' accounting {self.header.accounting!r}'
      )
    count = _validate.integer('releases_per_client', releases_per_client)
    numbers = [self._client(client) for client in clients]
    if not numbers:
      return []
    amounts = np.array(multipliers if epsilon is None else [epsilon])
    fits = self._state.budget.affordable(np.array(numbers), amounts, count)
    return [n for n, fit in zip(numbers, fits, strict=True) if fit]

  def affordable(
    self,
    client: int,
    noise_multiplier: float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
  ) -> bool:
    """Whether `client`'s target leaves room for fresh releases."""
    return bool(
      self.affordable_clients(
        [client], noise_multiplier, releases_per_client, laplace_epsilon
      )
    )

  def _client(self, client: int) -> int:
    return _validate.integer('client', client, 0, self.header.clients - 1)

  def epsilon(self, client: int) -> float:
    """What a client has spent at the header's delta, rounded up."""
    return self._state.budget.epsilon(self._client(client))

  def epsilons(self) -> np.ndarray:
    """What every client has spent, float64 [clients]; about 1 ms each."""
    return self._state.budget.epsilons()

  def remaining(self, client: int) -> float:
    """Target minus spent epsilon, at least 0; for display.

    Epsilons of Gaussian noise do not add up: `affordable` tells what fits.
    """
    spent, target = self.epsilon(client), self.header.target_epsilon
    return math.inf if target == math.inf else max(0.0, target - spent)
