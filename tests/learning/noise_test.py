from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from scipy import stats

from tests import algorithm1_reference as reference
from tests import noise_checks
from tvdp_tf.learning import noise


def draw(key, size=20_001):
  return noise.standard_normal(tf.constant(key), size).numpy()


class KeyTest(parameterized.TestCase):
  def test_distinct_arguments_give_distinct_keys(self):
    keys = {
      tuple(noise.seeded_noise_key(seed, round_number, client))
      for seed in (0, 1, 2**63 - 1)
      for round_number in (1, 2, 2**31 - 1)
      for client in (0, 1, 2, 2**32 - 1)
    }
    self.assertLen(keys, 36)

  @parameterized.named_parameters(
    ('seed', -1, 1, 0),
    ('large_seed', 2**63, 1, 0),
    ('round_zero', 0, 0, 0),
    ('large_round', 0, 2**31, 0),
    ('client', 0, 1, 2**32),
    ('float', 0.0, 1, 0),
  )
  def test_refuses(self, seed, round_number, client):
    with self.assertRaisesRegex(ValueError, 'must be an integer'):
      noise.seeded_noise_key(seed, round_number, client)

  def test_fresh_keys_do_not_repeat(self):
    keys = {tuple(noise.fresh_noise_key()) for _ in range(1000)}
    self.assertLen(keys, 1000)

  def test_system_keys_are_drawn_in_the_graph(self):
    draw_key = tf.function(noise.system_noise_key)
    keys = {tuple(draw_key().numpy()) for _ in range(200)}
    self.assertLen(keys, 200)
    words = np.array(sorted(keys)).view(np.uint64)
    self.assertLen(np.unique(words), 400)
    # Uniform over the upper bits too: mean within six standard errors.
    mean = (words / 2.0**63).mean()
    self.assertBetween(mean, 0.5 - 6 * 0.0145, 0.5 + 6 * 0.0145)


class StandardNormalTest(parameterized.TestCase):
  def test_is_standard_normal(self):
    values = draw(noise.seeded_noise_key(1, 1, 1))
    self.assertEqual(values.dtype, np.float64)
    self.assertTrue(noise_checks.has_stddev(values, 1.0))
    self.assertTrue(noise_checks.rejects_neighbours(values, 1.0))

  def test_cosine(self):
    rng = np.random.default_rng(0)
    powers = 2.0 ** -np.arange(1, 54)
    x = np.concatenate([[0.0], powers, 1 - powers, rng.random(100_000)])
    found = noise._cosine(tf.constant(x)).numpy()
    np.testing.assert_allclose(found, np.cos(np.pi / 2 * x), rtol=0, atol=4e-16)
    self.assertBetween(found.min(), 0, 1e-15)
    self.assertEqual(found.max(), 1)

  @parameterized.parameters(1, 2, 3, 10)
  def test_size(self, size):
    self.assertEqual(draw(noise.seeded_noise_key(1, 1, 1), size).shape, (size,))

  def test_is_a_function_of_the_key(self):
    key = noise.seeded_noise_key(3, 2, 1)
    np.testing.assert_array_equal(draw(key), draw(key))

  def test_streams_are_independent(self):
    keys = [
      noise.seeded_noise_key(seed, round_number, client)
      for seed in (0, 1)
      for round_number in (1, 2)
      for client in (0, 1, 2)
    ]
    keys += [noise.fresh_noise_key() for _ in range(3)]
    rows = np.stack([draw(key) for key in keys])
    self.assertTrue(noise_checks.are_independent(rows))

  def test_shared_keys_are_caught(self):
    rows = np.stack(
      [draw(noise.seeded_noise_key(0, 1, client)) for client in (0, 1, 1)]
    )
    self.assertFalse(noise_checks.are_independent(rows))
    shifted = np.stack([rows[0], np.roll(rows[0], 2)])
    self.assertFalse(noise_checks.are_independent(shifted))

  @parameterized.named_parameters(('plain', False), ('xla', True))
  def test_graphs_draw_the_same(self, jit_compile):
    key = noise.seeded_noise_key(5, 6, 7)
    compiled = tf.function(noise.standard_normal, jit_compile=jit_compile)
    np.testing.assert_allclose(
      compiled(tf.constant(key), 1001), draw(key, 1001), rtol=1e-12, atol=1e-12
    )

  def test_is_the_exact_transform(self):
    key = noise.seeded_noise_key(4, 5, 6)
    errors = np.abs(draw(key, 10**6) - reference.standard_normal(key, 10**6))
    self.assertLess(errors.max(), 8.5 * 2e-8)
    self.assertLess(np.quantile(errors, 0.9), 2e-15)

  def test_pairs_point_in_all_directions_alike(self):
    first, second = draw(noise.seeded_noise_key(2, 1, 1), 10**6).reshape(2, -1)
    turns = np.arctan2(second, first) / (2 * np.pi) + 0.5
    self.assertGreater(stats.kstest(turns, 'uniform').pvalue, 1e-6)
    # What a sign less would look like.
    turns = np.arctan2(second, np.copysign(first, second)) / (2 * np.pi) + 0.5
    self.assertLess(stats.kstest(turns, 'uniform').pvalue, 1e-6)


class TailTest(parameterized.TestCase):
  def test_the_last_interval_is_drawn_from_once_more(self):
    uniforms = tf.constant([1.0, 0.5, 2.0**-53, 2.0**-53], tf.float64)
    finer = tf.constant([0.25, 0.25, 1.0, 2.0**-53], tf.float64)
    expected = np.sqrt(2 * np.log(2) * np.array([0, 1, 53, 106], np.float64))
    np.testing.assert_allclose(
      noise._radius(uniforms, lambda: finer), expected, rtol=1e-12
    )
    self.assertAlmostEqual(noise.LARGEST_NORMAL, expected[-1])

  def test_is_that_of_a_rayleigh_with_a_coarse_first_draw(self):
    # With intervals of 1/4, a quarter of all radii come from the last one.
    rng = np.random.default_rng(0)
    count = 200_000
    coarse = (rng.integers(0, 4, count) + 1) / 4
    finer = 1 - rng.random(count)
    radius = noise._radius(
      tf.constant(coarse), lambda: tf.constant(finer), least=0.25
    ).numpy()
    for probability in (0.2, 0.05, 0.01, 0.001):
      beyond = np.mean(radius > np.sqrt(-2 * np.log(probability)))
      error = 5 * np.sqrt(probability / count)
      self.assertAlmostEqual(beyond, probability, delta=error)

  def test_the_finer_draw_is_another_part_of_the_stream(self):
    key = tf.constant(noise.seeded_noise_key(5, 6, 7))
    two, three = noise._bits(key, 50, 1), noise._bits(key, 50, 1, words=3)
    np.testing.assert_array_equal(two, three[:2])
    self.assertEmpty(
      set(np.ravel(three[2]).tolist()) & set(np.ravel(two).tolist())
    )

  @parameterized.parameters(False, True)
  def test_a_draw_in_the_last_interval(self, jit_compile):
    key = tf.constant(noise.seeded_noise_key(5, 6, 7))
    usual = noise.standard_normal(key, 100, 1).numpy()
    finer = noise._uniforms(noise._bits(key, 50, 1, words=3))[2].numpy()
    uniforms = noise._uniforms

    def extreme(bits):
      # As if 53 bits of one pair's radius were ones.
      drawn = uniforms(bits)
      first = np.arange(50) == 7
      return tf.where(
        (np.arange(bits.shape[0]) == 0)[:, np.newaxis] & first,
        tf.constant(1 - 2.0**-53, tf.float64),
        drawn,
      )

    with mock.patch.object(
      noise,
      '_uniforms',
      lambda b: extreme(b) if b.shape.rank == 2 else uniforms(b),
    ):
      drawn = tf.function(
        lambda: noise.standard_normal(key, 100, 1), jit_compile=jit_compile
      )().numpy()
    radius = np.sqrt(2 * (53 * np.log(2) - np.log(1 - finer[7])))
    self.assertAlmostEqual(np.hypot(drawn[7], drawn[57]), radius, places=6)
    others = np.arange(100) % 50 != 7
    np.testing.assert_allclose(drawn[others], usual[others], rtol=1e-12)


class PerturbTest(parameterized.TestCase):
  def test_adds_noise_of_the_stddev_to_every_tensor(self):
    tensors = [tf.ones([40, 50]), tf.zeros([300]), tf.fill([], 2.0)]
    key = tf.constant(noise.seeded_noise_key(1, 2, 3))
    perturbed = noise.perturb(tensors, 0.3, key)
    self.assertEqual([t.shape for t in perturbed], [t.shape for t in tensors])
    parts = [
      np.ravel(after - before)
      for after, before in zip(perturbed, tensors, strict=True)
    ]
    added = np.concatenate(parts)
    self.assertTrue(noise_checks.has_stddev(added, 0.3))
    self.assertTrue(noise_checks.rejects_neighbours(added, 0.3))
    np.testing.assert_allclose(added, 0.3 * draw(key.numpy(), 2301), atol=3e-7)

  def test_tensors_get_independent_noise(self):
    zeros = [tf.zeros([5000]), tf.zeros([5000]), tf.zeros([5000])]
    key = tf.constant(noise.fresh_noise_key())
    rows = np.stack(noise.perturb(zeros, 2.0, key))
    self.assertTrue(noise_checks.are_independent(rows))

  def test_no_noise_changes_nothing(self):
    tensors = [tf.random.normal([7, 3])]
    key = tf.constant(noise.fresh_noise_key())
    np.testing.assert_array_equal(
      noise.perturb(tensors, 0.0, key)[0], tensors[0]
    )


if __name__ == '__main__':
  absltest.main()
