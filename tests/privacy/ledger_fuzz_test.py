"""Ledgers that are damaged or edited: one line, or the same numbers."""

import json
import os
import pathlib

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests import mutations
from tests.privacy import ledger_cases
from tvdp_tf.privacy import _chained_file, ledger, ledger_audit


class LedgerFuzzTest(ledger_cases.LedgerTestCase):
  def setUp(self):
    super().setUp()
    with self.create() as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
      ids = ledger_cases.fresh(2)
      ledger_.record(2, [0, 1], ids, [10.0, 11.0], 2)
      ledger_.record(2, [0, 1], ids, [10.0, 11.0], 2)
    self.file = pathlib.Path(self.path())
    self.head = pathlib.Path(self.path() + '.head')
    self.whole = {path: path.read_bytes() for path in (self.file, self.head)}
    self.expected = ledger_audit.audit(self.file)

  def restore(self):
    for path, content in self.whole.items():
      mutations.remove(path)
      path.write_bytes(content)

  def assert_one_line(self, error):
    self.assertTrue(mutations.is_one_line(error), error)

  def check(self):
    """The auditor and the run that goes on find what was there, or refuse."""
    try:
      audit = ledger_audit.audit(self.file)
    except ledger.LedgerError as error:
      self.assert_one_line(error)
    else:
      if audit.head_verified:
        np.testing.assert_array_equal(audit.epsilons, self.expected.epsilons)
        self.assertEqual(audit.head_hash, self.expected.head_hash)
    try:
      with ledger.PrivacyLedger.open(self.file, ledger_cases.header()) as open_:
        np.testing.assert_array_equal(open_.epsilons(), self.expected.epsilons)
        self.assertEqual(open_.head_hash, self.expected.head_hash)
        self.assertLen(open_.charged, 2)
    except ledger.LedgerError as error:
      self.assert_one_line(error)

  @mutations.quick(400)
  @hypothesis.given(st.data())
  def test_damage(self, data):
    self.restore()
    for path, content in self.whole.items():
      if data.draw(st.booleans()):
        path.write_bytes(data.draw(mutations.damaged(content)))
    self.check()

  @parameterized.product(name=('', '.head'), kind=mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, name, kind):
    mutations.replace(pathlib.Path(self.path() + name), kind)
    self.check()

  def test_lines_of_a_forger(self):
    chain = _chained_file.read(self.file)
    accepted = 0

    @mutations.quick(300)
    @hypothesis.given(st.data())
    def check(data):
      nonlocal accepted
      self.restore()
      payloads = list(chain.payloads)
      line = data.draw(st.integers(0, len(payloads) - 1))
      text = data.draw(mutations.edited_json(payloads[line]))
      try:
        payloads[line] = json.loads(text)
        ledger_cases.forge(self.path(), payloads)
      except (ValueError, RecursionError, AttributeError):
        hypothesis.reject()  # There is no such line: test_chained_file.
      try:
        audit = ledger_audit.audit(self.file)
      except ledger.LedgerError as error:
        self.assert_one_line(error)
      else:
        accepted += 1
        self.assertFalse(np.isnan(audit.epsilons).any())
        audit.describe()

    check()
    self.assertGreater(accepted, 0)


class LinkTest(ledger_cases.LedgerTestCase):
  def test_files_beside_it_are_written_through_no_link(self):
    other = pathlib.Path(self.folder, 'other')
    other.write_text('mine')
    ledger_ = self.create()
    os.symlink(other, self.path() + '.head.tmp')
    with self.assertRaisesRegex(ledger.LedgerError, 'symbolic links'):
      ledger_.record(1, [0], ledger_cases.fresh(), 20.0)
    os.symlink(other, self.path('second') + '.new')
    with self.assertRaisesRegex(ledger.LedgerError, 'symbolic links'):
      self.create(name='second')
    self.assertEqual(other.read_text(), 'mine')


if __name__ == '__main__':
  absltest.main()
