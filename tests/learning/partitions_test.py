import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.learning import partitions

LABELS = np.random.default_rng(0).integers(0, 10, 1000)


def label_skew(parts):
  """Mean over users of the largest class's share."""
  shares = [np.bincount(LABELS[p], minlength=10).max() / len(p) for p in parts]
  return np.mean(shares)


class PartitionTest(parameterized.TestCase):
  @parameterized.parameters(1, 7, 100, 1000)
  def test_every_example_has_one_user(self, users):
    for parts in (
      partitions.iid(1000, users, seed=1),
      partitions.dirichlet(LABELS, users, 0.5, seed=1),
      partitions.dirichlet(LABELS, users, 1e-3, seed=1),
    ):
      self.assertLen(parts, users)
      self.assertGreater(min(len(part) for part in parts), 0)
      joined = np.sort(np.concatenate(parts))
      np.testing.assert_array_equal(joined, np.arange(1000))

  def test_iid_is_even(self):
    sizes = [len(part) for part in partitions.iid(1000, 7, seed=0)]
    self.assertEqual(max(sizes) - min(sizes), 1)

  def test_seeds(self):
    for split in (
      lambda seed: partitions.iid(1000, 10, seed),
      lambda seed: partitions.dirichlet(LABELS, 10, 0.5, seed),
    ):
      for one, other in zip(split(3), split(3), strict=True):
        np.testing.assert_array_equal(one, other)
      self.assertNotEqual(split(3)[0].tolist(), split(4)[0].tolist())

  def test_concentration_sets_the_skew(self):
    skews = [
      label_skew(partitions.dirichlet(LABELS, 10, concentration, seed=0))
      for concentration in (0.05, 1.0, 1000.0)
    ]
    self.assertGreater(skews[0], 0.5)
    self.assertBetween(skews[1], 0.2, 0.5)
    self.assertLess(skews[2], 0.2)
    iid = label_skew(partitions.iid(1000, 10, seed=0))
    self.assertLess(iid, 0.2)

  @parameterized.parameters(0, 1001, -1, 2.0)
  def test_refuses_users(self, users):
    with self.assertRaisesRegex(ValueError, 'users must be'):
      partitions.iid(1000, users, seed=0)
    with self.assertRaisesRegex(ValueError, 'users must be'):
      partitions.dirichlet(LABELS, users, 1.0, seed=0)

  @parameterized.parameters(0.0, -1.0, float('nan'), float('inf'))
  def test_refuses_concentration(self, concentration):
    with self.assertRaisesRegex(ValueError, 'concentration must be'):
      partitions.dirichlet(LABELS, 10, concentration, seed=0)


if __name__ == '__main__':
  absltest.main()
