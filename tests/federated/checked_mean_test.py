import collections
import contextlib

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, runtimes
from tvdp_tf.federated import checked_mean

VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    b=tff.TensorType(np.float32, [2]), a=tff.TensorType(np.float64, [])
  )
)
WEIGHT_TYPE = tff.TensorType(np.float32)

_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


def value(b, a):
  return collections.OrderedDict(b=np.array(b, np.float32), a=np.float64(a))


GOOD = [value([1, 2], 3), value([4, 8], -1)]
BAD = {
  'nan': (value([0, np.nan], 0), 1.0),
  'inf': (value([0, 0], np.inf), 1.0),
  'mixed': (value([np.inf, -np.inf], 0), 1.0),
  'too_long': (value([8, 8], 8), 1.0),
  'huge': (value([3e38, 0], 0), 1.0),
  'no_weight': (value([1, 1], 1), 0.0),
  'nan_of_no_weight': (value([np.nan, 1], 1), 0.0),
  'negative_weight': (value([1, 1], 1), -1.0),
  'nan_weight': (value([1, 1], 1), np.nan),
  'infinite_weight': (value([1, 1], 1), np.inf),
}


class CheckedMeanTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    factory = checked_mean.CheckedMeanFactory(max_l2_norm=10.0)
    cls.process = factory.create(VALUE_TYPE, WEIGHT_TYPE)

  def next(self, values, weights):
    state = self.process.initialize()
    return self.process.next(state, values, weights)

  def check(self, output, b, a, used, excluded):
    np.testing.assert_allclose(output.result['b'], b, rtol=1e-6)
    self.assertAlmostEqual(output.result['a'], a)
    self.assertEqual(list(output.result), ['b', 'a'])
    self.assertEqual(
      dict(output.measurements),
      {'used_clients': used, 'excluded_clients': excluded},
    )

  def test_weighted_mean(self):
    output = self.next(GOOD, [1.0, 3.0])
    self.check(output, [3.25, 6.5], 0.0, used=2, excluded=0)

  @parameterized.parameters(*BAD)
  def test_bad_upload_is_left_out(self, name):
    bad, weight = BAD[name]
    output = self.next([GOOD[0], bad, GOOD[1]], [1.0, weight, 3.0])
    self.check(output, [3.25, 6.5], 0.0, used=2, excluded=1)

  def test_all_bad_ones_together(self):
    bad, weights = zip(*BAD.values(), strict=True)
    output = self.next([*bad, *GOOD], [*weights, 1.0, 3.0])
    self.check(output, [3.25, 6.5], 0.0, used=2, excluded=len(BAD))

  def test_the_longest_is_used(self):
    output = self.next([value([6, 8], 0)], [2.0])
    self.check(output, [6, 8], 0, used=1, excluded=0)

  def test_no_mean_of_nothing(self):
    output = self.next([BAD['nan'][0]], [1.0])
    self.assertTrue(np.isnan(output.result['b']).all())
    self.assertEqual(output.measurements['used_clients'], 0)

  def test_any_finite_upload_without_a_limit(self):
    process = checked_mean.CheckedMeanFactory().create(VALUE_TYPE, WEIGHT_TYPE)
    values = [BAD['too_long'][0], BAD['huge'][0], BAD['nan'][0]]
    output = process.next(process.initialize(), values, [1.0] * 3)
    self.assertEqual(output.measurements['used_clients'], 2)
    np.testing.assert_allclose(output.result['b'], [1.5e38, 4], rtol=1e-6)

  def test_unweighted(self):
    factory = checked_mean.UnweightedCheckedMeanFactory(10.0)
    process = factory.create(VALUE_TYPE)
    output = process.next(process.initialize(), [*GOOD, BAD['huge'][0]])
    self.check(output, [2.5, 5], 1.0, used=2, excluded=1)

  def test_sum(self):
    process = checked_mean.CheckedSumFactory(10.0).create(VALUE_TYPE)
    state = process.initialize()
    output = process.next(state, [*GOOD, BAD['nan'][0], BAD['huge'][0]])
    np.testing.assert_allclose(output.result['b'], [5, 10], rtol=1e-6)
    self.assertAlmostEqual(output.result['a'], 2.0)
    output = process.next(state, [BAD['nan'][0]])
    np.testing.assert_array_equal(output.result['b'], [0, 0])
    # Neither how many there were nor how many failed.
    self.assertEmpty(output.measurements)

  @parameterized.parameters(0.0, -1.0, np.nan, np.inf, 'x')
  def test_refuses_limits(self, limit):
    with self.assertRaisesRegex(ValueError, 'max_l2_norm must be'):
      checked_mean.CheckedMeanFactory(limit)

  def test_refuses_values(self):
    factory = checked_mean.CheckedMeanFactory()
    with self.assertRaisesRegex(
      TypeError, 'must be float32 or float64 tensors'
    ):
      factory.create(tff.TensorType(np.int32, [3]), WEIGHT_TYPE)
    with self.assertRaisesRegex(ValueError, 'static shapes'):
      factory.create(tff.TensorType(np.float32, [None]), WEIGHT_TYPE)


class ExcludedClientsTest(absltest.TestCase):
  def test_is_found_wherever_it_is(self):
    inner = collections.OrderedDict(excluded_clients=np.int32(3))
    self.assertEqual(federated.excluded_clients(inner), 3)
    self.assertEqual(
      federated.excluded_clients({'x': (), 'y': {'z': 1, 'inner': inner}}), 3
    )

  def test_several_counts_are_added(self):
    self.assertEqual(
      federated.excluded_clients(
        {'dp': {'excluded_clients': 2}, 'excluded_clients': 1}
      ),
      3,
    )

  def test_none_where_nobody_counts(self):
    self.assertIsNone(federated.excluded_clients({'a': {'b': ()}}))


if __name__ == '__main__':
  absltest.main()
