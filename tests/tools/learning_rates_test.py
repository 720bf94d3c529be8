import pathlib

from absl.testing import absltest

from tools import learning_rates_suite
from tvdp_tf.output import files


class LearningRatesTest(absltest.TestCase):
  def test_measures_and_writes(self):
    rows = learning_rates_suite.measure(
      ['wine, linear'], None, [0.05, 0.5], [3.0], 2, rounds=2
    )
    self.assertEqual(
      [(row['rate_of'], row['seed']) for row in rows],
      [(of, seed) for of in ('fit', 'grid', 'grid') for seed in (0, 1)],
    )
    self.assertEqual(
      [row['learning_rate'] for row in rows[2:]], [0.05, 0.05, 0.5, 0.5]
    )
    for row in rows:
      self.assertBetween(row['test_accuracy'], 0, 1)
    folder = pathlib.Path(self.create_tempdir().full_path, 'new')
    learning_rates_suite.write(rows, folder)
    written = files.read_csv(folder / 'runs.csv')
    self.assertEqual(
      [float(row['test_accuracy']) for row in written],
      [row['test_accuracy'] for row in rows],
    )
    self.assertRegex(
      (folder / 'README.md').read_text(), r'\| wine, linear \| 3 \| [\d.]+ \|'
    )
    self.assertGreater((folder / 'runs.png').stat().st_size, 10_000)


if __name__ == '__main__':
  absltest.main()
