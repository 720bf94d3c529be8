import csv
import pathlib

from absl.testing import absltest

from tools import tff_algorithms_suite


class TffAlgorithmsTest(absltest.TestCase):
  def test_measures_and_writes(self):
    results = tff_algorithms_suite.measure(2, 'FedAvg, functional')
    (seconds,) = results.values()
    self.assertCountEqual(seconds, ['compiled', 'worker'])
    for values in seconds.values():
      self.assertLen(values, 2)
      self.assertBetween(min(values), 1e-4, 60)
    folder = pathlib.Path(self.create_tempdir().full_path, 'new')
    tff_algorithms_suite._write(results, folder)
    with open(folder / 'rounds.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(
      [float(row['seconds']) for row in rows],
      [*seconds['compiled'], *seconds['worker']],
    )
    text = (folder / 'README.md').read_text()
    self.assertRegex(
      text, r'\| FedAvg, functional model \| [\d.]+ \| [\d.]+ \|'
    )


if __name__ == '__main__':
  absltest.main()
