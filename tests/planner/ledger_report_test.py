import csv
import json
import math
import pathlib

import numpy as np
from absl.testing import absltest

from tests.privacy import ledger_cases
from tvdp_tf.planner import ledger_report
from tvdp_tf.privacy import _chained_file, accounting, ledger, ledger_audit


class PlanningLedgerTest(ledger_cases.LedgerTestCase):
  def write(self, clients=3, **changes):
    """Client i takes part in i + 1 rounds; the last two in as many."""
    header = ledger_cases.header(clients=clients, **changes)
    with self.create(header) as ledger_:
      for m in range(1, clients):
        taking = range(m - 1, clients)
        ids = ledger_cases.fresh(len(taking))
        ledger_.record(m, taking, ids, 40.0)
      return ledger_.epsilons(), ledger_.head_hash

  def audit(self):
    return ledger_audit.audit(self.path())

  def table(self, text):
    """The cells of the table of clients."""
    lines = text.partition('\nClients, worst first\n')[2].splitlines()[1:]
    return [
      cells for cells in (line.split() for line in lines) if cells[:1] > ['']
    ]

  def test_worst_clients_first(self):
    epsilons, head_hash = self.write()
    text = ledger_report.describe(self.audit())
    rows = self.table(text)
    # Of equals the first.
    self.assertEqual([row[0] for row in rows[:3]], ['1', '2', '0'])
    self.assertEqual([row[2] for row in rows[:3]], ['2', '2', '1'])
    for row in rows[:3]:
      shown, spent = float(row[1]), epsilons[int(row[0])]
      self.assertBetween(shown, spent, spent * (1 + 1e-5))
    self.assertIn('Head of the chain: verified', text)
    self.assertIn(f'\n  ledger_head {head_hash}\n', text)
    self.assertNotIn('more, epsilon', text)

  def test_long_tables_are_cut(self):
    epsilons, _ = self.write(clients=30, target_epsilon=5.0)
    text = ledger_report.describe(self.audit())
    clients = [row[0] for row in self.table(text) if row[0].isdigit()]
    self.assertEqual(clients, ['28', '29', *map(str, range(27, 9, -1))])
    rest = ledger_report.layout.epsilon(epsilons[9])
    self.assertIn(f'and 10 more, epsilon = {rest} or less;', text)

  def test_who_is_above_the_target(self):
    self.write(target_epsilon=0.1, enforced=False)
    rows = self.table(ledger_report.describe(self.audit()))
    marks = {row[0]: row[3:] for row in rows[:3]}
    above = ['ABOVE', 'the', 'target']
    self.assertEqual(marks, {'1': above, '2': above, '0': []})

  def test_file(self):
    epsilons, _ = self.write(clients=30, target_epsilon=0.3, enforced=False)
    folder = pathlib.Path(self.folder) / 'new' / 'audit'
    ledger_report.write(self.audit(), folder)
    self.assertEqual(
      sorted(path.name for path in folder.iterdir()),
      ['ledger_audit.csv', 'ledger_runs.csv', 'report.html'],
    )
    with open(folder / 'ledger_audit.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(tuple(rows[0]), ledger_report.COLUMNS)
    self.assertLen(rows, 30)
    found = [float(row['epsilon']) for row in rows]
    self.assertEqual(found, sorted(found, reverse=True))
    for row in rows:
      spent = epsilons[int(row['client'])]
      # To the last bit: rounded down it would promise too much.
      self.assertEqual(float(row['epsilon']), spent)
      self.assertEqual(
        row['within_target'], 'true' if spent <= 0.3 else 'false'
      )
      self.assertEqual(row['target_epsilon'], '0.3')
    self.assertIn('false', {row['within_target'] for row in rows})
    self.assertIn('true', {row['within_target'] for row in rows})
    participations = {int(r['client']): int(r['participations']) for r in rows}
    self.assertEqual(participations[0], 1)
    self.assertEqual(participations[29], 29)

  def test_file_of_runs(self):
    header = ledger_cases.shared_header(target_epsilon=2.0)
    runs = [
      ledger_cases.run(header, target_epsilon=e, mechanism=f'm{e:g}')
      for e in (1.0, 2.0)
    ]
    alone = []
    for i, run in enumerate(runs):
      with (
        ledger.PrivacyLedger.open(self.path())
        if i
        else ledger.PrivacyLedger.create(self.path(), header)
      ) as ledger_:
        ledger_.join(run)
        for m in range(1, 2 + i):
          ledger_.record(m, [1], ledger_cases.fresh(), 10.0)
        alone.append(
          accounting.delivered_epsilon([10.0] * (1 + i), 1e-5, 'exact')
        )
    audit = self.audit()
    self.assertGreater(audit.worst_epsilon, max(alone))
    folder = pathlib.Path(self.folder) / 'audit'
    ledger_report.write(audit, folder)
    with open(folder / 'ledger_runs.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(tuple(rows[0]), ledger_report.RUNS_COLUMNS)
    self.assertEqual([row['run'] for row in rows], ['1', '2'])
    self.assertEqual([row['run_id'] for row in rows], [r.run_id for r in runs])
    self.assertEqual([row['mechanism'] for row in rows], ['m1', 'm2'])
    self.assertEqual([row['seeded'] for row in rows], ['false'] * 2)
    self.assertEqual([row['records'] for row in rows], ['1', '2'])
    self.assertEqual([float(row['worst_epsilon']) for row in rows], alone)
    self.assertEqual([row['target_epsilon'] for row in rows], ['1.0', '2.0'])

  def test_bare_releases(self):
    header = ledger_cases.header(enforced=False, target_epsilon=math.inf)
    with self.create(header) as ledger_:
      ledger_.record(1, [2], ledger_cases.fresh(), 0.0)
    audit = self.audit()
    text = ledger_report.describe(audit)
    self.assertEqual(self.table(text)[0][:2], ['2', 'inf'])
    ledger_report.check(audit)
    ledger_report.write(audit, pathlib.Path(self.folder) / 'audit')

  def test_secret_draws(self):
    with self.create(ledger_cases.poisson_header()) as ledger_:
      ledger_.record(1, [], ledger_cases.fresh(), 5.0)
    text = ledger_report.describe(self.audit())
    self.assertIn('every round is charged to every client', text)
    epsilons = {row[1] for row in self.table(text)[:3]}
    self.assertLen(epsilons, 1)
    self.assertGreater(float(epsilons.pop()), 0)

  def test_within_the_target(self):
    self.write()
    ledger_report.check(self.audit())

  def test_above_a_target_that_is_not_enforced(self):
    self.write(target_epsilon=0.05, enforced=False)
    ledger_report.check(self.audit())

  def test_above_an_enforced_target(self):
    self.write(target_epsilon=0.1, enforced=False)
    payloads = _chained_file.read(self.path()).payloads
    payloads[0]['enforced'] = True
    ledger_cases.forge(self.path(), payloads)
    audit = self.audit()
    self.assertEqual(np.sum(audit.epsilons > 0.1), 2)
    with self.assertRaisesRegex(
      ledger.LedgerError,
      '2 of 3 clients are above the target epsilon = 0.1, .* client 1 has',
    ) as caught:
      ledger_report.check(audit)
    self.assertNotIn('\n', str(caught.exception))

  def test_statement_beside_it_is_not_bettered(self):
    _, head_hash = self.write()
    path = pathlib.Path(self.folder, 'privacy.json')
    self.assertTrue(ledger_report.verdict(self.audit()).holds)
    for said, holds, reason in (
      ({'holds': True, 'ledger_head': head_hash}, True, '^every release'),
      (
        {'holds': False, 'ledger_head': head_hash, 'reason': 'too little'},
        False,
        '^the statement beside it does not hold: too little$',
      ),
      ({'ledger_head': head_hash}, False, 'it gives no reason$'),
      (
        {'holds': 1, 'ledger_head': head_hash, 'reason': '\x1b[2J'},
        False,
        'it gives no reason$',
      ),
      # Of another ledger, or of this one at another time.
      ({'holds': False, 'ledger_head': 'a' * 64}, True, '^every release'),
      ([], True, '^every release'),
    ):
      path.write_text(json.dumps(said))
      found = ledger_report.verdict(self.audit())
      self.assertEqual(found.holds, holds)
      self.assertRegex(found.reason, reason)
      text = ledger_report.describe(self.audit())
      self.assertIn(f'Reason: {found.reason}\n', text)
      self.assertEqual('DOES NOT HOLD' in text, not holds)

  def test_statement_beside_it_betters_nothing(self):
    with self.create(seeded=True) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 40.0)
      head_hash = ledger_.head_hash
    pathlib.Path(self.folder, 'privacy.json').write_text(
      json.dumps({'holds': True, 'ledger_head': head_hash})
    )
    self.assertFalse(ledger_report.verdict(self.audit()).holds)
    with self.assertRaisesRegex(ValueError, 'holds must be False'):
      self.audit().describe(holds=True, reason='because')

  def test_without_head(self):
    self.write()
    pathlib.Path(self.path() + '.head').unlink()
    audit = self.audit()
    self.assertIn('NOT verified', ledger_report.describe(audit))
    with self.assertRaisesRegex(ledger.LedgerError, 'its head is missing'):
      ledger_report.check(audit)


if __name__ == '__main__':
  absltest.main()
