"""Audits of other tools: how they are judged, and what is on record."""

import csv
import math
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from benchmarks.harness import audited
from tools import claim_suite
from tvdp_tf.attacks import lower_bound

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / 'results/claims'
_TRIALS = 20_000


def _case(mu, **changes):
  """Scores of a Gaussian release of noise multiplier 1 / mu."""
  rng = np.random.default_rng(7)
  arguments = {
    'name': 'a release',
    'delta': 1e-3,
    'epsilon_set': 1.0,
    'epsilon_told': None,
    'formula': 'gaussian',
    'arguments': {'rounds': 1, 'noise_multiplier': 1 / mu},
    'is_gaussian': True,
    'scores': rng.normal(mu, 1.0, _TRIALS),
    'alternative_scores': rng.normal(0.0, 1.0, _TRIALS),
    **changes,
  }
  return audited.Case(**arguments)


class JudgeTest(parameterized.TestCase):
  def judged(self, case):
    """The row of a case that has been handed over by files."""
    folder = pathlib.Path(self.create_tempdir().full_path)
    audited.write(folder, 'numpy', 1.5, [case])
    found = audited.read(folder)
    self.assertEqual((found.tool, found.version), ('numpy', np.__version__))
    np.testing.assert_array_equal(found.cases[0].scores, case.scores)
    (row,) = claim_suite.judge(found, 0.99)
    claim_suite.write([found], [row], 'a command', 0.99, folder)
    with open(folder / 'claims.csv', newline='') as file:
      (written,) = csv.DictReader(file)
    self.assertEqual(tuple(written), claim_suite.COLUMNS)
    self.assertEqual(float(written['lower_bound']), row['lower_bound'])
    text = (folder / 'README.md').read_text()
    self.assertIn(f'| {row["verdict"]} |', text)
    self.assertIn('`a command`', text)
    self.assertIn('99% confidence', text)
    return row

  def test_too_small_a_claim_is_refuted(self):
    row = self.judged(_case(mu=1.5))
    self.assertEqual(row['verdict'], claim_suite.REFUTED)
    self.assertBetween(row['lower_bound'], 1.5, row['check_claim'])
    self.assertBetween(
      row['lower_bound_if_gaussian'], row['lower_bound'], row['check_claim']
    )

  def test_a_right_claim_is_not(self):
    told = self.judged(_case(mu=1.5))['check_claim']
    for changes in ({'epsilon_set': told}, {'epsilon_told': told}):
      row = self.judged(_case(mu=1.5, **changes))
      self.assertEqual(row['verdict'], claim_suite.NOT_REFUTED)
      self.assertGreater(row['lower_bound'], told / 2)

  def test_none_is_claimed(self):
    row = self.judged(_case(mu=1.5, epsilon_set=None, is_gaussian=False))
    self.assertEqual(row['verdict'], claim_suite.NO_CLAIM)
    self.assertTrue(math.isnan(row['lower_bound_if_gaussian']))


class ToolsTest(parameterized.TestCase):
  @parameterized.parameters(*claim_suite.TOOLS)
  def test_has_a_program_and_pins(self, tool):
    folder = _ROOT / 'benchmarks/peers' / tool
    self.assertTrue((folder / 'claim.py').exists())
    lines = (folder / 'requirements.txt').read_text().splitlines()
    pins = [line for line in lines if not line.startswith('#')]
    self.assertGreater(len(pins), 10)
    for pin in pins:
      self.assertRegex(pin, r'^[A-Za-z0-9_.-]+==[0-9][0-9a-z.+]*$')


class ResultsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    with open(_RESULTS / 'claims.csv', newline='') as file:
      self.rows = list(csv.DictReader(file))

  def test_rows_are_whole_and_judged_by_their_rates(self):
    self.assertEqual(tuple(self.rows[0]), claim_suite.COLUMNS)
    self.assertEqual(
      {row['tool'] for row in self.rows}, {'flwr', 'nvflare', 'opacus'}
    )
    for row in self.rows:
      shown = float(row['lower_bound'])
      tpr, fpr = (
        float(row[name]) for name in ('tpr_lower_limit', 'fpr_upper_limit')
      )
      epsilons = lower_bound._epsilon_bound(float(row['delta']))(
        np.array(tpr), np.array(fpr)
      )
      self.assertAlmostEqual(shown, float(epsilons), places=9)
      self.assertLessEqual(shown, float(row['check_claim']))
      claim = row['epsilon_told'] or row['epsilon_set']
      refuted = bool(claim) and shown > float(claim)
      self.assertEqual(row['verdict'] == claim_suite.REFUTED, refuted)

  def test_the_page_has_the_table(self):
    table = [
      line
      for line in (_RESULTS / 'README.md').read_text().splitlines()
      if line.startswith('|')
    ]
    self.assertLen(table, len(self.rows) + 2)
    page = (_ROOT / 'docs/CLAIMS.md').read_text()
    self.assertIn('\n'.join(table), page)
    for row in self.rows:
      self.assertIn(f'{row["tool"]} {row["version"]}', page)


if __name__ == '__main__':
  absltest.main()
