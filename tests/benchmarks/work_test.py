"""The work is the same for everyone, and is counted right."""

import dataclasses
import json

import numpy as np
from absl.testing import absltest, parameterized

from benchmarks.harness import work as work_lib
from tvdp_tf.learning import participation

SMALL = work_lib.SMOKE_WORKS['mlp-round']


class DataTest(parameterized.TestCase):
  @parameterized.parameters(*work_lib.SMOKE_WORKS)
  def test_shapes_and_ranges(self, name):
    work = work_lib.SMOKE_WORKS[name]
    features, labels = work.features(), work.labels()
    self.assertEqual(features.shape, (4, 20, *work.input_shape))
    self.assertEqual(features.dtype, np.float32)
    self.assertLess(np.abs(features).max(), 1 + 1e-9)
    self.assertLess(abs(float(features.mean())), 0.01)
    self.assertEqual((labels.shape, labels.dtype), ((4, 20), np.int32))
    self.assertEqual(set(np.unique(labels)), set(range(10)))
    weights = work.initial_weights()
    self.assertLen(weights, 2 * len(work.layers))
    for layer, kernel, bias in zip(
      work.layers, weights[::2], weights[1::2], strict=True
    ):
      self.assertEqual(kernel.shape, layer.kernel)
      self.assertEqual(bias.shape, layer.kernel[-1:])
      self.assertEqual(kernel.dtype, np.float32)

  def test_streams_are_not_each_others(self):
    other = dataclasses.replace(SMALL, seed=SMALL.seed + 1)
    self.assertTrue((SMALL.features() == SMALL.features()).all())
    self.assertLess((SMALL.features() == other.features()).mean(), 0.01)
    kernels = SMALL.initial_weights()[::2]
    self.assertFalse(np.isin(kernels[0], SMALL.features()).all())

  def test_cohorts_are_those_of_the_library(self):
    work = work_lib.WORKS['mlp-round']
    rule = participation.UniformParticipation(100, 10, work.seed)
    for m in (1, 2, 30):
      np.testing.assert_array_equal(work.cohort(m), rule.cohort(m))

  def test_digest_sees_every_part(self):
    features, labels = SMALL.features(), SMALL.labels()
    digest = SMALL.digest(features, labels)
    self.assertEqual(digest, SMALL.digest(features.copy(), labels))
    changed = features.copy()
    changed[-1, -1, -1] += 1
    self.assertNotEqual(digest, SMALL.digest(changed, labels))
    self.assertNotEqual(digest, SMALL.digest(features, labels + 1))
    other = dataclasses.replace(SMALL, learning_rate=0.2)
    self.assertNotEqual(digest, other.digest(features, labels))

  def test_through_json(self):
    text = json.dumps(dataclasses.asdict(SMALL))
    self.assertEqual(work_lib.from_json(text), SMALL)


class FlopsTest(absltest.TestCase):
  def test_mlp(self):
    first, second = 2 * 784 * 32, 2 * 32 * 10
    # Forward and kernel of both, input of the second.
    expected = 10 * 600 * 5 * (2 * first + 3 * second)
    self.assertEqual(work_lib.WORKS['mlp-round'].flops_per_round, expected)

  def test_cnn(self):
    first = 2 * 5 * 5 * 3 * 6 * 28 * 28
    others = 2 * (
      5 * 5 * 6 * 16 * 10 * 10 + 16 * 5 * 5 * 120 + 120 * 84 + 84 * 10
    )
    expected = 10 * 500 * 5 * (2 * first + 3 * others)
    self.assertEqual(work_lib.WORKS['cnn-round'].flops_per_round, expected)

  def test_clipping_takes_no_product_more(self):
    for name in ('mlp-round', 'cnn-round'):
      work, private = (work_lib.WORKS[one] for one in (name, f'private-{name}'))
      self.assertEqual((work.kind, private.kind), ('projected', 'private'))
      self.assertEqual(private.flops_per_round, work.flops_per_round)

  def test_data_bytes(self):
    self.assertEqual(SMALL.data_bytes, SMALL.features().nbytes)


class ArgumentsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'model': 'svm'}, 'model must be one of mlp, cnn'),
    ({'users': 0}, 'users must be an integer >= 1'),
    ({'users_per_round': 101}, 'users_per_round must be an integer from 1'),
    ({'noise_stddev': 0.0}, 'noise_stddev must be a finite number > 0'),
    ({'l2_norm_clip': None}, 'one of l2_norm_clip and example_l2_norm_clip'),
    ({'example_l2_norm_clip': 1.0}, 'one of l2_norm_clip and example_l2_norm'),
    (
      {'l2_norm_clip': None, 'example_l2_norm_clip': 0.0},
      'example_l2_norm_clip must be a finite number > 0',
    ),
    ({'hidden_units': 1.5}, 'hidden_units must be an integer'),
  )
  def test_refused(self, values, message):
    with self.assertRaisesRegex(ValueError, message):
      work_lib.Work(**values)


if __name__ == '__main__':
  absltest.main()
