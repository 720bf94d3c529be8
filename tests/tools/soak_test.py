"""The soak, for a few rounds: faults, interruptions, and what is judged."""

import csv
from unittest import mock

from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tools import soak_report, soak_run


def _samples(**changes):
  """Of rounds 401 to 500, flat but for `changes`: functions of the round."""
  flat = soak_run.Sample(0, 700_000, 15, 18, 0, 1.0)
  return [
    flat._replace(
      round=number, **{name: of(number) for name, of in changes.items()}
    )
    for number in range(401, 501)
  ]


class VerdictTest(parameterized.TestCase):
  def test_flat(self):
    # What the collector of garbage does to memory is no growth.
    verdict = soak_run.verdict(
      _samples(
        resident_kib=lambda m: 700_000 + m % 20 * 2000 + 4 * m,
        threads=lambda m: 17 + m % 2,
      ),
      20,
    )
    self.assertEmpty(verdict.failures())
    self.assertAlmostEqual(verdict.kib_a_round, 4, places=6)

  @parameterized.parameters(
    ('resident_kib', lambda m: 700_000 + 6 * m, 'grows by 6.0 KiB a round'),
    ('descriptors', lambda m: 15 + (m > 450), 'grow from 15 to 16'),
    ('threads', lambda m: 18 + m // 100, 'threads grow from 22 to 23'),
    ('children', lambda m: int(m == 444), 'child processes: 1'),
  )
  def test_growth(self, name, of, said):
    (failure,) = soak_run.verdict(_samples(**{name: of}), 5).failures()
    self.assertIn(said, failure)


class SoakTest(resume_cases.FolderTestCase):
  def test_some_rounds_with_faults(self):
    folder = self.folder / 'soak'
    with mock.patch.object(soak_report, 'INTERRUPTIONS', (0.4, 0.6)):
      verdict = soak_report.soak(10, folder)
    self.assertEqual(verdict.children, 0)
    self.assertEqual(verdict.descriptors[0], verdict.descriptors[1])
    with open(folder / soak_report.CSV, newline='') as file:
      rounds = [int(row['round']) for row in csv.DictReader(file)]
    # After an interruption the round comes again.
    self.assertEqual(rounds, [*range(1, 5), *range(4, 7), *range(6, 11)])
    text = (folder / 'README.md').read_text()
    self.assertRegex(text, r'Faults of clients: [1-9]\d* vanished, [1-9]')
    self.assertIn('resumed in the same process, after rounds 4, 6.', text)
    self.assertGreater((folder / soak_report.PICTURE).stat().st_size, 5000)


if __name__ == '__main__':
  absltest.main()
