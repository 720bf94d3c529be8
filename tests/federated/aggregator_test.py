import collections
import contextlib
import math
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests import noise_checks
from tvdp_tf import federated, privacy, runtimes
from tvdp_tf.federated import schedule_state
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
  _resources.enter_context(runtimes.local_runtime())


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
    ('integers', tff.TensorType(np.int32, [3]), TypeError, r'got int32\[3\]$'),
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

  def test_a_weighted_algorithm_is_told_what_to_pass(self):
    factory = federated.UnweightedTimeVaryingGaussianFactory(SCHEDULE)
    with self.assertRaisesRegex(TypeError, 'as_weighted_aggregator'):
      factory.create(VALUE_TYPE, WEIGHT_TYPE)  # As build_fed_sgd does.
    weighted = tff.aggregators.as_weighted_aggregator(factory)
    weighted.create(VALUE_TYPE, WEIGHT_TYPE)


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

  def test_state_follows_a_list(self):
    schedule = privacy.ListedSchedule((0.2, 0.7, 0.1))
    factory = federated.TimeVaryingGaussianFactory(schedule)
    process = factory.create(KEYED_TYPE, WEIGHT_TYPE)
    state = process.initialize()
    for m in (1, 2, 3):
      output = process.next(state, [keyed(0)], [1.0])
      self.assertEqual(
        output.measurements['noise_stddev'], math.sqrt(schedule.variance(m))
      )
      state = output.state
      if m == 1:
        shorter = privacy.ListedSchedule((0.3, 0.4))
        with self.assertRaisesRegex(ValueError, 'not longer, got 4 rounds'):
          schedule_state.refined(state, privacy.ListedSchedule((1.0,) * 4))
        with self.assertRaisesRegex(ValueError, 'of the kind that the process'):
          schedule_state.refined(self.process.initialize(), shorter)
        refined = schedule_state.refined(state, shorter)
        self.assertEqual(refined['variance'], shorter.variance(2))
        last = process.next(refined, [keyed(0)], [1.0]).state
        with self.assertRaisesRegex(Exception, 'no further round'):
          process.next(last, [keyed(0)], [1.0])
    with self.assertRaisesRegex(Exception, 'no further round'):
      process.next(state, [keyed(0)], [1.0])

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


class BoundedTest(parameterized.TestCase):
  """With an `l2_norm_clip`, whatever a client brings is in the ball."""

  CLIP = 1.5
  VALUES: ClassVar[dict[str, float]] = {
    'nan': np.nan,
    'inf': -np.inf,
    'huge': 1e30,
    'large': 100.0,
    'small': 1e-3,
    'zero': 0.0,
  }

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.process = cls.create(KEYED_TYPE, WEIGHT_TYPE)
    cls.dimension = SIZE + 1

  @classmethod
  def create(cls, *types, unweighted=False, **kwargs):
    kind: Any = (
      federated.UnweightedTimeVaryingGaussianFactory
      if unweighted
      else federated.TimeVaryingGaussianFactory
    )
    return kind(SCHEDULE, l2_norm_clip=cls.CLIP, **kwargs).create(*types)

  def upload(self, value):
    """What one client releases in round 1, without its noise."""
    update = collections.OrderedDict(
      a=np.full(SIZE, value, np.float32), b=np.float32(1e-3)
    )
    client = federated.KeyedUpdate(update, noise.seeded_noise_key(0, 1, 7))
    output = self.process.next(self.process.initialize(), [client], [1.0])
    self.assertEqual(output.measurements['inner']['used_clients'], 1)
    released = [output.result['a'], np.reshape(output.result['b'], [1])]
    (drawn,) = noise.perturb(
      [tf.zeros([self.dimension])],
      SCHEDULE.stddev(1),
      noise.seeded_noise_key(0, 1, 7),
    )
    return np.concatenate(released) - drawn

  def test_sensitivity_is_twice_the_clip(self):
    bare = {name: self.upload(value) for name, value in self.VALUES.items()}
    for one in bare.values():
      self.assertLessEqual(np.linalg.norm(one), self.CLIP + 1e-4)
    norms = {name: np.linalg.norm(value) for name, value in bare.items()}
    for name in ('nan', 'inf'):
      np.testing.assert_allclose(bare[name], 0, atol=1e-6)
    for name in ('huge', 'large'):  # Clipped, in its direction.
      self.assertAlmostEqual(norms[name], self.CLIP, delta=1e-3)
    # What is short enough is left as it is.
    np.testing.assert_allclose(bare['small'], 1e-3, atol=1e-6)

  def check_noise(self, output):
    result = output.result['a']
    self.assertTrue(noise_checks.has_stddev(result, 0.2 / 2))
    self.assertTrue(noise_checks.rejects_neighbours(result, 0.2 / 2))
    self.assertEqual(output.measurements['inner']['used_clients'], 4)

  def test_noise_is_that_of_the_round(self):
    state = self.process.initialize()
    clients = [keyed(client) for client in range(4)]
    self.check_noise(self.process.next(state, clients, [1.0] * 4))
    process = self.create(VALUE_TYPE, unweighted=True)
    self.check_noise(process.next(process.initialize(), [zeros()] * 4))

  @parameterized.parameters('gaussian', 'laplace')
  def test_no_honest_upload_is_too_long(self, distribution):
    process = self.create(KEYED_TYPE, WEIGHT_TYPE, distribution=distribution)
    huge = collections.OrderedDict(
      a=np.full(SIZE, 1e10, np.float32), b=np.float32(0)
    )
    clients = [
      federated.KeyedUpdate(huge, noise.seeded_noise_key(1, 1, client))
      for client in range(50)
    ]
    output = process.next(process.initialize(), clients, [1.0] * 50)
    self.assertEqual(output.measurements['inner']['used_clients'], 50)

  def test_refuses_clips(self):
    for clip in (0.0, -1.0, np.nan, 1e-165):  # Its square is 0.
      with self.assertRaisesRegex(ValueError, 'l2_norm_clip must be'):
        federated.TimeVaryingGaussianFactory(SCHEDULE, l2_norm_clip=clip)
    with self.assertRaisesRegex(TypeError, 'inner must be'):
      federated.UnweightedTimeVaryingGaussianFactory(
        SCHEDULE, tff.aggregators.MeanFactory()
      )


if __name__ == '__main__':
  absltest.main()
