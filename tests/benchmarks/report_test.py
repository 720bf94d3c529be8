"""From rounds to tables, files and pictures."""

import collections
import csv
import dataclasses
import json
import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest

from benchmarks.harness import (
  comparison,
  contenders,
  report,
  session,
  statistics,
  tables,
  whole_training,
)
from benchmarks.harness import work as work_lib
from tests.benchmarks import fakes

OURS, MATRIX = contenders.OURS.name, contenders.MATRIX_PRODUCT.name
PRODUCTS = contenders.ROUND_PRODUCTS.name


def program_of(name, peak_bytes=2**30):
  references = contenders.references(fakes.WORK)
  known = {one.name: one for one in references} | contenders.CONTENDERS
  contender = known[name]
  start = session.Start(3.0, 1.0, 'digest', {'library': '1'})
  return comparison.Program(contender, start, None, 0.0, peak_bytes)


BLOCKS = [
  comparison.Block(OURS, 1, [1.0, 2.0, 9.0]),
  comparison.Block('jax/scan', 1, [3.0, 4.0, 5.0]),
  comparison.Block('jax/vmap', 1, [8.0, 8.0, 8.0]),
  comparison.Block(MATRIX, 1, [0.5, 0.7]),
  # The machine is half as fast now, for everyone.
  comparison.Block(OURS, 2, [4.0, 4.0, 4.0]),
  comparison.Block('jax/scan', 2, [8.0, 8.0, 8.0]),
  comparison.Block('jax/vmap', 2, [16.0, 16.0, 16.0]),
  comparison.Block(MATRIX, 2, [1.0, 2.0]),
  comparison.Block(PRODUCTS, 1, [0.8, 1.0]),
  comparison.Block(PRODUCTS, 2, [1.2, 1.4]),
]
PROGRAMS = [
  program_of(n) for n in ('jax/vmap', 'jax/scan', OURS, MATRIX, PRODUCTS)
]


def medians_of_rows(folder):
  """(work, program) -> median of the seconds in a folder's peers.csv."""
  seconds = collections.defaultdict(list)
  with open(folder / 'peers.csv', newline='') as file:
    for row in csv.DictReader(file):
      key = row['work'], row['program']
      seconds[key].append(float(row['seconds']))
  products = (MATRIX, PRODUCTS, 'matrix/same', 'products/same')
  return {
    (work, program): float(np.median(values))
    for (work, program), values in seconds.items()
    if program not in products
  }


def medians_of_summary(folder):
  """The same, as a folder's summary.json has it."""
  summary = json.loads((folder / 'summary.json').read_text())
  return {
    (work, own['contender']): own['seconds']['median']
    for work, summaries in summary['summaries'].items()
    for own in summaries
  }


class SummaryTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.summaries = statistics.summarize(fakes.WORK, BLOCKS, PROGRAMS)

  def test_fastest_first(self):
    names = [summary.contender for summary in self.summaries]
    self.assertEqual(names, [OURS, 'jax/scan', 'jax/vmap'])

  def test_arithmetic(self):
    ours, scan, vmap = self.summaries
    self.assertEqual(ours.seconds, statistics.Quartiles(2.5, 4.0, 4.0))
    # Turn by turn: 4 / 2 and 8 / 4, though the machine has changed.
    self.assertEqual(scan.times_ours, statistics.Quartiles(2.0, 2.0, 2.0))
    self.assertEqual(vmap.times_ours, statistics.Quartiles(4.0, 4.0, 4.0))
    peak = work_lib.MATRIX_FLOPS / 0.5
    self.assertEqual(statistics.peak_flops_per_second(BLOCKS), peak)
    flops = fakes.WORK.flops_per_round
    self.assertAlmostEqual(scan.flops_per_second, flops / 6.5)
    self.assertAlmostEqual(scan.share_of_peak, flops / 6.5 / peak)

  def test_products_of_a_round(self):
    found = statistics.products_seconds(BLOCKS)
    self.assertEqual(found, statistics.Quartiles.of([0.8, 1.0, 1.2, 1.4]))
    self.assertIsNone(statistics.products_seconds(BLOCKS[:-2]))
    settings = report.Settings(('peers',), {'w': fakes.WORK}, (), 2, 3, 1)
    where = {'load_average': 0.0}
    results = report.Results(settings, where, [], {'w': BLOCKS})
    share = fakes.WORK.flops_per_round / 1.1 / (work_lib.MATRIX_FLOPS / 0.5)
    self.assertEqual(
      results._products('w'),
      [
        'The products of a round alone: 1.1 s, '
        f'{100 * share:.0f} % of the peak.'
      ],
    )
    results.blocks['w'] = BLOCKS[:-2]
    self.assertEqual(results._products('w'), [])

  def test_tables(self):
    absent = [contenders.CONTENDERS['flower/simulation']]
    text = tables.comparison_table(self.summaries, absent)
    self.assertIn('| 4 (2.5 to 4) | 1 (1 to 1) |', text)
    self.assertIn('absent: no .venv-peers/flower, which `make peers`', text)
    counts = {line.count('|') for line in text.splitlines()}
    self.assertEqual(counts, {8})
    best = tables.best_table(self.summaries)
    self.assertIn('| jax | scan | 2 (2 to 2) |', best)
    self.assertNotIn('vmap', best)

  def test_training_table(self):
    rows = [(OURS, 1, 8.0), ('pfl/process', 1, 4.0), (OURS, 2, 2.0)]
    rows.append(('pfl/process', 2, 3.0))
    text = tables.training_table(
      [whole_training.WholeTraining(*row, 0.9) for row in rows],
      [contenders.CONTENDERS['flower/simulation']],
    )
    lines = text.splitlines()[2:]
    # Turn by turn: 4 / 8 and 3 / 2.
    self.assertEqual(
      lines[0],
      '| pfl/process | 3.5 (3.25 to 3.75) | 1 (0.75 to 1.25) | 90.0 % |',
    )
    self.assertIn(f'| {OURS} | 5 (3.5 to 6.5) | 1 (1 to 1) |', lines[1])
    self.assertIn('absent', lines[2])


class WholeTest(absltest.TestCase):
  def test_measures_writes_and_draws(self):
    # Fast programs in all places; a peer is present, another one is not.
    ours = fakes.contender('same', 'tvdp_tf')
    known = {
      ours.name: ours,
      'numpy/child': fakes.contender('child'),
      # Of other works.
      'numpy/private': dataclasses.replace(
        fakes.contender('dead'), form='private', kinds=('private',)
      ),
      'jax/scan': contenders.CONTENDERS['jax/scan'],
    }
    for name, value in (
      ('OURS', ours),
      ('MATRIX_PRODUCT', fakes.contender('same', 'matrix')),
      ('ROUND_PRODUCTS', fakes.contender('same', 'products')),
      ('CONTENDERS', known),
      ('ENVIRONMENTS', 'no-such-folder'),
    ):
      self.enter_context(mock.patch.object(contenders, name, value))
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    report.run(
      report.Settings(
        measures=('peers', 'startup', 'scaling'),
        works={'mlp-round': fakes.WORK},
        contenders=('numpy/child', 'numpy/private', 'jax/scan'),
        turns=2,
        rounds=2,
        starts=2,
        smoke=True,
      ),
      fakes.ROOT,
      folder,
    )
    self.assertCountEqual(
      [path.name for path in folder.iterdir()],
      [
        'README.md',
        'summary.json',
        'peers.csv',
        'peers.png',
        'startup-mlp-round.csv',
        'startup-mlp-round.png',
        'scaling.csv',
        'scaling.png',
      ],
    )
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['absent'], ['jax/scan'])
    child = summary['programs']['mlp-round']['numpy/child']
    self.assertEqual(child['versions'], {'numpy': np.__version__})
    self.assertEqual(child['distance_from_our_model'], 0)
    self.assertEqual(medians_of_rows(folder), medians_of_summary(folder))
    self.assertLen(medians_of_rows(folder), 2)
    readme = (folder / 'README.md').read_text()
    self.assertIn('jax/scan', readme)
    self.assertIn('absent: no no-such-folder/jax', readme)
    with open(folder / 'scaling.csv', newline='') as file:
      points = list(csv.DictReader(file))
    sizes = {(row['series'], row['size']) for row in points}
    self.assertLen(sizes, 2 + 2 + 2 + 2)
    self.assertLen([row for row in points if row['series'] == 'rounds'], 10)


class InterruptedTest(absltest.TestCase):
  def test_what_was_measured_is_there(self):
    ours = fakes.contender('same', 'tvdp_tf')
    matrix = fakes.contender('same', 'matrix')
    products = fakes.contender('same', 'products')
    settings = report.Settings(
      measures=('peers', 'startup'),
      works={'mlp-round': fakes.WORK},
      contenders=(),
      turns=1,
      rounds=1,
      starts=1,
    )
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    with (
      mock.patch.object(contenders, 'OURS', ours),
      mock.patch.object(contenders, 'MATRIX_PRODUCT', matrix),
      mock.patch.object(contenders, 'ROUND_PRODUCTS', products),
      mock.patch.object(contenders, 'CONTENDERS', {ours.name: ours}),
      mock.patch.object(
        report.startup, 'measure', side_effect=KeyboardInterrupt
      ),
      self.assertRaises(KeyboardInterrupt),
    ):
      report.run(settings, fakes.ROOT, folder)
    self.assertLen((folder / 'peers.csv').read_text().splitlines(), 1 + 3)
    self.assertFalse((folder / 'startup-mlp-round.csv').exists())


class KeptResultsTest(absltest.TestCase):
  def test_summaries_are_those_of_the_rows(self):
    folders = [
      path.parent
      for path in (fakes.ROOT / 'benchmarks').glob('results/*/peers.csv')
    ]
    if not folders:
      self.skipTest('benchmarks/results has none')
    for folder in folders:
      self.assertEqual(medians_of_rows(folder), medians_of_summary(folder))
      readme = (folder / 'README.md').read_text()
      for _, program in medians_of_rows(folder):
        self.assertIn(program, readme)


class ContendersTest(absltest.TestCase):
  def test_presence(self):
    empty = pathlib.Path(self.create_tempdir().full_path)
    for name, contender in contenders.CONTENDERS.items():
      self.assertEqual(contender.name, name)
      own = contender.library in ('tvdp_tf', 'tensorflow_privacy')
      self.assertEqual(contender.is_present(empty), own)
      # Their programs are there, whoever has made environments.
      modules = [contender.module]
      if contender.trains and contender.environment:
        modules.append(contender.training_module)
      for module in modules:
        path = module.replace('.', '/') + '.py'
        self.assertTrue((fakes.ROOT / path).exists())

  def test_who_does_what(self):
    def able(name):
      work = work_lib.WORKS[name]
      known = contenders.CONTENDERS.values()
      return {contender.name for contender in known if contender.does(work)}

    plain, private = able('mlp-round'), able('private-mlp-round')
    self.assertEqual(plain & private, {OURS, 'tvdp_tf/tff'})
    self.assertEqual(plain, able('cnn-round'))
    self.assertIn('jax/sharded', plain)
    self.assertEqual(
      private - able('private-cnn-round'), {'tensorflow_privacy/fast'}
    )
    self.assertContainsSubset(['jax/ghost', 'opacus/threads'], private)


if __name__ == '__main__':
  absltest.main()
