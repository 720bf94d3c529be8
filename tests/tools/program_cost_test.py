import csv
import pathlib

from absl.testing import absltest

from tools import program_cost_suite


class ProgramCostTest(absltest.TestCase):
  def test_measures_rounds_of_both(self):
    blocks = program_cost_suite.measure('paper', 'digits', None, 2)
    self.assertLen(blocks, 2)
    for block in blocks:
      self.assertGreater(block.alone, 0)
      self.assertGreater(block.syncs, 0)
      # What it waits for is part of it.
      self.assertGreater(block.whole, block.syncs)
      self.assertGreater(block.evaluation, 0)

  def test_writes_them_and_their_ratios(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'new')
    block = program_cost_suite.Block(0.03, 0.02, 0.05, 0.04, 0.001, 0.005)
    slow = program_cost_suite.Block(0.09, 0.03, 0.06, 0.04, 0.002, 0.006)
    program_cost_suite.write({'paper': [block, slow]}, 'mnist', folder)
    with open(folder / 'rounds.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    self.assertEqual([float(row['whole']) for row in rows], [0.03, 0.09])
    self.assertEqual({row['mechanism'] for row in rows}, {'paper'})
    self.assertIn(
      '| paper | 60.0 | 25.0 | 55.0 | 40.0 | 1.5 | 5.5 | 2.25 | 1.50 | 1.38 |',
      (folder / 'README.md').read_text(),
    )


if __name__ == '__main__':
  absltest.main()
