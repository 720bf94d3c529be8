import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import errors
from tvdp_tf.learning import datasets


class DigitsTest(parameterized.TestCase):
  def test_shapes_and_ranges(self):
    digits = datasets.load('digits')
    self.assertEqual(digits.train_features.shape, (1437, 8, 8, 1))
    self.assertEqual(digits.test_features.shape, (360, 8, 8, 1))
    self.assertEqual(digits.num_classes, 10)
    for features, labels in (
      (digits.train_features, digits.train_labels),
      (digits.test_features, digits.test_labels),
    ):
      self.assertEqual(features.dtype, np.float32)
      self.assertEqual(labels.dtype, np.int32)
      self.assertEqual((features.min(), features.max()), (0, 1))
      self.assertLen(np.unique(labels), 10)

  def test_train_and_test_are_disjoint_and_fixed(self):
    one, other = datasets.load('digits'), datasets.load('digits')
    np.testing.assert_array_equal(one.test_features, other.test_features)
    everything = np.concatenate([one.train_features, one.test_features])
    self.assertLen(np.unique(everything.reshape(1797, -1), axis=0), 1797)


class UnavailableTest(parameterized.TestCase):
  def test_unknown_name(self):
    with self.assertRaisesRegex(ValueError, 'dataset must be one of digits'):
      datasets.load('mnst')

  def test_unwritable_folder(self):
    blocker = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(
      errors.DatasetUnavailableError, 'mnist is not in .*file'
    ):
      datasets.load('mnist', blocker)


if __name__ == '__main__':
  absltest.main()
