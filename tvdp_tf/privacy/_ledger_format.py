"""What the lines of a ledger say: a header, then one record an attempt.

The checks here are those of a line read from disk and of a line about to be
written: a ledger cannot be made that could not be read.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from tvdp_tf import _validate
from tvdp_tf.privacy import sensitivity as sensitivity_lib

_FORMAT = 'tvdp_tf privacy ledger'
_VERSION = 1

GAUSSIAN = 'gaussian'
LAPLACE = 'laplace'
NONE = 'none'
POISSON = 'poisson'

_MAX_CLIENTS = 10_000_000
_MAX_RELEASES = 2**31 - 1
_MAX_ROUND = 2**53
_DIGEST = re.compile('[0-9a-f]{64}')


def _text(name: str, value: Any) -> str:
  # One line on a terminal, whoever wrote the file.
  if not isinstance(value, str) or not value or not value.isprintable():
    raise ValueError(
      f'{name} must be printable text, got {_validate.quoted(value)}'
    )
  return value


def _flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise ValueError(f'{name} must be True or False, got {value!r}')
  return value


@dataclasses.dataclass(frozen=True)
class LedgerHeader:
  """What a ledger's numbers mean; fixed for its whole life.

  Attributes:
    mechanism: Name of the mechanism, such as 'gradient'.
    unit: Whose privacy: 'example' or 'user'.
    adjacency: 'replace-one' or 'add-or-remove-one' of that unit.
    target_epsilon: What every single client may spend, > 0; inf for no limit.
    delta: In (0, 1); 0 with `accounting` 'laplace'.
    clients: Number of clients U; they are numbered from 0.
    sensitivity: The formula, with numbers, of what a noise multiplier is
      relative to: L2 sensitivity, or L1 for Laplace noise.
    sensitivity_proven: Whether it is proven. Where it is not, so is no epsilon.
    accounting: 'gaussian', or 'laplace' for releases of pure epsilon.
    sampling: 'none': a client is charged for the releases it takes part in.
      'poisson': every round is charged to every client at `sampling_rate`,
      whoever was drawn. That needs user-level privacy, a schedule that does not
      depend on what was released, and a draw that stays secret; and then so
      must the ledger, which says who was drawn.
    sampling_rate: q in (0, 1]; 1 with sampling 'none'.
    enforced: Whether a release that overspends is refused, or only recorded.

  Raises:
    ValueError: If an attribute is none of these.
  """

  mechanism: str
  unit: str
  adjacency: str
  target_epsilon: float
  delta: float
  clients: int
  sensitivity: str
  sensitivity_proven: bool
  accounting: str = GAUSSIAN
  sampling: str = NONE
  sampling_rate: float = 1.0
  enforced: bool = True

  def __post_init__(self):
    _text('mechanism', self.mechanism)
    _validate.one_of('unit', self.unit, sensitivity_lib.UNITS)
    _validate.one_of('adjacency', self.adjacency, sensitivity_lib.ADJACENCIES)
    _text('sensitivity', self.sensitivity)
    _flag('sensitivity_proven', self.sensitivity_proven)
    _validate.one_of('accounting', self.accounting, (GAUSSIAN, LAPLACE))
    _validate.one_of('sampling', self.sampling, (NONE, POISSON))
    _flag('enforced', self.enforced)
    target = self.target_epsilon
    if target != math.inf or self.enforced:
      target = _validate.positive('target_epsilon', target)
    if self.accounting == GAUSSIAN:
      delta = _validate.open_unit('delta', self.delta)
    elif _validate.non_negative('delta', self.delta) == 0:
      delta = 0.0
    else:
      raise ValueError(
        f"delta must be 0 with accounting 'laplace', got {self.delta!r}"
      )
    frozen = {
      'target_epsilon': target,
      'delta': delta,
      'clients': _validate.integer('clients', self.clients, 1, _MAX_CLIENTS),
      'sampling_rate': _validate.rate('sampling_rate', self.sampling_rate),
    }
    for name, value in frozen.items():
      object.__setattr__(self, name, value)
    self._check_sampling()

  def _check_sampling(self):
    if self.sampling == NONE:
      if self.sampling_rate != 1:
        raise ValueError(
          "sampling_rate must be 1 with sampling 'none', got"
          f' {self.sampling_rate!r}'
        )
    elif self.accounting == LAPLACE:
      raise ValueError(
        "sampling must be 'none' with accounting 'laplace', got 'poisson'"
      )
    elif self.unit != 'user':
      raise ValueError(
        f"unit must be 'user' with sampling 'poisson', got {self.unit!r}: it is"
        ' users who are sampled'
      )


@dataclasses.dataclass(frozen=True)
class LedgerRecord:
  """One attempt at a round, recorded before anything of it is released.

  Attributes:
    round: From 1.
    attempt: From 1: how often the round has been recorded, this time included.
    clients: Who takes part, distinct numbers from 0.
    noise_multipliers: Noise standard deviation over sensitivity of every
      client, or one for all of them; 0 is a release without noise. Empty with
      accounting 'laplace'.
    laplace_epsilon: Pure epsilon of one release, for all clients; inf is a
      release without noise. None with accounting 'gaussian'.
    releases_per_client: Releases with that noise, such as local steps.
    noise_digests: SHA-256 of the noise key of every client, or a single one
      where the clients hide in one noise, on their sum.
    input_digests: SHA-256 of what the release is computed from (model and
      settings); as many as `noise_digests`, or one where all are the same.

  Raises:
    ValueError: If an attribute is none of these.
  """

  round: int
  attempt: int
  clients: tuple[int, ...]
  noise_multipliers: tuple[float, ...]
  laplace_epsilon: float | None
  releases_per_client: int
  noise_digests: tuple[str, ...]
  input_digests: tuple[str, ...]

  def __post_init__(self):
    _validate.integer('round', self.round, 1, _MAX_ROUND)
    _validate.integer('attempt', self.attempt, 1, _MAX_ROUND)
    _validate.integer(
      'releases_per_client', self.releases_per_client, 1, _MAX_RELEASES
    )
    if len(set(self.clients)) != len(self.clients):
      raise ValueError(
        f'clients must be distinct, got {list(self.clients)[:20]}'
      )
    _check_length('noise_digests', self.noise_digests, len(self.clients))
    _check_length('input_digests', self.input_digests, len(self.noise_digests))
    for name in ('noise_digests', 'input_digests'):
      for digest in getattr(self, name):
        if _DIGEST.fullmatch(digest) is None:
          raise ValueError(
            f'{name} must be hexadecimal SHA-256, got'
            f' {_validate.quoted(digest)}'
          )
    for multiplier in self.noise_multipliers:
      _validate.non_negative('noise_multipliers', multiplier)
    if self.laplace_epsilon is not None and self.laplace_epsilon != math.inf:
      _validate.positive('laplace_epsilon', self.laplace_epsilon)

  @property
  def amounts(self) -> tuple[float, ...]:
    """Noise multipliers or pure epsilons: one for all clients, or one each."""
    if self.laplace_epsilon is not None:
      return (self.laplace_epsilon,)
    return self.noise_multipliers

  def check(self, header: LedgerHeader):
    """Whether the record can stand in a ledger with that header.

    Raises:
      ValueError: If not.
    """
    for client in self.clients and (min(self.clients), max(self.clients)):
      _validate.integer('clients', client, 0, header.clients - 1)
    if (self.laplace_epsilon is not None) != (header.accounting == LAPLACE):
      expected = {GAUSSIAN: 'noise_multipliers', LAPLACE: 'laplace_epsilon'}
      raise ValueError(
        f'a ledger with accounting {header.accounting!r} must be given'
        f' {expected[header.accounting]}'
      )
    if header.accounting == LAPLACE and self.noise_multipliers:
      raise ValueError(
        "noise_multipliers must be empty with accounting 'laplace', got"
        f' {list(self.noise_multipliers)[:20]}'
      )
    if header.accounting == GAUSSIAN:
      _check_length(
        'noise_multipliers', self.noise_multipliers, len(self.clients)
      )
    if header.sampling == NONE:
      if not self.clients:
        raise ValueError('clients must not be empty, got []')
      return
    # One noise on one sum: whoever was drawn, the release is one event.
    for name in ('noise_multipliers', 'noise_digests'):
      if len(getattr(self, name)) != 1:
        raise ValueError(
          f"{name} must be one for all clients with sampling 'poisson', got"
          f' {len(getattr(self, name))}'
        )
    if self.releases_per_client != 1:
      raise ValueError(
        "releases_per_client must be 1 with sampling 'poisson', got"
        f' {self.releases_per_client}: several releases of one draw are not'
        ' independent'
      )

  def inputs(self) -> tuple[str, ...]:
    """The input digest of every noise digest."""
    if len(self.input_digests) == 1:
      return self.input_digests * len(self.noise_digests)
    return self.input_digests


def _check_length(name: str, values: tuple, length: int):
  if len(values) not in (1, length):
    raise ValueError(f'{name} must be {length} or 1 values, got {len(values)}')


def _of_type(name: str, value: Any, kind: type) -> Any:
  # type(), not isinstance(): True is no integer, 1 is no float.
  if type(value) is not kind:
    raise ValueError(
      f'{name} must be of type {kind.__name__}, got {_validate.quoted(value)}'
    )
  return value


def _tuple_of(name: str, value: Any, kind: type) -> tuple:
  _of_type(name, value, list)
  return tuple(_of_type(name, item, kind) for item in value)


def _check_keys(payload: Mapping[str, Any], expected: set[str]):
  for key in sorted(expected ^ payload.keys()):
    fault = 'is missing' if key in expected else 'is not known'
    raise ValueError(f'entry {_validate.quoted(key)} {fault}')


def _to_json(value: Any) -> Any:
  """JSON has no infinity."""
  return 'inf' if value == math.inf else value


def _from_json(value: Any) -> Any:
  return math.inf if value == 'inf' else value


def header_payload(header: LedgerHeader) -> dict[str, Any]:
  """The header as the JSON object of the first line."""
  payload = dataclasses.asdict(header)
  payload['target_epsilon'] = _to_json(header.target_epsilon)
  return payload | {'format': _FORMAT, 'version': _VERSION}


def parse_header(payload: Mapping[str, Any]) -> LedgerHeader:
  """The header of a first line.

  Raises:
    ValueError: If it is none, or one of another version.
  """
  if payload.get('format') != _FORMAT:
    raise ValueError('not the header of a privacy ledger')
  version = _of_type('version', payload.get('version'), int)
  if version != _VERSION:
    raise ValueError(f'version must be {_VERSION}, got {version}')
  kinds = {field.name: field.type for field in dataclasses.fields(LedgerHeader)}
  _check_keys(payload, {'format', 'version', *kinds})
  values = {name: payload[name] for name in kinds}
  values['target_epsilon'] = _from_json(values['target_epsilon'])
  for name, kind in kinds.items():
    if isinstance(kind, type):
      _of_type(name, values[name], kind)
  return LedgerHeader(**values)


def record_payload(record: LedgerRecord) -> dict[str, Any]:
  """The record as the JSON object of a line."""
  payload = {
    'attempt': record.attempt,
    'clients': record.clients,
    'input_digests': record.input_digests,
    'noise_digests': record.noise_digests,
    'releases_per_client': record.releases_per_client,
    'round': record.round,
  }
  if record.laplace_epsilon is None:
    return payload | {'noise_multipliers': record.noise_multipliers}
  return payload | {'laplace_epsilon': _to_json(record.laplace_epsilon)}


def parse_record(
  payload: Mapping[str, Any], header: LedgerHeader
) -> LedgerRecord:
  """The record of a line after the first.

  Raises:
    ValueError: If it is none, or does not fit the header.
  """
  laplace = header.accounting == LAPLACE
  amount = 'laplace_epsilon' if laplace else 'noise_multipliers'
  integers = ('attempt', 'releases_per_client', 'round')
  digests = ('input_digests', 'noise_digests')
  _check_keys(payload, {*integers, *digests, 'clients', amount})
  values = {name: _of_type(name, payload[name], int) for name in integers}
  values |= {name: _tuple_of(name, payload[name], str) for name in digests}
  values['clients'] = _tuple_of('clients', payload['clients'], int)
  values['laplace_epsilon'] = None
  values['noise_multipliers'] = ()
  if laplace:
    epsilon = _from_json(payload[amount])
    values[amount] = _of_type(amount, epsilon, float)
  else:
    values[amount] = _tuple_of(amount, payload[amount], float)
  record = LedgerRecord(**values)
  record.check(header)
  return record
