"""The format of a ledger's lines: a header, runs, and records of their rounds.

The header defines the budget. A run's line comes before its first record and
defines the meaning of its numbers; several runs may share one budget. Every
record is one attempt at a round of one run.

The same checks apply to lines read from disk and to lines about to be written,
so every ledger that is written can be read. Version 1 had a single run and did
not record whether its noise was seeded; it is read but no longer written.
"""

import dataclasses
import math
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from tvdp_tf import _json, _validate
from tvdp_tf.privacy import sensitivity as sensitivity_lib

_FORMAT = 'tvdp_tf privacy ledger'
_VERSION = 2

GAUSSIAN = 'gaussian'
LAPLACE = 'laplace'
NONE = 'none'
POISSON = 'poisson'

_MAX_CLIENTS = 10_000_000
_MAX_RELEASES = 2**31 - 1
_MAX_ROUND = 2**53
_MAX_RUNS = 1_000_000
_MAX_ORDER = 2.0**14
_DIGEST = re.compile('[0-9a-f]{64}')
_RUN_ID = re.compile('[0-9a-f]{32}')
# In version 1 the header held what a run's line holds now, for its one run.
_OF_A_RUN = (
  *('mechanism', 'sensitivity', 'sensitivity_proven', 'target_epsilon'),
  'sampling_rate',
)


def _text(name: str, value: Any) -> str:
  # Anyone may have written the file: its text must stay one line on a terminal.
  if not isinstance(value, str) or not value or not value.isprintable():
    raise ValueError(
      f'{name} must be printable text, got {_validate.quoted(value)}'
    )
  return value


def _flag(name: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise ValueError(f'{name} must be True or False, got {value!r}')
  return value


def _delta(value: Any, accounting: str) -> float:
  if accounting == GAUSSIAN:
    return _validate.open_unit('delta', value)
  if _validate.non_negative('delta', value) == 0:
    return 0.0
  raise ValueError(f"delta must be 0 with accounting 'laplace', got {value!r}")


def _target(value: Any) -> float:
  if isinstance(value, float) and value == math.inf:
    return math.inf
  return _validate.positive('target_epsilon', value)


@dataclasses.dataclass(frozen=True)
class LedgerHeader:
  """The budget of a ledger; it never changes.

  Attributes:
    unit: What is protected: 'example' or 'user'.
    adjacency: One of `sensitivity.ADJACENCIES`, of that unit.
    target_epsilon: What each client may spend in all runs together, > 0; inf
      for no limit.
    delta: In (0, 1); 0 with `accounting` 'laplace'.
    clients: Number of clients U; they are numbered from 0.
    accounting: 'gaussian', or 'laplace' for releases of pure epsilon.
    sampling: With 'none', a client is charged for the releases it takes part
      in. With 'poisson', every round is charged to every client at its run's
      sampling rate, whoever was drawn. This needs user-level privacy, noise
      that is fixed when its run begins, and secret draws: the ledger does not
      name the clients of a round.
    enforced: Whether a release that overspends is refused or only recorded.
    data: A public description of the clients' data and how they were
      distributed, without a digest of the data. If empty, the ledger can have
      only one run.
    partition_seed: Public seed used to distribute the data, >= 0, if any.
    units: The number of protected examples or users, if it is public.
    renyi_order: With sampling 'poisson', the Renyi order > 1 of the accounting
      of all runs, fixed in advance. This makes the budget valid for noise that
      depends on earlier releases. None for a single run whose noise does not:
      its best order is used.

  Raises:
    ValueError: If an attribute is invalid.
  """

  unit: str
  adjacency: str
  target_epsilon: float
  delta: float
  clients: int
  accounting: str = GAUSSIAN
  sampling: str = NONE
  enforced: bool = True
  data: str = ''
  partition_seed: int | None = None
  units: int | None = None
  renyi_order: float | None = None

  def __post_init__(self):
    _validate.one_of('unit', self.unit, sensitivity_lib.UNITS)
    _validate.one_of('adjacency', self.adjacency, sensitivity_lib.ADJACENCIES)
    _validate.one_of('accounting', self.accounting, (GAUSSIAN, LAPLACE))
    _validate.one_of('sampling', self.sampling, (NONE, POISSON))
    _flag('enforced', self.enforced)
    if self.data != '':
      _text('data', self.data)
    if self.partition_seed is not None:
      _validate.integer('partition_seed', self.partition_seed, 0, 2**63 - 1)
    if self.units is not None:
      _validate.integer('units', self.units)
    target = _target(self.target_epsilon)
    if self.enforced:
      target = _validate.positive('target_epsilon', target)
    frozen = {
      'target_epsilon': target,
      'delta': _delta(self.delta, self.accounting),
      'clients': _validate.integer('clients', self.clients, 1, _MAX_CLIENTS),
    }
    for name, value in frozen.items():
      object.__setattr__(self, name, value)
    self._check_sampling()

  def _check_sampling(self):
    order = self.renyi_order
    if self.sampling == NONE:
      if order is not None:
        raise ValueError(
          "renyi_order must be None with sampling 'none', got"
          f' {_validate.quoted(order)}'
        )
      return
    if self.accounting == LAPLACE:
      raise ValueError(
        "sampling must be 'none' with accounting 'laplace', got 'poisson'"
      )
    if self.unit != 'user':
      raise ValueError(
        f"unit must be 'user' with sampling 'poisson', got {self.unit!r}: the"
        ' users are sampled'
      )
    # Above 1.01: dp_accounting converts no smaller order to an epsilon.
    if order is not None and (
      not isinstance(order, float) or not 1.01 < order <= _MAX_ORDER
    ):
      raise ValueError(
        f'renyi_order must be a float above 1.01 and at most {_MAX_ORDER:g},'
        f' got {_validate.quoted(order)}'
      )


_CLAIM = re.compile(r', as (.+) claims$')


def claimed(sensitivity: str, by: str) -> str:
  """A `LedgerRun.sensitivity` claimed by `by`, not by this library."""
  return f'{sensitivity}, as {by} claims'


@dataclasses.dataclass(frozen=True)
class LedgerRun:
  """The meaning of one run's numbers, recorded before its first release.

  Attributes:
    mechanism: Name of the mechanism, such as 'gradient'.
    sensitivity: The formula, with numbers, of the sensitivity that noise
      multipliers are relative to: L2, or L1 for Laplace noise.
    sensitivity_proven: Whether it is proven. If not, no epsilon is proven.
    target_epsilon: What each client may spend in this run, > 0; inf for no
      limit.
    seeded: Whether the noise is reproducible from a seed; then it hides nothing
      from whoever knows the seed. None, in version 1 only, if unknown.
    noise: The kind of noise, such as 'continuous' or 'discrete'.
    settings_digest: SHA-256 of the run's settings, in hexadecimal.
    noise_distance: Largest distance of all drawn noise from exact Gaussian
      noise, in total variation, >= 0. It reduces delta (`noise_distance`).
    sampling_rate: q in (0, 1]; 1 with sampling 'none'.
    selection: If the run was selected among others before it was published:
      how, in words; otherwise empty. The selection discloses more than the run,
      which this ledger does not count.
    run_id: 32 hexadecimal digits that no other run has; random by default.

  Raises:
    ValueError: If an attribute is invalid.
  """

  mechanism: str
  sensitivity: str
  sensitivity_proven: bool
  target_epsilon: float
  seeded: bool | None
  noise: str
  settings_digest: str
  noise_distance: float = 0.0
  sampling_rate: float = 1.0
  selection: str = ''
  run_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

  def __post_init__(self):
    for name in ('mechanism', 'sensitivity', 'noise'):
      _text(name, getattr(self, name))
    if self.selection != '':
      _text('selection', self.selection)
    _flag('sensitivity_proven', self.sensitivity_proven)
    if self.seeded is not None:
      _flag('seeded', self.seeded)
      _hexadecimal('settings_digest', _DIGEST, self.settings_digest)
      _hexadecimal('run_id', _RUN_ID, self.run_id)
    frozen = {
      'target_epsilon': _target(self.target_epsilon),
      'sampling_rate': _validate.rate('sampling_rate', self.sampling_rate),
      'noise_distance': _validate.non_negative(
        'noise_distance', self.noise_distance
      ),
    }
    for name, value in frozen.items():
      object.__setattr__(self, name, value)

  @property
  def claimed_by(self) -> str:
    """Who claims the sensitivity; empty if this library does."""
    found = _CLAIM.search(self.sensitivity)
    return found[1] if found else ''

  def check(self, header: LedgerHeader):
    """Checks that the run fits a ledger with that header.

    Raises:
      ValueError: If it does not.
    """
    if header.sampling == NONE and self.sampling_rate != 1:
      raise ValueError(
        "sampling_rate must be 1 with sampling 'none', got"
        f' {self.sampling_rate!r}'
      )
    if header.enforced:
      _validate.positive('target_epsilon', self.target_epsilon)


def _hexadecimal(name: str, pattern: re.Pattern[str], value: Any):
  if not isinstance(value, str) or pattern.fullmatch(value) is None:
    raise ValueError(
      f'{name} must match {pattern.pattern}, got {_validate.quoted(value)}'
    )


@dataclasses.dataclass(frozen=True)
class LedgerRecord:
  """One attempt at a round, recorded before any of it is released.

  Attributes:
    run: Number of its run, from 1, in the order of the runs' lines.
    round: Number of the round, from 1.
    attempt: How often that round of that run has been recorded, including this
      time; from 1.
    clients: Who takes part, distinct numbers from 0.
    noise_multipliers: Noise standard deviation over sensitivity of every
      client, or one for all of them; 0 is a release without noise. Empty with
      accounting 'laplace'.
    laplace_epsilon: Pure epsilon of one release, for all clients; inf is a
      release without noise. None with accounting 'gaussian'.
    releases_per_client: Releases with that noise, such as local steps.
    noise_digests: SHA-256 of the noise key of every client, or a single one if
      one noise on their sum protects all clients.
    input_digests: SHA-256 of the inputs of the release (model and settings); as
      many as `noise_digests`, or one if all are the same.

  Raises:
    ValueError: If an attribute is invalid.
  """

  round: int
  attempt: int
  clients: tuple[int, ...]
  noise_multipliers: tuple[float, ...]
  laplace_epsilon: float | None
  releases_per_client: int
  noise_digests: tuple[str, ...]
  input_digests: tuple[str, ...]
  run: int = 1

  def __post_init__(self):
    _validate.integer('run', self.run, 1, _MAX_RUNS)
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
    """Checks that the record fits a ledger with that header.

    Raises:
      ValueError: If it does not.
    """
    for client in self.clients and (min(self.clients), max(self.clients)):
      _validate.integer('clients', client, 0, header.clients - 1)
    if (self.laplace_epsilon is not None) != (header.accounting == LAPLACE):
      expected = {GAUSSIAN: 'noise_multipliers', LAPLACE: 'laplace_epsilon'}
      raise ValueError(
        f'{expected[header.accounting]} must be given with accounting'
        f' {header.accounting!r}'
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
    # There is one noise on one sum: whoever was drawn, it is one event.
    for name in ('noise_multipliers', 'noise_digests'):
      if len(getattr(self, name)) != 1:
        raise ValueError(
          f'{name} must have one entry for all clients with sampling'
          f" 'poisson', got {len(getattr(self, name))}"
        )
    if self.releases_per_client != 1:
      raise ValueError(
        "releases_per_client must be 1 with sampling 'poisson', got"
        f' {self.releases_per_client}: several releases of one draw are not'
        ' independent'
      )

  def inputs(self) -> tuple[str, ...]:
    """The input digest for every noise digest."""
    if len(self.input_digests) == 1:
      return self.input_digests * len(self.noise_digests)
    return self.input_digests


def _check_length(name: str, values: tuple, length: int):
  if len(values) not in (1, length):
    raise ValueError(f'{name} must have 1 value or {length}, got {len(values)}')


def _of_type(name: str, value: Any, kind: type) -> Any:
  # type(), not isinstance(): True must not pass as an int.
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


def header_payload(header: LedgerHeader) -> dict[str, Any]:
  """Returns the header as the JSON object of the first line."""
  payload = dataclasses.asdict(header)
  payload['target_epsilon'] = _json.number(header.target_epsilon)
  return payload | {'format': _FORMAT, 'version': _VERSION}


def _parsed(
  cls: type, payload: Mapping[str, Any], names: Collection[str]
) -> dict[str, Any]:
  """Returns constructor arguments of a dataclass, checked for their types."""
  kinds = {field.name: field.type for field in dataclasses.fields(cls)}
  values = {name: payload[name] for name in names}
  values['target_epsilon'] = _json.parsed(values['target_epsilon'])
  for name in names:
    kind = kinds[name]
    if isinstance(kind, type):
      _of_type(name, values[name], kind)
  return values


def _names(cls: type) -> set[str]:
  return {field.name for field in dataclasses.fields(cls)}


def parse_header(
  payload: Mapping[str, Any],
) -> tuple[LedgerHeader, LedgerRun | None]:
  """Parses a first line: the header and, in version 1, its one run.

  Raises:
    ValueError: If the line is not a header, or has an unknown version.
  """
  if payload.get('format') != _FORMAT:
    raise ValueError('not the header of a privacy ledger')
  version = _of_type('version', payload.get('version'), int)
  if version == 1:
    return _parse_version_1(payload)
  if version != _VERSION:
    raise ValueError(
      f'version must be 1 or {_VERSION}, got {_validate.quoted(version)}'
    )
  names = _names(LedgerHeader)
  _check_keys(payload, {'format', 'version', *names})
  return LedgerHeader(**_parsed(LedgerHeader, payload, names)), None


def _parse_version_1(
  payload: Mapping[str, Any],
) -> tuple[LedgerHeader, LedgerRun]:
  of_the_budget = _names(LedgerHeader) - {
    *('data', 'partition_seed', 'units', 'renyi_order')
  }
  _check_keys(payload, {'format', 'version', *of_the_budget, *_OF_A_RUN})
  header = LedgerHeader(**_parsed(LedgerHeader, payload, of_the_budget))
  run = LedgerRun(
    **_parsed(LedgerRun, payload, _OF_A_RUN),
    seeded=None,
    noise='unknown',
    settings_digest='',
    run_id='',
  )
  run.check(header)
  return header, run


def run_payload(run: LedgerRun, number: int) -> dict[str, Any]:
  """Returns the run as the JSON object of a line.

  Raises:
    ValueError: If `seeded` is not True or False.
  """
  _flag('seeded', run.seeded)
  payload = dataclasses.asdict(run)
  payload['target_epsilon'] = _json.number(run.target_epsilon)
  return payload | {'run': number}


def is_run(payload: Mapping[str, Any]) -> bool:
  """Whether a line after the first describes a run, not a record."""
  return 'run_id' in payload


def parse_run(
  payload: Mapping[str, Any], header: LedgerHeader, number: int
) -> LedgerRun:
  """Parses the line of a run, which must have that number.

  Raises:
    ValueError: If the line is not such a run, or does not fit the header.
  """
  names = _names(LedgerRun)
  _check_keys(payload, {'run', *names})
  if _of_type('run', payload['run'], int) != number:
    raise ValueError(
      f'run must be {number}, got {_validate.quoted(payload["run"])}'
    )
  _of_type('seeded', payload['seeded'], bool)
  run = LedgerRun(**_parsed(LedgerRun, payload, names))
  run.check(header)
  return run


def record_payload(record: LedgerRecord) -> dict[str, Any]:
  """Returns the record as the JSON object of a line."""
  payload = {
    'run': record.run,
    'attempt': record.attempt,
    'clients': record.clients,
    'input_digests': record.input_digests,
    'noise_digests': record.noise_digests,
    'releases_per_client': record.releases_per_client,
    'round': record.round,
  }
  if record.laplace_epsilon is None:
    return payload | {'noise_multipliers': record.noise_multipliers}
  return payload | {'laplace_epsilon': _json.number(record.laplace_epsilon)}


def parse_record(
  payload: Mapping[str, Any], header: LedgerHeader, version_1: bool = False
) -> LedgerRecord:
  """Parses the line of a record.

  Args:
    payload: The line.
    header: The ledger's header.
    version_1: Whether the ledger has version 1, whose records name no run.

  Raises:
    ValueError: If the line is not a record, or does not fit the header.
  """
  laplace = header.accounting == LAPLACE
  amount = 'laplace_epsilon' if laplace else 'noise_multipliers'
  integers = ['attempt', 'releases_per_client', 'round']
  if not version_1:
    integers.append('run')
  digests = ('input_digests', 'noise_digests')
  _check_keys(payload, {*integers, *digests, 'clients', amount})
  values = {name: _of_type(name, payload[name], int) for name in integers}
  values |= {name: _tuple_of(name, payload[name], str) for name in digests}
  values['clients'] = _tuple_of('clients', payload['clients'], int)
  values['laplace_epsilon'] = None
  values['noise_multipliers'] = ()
  if laplace:
    epsilon = _json.parsed(payload[amount])
    values[amount] = _of_type(amount, epsilon, float)
  else:
    values[amount] = _tuple_of(amount, payload[amount], float)
  record = LedgerRecord(**values)
  record.check(header)
  return record
