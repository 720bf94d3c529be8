import collections
import contextlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests import noise_checks
from tvdp_tf import federated, privacy
from tvdp_tf.learning import noise

SCHEDULE = privacy.GeometricSchedule(theta=1.5, rounds=4, initial_stddev=0.2)
SIZE = 4000
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    a=tff.TensorType(np.float32, [SIZE]), b=tff.TensorType(np.float32, [])
  )
)
KEYED_TYPE = tff.to_type(
  federated.KeyedUpdate(VALUE_TYPE, tff.TensorType(np.int64, [2]))
)
WEIGHT_TYPE = tff.to_type(np.float32)

_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(federated.local_runtime())


def tearDownModule():
  _resources.close()


def zeros():
  return collections.OrderedDict(a=np.zeros(SIZE, np.float32), b=np.float32(0))


def keyed(client, round_number=1, seed=0):
  key = noise.seeded_noise_key(seed, round_number, client)
  return federated.KeyedUpdate(zeros(), key)


class AggregatorComputationTest(parameterized.TestCase):
  @parameterized.named_parameters(('plain', VALUE_TYPE), ('keyed', KEYED_TYPE))
  def test_types(self, value_type):
    factory = federated.TimeVaryingGaussianFactory(SCHEDULE)
    process = factory.create(value_type, WEIGHT_TYPE)
    self.assertIsInstance(process, tff.templates.AggregationProcess)
    output = process.next.type_signature.result
    self.assertEqual(str(output.result.member), str(VALUE_TYPE))
    self.assertStartsWith(
      str(output.state.member),
      '<round=int32,rounds=int32,theta=float64,initial_variance=float64,'
      'variance=float64,inner=',
    )

  @parameterized.named_parameters(
    ('integers', tff.TensorType(np.int32, [3]), TypeError, 'float tensors'),
    ('unknown', tff.TensorType(np.float32, [None]), ValueError, 'static'),
  )
  def test_refuses_values(self, value_type, error, message):
    factory = federated.TimeVaryingGaussianFactory(SCHEDULE)
    with self.assertRaisesRegex(error, message):
      factory.create(value_type, WEIGHT_TYPE)

  def test_refuses_arguments(self):
    with self.assertRaisesRegex(TypeError, 'schedule must be'):
      federated.TimeVaryingGaussianFactory(0.1)  # type: ignore[arg-type]
    with self.assertRaisesRegex(TypeError, 'inner must be'):
      federated.TimeVaryingGaussianFactory(
        SCHEDULE, tff.aggregators.SumFactory()
      )


class AggregatorExecutionTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    factory = federated.TimeVaryingGaussianFactory(SCHEDULE)
    cls.process = factory.create(KEYED_TYPE, WEIGHT_TYPE)
    cls.plain = factory.create(VALUE_TYPE, WEIGHT_TYPE)

  def test_state_follows_the_schedule(self):
    state = self.process.initialize()
    for completed in range(4):
      self.assertEqual(state['round'], completed)
      self.assertEqual(state['rounds'], 4)
      self.assertEqual(state['theta'], 1.5)
      self.assertEqual(state['initial_variance'], SCHEDULE.variance(1))
      self.assertAlmostEqual(
        state['variance'], 0.04 * 1.5**completed, places=14
      )
      output = self.process.next(state, [keyed(0)], [1.0])
      used = output.measurements
      self.assertEqual(used['round'], completed + 1)
      self.assertAlmostEqual(
        used['noise_stddev'], SCHEDULE.stddev(completed + 1), places=14
      )
      state = output.state

  def test_no_round_after_the_last(self):
    state = self.process.initialize()
    state = collections.OrderedDict(state, round=np.int32(4))
    with self.assertRaisesRegex(Exception, 'no further round'):
      self.process.next(state, [keyed(0)], [1.0])

  @parameterized.named_parameters(('first', 0), ('last', 3))
  def test_noise_is_that_of_the_round(self, completed):
    state = self.process.initialize()
    for _ in range(completed):
      state = self.process.next(state, [keyed(0)], [1.0]).state
    result = self.process.next(state, [keyed(7)], [2.5]).result
    stddev = SCHEDULE.stddev(completed + 1)
    self.assertTrue(noise_checks.has_stddev(result['a'], stddev))
    self.assertTrue(noise_checks.rejects_neighbours(result['a'], stddev))

  def test_clients_add_their_own_noise(self):
    # The mean of K independent noises has 1/sqrt(K) of the stddev; shared
    # noise would keep all of it.
    state = self.process.initialize()
    clients = [keyed(client) for client in range(16)]
    result = self.process.next(state, clients, [1.0] * 16).result
    self.assertTrue(noise_checks.has_stddev(result['a'], 0.2 / 4))
    self.assertTrue(noise_checks.rejects_neighbours(result['a'], 0.2 / 4))
    shared = self.process.next(state, [keyed(3)] * 16, [1.0] * 16).result
    self.assertFalse(noise_checks.has_stddev(shared['a'], 0.2 / 4))

  def test_noise_without_keys(self):
    state = self.plain.initialize()
    results = [
      self.plain.next(state, [zeros()] * 4, [1.0] * 4).result['a']
      for _ in range(3)
    ]
    for result in results:
      self.assertTrue(noise_checks.has_stddev(result, 0.2 / 2))
      self.assertTrue(noise_checks.rejects_neighbours(result, 0.2 / 2))
    self.assertTrue(noise_checks.are_independent(np.stack(results)))

  def test_weighted_mean(self):
    quiet = privacy.GeometricSchedule(theta=1.0, rounds=1, initial_stddev=1e-9)
    process = federated.TimeVaryingGaussianFactory(quiet).create(
      KEYED_TYPE, WEIGHT_TYPE
    )
    clients = []
    for client, value in enumerate((1.0, 2.0, 6.0)):
      update = collections.OrderedDict(
        a=np.full(SIZE, value, np.float32), b=np.float32(-value)
      )
      clients.append(
        federated.KeyedUpdate(update, noise.seeded_noise_key(0, 1, client))
      )
    output = process.next(process.initialize(), clients, [1.0, 2.0, 1.0])
    np.testing.assert_allclose(output.result['a'], 2.75, atol=1e-6)
    self.assertAlmostEqual(output.result['b'], -2.75, places=6)

  def test_keys_reproduce_and_order_does_not_matter(self):
    state = self.process.initialize()
    clients = [keyed(client) for client in range(3)]
    weights = [1.0, 2.0, 3.0]
    one = self.process.next(state, clients, weights).result['a']
    two = self.process.next(state, clients, weights).result['a']
    np.testing.assert_array_equal(one, two)
    swapped = self.process.next(state, clients[::-1], weights[::-1]).result
    np.testing.assert_allclose(swapped['a'], one, atol=1e-6)
    other = self.process.next(
      state, [keyed(client, seed=1) for client in range(3)], weights
    ).result['a']
    self.assertTrue(noise_checks.are_independent(np.stack([one, other])))

  def test_the_host_can_refine_the_schedule(self):
    state = self.process.initialize()
    state = self.process.next(state, [keyed(0)], [1.0]).state
    state = collections.OrderedDict(
      state,
      rounds=np.int32(2),
      initial_variance=np.float64(0.01),
      variance=np.float64(0.015),
    )
    output = self.process.next(state, [keyed(1)], [1.0])
    self.assertAlmostEqual(
      output.measurements['noise_stddev'], 0.015**0.5, places=14
    )
    self.assertAlmostEqual(output.state['variance'], 0.01 * 1.5**2, places=14)


class StockAlgorithmTest(parameterized.TestCase):
  def test_plugs_into_build_weighted_fed_avg(self):
    def model_fn():
      keras_model = tf.keras.Sequential(
        [tf.keras.layers.Dense(SIZE, input_shape=(1,), use_bias=False)]
      )
      return tff.learning.models.from_keras_model(
        keras_model,
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(
          tf.TensorSpec([None, 1], tf.float32),
          tf.TensorSpec([None, SIZE], tf.float32),
        ),
      )

    process = tff.learning.algorithms.build_weighted_fed_avg(
      model_fn,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.0001),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
      model_aggregator=federated.TimeVaryingGaussianFactory(SCHEDULE),
    )
    state = process.initialize()
    before = process.get_model_weights(state).trainable[0]
    # Features of zero: no gradient, so that the update is the noise alone.
    data = tf.data.Dataset.from_tensors(
      (np.zeros([2, 1], np.float32), np.zeros([2, SIZE], np.float32))
    )
    output = process.next(state, [data, data])
    after = process.get_model_weights(output.state).trainable[0]
    change = np.ravel(after - before)
    self.assertTrue(noise_checks.has_stddev(change, 0.2 / 2**0.5))
    self.assertTrue(noise_checks.rejects_neighbours(change, 0.2 / 2**0.5))
    self.assertEqual(output.state.aggregator['round'], 1)


if __name__ == '__main__':
  absltest.main()
