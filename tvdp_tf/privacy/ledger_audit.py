"""The audit of a ledger: every client's epsilon, from the file alone."""

import dataclasses
import math
import os

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import (
  _chained_file,
  _ledger_format,
  _ledger_state,
  spending,
  statement,
)
from tvdp_tf.privacy import sensitivity as sensitivity_lib


@dataclasses.dataclass(frozen=True, eq=False)
class RunAudit:
  """One run's share of a ledger.

  Attributes:
    run: The run, as recorded.
    number: From 1, in the order in which the runs joined.
    records: Number of its recorded attempts at rounds.
    rounds: Number of its different recorded rounds.
    epsilons: What each client has spent in this run alone, rounded up, float64
      [clients], read-only. They do not sum to the cost of all runs together.
  """

  run: _ledger_format.LedgerRun
  number: int
  records: int
  rounds: int
  epsilons: np.ndarray

  @property
  def worst_epsilon(self) -> float:
    """What the worst client has spent in this run alone."""
    return float(self.epsilons.max())


@dataclasses.dataclass(frozen=True, eq=False)
class LedgerAudit:
  """What a ledger proves.

  Attributes:
    path: The file.
    header: The budget.
    runs: The runs, each with its share.
    noise_distance: Largest distance of all their noise from exact Gaussian
      noise. It reduces the delta at which the epsilons are computed.
    epsilons: What each client has spent in all runs at the header's delta,
      rounded up, float64 [clients], read-only; inf if something was released
      without noise.
    participations: Number of records that charged each client, int64 [clients],
      read-only. With sampling 'poisson', the rounds it was drawn in.
    rounds: Number of different recorded rounds of all runs.
    records: Number of recorded attempts at them.
    repeats: Number of releases recognized as bit-identical repeats, which are
      not charged.
    head_hash: Hash of the last line, to compare with a copy kept elsewhere.
    head_verified: Whether the head is present and proves that no line was cut
      off. If not, every number here may be too low.
    beyond_head: Number of lines that the head does not cover; they are counted.
    torn_bytes: Bytes of an unfinished line, which was never released.
    noise_recurs: Whether some releases have equal noise and others do not, as
      is the case when rounds are released again.
  """

  path: str
  header: _ledger_format.LedgerHeader
  runs: tuple[RunAudit, ...]
  noise_distance: float
  epsilons: np.ndarray
  participations: np.ndarray
  rounds: int
  records: int
  repeats: int
  head_hash: str
  head_verified: bool
  beyond_head: int
  torn_bytes: int
  noise_recurs: bool

  @property
  def worst_client(self) -> int:
    """The client that has spent the most, or the first of several."""
    return int(np.argmax(self.epsilons))

  @property
  def worst_epsilon(self) -> float:
    """What the worst client has spent."""
    return float(self.epsilons[self.worst_client])

  @property
  def median_epsilon(self) -> float:
    """Median of what the clients have spent."""
    return float(np.median(self.epsilons))

  @property
  def clients_above_target(self) -> int:
    """How many clients have spent more than the target."""
    return int(np.sum(self.epsilons > self.header.target_epsilon))

  @property
  def within_budget(self) -> bool:
    """Whether no client has spent more than its target."""
    return self.worst_epsilon <= self.header.target_epsilon

  @property
  def holds(self) -> bool:
    """Whether the ledger proves its target; never if a statement would not.

    It assumes the worst where it lacks information, such as whether a run of
    version 1 was seeded.
    """
    return not self._faults()

  @property
  def reason(self) -> str:
    """Why the target is proven or not, in one sentence."""
    if faults := self._faults():
      return '; '.join(faults)
    authors = sorted({share.run.claimed_by for share in self.runs} - {''})
    if authors:
      return (
        'no client is above the target, provided that every release is on'
        ' record with its noise and has the sensitivity on record, as'
        f' {", ".join(authors)} claims: none of this is proven here'
      )
    return (
      'every release is on record, its noise cannot be reproduced, its'
      ' sensitivity is proven, and no client is above the target'
    )

  @property
  def worth(self) -> tuple[str, bool]:
    """`statement.worth` of the target: a sentence, and whether it is little.

    An example-level ledger has at least as many examples as clients.
    """
    header = self.header
    return statement.worth(
      header.target_epsilon,
      header.delta,
      header.unit,
      header.units or header.clients,
      header.adjacency,
    )

  @property
  def _is_order_chosen_at_the_end(self) -> bool:
    """Whether the epsilons assume noise that was fixed in advance."""
    header = self.header
    return (
      header.sampling == _ledger_format.POISSON and header.renyi_order is None
    )

  def _faults(self) -> list[str]:
    """The reasons why the target is not proven, if any."""
    header = self.header
    faults = []
    if not self.head_verified:
      faults.append(
        'the head is missing, so lines may have been cut off the end'
      )
    if not self.records:
      faults.append('no release is on record')
    for text, runs in (
      (
        'the record does not say whether the noise is reproducible from a seed',
        [share for share in self.runs if share.run.seeded is None],
      ),
      (
        'the noise is reproducible from a seed: this was a simulation',
        [share for share in self.runs if share.run.seeded],
      ),
      (
        'the sensitivity that the noise is relative to is not proven',
        [share for share in self.runs if not share.run.sensitivity_proven],
      ),
      (
        'the published model was chosen among several runs, and the choice is'
        ' not counted here, but in the statement',
        [share for share in self.runs if share.run.selection],
      ),
    ):
      if runs:
        numbers = ', '.join(str(share.number) for share in runs[:10])
        more = ', ...' if len(runs) > 10 else ''
        several = f' (run {numbers}{more})' if len(self.runs) > 1 else ''
        faults.append(text + several)
    if header.target_epsilon == math.inf:
      faults.append('there is no finite target')
    elif not self.within_budget:
      faults.append(
        f'{self.clients_above_target} of {header.clients} clients are above the'
        ' target'
      )
    for share in self.runs:
      # Alone it has the ledger's target, but for one that was edited.
      if share.worst_epsilon > share.run.target_epsilon:
        faults.append(f'run {share.number} has spent more than its own target')
    if not header.enforced:
      # The ledger does not know how the noise came about.
      faults.append(
        'the target was not enforced, so the releases may depend on what had'
        ' been spent'
      )
    if self._is_order_chosen_at_the_end and self.noise_recurs:
      faults.append(
        'some rounds have the same noise and others do not, as when rounds are'
        ' released again: without renyi_order in the header, the noise must'
        ' have been fixed in advance'
      )
    if header.target_epsilon < math.inf and not spending.is_gaussian_enough(
      header.delta, header.target_epsilon, self.noise_distance
    ):
      faults.append(
        'the noise that is drawn is too far from Gaussian for epsilon ='
        f' {statement.format_epsilon(header.target_epsilon)}'
      )
    if (
      header.sampling == _ledger_format.POISSON
      and header.adjacency != sensitivity_lib.ADD_OR_REMOVE_ONE
    ):
      faults.append(
        'the accounting of secret sampling is only for'
        f' {sensitivity_lib.ADD_OR_REMOVE_ONE}, not for {header.adjacency}'
      )
    return faults

  def describe(
    self, holds: bool | None = None, reason: str | None = None
  ) -> str:
    """The audit in words, several lines, for a terminal.

    Args:
      holds: Replaces `self.holds` if more is known; it cannot be better.
      reason: The reason for `holds`.

    Raises:
      ValueError: If `holds` is True although the ledger does not hold.
    """
    if holds and not self.holds:
      raise ValueError('holds must be False if the ledger does not hold')
    header = self.header
    number = statement.format_epsilon
    sampling = 'actual participations, no amplification'
    if header.sampling == _ledger_format.POISSON:
      sampling = 'secret Poisson sampling'
      if not self._is_order_chosen_at_the_end:
        sampling += f', all runs at Renyi order {header.renyi_order!r}'
      else:
        sampling += (
          '; this assumes that the noise of all releases was fixed before the'
          ' first'
        )
    limit = 'enforced' if header.enforced else 'recorded, not enforced'
    verdict = 'all are within it'
    if not self.within_budget:
      verdict = f'{self.clients_above_target} of them are ABOVE it'
    least, most = int(self.participations.min()), int(self.participations.max())
    if holds is None:
      holds, reason = self.holds, self.reason
    worth, little = self.worth
    word = statement.verdict(holds, little)
    lines = [
      f'Privacy ledger {self.path}: epsilon ='
      f' {number(header.target_epsilon)} at delta = {header.delta!r} {word}.',
      f'  Reason: {reason}',
      *([f'  Worth: {worth}'] if holds else []),
      f'  Protects: one {header.unit} ({header.adjacency}:'
      f' {sensitivity_lib.ADJACENCY_MEANINGS[header.adjacency]})',
    ]
    if header.data:
      same = '; every client is assumed to have the same data in all runs'
      lines.append(f'  Data: {header.data}{same if len(self.runs) > 1 else ""}')
    lines.append(f'  Accounting: {sampling}')
    for share in self.runs:
      lines += self._describe_run(share)
    lines += [
      f'  Records: {self.records} of {self.rounds} rounds; releases repeated'
      f' bit for bit, not charged: {self.repeats}',
      f'  Participations: {least} to {most} per client',
      f'  Worst client: {self.worst_client}, epsilon ='
      f' {number(self.worst_epsilon)}',
      f'  Median client: epsilon = {number(self.median_epsilon)}',
      f'  Target: epsilon = {number(header.target_epsilon)} for each of the'
      f' {header.clients} clients ({limit}): {verdict}',
      '  What is spent is a reading: if it may have depended on the releases,'
      ' only the target is proven.',
      f'  Chain: intact, last hash {self.head_hash}',
    ]
    if not self.head_verified:
      lines.append(
        f'  {self.path}.head is MISSING: lines may have been cut off the end,'
        ' and every epsilon above may be too low.'
      )
    else:
      lines.append(
        '  Head: verified, no line was cut off; lines beyond it, which are'
        f' counted: {self.beyond_head}'
      )
    if self.torn_bytes:
      lines.append(
        f'  An unfinished last line ({self.torn_bytes} bytes) belongs to no'
        ' release and is not counted.'
      )
    return '\n'.join(lines)

  def _describe_run(self, share: RunAudit) -> list[str]:
    run = share.run
    number = statement.format_epsilon
    proven = '' if run.sensitivity_proven else ' (NOT PROVEN)'
    source = {
      None: 'UNKNOWN whether from a seed',
      True: 'from a SEED',
      False: 'without a seed',
    }[run.seeded]
    rate = ''
    if self.header.sampling == _ledger_format.POISSON:
      rate = f', sampling rate {run.sampling_rate!r}'
    lines = [
      f'  Run {share.number}: {run.mechanism}, {run.noise}'
      f' {self.header.accounting} noise, {source}{rate}',
      f'    Noise is relative to: {run.sensitivity}{proven}',
      f'    Alone, worst client: epsilon = {number(share.worst_epsilon)} of'
      f' {number(run.target_epsilon)}; {share.records} records of'
      f' {share.rounds} rounds',
    ]
    if run.selection:
      lines.append(f'    Published: {run.selection}')
    if run.run_id:
      lines.append(f'    Id {run.run_id}')
    return lines


def audit(path: str | os.PathLike[str]) -> LedgerAudit:
  """Verifies a ledger and recomputes what every client has spent.

  It does not change the ledger, which may be in use.

  Args:
    path: The ledger; `<path>.head` is also read.

  Raises:
    LedgerError: If the file is missing, damaged, cut short, or not a ledger.
      The message is one line, with the line number in the file.
    ValueError: If it is not a path.
  """
  _validate.path('path', path)
  chain = _chained_file.read(path)
  state = _ledger_state.replay(path, chain.payloads)
  epsilons = state.spending.epsilons()
  epsilons.flags.writeable = False
  state.participations.flags.writeable = False
  head_count = chain.head_count
  runs = tuple(
    _share(state, number, epsilons) for number in range(1, len(state.runs) + 1)
  )
  return LedgerAudit(
    path=os.fspath(path),
    header=state.header,
    runs=runs,
    noise_distance=state.noise_distance,
    epsilons=epsilons,
    participations=state.participations,
    rounds=len(state.attempts),
    records=sum(share.records for share in runs),
    repeats=state.repeats,
    head_hash=chain.last_hash,
    head_verified=head_count is not None,
    beyond_head=0 if head_count is None else len(chain.payloads) - head_count,
    torn_bytes=chain.torn,
    noise_recurs=_noise_recurs(state),
  )


def _noise_recurs(state: _ledger_state.LedgerState) -> bool:
  """`LedgerAudit.noise_recurs`; bit-identical repeats do not count."""
  if state.header.sampling != _ledger_format.POISSON:
    return False
  multipliers = state.spending.noise_multipliers(0)
  return 1 < len(np.unique(multipliers)) < len(multipliers)


def _share(
  state: _ledger_state.LedgerState, number: int, epsilons: np.ndarray
) -> RunAudit:
  run = state.runs[number - 1]
  if (
    len(state.runs) > 1
    or run.target_epsilon != state.header.target_epsilon
    or state.header.renyi_order is not None
  ):
    epsilons = state.run_spending(number).epsilons()
    epsilons.flags.writeable = False
  attempts = [
    count for (of, _), count in state.attempts.items() if of == number
  ]
  return RunAudit(
    run=run,
    number=number,
    records=sum(attempts),
    rounds=len(attempts),
    epsilons=epsilons,
  )
