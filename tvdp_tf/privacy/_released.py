"""A compact store of releases, for the millions of a day of rounds.

`release_id` identifies a release without revealing its noise. As a Python
object, each release would take 300 bytes. Here a record takes a kilobyte, plus
48 to 56 bytes for each of its clients, 12 bytes to find its noise key, and 20
bytes for a client's spending whenever its noise changes.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tvdp_tf.privacy._ledger_format import LedgerRecord

_NOISE_DOMAIN = b'tvdp_tf noise key v1\0'
_INPUT_DOMAIN = b'tvdp_tf release input v1\0'
_RELEASE_ID = re.compile('[0-9a-f]{64}:[0-9a-f]{64}')


def _digest(domain: bytes, *parts: bytes) -> str:
  state = hashlib.sha256(domain)
  for part in parts:
    state.update(len(part).to_bytes(8, 'big'))
    state.update(part)
  return state.hexdigest()


def release_id(
  noise_key: bytes, model_digest: bytes, settings_digest: bytes
) -> str:
  """Identifies a release by its noise and what it is computed from.

  Equal ids must mean equal bits. If computing a release again may round
  differently, a retry needs a fresh key: the same noise on two results that
  differ in the last place reveals their difference.

  >>> len(release_id(bytes(16), b'model', b'settings'))
  129

  Args:
    noise_key: The secret key that the noise is a function of, >= 16 bytes. Its
      SHA-256 is published: a key that can be guessed, such as one from a small
      seed, can be found from it. If you do not know the key, pass fresh random
      bytes: the release then never counts as a repeat.
    model_digest: Digest of the model that the release starts from.
    settings_digest: Digest of everything else that it depends on: settings,
      code version, and the client's data if they can change.

  Returns:
    SHA-256 of the key, a colon, and SHA-256 of the rest, in hexadecimal.

  Raises:
    ValueError: If the key is shorter than 16 bytes or not bytes.
  """
  # The message must not contain the key: messages end up in logs.
  if not isinstance(noise_key, bytes):
    raise ValueError(
      'noise_key must be at least 16 bytes, got a value of type'
      f' {type(noise_key).__name__}'
    )
  if len(noise_key) < 16:
    raise ValueError(
      f'noise_key must be at least 16 bytes, got {len(noise_key)}'
    )
  noise = _digest(_NOISE_DOMAIN, noise_key)
  return f'{noise}:{_digest(_INPUT_DOMAIN, model_digest, settings_digest)}'


def split_ids(
  release_ids: Iterable[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The digests of the noise keys [k], and of the inputs [k], or [1] if equal.

  Raises:
    ValueError: If an id does not have the form of `release_id`.
  """
  noise, inputs = [], []
  for identity in release_ids:
    if not isinstance(identity, str) or _RELEASE_ID.fullmatch(identity) is None:
      # Do not show the value: it may be a key, passed by mistake.
      raise ValueError(
        'release_ids must be values that release_id returned, got another'
        f' value of type {type(identity).__name__}'
      )
    noise.append(identity[:64])
    inputs.append(identity[65:])
  if len(set(inputs)) == 1:
    inputs = inputs[:1]
  return tuple(noise), tuple(inputs)


_DIGEST_BYTES = 32
# Maximum number of recent keys in a dict, which finds a key at once.
_RECENT_KEYS = 4096


class ClientReleases:
  """How often each client has released each amount.

  The entries of a client form a linked list, from the last to the first.
  """

  def __init__(self, clients: int):
    """Starts without releases, for that number of clients."""
    self._last = np.full(clients, -1)
    self._size = 0
    self._amounts = np.zeros(0)
    self._counts = np.zeros(0, np.int64)
    self._before = np.zeros(0, np.int64)

  def add(self, clients: np.ndarray, amounts: np.ndarray, count: int) -> None:
    """Adds releases.

    Args:
      clients: int [k].
      amounts: Amount of one release of each client, float64 [k].
      count: Number of releases of each client, below 2^31.
    """
    if len(np.unique(clients)) < len(clients):
      for i in range(len(clients)):
        self.add(clients[i : i + 1], amounts[i : i + 1], count)
      return
    last = self._last[clients]
    same = last >= 0
    at = last[same]
    # A count that could overflow is left as it is, and another one is started.
    same[same] = (self._amounts[at] == amounts[same]) & (
      self._counts[at] < 2**62
    )
    self._counts[last[same]] += count
    new = ~same
    end = self._size + int(np.count_nonzero(new))
    if end > len(self._amounts):
      self._grow(end)
    entries = np.arange(self._size, end)
    self._amounts[entries] = amounts[new]
    self._counts[entries] = count
    self._before[entries] = last[new]
    self._last[clients[new]] = entries
    self._size = end

  def _grow(self, size: int) -> None:
    more = max(size, len(self._amounts) * 5 // 4) - len(self._amounts)
    self._amounts = np.append(self._amounts, np.zeros(more))
    self._counts = np.append(self._counts, np.zeros(more, np.int64))
    self._before = np.append(self._before, np.zeros(more, np.int64))

  def of(self, client: int) -> dict[float, int]:
    """How often a client has released each amount."""
    result: dict[float, int] = {}
    at = int(self._last[client])
    while at >= 0:
      amount = float(self._amounts[at])
      result[amount] = result.get(amount, 0) + int(self._counts[at])
      at = int(self._before[at])
    return result

  def clients(self) -> list[int]:
    """The clients that have released something."""
    return np.flatnonzero(self._last >= 0).tolist()


def _joined(digests: Sequence[str]) -> bytes:
  return bytes.fromhex(''.join(digests))


def _split(digests: bytes) -> tuple[str, ...]:
  text = digests.hex()
  size = 2 * _DIGEST_BYTES
  return tuple(text[i : i + size] for i in range(0, len(text), size))


def _keys(digests: bytes) -> np.ndarray:
  """The first eight bytes of each digest, uint64 [k]."""
  words = np.frombuffer(digests, '>u8').reshape(-1, _DIGEST_BYTES // 8)
  return words[:, 0].astype(np.uint64)


class _Kept(NamedTuple):
  """A record, and which of its releases are not repeats; None for all."""

  numbers: tuple[int, int, int, int]
  laplace_epsilon: float | None
  clients: bytes
  noise_multipliers: bytes
  noise: bytes
  inputs: bytes
  fresh: tuple[int, ...] | None

  def record(self) -> LedgerRecord:
    # Its values were checked when it was added.
    record = object.__new__(LedgerRecord)
    run, round_number, attempt, releases_per_client = self.numbers
    vars(record).update(
      round=round_number,
      attempt=attempt,
      clients=tuple(np.frombuffer(self.clients, np.int64).tolist()),
      noise_multipliers=tuple(np.frombuffer(self.noise_multipliers).tolist()),
      laplace_epsilon=self.laplace_epsilon,
      releases_per_client=releases_per_client,
      noise_digests=_split(self.noise),
      input_digests=_split(self.inputs),
      run=run,
    )
    return record

  def has(self, digest: bytes) -> bool:
    """Whether a fresh release has the noise key of that digest."""
    at = self.noise.find(digest)
    while at % _DIGEST_BYTES and at >= 0:
      at = self.noise.find(digest, at + 1)
    if at < 0:
      return False
    return self.fresh is None or at // _DIGEST_BYTES in self.fresh


class Records:
  """The records of a ledger in order, which can be found by noise key.

  A sorted array holds the first eight bytes of each key's digest, with the
  number of the record, which holds the rest. There are a few such arrays, each
  more than twice as long as the next.
  """

  def __init__(self):
    """Starts without records."""
    self._kept: list[_Kept] = []
    self._recent: dict[bytes, int] = {}
    self._keys: list[np.ndarray] = []
    self._numbers: list[np.ndarray] = []

  def __len__(self) -> int:
    return len(self._kept)

  def add(self, record: LedgerRecord, fresh: Sequence[int]) -> None:
    """Adds a record.

    Args:
      record: The record.
      fresh: Positions in its `noise_digests` of the new ones, at least one.
    """
    number = len(self._kept)
    noise = _joined(record.noise_digests)
    self._kept.append(
      _Kept(
        (record.run, record.round, record.attempt, record.releases_per_client),
        record.laplace_epsilon,
        np.array(record.clients, np.int64).tobytes(),
        np.array(record.noise_multipliers, np.float64).tobytes(),
        noise,
        _joined(record.input_digests),
        None if len(fresh) == len(record.noise_digests) else tuple(fresh),
      )
    )
    for i in fresh:
      digest = noise[i * _DIGEST_BYTES : (i + 1) * _DIGEST_BYTES]
      self._recent[digest] = number
    if len(self._recent) >= _RECENT_KEYS:
      self._sort_recent()

  def _sort_recent(self) -> None:
    keys = _keys(b''.join(self._recent))
    numbers = np.array([*self._recent.values()], np.uint32)
    self._recent = {}
    order = np.argsort(keys)
    keys, numbers = keys[order], numbers[order]
    while self._keys and len(self._keys[-1]) <= 2 * len(keys):
      others = self._keys.pop()
      places = np.searchsorted(others, keys)
      keys = np.insert(others, places, keys)
      numbers = np.insert(self._numbers.pop(), places, numbers)
    self._keys.append(keys)
    self._numbers.append(numbers)

  def first_use(self, noise_digest: str) -> LedgerRecord | None:
    """The record in which a noise key is new, if there is one."""
    return self.first_uses([noise_digest]).get(0)

  def first_uses(self, noise_digests: Sequence[str]) -> dict[int, LedgerRecord]:
    """The records in which noise keys are new, by position of the key."""
    joined = _joined(noise_digests)
    digests = [
      joined[at : at + _DIGEST_BYTES]
      for at in range(0, len(joined), _DIGEST_BYTES)
    ]
    found = {
      i: self._recent[digest]
      for i, digest in enumerate(digests)
      if digest in self._recent
    }
    wanted = _keys(joined)
    for keys, numbers in zip(self._keys, self._numbers, strict=True):
      places = np.searchsorted(keys, wanted)
      there = keys[np.minimum(places, len(keys) - 1)] == wanted
      for i in np.flatnonzero(there).tolist():
        end = np.searchsorted(keys, wanted[i], side='right')
        # Other digests may begin with the same eight bytes.
        for number in numbers[places[i] : end].tolist():
          if self._kept[number].has(digests[i]):
            found[i] = number
    records = {number: self._kept[number].record() for number in found.values()}
    return {i: records[number] for i, number in found.items()}

  def __iter__(self) -> Iterator[tuple[LedgerRecord, Sequence[int]]]:
    """Iterates over the records and the positions of their new releases."""
    for kept in self._kept:
      record = kept.record()
      fresh = kept.fresh
      yield record, range(len(record.noise_digests)) if fresh is None else fresh
