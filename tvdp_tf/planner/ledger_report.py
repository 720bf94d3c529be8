"""Reports the audit of a ledger: verdict, runs, and every client's epsilon.

If the ledger is in a run's folder, the run's statement is next to it. The
statement knows more than the ledger: if it does not hold, this report does not
say HOLDS either.
"""

import dataclasses
import pathlib

import numpy as np

from tvdp_tf.output import files, layout
from tvdp_tf.output import report as output_report
from tvdp_tf.privacy import ledger, ledger_audit
from tvdp_tf.privacy import statement as statement_lib

CSV = 'ledger_audit.csv'
RUNS_CSV = 'ledger_runs.csv'
COLUMNS = (
  *('client', 'epsilon', 'participations'),
  *('target_epsilon', 'within_target'),
)
RUNS_COLUMNS = (
  *('run', 'run_id', 'mechanism', 'noise', 'seeded', 'sensitivity_proven'),
  *('sampling_rate', 'selection', 'settings_digest', 'records', 'rounds'),
  *('worst_epsilon', 'target_epsilon'),
)
MOST_LINES = 20
# As in `run_folder`, which is slow to import.
_STATEMENT = 'privacy.json'


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The verdict on a ledger, including the statement beside it.

  Attributes:
    holds: Whether its target is proven, and no statement says otherwise.
    reason: Why, in a sentence.
  """

  holds: bool
  reason: str


def verdict(audit: ledger_audit.LedgerAudit) -> Verdict:
  """The audit's verdict, unless the statement beside the ledger refutes it.

  A statement is beside the ledger if it is in the same folder and names the
  same last line of the ledger.
  """
  said = files.read_json(pathlib.Path(audit.path).with_name(_STATEMENT))
  if said.get('ledger_head') != audit.head_hash:
    return Verdict(audit.holds, audit.reason)
  if audit.holds and said.get('holds') is not True:
    reason = said.get('reason')
    if not isinstance(reason, str) or not reason.isprintable():
      reason = 'it gives no reason'
    return Verdict(False, f'the statement beside it does not hold: {reason}')
  return Verdict(audit.holds, audit.reason)


def _worst_first(audit: ledger_audit.LedgerAudit) -> list[int]:
  return np.argsort(-audit.epsilons, kind='stable').tolist()


def describe(audit: ledger_audit.LedgerAudit) -> str:
  """The audit in words, several lines, with a table of clients."""
  target = audit.header.target_epsilon
  order = _worst_first(audit)
  rows: list[tuple[str, ...]] = [('client', 'epsilon', 'participations', '')]
  for client in order[:MOST_LINES]:
    spent = float(audit.epsilons[client])
    rows.append(
      (
        str(client),
        layout.epsilon(spent),
        str(audit.participations[client]),
        'ABOVE the target' if spent > target else '',
      )
    )
  found = verdict(audit)
  lines = [
    audit.describe(found.holds, found.reason),
    '',
    'Clients, worst first',
    *layout.table(rows, left=0),
  ]
  rest = order[MOST_LINES:]
  if rest:
    most = layout.epsilon(float(audit.epsilons[rest[0]]))
    lines += layout.wrap(
      f'and {len(rest)} more, epsilon = {most} or less; --output_dir writes all'
      f' of them to {CSV}'
    )
  if audit.header.sampling == 'poisson':
    lines += layout.wrap(
      'every round is charged to every client, whether it was drawn or not'
    )
  return '\n'.join([*lines, '', *_head(audit)])


def _head(audit: ledger_audit.LedgerAudit) -> list[str]:
  verified = 'verified' if audit.head_verified else 'NOT verified'
  return [
    f'Head of the chain: {verified}',
    f'  ledger_head {audit.head_hash}',
    *layout.wrap(
      'compare it with "ledger_head" in a copy of the run\'s privacy.json that'
      ' was kept elsewhere: anyone who can write to these files can rewrite'
      ' all of them'
    ),
  ]


def write(audit: ledger_audit.LedgerAudit, path: pathlib.Path) -> None:
  """Creates a folder with two tables.

  `ledger_audit.csv` has a row for each client, worst first. `ledger_runs.csv`
  has a row for each run, with what its worst client has spent in it alone.

  Args:
    audit: The audit.
    path: The folder; see `output_folder.check`.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  target = audit.header.target_epsilon
  with files.create_folder(path) as folder:
    files.write_csv(
      folder / CSV,
      COLUMNS,
      [
        [
          *(client, repr(spent), audit.participations[client]),
          *(repr(target), _word(spent <= target)),
        ]
        for client in _worst_first(audit)
        for spent in [float(audit.epsilons[client])]
      ],
    )
    files.write_csv(
      folder / RUNS_CSV,
      RUNS_COLUMNS,
      [
        [
          *(share.number, share.run.run_id, share.run.mechanism),
          *(share.run.noise, _word(share.run.seeded)),
          _word(share.run.sensitivity_proven),
          *(repr(share.run.sampling_rate), share.run.selection),
          *(share.run.settings_digest, share.records, share.rounds),
          *(repr(share.worst_epsilon), repr(share.run.target_epsilon)),
        ]
        for share in audit.runs
      ],
    )
    said = verdict(audit)
    header, number = audit.header, statement_lib.format_epsilon
    output_report.write_audit(
      folder,
      statement_lib.verdict(said.holds, audit.worth[1]),
      said.reason,
      [
        output_report.Number('Target epsilon', number(target)),
        output_report.Number('Target delta', f'{header.delta!r}'),
        output_report.Number('Worst client', number(audit.worst_epsilon)),
        output_report.Number('Median client', number(audit.median_epsilon)),
        output_report.Number('Clients', str(header.clients)),
      ],
      audit.epsilons.tolist(),
      target,
      (CSV, RUNS_CSV),
    )


def _word(value: bool | None) -> str:
  return 'unknown' if value is None else str(value).lower()


def check(audit: ledger_audit.LedgerAudit) -> None:
  """Checks that the ledger keeps what it promises.

  Raises:
    LedgerError: If lines may have been cut off its end, or if it says that the
      target is enforced and a client is above it.
  """
  header = audit.header
  if not audit.head_verified:
    raise ledger.LedgerError(
      f'{audit.path}: its head is missing: lines may have been cut off, and'
      ' every epsilon may be too low'
    )
  if header.enforced and not audit.within_budget:
    raise ledger.LedgerError(
      f'{audit.path}: {audit.clients_above_target} of {header.clients} clients'
      f' are above the target epsilon = {header.target_epsilon!r}, which the'
      f' ledger says is enforced: client {audit.worst_client} has spent'
      f' {layout.epsilon(audit.worst_epsilon)}'
    )
