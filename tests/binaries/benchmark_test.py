"""The benchmark as a user runs it, of ourselves alone."""

import json
import os
import pathlib

from absl.testing import absltest, parameterized

from tests.binaries import program_runner


def benchmark(folder, *arguments):
  return program_runner.run(
    'benchmark.py',
    f'--output_dir={folder}',
    '--scale=smoke',
    '--noprogress',
    *arguments,
  )


class SmokeTest(absltest.TestCase):
  def test_ours(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    result = benchmark(
      folder,
      '--measure=peers',
      '--works=mlp-round',
      '--contenders=tvdp_tf/compiled',
      '--turns=2',
      '--rounds=3',
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertCountEqual(
      os.listdir(folder),
      ['README.md', 'summary.json', 'peers.csv', 'peers.png'],
    )
    self.assertIn('tvdp_tf/compiled', result.stdout)
    summary = json.loads((folder / 'summary.json').read_text())
    ours = summary['programs']['mlp-round']['tvdp_tf/compiled']
    self.assertEqual(ours['distance_from_our_model'], 0)
    self.assertLen((folder / 'peers.csv').read_text().splitlines(), 1 + 2 * 9)
    self.assertLen(summary['summaries']['mlp-round'], 1)

  def test_a_private_work_and_a_whole_training(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'out')
    result = benchmark(
      folder,
      '--measure=peers,program',
      '--works=private-mlp-round',
      '--contenders=tvdp_tf/compiled',
      '--turns=1',
      '--rounds=1',
      '--starts=1',
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('## A whole training, private-mlp-round', result.stdout)
    rows = (folder / 'program-private-mlp-round.csv').read_text().splitlines()
    self.assertEqual(rows[0], 'contender,number,seconds,accuracy')
    self.assertLen(rows, 2)
    self.assertTrue((folder / 'program-private-mlp-round.png').exists())


class FlagsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('--measure=speed', '--measure must be one of peers, startup, scaling'),
    ('--measure=', '--measure must not be empty'),
    (
      '--contenders=jax/ghost',
      '--contenders: jax/ghost supports none of mlp-round',
    ),
    ('--works=rnn-round', '--works must be one of mlp-round, cnn-round'),
    ('--contenders=keras', '--contenders must be one of tvdp_tf/compiled, '),
    ('--turns=0', '--turns must be an integer >= 1'),
    ('--rounds=-1', '--rounds must be an integer >= 1'),
    ('--starts=0', '--starts must be an integer >= 1'),
  )
  def test_one_line(self, argument, line):
    folder = self.create_tempdir().full_path + '/out'
    result = benchmark(folder, argument)
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(line, result.stderr)
    self.assertFalse(os.path.lexists(folder))

  def test_no_work_to_train(self):
    folder = self.create_tempdir().full_path + '/out'
    result = benchmark(folder, '--measure=program', '--works=cnn-round')
    self.assertEqual(result.returncode, 2)
    self.assertIn('--measure=program needs a work of the mlp', result.stderr)

  def test_existing_folder(self):
    folder = self.create_tempdir()
    folder.create_file('mine')
    result = benchmark(folder.full_path)
    self.assertEqual(result.returncode, 2)
    self.assertIn('--output_dir must be a new', result.stderr)


if __name__ == '__main__':
  absltest.main()
