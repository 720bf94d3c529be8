"""The training program on workers of its user's."""

import csv
import os
import pathlib

import numpy as np
from absl.testing import absltest

from tests.binaries import program_runner
from tests.runtimes.worker import remote_workers


class RemoteTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)

  def train(self, name, *arguments):
    return program_runner.run(
      'train.py',
      f'--output_dir={self.folder / name}',
      *('--seed=1', '--rounds=2', '--local_steps=2', '--noprogress'),
      *arguments,
    )

  def losses(self, name):
    with open(self.folder / name / 'metrics.csv', newline='') as file:
      return [float(row['test_loss']) for row in csv.DictReader(file)]

  def test_two_workers_train_the_model_of_this_process(self):
    workers = remote_workers.start(self, 2)
    targets = ','.join(worker.target for worker in workers)
    remote = self.train(
      'remote', '--runtime=remote', f'--workers={targets}', '--insecure_workers'
    )
    self.assertEqual(remote.returncode, 0, remote.stderr)
    here = self.train('here')
    self.assertEqual(here.returncode, 0, here.stderr)
    self.assertLen(self.losses('here'), 2)
    np.testing.assert_allclose(
      self.losses('remote'), self.losses('here'), rtol=1e-4
    )

  def test_no_credentials(self):
    result = self.train(
      'run',
      *('--runtime=remote', '--workers=localhost:1', '--worker_tls=/missing'),
    )
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn('cannot read /missing/ca.crt: No such file', result.stderr)
    self.assertFalse(os.path.lexists(self.folder / 'run'))


if __name__ == '__main__':
  absltest.main()
