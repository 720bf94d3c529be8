import csv
import pathlib

from absl.testing import absltest

from tools import clipping_cost_suite


class ClippingCostTest(absltest.TestCase):
  def test_measures_and_writes(self):
    results = clipping_cost_suite.measure(2, 'dense')
    (seconds,) = results.values()
    self.assertEqual(tuple(seconds), clipping_cost_suite._KINDS)
    for values in seconds.values():
      self.assertLen(values, 2)
      self.assertBetween(min(values), 1e-5, 60)
    folder = pathlib.Path(self.create_tempdir().full_path, 'new')
    clipping_cost_suite._write(results, folder)
    with open(folder / 'means.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual(
      [float(row['seconds']) for row in rows],
      [value for values in seconds.values() for value in values],
    )
    text = (folder / 'README.md').read_text()
    self.assertRegex(text, r'\| dense 784-256-10( \| [\d.]+){5} \|')


if __name__ == '__main__':
  absltest.main()
