import csv
import pathlib

from absl.testing import absltest

from tools import round_cost


class RoundCostTest(absltest.TestCase):
  def test_measures_and_writes(self):
    seconds = round_cost.measure(2, ['paper', 'central, discrete'])
    self.assertLen(seconds, 2)
    for values in seconds.values():
      self.assertLen(values, 2)
      self.assertBetween(min(values), 1e-4, 60)
    folder = pathlib.Path(self.create_tempdir().full_path, 'new')
    round_cost._write(seconds, folder)
    with open(folder / 'rounds.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual([float(row['paper']) for row in rows], seconds['paper'])
    text = (folder / 'README.md').read_text()
    self.assertRegex(text, r'\| paper \| [\d.]+ \| 1.00 \|')


if __name__ == '__main__':
  absltest.main()
