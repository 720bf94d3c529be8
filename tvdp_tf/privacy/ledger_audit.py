"""The audit of a ledger: every client's epsilon, from the file alone."""

import dataclasses
import os

import numpy as np

from tvdp_tf.privacy import (
  _chained_file,
  _ledger_format,
  _ledger_state,
  statement,
)


@dataclasses.dataclass(frozen=True, eq=False)
class LedgerAudit:
  """What a ledger proves.

  Attributes:
    path: The file.
    header: What its numbers mean.
    epsilons: What each client has spent at the header's delta, rounded up,
      float64 [clients], read-only; inf where something was released bare.
    participations: Records that charged each client, int64 [clients],
      read-only. With sampling 'poisson' the rounds it was drawn in.
    rounds: Number of different rounds on record.
    records: Number of attempts at them.
    repeats: Releases recognised as bit-identical repeats, and not charged.
    head_hash: Hash of the last line, to be compared with one kept elsewhere.
    head_verified: Whether the head was there, and vouches that no line was cut
      off. Where it was not, every number here may be too low.
    beyond_head: Lines that the head does not vouch for; counted all the same.
    torn_bytes: Bytes of an unfinished line, which was never released.
  """

  path: str
  header: _ledger_format.LedgerHeader
  epsilons: np.ndarray
  participations: np.ndarray
  rounds: int
  records: int
  repeats: int
  head_hash: str
  head_verified: bool
  beyond_head: int
  torn_bytes: int

  @property
  def worst_client(self) -> int:
    """The client that has spent most; the first of several."""
    return int(np.argmax(self.epsilons))

  @property
  def worst_epsilon(self) -> float:
    """What the worst client has spent."""
    return float(self.epsilons[self.worst_client])

  @property
  def median_epsilon(self) -> float:
    """Median over the clients of what they have spent."""
    return float(np.median(self.epsilons))

  @property
  def within_budget(self) -> bool:
    """Whether no client has spent more than its target."""
    return self.worst_epsilon <= self.header.target_epsilon

  def describe(self) -> str:
    """The audit in words, several lines, for a terminal."""
    header = self.header
    number = statement.format_epsilon
    sampling = 'actual participations, no amplification'
    if header.sampling == _ledger_format.POISSON:
      sampling = f'secret Poisson sampling at rate {header.sampling_rate!r}'
    proven = '' if header.sensitivity_proven else ' (NOT PROVEN)'
    limit = 'enforced' if header.enforced else 'recorded, not enforced'
    verdict = 'all are within it'
    if not self.within_budget:
      over = int(np.sum(self.epsilons > header.target_epsilon))
      verdict = f'{over} of them are ABOVE it'
    least, most = int(self.participations.min()), int(self.participations.max())
    lines = [
      f'Privacy ledger {self.path}',
      f'  Mechanism: {header.mechanism} ({header.accounting} noise)',
      f'  Protects: one {header.unit} ({header.adjacency})',
      f'  Noise is relative to: {header.sensitivity}{proven}',
      f'  Accounting: {sampling}',
      f'  Records: {self.records} of {self.rounds} rounds; releases repeated'
      f' bit for bit, not charged: {self.repeats}',
      f'  Participations: {least} to {most} a client',
      f'  Worst client: {self.worst_client}, epsilon ='
      f' {number(self.worst_epsilon)} at delta = {header.delta!r}',
      f'  Median client: epsilon = {number(self.median_epsilon)}',
      f'  Target: epsilon = {number(header.target_epsilon)} for each of the'
      f' {header.clients} clients ({limit}): {verdict}',
      f'  Chain: intact, last hash {self.head_hash}',
    ]
    if not header.sensitivity_proven:
      lines.append(
        '  The sensitivity is not proven, and so is no epsilon above.'
      )
    if not self.head_verified:
      lines.append(
        f'  {self.path}.head is MISSING: lines may have been cut off the end,'
        ' and every epsilon above may be too low.'
      )
    else:
      lines.append(
        '  Head: verified, no line was cut off; lines beyond it, counted:'
        f' {self.beyond_head}'
      )
    if self.torn_bytes:
      lines.append(
        f'  An unfinished last line ({self.torn_bytes} bytes) was never'
        ' released, and is not counted.'
      )
    return '\n'.join(lines)


def audit(path: str | os.PathLike[str]) -> LedgerAudit:
  """Verifies a ledger and recomputes what every client has spent.

  Reads only; the ledger may be one that is being written.

  Args:
    path: The ledger; `<path>.head` is read beside it.

  Raises:
    LedgerError: If it is missing, damaged, cut short, or no ledger: one line,
      with the number of the line in the file.
  """
  chain = _chained_file.read(path)
  state = _ledger_state.replay(path, chain.payloads)
  epsilons = state.budget.epsilons()
  epsilons.flags.writeable = False
  state.participations.flags.writeable = False
  head_count = chain.head_count
  lines = len(chain.payloads)
  return LedgerAudit(
    path=os.fspath(path),
    header=state.header,
    epsilons=epsilons,
    participations=state.participations,
    rounds=len(state.attempts),
    records=lines - 1,
    repeats=state.repeats,
    head_hash=chain.last_hash,
    head_verified=head_count is not None,
    beyond_head=0 if head_count is None else lines - head_count,
    torn_bytes=chain.torn,
  )
