r"""The privacy ledger: it records every release before it happens.

A guarantee covers all releases that ever took place, including those of crashed
runs and retried rounds. The ledger is the one place where they are counted, per
client, by the client's *actual* participations and the noise of each of them:

  with PrivacyLedger.create('run/ledger.jsonl', header, run) as ledger:
    ledger.record(round_number, clients, release_ids, noise_multipliers=z)
    # On disk now; otherwise an exception was raised. Only then:
    release(...)

`record` refuses a release that would exceed a client's target, before anything
is written. Without sampling this is a privacy filter: noise and number of
rounds may depend on earlier releases (`refine_stddev`).

Several runs on the same data, as in tuning or retraining, may share one ledger
and one budget, one after the other or at the same time:

  with PrivacyLedger.open('ledger.jsonl', header, shared=True) as ledger:
    ledger.join(run)

A noise multiplier is relative to the sensitivity of its own run, so runs with
any clips, schedules and noise add up. Only the meaning of a client's number
must be the same in all runs: the header describes the clients in words and with
a public seed, and a run with other clients is refused. Runs that share a ledger
must be on one machine, because they take turns by file locks.

The `release_id` distinguishes a retry from a new release. A release with the
same noise key and the same inputs is bit-identical: it is recorded, but not
charged again. A release with a fresh key is charged. The same key with another
input is refused. The file never contains keys, only their SHA-256.

The file is evidence by itself: `ledger_audit.audit` recomputes every client's
epsilon from it. Its lines form a hash chain, and a second file holds its length
(`_chained_file` explains what this protects against, and what it does not).
"""

import contextlib
import fractions
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import (
  _chained_file,
  _ledger_format,
  _ledger_state,
  _rdp,
  _released,
)
from tvdp_tf.privacy._chained_file import LedgerError
from tvdp_tf.privacy._ledger_format import (
  LedgerHeader,
  LedgerRecord,
  LedgerRun,
  claimed,
)
from tvdp_tf.privacy._ledger_state import BudgetExceededError, NoiseReuseError
from tvdp_tf.privacy._released import release_id

__all__ = [
  'BudgetExceededError',
  'LedgerError',
  'LedgerHeader',
  'LedgerRecord',
  'LedgerRun',
  'NoiseReuseError',
  'PrivacyLedger',
  'claimed',
  'laplace_epsilon_of_release',
  'read_header',
  'release_id',
  'renyi_order',
]


def laplace_epsilon_of_release(target_epsilon: float, releases: int) -> float:
  """The largest pure epsilon of a release that keeps all within the target.

  This is not `target_epsilon / releases`, which may be rounded up.

  >>> laplace_epsilon_of_release(1.0, 10) < 1.0 / 10
  True

  Args:
    target_epsilon: Pure epsilon of all releases, > 0.
    releases: Number of releases of one client, >= 1.

  Raises:
    ValueError: If an argument is out of range, or the result rounds to 0.
  """
  target = _validate.positive('target_epsilon', target_epsilon)
  releases = _validate.integer('releases', releases)
  epsilon = float(fractions.Fraction(target) / releases)
  while fractions.Fraction(epsilon) * releases > fractions.Fraction(target):
    epsilon = math.nextafter(epsilon, 0.0)
  return _validate.positive('epsilon of one release', epsilon)


def renyi_order(
  noise_multipliers: Iterable[float],
  sampling_rate: float,
  target_epsilon: float,
  delta: float,
) -> float:
  """The Renyi order for a ledger with secret sampling.

  It is the order at which such rounds take the smallest part of the target. The
  ledger's header fixes it before anything is released. Rounds that are
  calibrated to the target by Renyi accounting fit at this order.

  Args:
    noise_multipliers: Noise multipliers of the rounds of a typical run, > 0.
    sampling_rate: q in (0, 1].
    target_epsilon: Target epsilon of the ledger, > 0.
    delta: Delta of the ledger, in (0, 1).

  Raises:
    ValueError: If an argument is out of range, or the target is too small for
      any order.
  """
  multipliers = np.array(
    [_validate.positive('noise_multipliers', z) for z in noise_multipliers]
  )
  if not len(multipliers):
    raise ValueError('noise_multipliers must not be empty, got []')
  return _rdp.order_of_least_share(
    multipliers,
    _validate.rate('sampling_rate', sampling_rate),
    _validate.positive('target_epsilon', target_epsilon),
    _validate.open_unit('delta', delta),
  )


def read_header(path: str | os.PathLike[str]) -> LedgerHeader:
  """Reads the header of a ledger, which may be in use.

  Raises:
    LedgerError: If the file is missing, damaged, cut short, or not a ledger.
  """
  payload = _chained_file.read(path).payloads[0]
  try:
    return _ledger_format.parse_header(payload)[0]
  except ValueError as error:
    raise LedgerError(f'{os.fspath(path)}: line 1: {error}') from None


def _amounts(
  noise_multipliers: Any, laplace_epsilon: float | None
) -> tuple[tuple[float, ...], float | None]:
  """Checks and returns (noise multipliers, pure epsilon); one must be given."""
  if (noise_multipliers is None) == (laplace_epsilon is None):
    raise ValueError(
      'exactly one of noise_multipliers and laplace_epsilon must be given, got'
      f' {noise_multipliers!r} and {laplace_epsilon!r}'
    )
  if noise_multipliers is None:
    if laplace_epsilon == math.inf:
      return (), math.inf
    return (), _validate.positive('laplace_epsilon', laplace_epsilon)
  values = _validate.not_text('noise_multipliers', noise_multipliers)
  # + 0.0 removes negative zeros.
  return tuple(
    _validate.non_negative('noise_multipliers', z) + 0.0
    for z in (values if np.iterable(values) else [values])
  ), None


class PrivacyLedger:
  """A ledger that is open for writing; made by `create` or `open`.

  The file is locked until `close`, or until the end of a `with` block; a shared
  ledger is locked only while it writes. Threads record one after the other. A
  forked child must open the ledger again; all else raises `LedgerError` there.
  """

  def __init__(
    self,
    file: _chained_file.ChainedFile,
    state: _ledger_state.LedgerState,
    run: int = 0,
  ):
    self._file = file
    self._replayed = state
    self._run = run
    self._depth = 0
    self._of_one_thread = threading.RLock()

  @classmethod
  def create(
    cls,
    path: str | os.PathLike,
    header: LedgerHeader,
    run: LedgerRun | None = None,
    shared: bool = False,
  ) -> 'PrivacyLedger':
    """Starts a ledger; its folder must exist.

    Args:
      path: The file; `<path>.head` is written next to it.
      header: The budget, which cannot be changed later.
      run: The run that records in it; None to `join` later.
      shared: Whether other runs may record in it at the same time.

    Raises:
      LedgerError: If the file already exists, or cannot be written.
      ValueError: If the run does not fit the header.
    """
    if run is not None:
      run.check(header)
    state = _ledger_state.LedgerState(header)
    payload = _ledger_format.header_payload(header)
    file = _chained_file.ChainedFile.create(path, payload, shared)
    ledger = cls(file, state)
    if run is not None:
      try:
        ledger.join(run)
      except BaseException:
        file.close()
        raise
    return ledger

  @classmethod
  def open(
    cls,
    path: str | os.PathLike,
    header: LedgerHeader | None = None,
    run: LedgerRun | None = None,
    shared: bool = False,
  ) -> 'PrivacyLedger':
    """Opens an existing ledger, after a restart, or to `join` another run.

    Args:
      path: The ledger.
      header: The expected header; None to accept any.
      run: The run to continue; None for the only run of the ledger. If the
        ledger is shared or has several runs, None selects no run, and `join`
        must be called before `record`.
      shared: Whether other runs may record in it at the same time.

    Raises:
      LedgerError: If the ledger is missing, damaged, cut short, without its
        head, open for writing elsewhere, of version 1, has another header, or
        has no such run.
    """
    file, chain = _chained_file.ChainedFile.open(path, shared)
    try:
      ledger = cls(file, _ledger_state.replay(path, chain.payloads))
      ledger._adopt(header, run)
    except BaseException:
      file.close()
      raise
    return ledger

  def _adopt(self, header: LedgerHeader | None, run: LedgerRun | None):
    """Checks that the ledger is the expected one, and finds the run."""
    state = self._state
    if state.version_1:
      raise LedgerError(
        f'{self._file.path}: line 1: version is 1, which does not say whether'
        ' the noise was seeded: it can be audited, but not continued'
      )
    if header is not None:
      self._refuse_other(
        1,
        _ledger_format.header_payload(self.header),
        _ledger_format.header_payload(header),
      )
    if run is None:
      self._run = 1 if len(state.runs) == 1 and not self.shared else 0
      return
    number = state.run_number(run.run_id)
    if number is None:
      raise LedgerError(f'{self._file.path}: holds no run {run.run_id}')
    self._refuse_other(
      None,
      _ledger_format.run_payload(state.runs[number - 1], number),
      _ledger_format.run_payload(run, number),
    )
    self._run = number

  def _refuse_other(self, line: int | None, found: dict, expected: dict):
    where = f'line {line}' if line else f'run {expected["run"]}'
    for name, value in expected.items():
      if found[name] != value:
        raise LedgerError(
          f'{self._file.path}: {where}: {name} is {found[name]!r}, but this run'
          f' has {value!r}'
        )

  def join(self, run: LedgerRun):
    """Adds a run, and makes it the run that `record` records.

    Raises:
      ValueError: If the run does not fit the header, or its `seeded` is None.
      LedgerError: If the run is already recorded; if the ledger can have only
        one run (without `data` in its header, or with secret sampling and
        without `renyi_order`); if only one of this run and the others is seeded
        or has a proven sensitivity; if the noise of all runs would not be
        Gaussian as far out as the target needs it; or if the ledger cannot be
        written.
    """
    with self.locked():
      number = len(self._state.runs) + 1
      payload = _ledger_format.run_payload(run, number)
      try:
        self._state.check_join(run)
      except LedgerError as error:
        raise LedgerError(f'{self._file.path}: {error}') from None
      self._append(payload, lambda: self._state.begin(run))
      self._run = number

  def __enter__(self) -> 'PrivacyLedger':
    return self

  def __exit__(self, *exc_info):
    self.close()

  def close(self):
    """Closes the file; the records stay. You may call it more than once."""
    self._file.close()

  def reread(self):
    """Closes the ledger, and replays its file.

    Use it after an interrupt, which may have come between writing a line and
    adding it in memory. Only the file counts. `record` fails afterwards.

    Raises:
      LedgerError: If the ledger is damaged, or cannot be read.
    """
    payloads = self._file.reread()
    self._replayed = _ledger_state.replay(self._file.path, payloads)

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """A context in which nobody else records, so affordable releases stay so.

    On entry, it reads the records of others. Outside, a shared ledger answers
    as of the last time that it read them. Contexts can be nested.

    Raises:
      LedgerError: If another process keeps the ledger locked, or if the records
        of others are damaged, which closes the ledger.
    """
    with self._of_one_thread:
      if self._depth:
        yield
        return
      with self._file.locked() as payloads:
        try:
          for payload in payloads:
            self._state.take(payload)
        except BaseException as error:
          # The file and the state may differ: only the file counts.
          self.close()
          if isinstance(error, ValueError | LedgerError):
            raise LedgerError(f'{self._file.path}: {error}') from None
          raise
        self._depth += 1
        try:
          yield
        finally:
          self._depth -= 1

  def _append(self, payload: dict[str, Any], apply: Callable[[], None]):
    """Writes a line, and then applies it."""
    try:
      self._file.append(payload)
      apply()
    except BaseException:
      # The file and the state may differ: only the file counts.
      self.close()
      raise

  @property
  def _state(self) -> _ledger_state.LedgerState:
    self._file.check_process()
    return self._replayed

  @property
  def header(self) -> LedgerHeader:
    """The budget of the ledger."""
    return self._state.header

  @property
  def runs(self) -> Sequence[LedgerRun]:
    """The runs in order, numbered from 1."""
    return tuple(self._state.runs)

  @property
  def shared(self) -> bool:
    """Whether other runs may record in it at the same time."""
    return self._file.shared

  @property
  def run(self) -> int:
    """The number of the run that `record` records; 0 before `join`."""
    return self._run

  @property
  def head_hash(self) -> str:
    """Hash of the last line; a copy kept elsewhere pins the ledger."""
    return self._file.head_hash

  @property
  def charged(self) -> Sequence[LedgerRecord]:
    """The records of this run in order, without repeats.

    Each record has only the clients whose release was not a repeat. A record
    that consists only of repeats is left out.
    """
    return tuple(r for r in self._state.charged if r.run == self._run)

  def first_use(self, identity: str) -> LedgerRecord | None:
    """The record that first used the noise key of a release, if any.

    Recording the same release again would be a repeat, which is not charged.

    Raises:
      ValueError: If `identity` was not made by `release_id`.
    """
    return self.first_uses([identity]).get(0)

  def first_uses(self, identities: Iterable[str]) -> dict[int, LedgerRecord]:
    """`first_use` of many releases, by position; omits new releases.

    Raises:
      ValueError: If one of `identities` was not made by `release_id`.
    """
    noise_digests, _ = _released.split_ids(identities)
    return self._state.first_uses(noise_digests)

  def attempts(self, round_number: int) -> int:
    """How often a round of this run was recorded, including repeats."""
    return self._state.attempts.get((self._run, round_number), 0)

  def record(
    self,
    round_number: int,
    clients: Iterable[int],
    release_ids: Iterable[str],
    noise_multipliers: Iterable[float] | float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
  ) -> LedgerRecord:
    """Records the releases of one attempt at a round.

    Call it for every attempt, before anything that was computed with the noise
    leaves the client. Releases that may have happened count as released.

    Args:
      round_number: From 1. Rounds may be repeated, and may be in any order.
      clients: Distinct numbers, from 0, of the clients that take part, [k].
        With sampling 'poisson' it may be empty: an empty draw is a release.
      release_ids: Results of `release_id`, [k]; or only one, if a single noise
        on the sum protects all clients, and always with sampling 'poisson'.
      noise_multipliers: Noise standard deviation divided by the sensitivity,
        for each release, [k], or one for all; 0 for releases without noise.
      releases_per_client: The number of releases of each client with that
        noise: the local steps of the gradient mechanism. 1 with sampling
        'poisson'.
      laplace_epsilon: Pure epsilon of each release, instead of
        `noise_multipliers`; see `laplace_epsilon_of_release`.

    Returns:
      The record as written, with the number of the attempt.

    Raises:
      ValueError: If an argument is out of range.
      BudgetExceededError: If a client would exceed the target of all runs or
        that of this run, and the header says `enforced`. Nothing was written,
        and the ledger stays usable.
      NoiseReuseError: If a noise key was used for another release. Again
        nothing was written, and the ledger stays usable.
      LedgerError: If the record cannot be written; the ledger is then unusable,
        and must be opened again. Or if no run has joined, or, with sampling
        'poisson', the round was released before with other noise; in these
        cases nothing was written.
    """
    if not self._run:
      raise LedgerError(f'{self._file.path}: join must be called before record')
    round_number = _validate.integer('round_number', round_number)
    noise_digests, input_digests = _released.split_ids(release_ids)
    multipliers, laplace_epsilon = _amounts(noise_multipliers, laplace_epsilon)
    clients = _validate.not_text('clients', clients)
    numbers = tuple(_validate.integer('clients', c, 0) for c in clients)
    if len(multipliers) == len(numbers) and len(set(multipliers)) == 1:
      multipliers = multipliers[:1]
    with self.locked():
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
        run=self._run,
      )
      fresh = self._state.fresh(record)
      if self.header.enforced:
        self._state.refuse_overspending(record, fresh)
      self._append(
        _ledger_format.record_payload(record),
        lambda: self._state.apply(record, fresh),
      )
    return record

  def affordable_clients(
    self,
    clients: Iterable[int],
    noise_multiplier: float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
    sampling_rate: float | None = None,
  ) -> list[int]:
    """The clients whose targets leave room for additional releases.

    Both the target of all runs and, once it has joined, that of this run are
    checked, even if the header is not `enforced`.

    Args:
      clients: As for `record`.
      noise_multiplier: As for `record`, but only one.
      releases_per_client: As for `record`.
      laplace_epsilon: As for `record`.
      sampling_rate: With sampling 'poisson', the rate q of the releases; by
        default this run's.
    """
    multipliers, epsilon = _amounts(noise_multiplier, laplace_epsilon)
    if (epsilon is not None) != (
      self.header.accounting == _ledger_format.LAPLACE
    ):
      raise ValueError(
        'laplace_epsilon must be given if the accounting of the ledger is'
        f" 'laplace', and only then, got accounting {self.header.accounting!r}"
      )
    count = _validate.integer('releases_per_client', releases_per_client)
    numbers = [self._client(client) for client in clients]
    if not numbers:
      return []
    amounts = np.array(multipliers if epsilon is None else [epsilon])
    rate = 1.0 if sampling_rate is None else sampling_rate
    if self._run and sampling_rate is None:
      rate = self._state.runs[self._run - 1].sampling_rate
    fits = np.ones(len(numbers), bool)
    for spending in self._state.limits(self._run):
      fits &= spending.affordable(np.array(numbers), amounts, count, rate)
    return [n for n, fit in zip(numbers, fits, strict=True) if fit]

  def affordable(
    self,
    client: int,
    noise_multiplier: float | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
    sampling_rate: float | None = None,
  ) -> bool:
    """Whether `client` is one of the `affordable_clients`."""
    amounts = (noise_multiplier, releases_per_client, laplace_epsilon)
    return bool(self.affordable_clients([client], *amounts, sampling_rate))

  def _client(self, client: int) -> int:
    return _validate.integer('client', client, 0, self.header.clients - 1)

  def epsilon(self, client: int) -> float:
    """What a client has spent in all runs at the delta, rounded up."""
    return self._state.spending.epsilon(self._client(client))

  def epsilons(self) -> np.ndarray:
    """What each client has spent in all runs, float64 [clients]; 1 ms each."""
    return self._state.spending.epsilons()

  def worst_epsilon(self) -> float:
    """The largest spending of a client in all runs, rounded up.

    This is cheap for any number of clients if the noise is Gaussian.
    """
    return self._state.spending.worst_epsilon()

  def worst_epsilon_of_run(self) -> float:
    """`worst_epsilon` in this run alone, once it has joined."""
    return self._state.run_spending(self._run).worst_epsilon()

  def remaining(self, client: int) -> float:
    """Target minus spent epsilon, at least 0; for display.

    Epsilons of Gaussian noise are not additive: use `affordable` for decisions.
    """
    spent, target = self.epsilon(client), self.header.target_epsilon
    return math.inf if target == math.inf else max(0.0, target - spent)
