"""The run of many users, in small."""

import os
import pathlib

import numpy as np
from absl.testing import absltest

from tools import scale_suite
from tvdp_tf.learning import datasets


class ScaleTest(absltest.TestCase):
  def test_the_files_are_a_data_set(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    scale_suite.write_users(folder, 3)
    found = datasets.load(f'files:{folder}')
    self.assertEqual(found.train_features.shape, (180, 28, 28, 1))
    self.assertEqual(len(datasets.natural(f'files:{folder}')), 3)
    # The labels can be learnt: each class has its own image.
    features = np.asarray(found.train_features)
    of_class = [features[found.train_labels == c].mean(0) for c in range(2)]
    self.assertGreater(np.abs(of_class[0] - of_class[1]).mean(), 0.1)

  def test_memory_is_this_processs(self):
    before = scale_suite.anonymous_mib(os.getpid())
    held = np.ones(2**23)
    self.assertAlmostEqual(
      scale_suite.anonymous_mib(os.getpid()) - before,
      held.nbytes / 2**20,
      delta=8,
    )
    self.assertEqual(scale_suite.anonymous_mib(2**30), 0)

  def test_slope(self):
    samples = [(float(r), r, 100 + r / 1024) for r in range(20)]
    self.assertAlmostEqual(scale_suite.slope_kib(samples), 1.0)

  def test_trains_and_reports(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    scale_suite.run(folder, users=40, users_per_round=4, seconds=40)
    text = (folder / 'README.md').read_text()
    self.assertIn('U = 40 users', text)
    self.assertNotIn('nan', text)
    self.assertTrue((folder / 'scale.png').exists())


if __name__ == '__main__':
  absltest.main()
