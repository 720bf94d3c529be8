"""Values whose clip would not hold are refused at every door."""

import collections
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
from absl.testing import absltest, parameterized

from tvdp_tf import federated, privacy
from tvdp_tf.federated import bounded_value, checked_mean, distributed_noise

SCHEDULE = privacy.GeometricSchedule(theta=0.5, rounds=2, initial_stddev=3.0)
BUDGET: dict[str, Any] = {
  'epsilon': 2.0,
  'delta': 1e-5,
  'rounds': 3,
  'l2_norm_clip': 1e-3,
}
WEIGHT_TYPE = tff.TensorType(np.float32)
BFLOAT16 = tf.bfloat16.as_numpy_dtype

FACTORIES: dict[str, Callable[[], Any]] = {
  'local': lambda: federated.local_noise(**BUDGET),
  'gaussian': lambda: federated.TimeVaryingGaussianFactory(SCHEDULE),
  'laplace': lambda: federated.UnweightedTimeVaryingGaussianFactory(
    SCHEDULE, distribution='laplace', l2_norm_clip=1.0
  ),
  'central': lambda: federated.central_noise(clients_per_round=2.0, **BUDGET),
  'query': lambda: tff.aggregators.DifferentiallyPrivateFactory(
    tfp.NormalizedQuery(federated.GeometricGaussianSumQuery(1.0, SCHEDULE), 2.0)
  ),
  'distributed': lambda: distributed_noise.DistributedGaussianFactory(
    SCHEDULE, sensitivity=0.5, honest_clients=4, modulus=2**50
  ),
  'mean': checked_mean.CheckedMeanFactory,
  'sum': checked_mean.CheckedSumFactory,
}
KEYED = ('gaussian', 'distributed')


def create(name, value_type):
  factory = FACTORIES[name]()
  if name in KEYED:
    value_type = federated.KeyedUpdate(
      value_type, tff.TensorType(np.int64, [2])
    )
  if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    return factory.create(tff.to_type(value_type), WEIGHT_TYPE)
  return factory.create(tff.to_type(value_type))


class AggregatorsTest(parameterized.TestCase):
  @parameterized.product(
    name=list(FACTORIES),
    dtype=[
      np.float16,
      BFLOAT16,
      np.complex64,
      np.complex128,
      np.int32,
      np.bool_,
    ],
  )
  def test_refuses(self, name, dtype):
    value_type = collections.OrderedDict(
      a=tff.TensorType(np.float32, [2]),
      b=(tff.TensorType(np.float64, []), tff.TensorType(dtype, [3])),
    )
    with self.assertRaisesRegex(
      TypeError,
      '^values must be float32 or float64 tensors, for which clipping is '
      rf'proven, got .*{tf.as_dtype(dtype).name}.*3.*$',
    ):
      create(name, value_type)

  @parameterized.parameters(*FACTORIES)
  def test_takes(self, name):
    create(name, [tff.TensorType(t, [3]) for t in (np.float32, np.float64)])

  def test_says_which(self):
    value_type = collections.OrderedDict(
      a=tff.TensorType(np.float32, [2]),
      b=(tff.TensorType(np.float32), tff.TensorType(np.float16, [3])),
    )
    for name in ('local', 'mean', 'sum'):
      with self.assertRaisesRegex(TypeError, r'got b\.1=float16\[3\]$'):
        create(name, value_type)

  def test_refuses_what_is_no_tensor(self):
    sequence = tff.SequenceType(np.float32)
    with self.assertRaisesRegex(TypeError, r'got a=float32\*$'):
      create('local', collections.OrderedDict(a=sequence))


class EagerTest(parameterized.TestCase):
  @parameterized.parameters(
    tf.float16, tf.bfloat16, tf.complex64, tf.complex128, tf.int32
  )
  def test_refuses(self, dtype):
    record = [tf.zeros([2]), tf.zeros([3], dtype)]
    error = rf'float32 or float64 .* got {dtype.name}\(3,\)$'
    with self.assertRaisesRegex(TypeError, error):
      bounded_value.bounded(record, 1.0)
    with self.assertRaisesRegex(TypeError, error):
      bounded_value.bounded(record, None)
    query = federated.GeometricGaussianSumQuery(1.0, SCHEDULE)
    params = query.derive_sample_params(query.initial_global_state())
    with self.assertRaisesRegex(TypeError, error):
      query.preprocess_record(params, record)
    with self.assertRaisesRegex(TypeError, error):
      query.initial_sample_state(record)

  @parameterized.parameters(tf.float32, tf.float64)
  def test_the_clip_holds_in_the_others(self, dtype):
    for clip in (1.0, 4e-3, 1e-3, 1e-6):
      for length in np.geomspace(1e-3, 6e4, 50):
        value = tf.cast(tf.fill([3], length), dtype)
        (result,) = bounded_value.bounded([value], clip)
        norm = np.linalg.norm(result.numpy().astype(np.float64))
        self.assertLessEqual(norm, clip)

  def test_a_scale_that_is_subnormal_is_zero(self):
    # Some devices keep such numbers, this one may not: a larger one stands in.
    self.assertEqual(bounded_value._LEAST_SCALE, np.finfo(np.float32).tiny)
    with mock.patch.object(bounded_value, '_LEAST_SCALE', 0.5):
      for length, expected in ((1.9, 1.0), (2.1, 0.0)):
        (result,) = bounded_value.bounded([tf.constant([length])], 1.0)
        np.testing.assert_allclose(result, [expected], rtol=1e-5)


if __name__ == '__main__':
  absltest.main()
