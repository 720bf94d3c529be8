import tracemalloc

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from tvdp_tf.learning import participation


class UniformTest(parameterized.TestCase):
  def test_draws_without_replacement(self):
    rule = participation.UniformParticipation(20, 5, seed=3)
    for round_number in range(1, 50):
      cohort = rule.cohort(round_number)
      self.assertLen(np.unique(cohort), 5)
      self.assertBetween(cohort.min(), 0, 19)
      self.assertBetween(cohort.max(), 0, 19)
      np.testing.assert_array_equal(cohort, rule.cohort(round_number))

  def test_everyone_is_equally_likely(self):
    rule = participation.UniformParticipation(10, 3, seed=0)
    cohorts = [rule.cohort(m) for m in range(1, 2001)]
    counts = participation.participations(cohorts, 10).sum(axis=1)
    self.assertEqual(counts.sum(), 6000)
    # Binomial(2000, 0.3): standard deviation 20.5.
    self.assertLess(np.abs(counts - 600).max(), 5 * 20.5)

  def test_rounds_are_independent(self):
    rule = participation.UniformParticipation(4, 2, seed=5)
    joint = np.zeros([6, 6])
    index = {
      (a, b): i
      for i, (a, b) in enumerate(
        (a, b) for a in range(4) for b in range(a + 1, 4)
      )
    }
    for m in range(1, 4001, 2):
      first, second = rule.cohort(m), rule.cohort(m + 1)
      joint[index[tuple(first)], index[tuple(second)]] += 1
    self.assertGreater(stats.chi2_contingency(joint)[1], 1e-4)

  def test_seeds_differ(self):
    one = participation.UniformParticipation(100, 10, seed=1)
    other = participation.UniformParticipation(100, 10, seed=2)
    self.assertNotEqual(one.cohort(1).tolist(), other.cohort(1).tolist())

  def test_sampling_rate(self):
    rule = participation.UniformParticipation(100, 10, seed=1)
    self.assertEqual(rule.sampling_rate, 0.1)

  @parameterized.named_parameters(
    ('users', 0, 1, 0, 'users must be'),
    ('too_many', 10, 11, 0, 'users_per_round must be .* from 1 to 10, got 11'),
    ('nobody', 10, 0, 0, 'users_per_round must be'),
    ('seed', 10, 5, -1, 'seed must be'),
  )
  def test_refuses(self, users, users_per_round, seed, message):
    with self.assertRaisesRegex(ValueError, message):
      participation.UniformParticipation(users, users_per_round, seed)

  def test_rounds_count_from_one(self):
    with self.assertRaisesRegex(ValueError, 'round_number must be'):
      participation.UniformParticipation(10, 5, 0).cohort(0)


class ParticipationsTest(absltest.TestCase):
  def test_who_takes_part(self):
    cohorts = [np.array([2, 0]), np.array([], np.int64), np.array([2])]
    found = participation.participations(cohorts, 4)
    expected = np.zeros([4, 3], bool)
    expected[[0, 2, 2], [0, 0, 2]] = True
    np.testing.assert_array_equal(found.toarray(), expected)
    np.testing.assert_array_equal(found.sum(axis=1), [1, 0, 2, 0])
    self.assertEqual(participation.participations([], 4).shape, (4, 0))

  def test_memory_is_that_of_the_parts(self):
    # As an array of users and rounds it would be 800 MB.
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 10**5 - 50, 8000)
    cohorts = (np.arange(50) + start for start in starts.tolist())
    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    found = participation.participations(cohorts, 10**5)
    _, most = tracemalloc.get_traced_memory()
    self.assertEqual(found.sum(), 50 * 8000)
    self.assertLess(most, 30 * 50 * 8000 + 10**7)


class BalancedTest(parameterized.TestCase):
  def test_everyone_takes_part_once_a_block(self):
    rule = participation.BalancedParticipation(20, 5, seed=3)
    cohorts = [rule.cohort(m) for m in range(1, 13)]
    taken = participation.participations(cohorts, 20).toarray()
    for start in (0, 4, 8):
      np.testing.assert_array_equal(taken[:, start : start + 4].sum(axis=1), 1)

  def test_blocks_differ(self):
    rule = participation.BalancedParticipation(20, 5, seed=3)
    self.assertNotEqual(rule.cohort(1).tolist(), rule.cohort(5).tolist())

  def test_refuses_a_remainder(self):
    with self.assertRaisesRegex(ValueError, 'must divide users'):
      participation.BalancedParticipation(10, 3, seed=0)


class PoissonTest(absltest.TestCase):
  def test_users_are_drawn_on_their_own(self):
    rule = participation.PoissonParticipation(20, 5, seed=3)
    rounds = 4000
    taken = participation.participations(
      [rule.cohort(m) for m in range(1, rounds + 1)], 20
    ).toarray()
    # Four standard deviations of the mean of independent draws.
    slack = 4 * np.sqrt(0.25 * 0.75 / rounds)
    np.testing.assert_allclose(taken.mean(axis=1), 0.25, atol=slack)
    sizes = taken.sum(axis=0)
    # A fixed size has variance 0; that of a binomial is 3.75.
    self.assertBetween(sizes.var(), 3.75 * 0.9, 3.75 * 1.1)
    correlations = np.corrcoef(taken)
    np.testing.assert_allclose(
      correlations - np.eye(20), 0, atol=5 / np.sqrt(rounds)
    )

  def test_a_cohort_may_be_empty(self):
    rule = participation.PoissonParticipation(10, 1, seed=3)
    sizes = [len(rule.cohort(m)) for m in range(1, 101)]
    self.assertIn(0, sizes)

  def test_is_a_function_of_seed_and_round(self):
    one, two = (participation.PoissonParticipation(50, 9, 1) for _ in range(2))
    np.testing.assert_array_equal(one.cohort(7), two.cohort(7))


if __name__ == '__main__':
  absltest.main()
