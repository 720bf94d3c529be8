import pathlib
import shutil
import unittest

import numpy as np
from absl.testing import absltest

from tvdp_tf.learning import adult, datasets

_SHARED = pathlib.Path(__file__).resolve().parents[3] / 'shared/datasets/adult'
_ROWS = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, \
Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, ?, 83311, Masters, 14, Divorced, ?, Husband, Black, Female, 0, 1902, 13, \
?, >50K

"""
_TEST_ROWS = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, \
Black, Male, 0, 0, 40, Hong, <=50K.
"""


class AdultTest(absltest.TestCase):
  def data_dir(self) -> pathlib.Path:
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / 'downloads' / 'manual').mkdir(parents=True)
    return folder

  def test_reads_and_encodes_the_files_that_a_user_brings(self):
    folder = self.data_dir()
    manual = folder / 'downloads' / 'manual'
    (manual / 'adult.data').write_text(_ROWS)
    (manual / 'adult.test').write_text(_TEST_ROWS)
    data = datasets.load('adult', str(folder))
    self.assertEqual(data.num_classes, 2)
    self.assertEqual(data.train_features.shape, (2, adult.NUM_FEATURES))
    self.assertEqual(adult.NUM_FEATURES, 108)
    order = np.argsort(data.train_features[:, 0])  # By age.
    first, second = data.train_features[order]
    np.testing.assert_allclose(
      first[:6], [0.39, 77516 / 1.5e6, 13 / 16, 0.02174, 0, 0.4], rtol=1e-6
    )
    np.testing.assert_allclose(second[4], 1902 / 5000, rtol=1e-6)
    # One category of each of the eight columns.
    self.assertEqual(first[6:].sum(), 8)
    self.assertEqual(second[6 + 8], 1)  # Workclass '?'.
    self.assertEqual(second[-1], 1)  # Country '?'.
    self.assertEqual(data.train_labels[order].tolist(), [0, 1])
    self.assertEqual(data.test_labels.tolist(), [0])

  @unittest.skipUnless(_SHARED.is_dir(), f'needs the UCI files in {_SHARED}')
  def test_the_real_files(self):
    folder = self.data_dir()
    for name in ('adult.data', 'adult.test'):
      shutil.copy(_SHARED / name, folder / 'downloads' / 'manual')
    data = datasets.load('adult', str(folder))
    self.assertLen(data.train_labels, 32561)
    self.assertLen(data.test_labels, 16281)
    self.assertAlmostEqual(1 - data.test_labels.mean(), 0.764, places=3)
    for features in (data.train_features, data.test_features):
      self.assertEqual((np.min(features), np.max(features)), (0, 1))
      self.assertTrue((features[:, 6:].sum(axis=1) == 8).all())


if __name__ == '__main__':
  absltest.main()
