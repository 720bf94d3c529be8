"""The audit of a run's ledger: every client's epsilon, worst first."""

import csv
import pathlib

import numpy as np

from tvdp_tf.experiments import output_folder
from tvdp_tf.experiments.planning import layout as planning_layout
from tvdp_tf.privacy import ledger, ledger_audit

CSV = 'ledger_audit.csv'
COLUMNS = (
  *('client', 'epsilon', 'participations'),
  *('target_epsilon', 'within_target'),
)
MOST_LINES = 20


def _worst_first(audit: ledger_audit.LedgerAudit) -> list[int]:
  return np.argsort(-audit.epsilons, kind='stable').tolist()


def describe(audit: ledger_audit.LedgerAudit) -> str:
  """The audit in words with a table of clients, several lines."""
  target = audit.header.target_epsilon
  order = _worst_first(audit)
  rows: list[tuple[str, ...]] = [('client', 'epsilon', 'participations', '')]
  for client in order[:MOST_LINES]:
    spent = float(audit.epsilons[client])
    rows.append(
      (
        str(client),
        planning_layout.epsilon(spent),
        str(audit.participations[client]),
        'ABOVE the target' if spent > target else '',
      )
    )
  lines = [
    audit.describe(),
    '',
    'Clients, worst first',
    *planning_layout.table(rows, left=0),
  ]
  rest = order[MOST_LINES:]
  if rest:
    most = planning_layout.epsilon(float(audit.epsilons[rest[0]]))
    lines += planning_layout.wrap(
      f'and {len(rest)} more, epsilon = {most} or less; --output_dir writes all'
      f' of them to {CSV}'
    )
  if audit.header.sampling == 'poisson':
    lines += planning_layout.wrap(
      'every round is charged to every client, whoever was drawn'
    )
  return '\n'.join([*lines, '', *_head(audit)])


def _head(audit: ledger_audit.LedgerAudit) -> list[str]:
  verified = 'verified' if audit.head_verified else 'NOT verified'
  return [
    f'Head of the chain: {verified}',
    f'  ledger_head {audit.head_hash}',
    *planning_layout.wrap(
      'compare it with "ledger_head" in a copy of the run\'s privacy.json that'
      ' was kept elsewhere: whoever can write the files can rewrite them all'
    ),
  ]


def write(audit: ledger_audit.LedgerAudit, path: pathlib.Path) -> None:
  """Creates a folder with `ledger_audit.csv`: a row a client, worst first.

  Args:
    audit: The audit.
    path: The folder, see `output_folder.check`.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  target = audit.header.target_epsilon
  with (
    output_folder.create(path) as folder,
    open(folder / CSV, 'w', newline='', encoding='utf-8') as file,
  ):
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(COLUMNS)
    for client in _worst_first(audit):
      spent = float(audit.epsilons[client])
      writer.writerow(
        [
          *(client, repr(spent), audit.participations[client]),
          *(repr(target), str(spent <= target).lower()),
        ]
      )


def check(audit: ledger_audit.LedgerAudit) -> None:
  """Checks that the ledger keeps what it promises.

  Raises:
    LedgerError: If its end cannot be vouched for, or it says that the target is
      enforced and a client is above it.
  """
  header = audit.header
  if not audit.head_verified:
    raise ledger.LedgerError(
      f'{audit.path}: its head is missing: lines may have been cut off, and'
      ' every epsilon may be too low'
    )
  if header.enforced and not audit.within_budget:
    over = int(np.sum(audit.epsilons > header.target_epsilon))
    raise ledger.LedgerError(
      f'{audit.path}: {over} of {header.clients} clients are above the target'
      f' epsilon = {header.target_epsilon!r}, which the'
      f' ledger says is enforced: client {audit.worst_client} has spent'
      f' {planning_layout.epsilon(audit.worst_epsilon)}'
    )
