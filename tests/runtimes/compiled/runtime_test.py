"""The same computation on TFF's worker and in this process."""

import contextlib
import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data
from tvdp_tf.learning import (
  aligned,
  datasets,
  discrete_gaussian,
  functional,
  ghost_list,
  models,
  noise,
  partitions,
)
from tvdp_tf.runtimes.compiled import devices, ordered_fold, runtime

SCHEDULE = privacy.GeometricSchedule(theta=0.9, rounds=5, initial_stddev=0.02)
MULTIPLIERS = privacy.GeometricSchedule(0.9, 5, 3.0)
MECHANISMS = {
  'paper': mechanisms.PaperMechanism(SCHEDULE, 4.0),
  'laplace': mechanisms.LaplaceMechanism(0.01, 5, 4.0),
  'gradient': mechanisms.GradientMechanism(MULTIPLIERS, 1.0),
  'central': mechanisms.CentralMechanism(SCHEDULE, 0.5, 3.0, seed=4),
  'none': mechanisms.NoMechanism(4.0),
}


def convolutional_model():
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([8, 8, 1]),
      # Without kinks, which would blow up what the kernels round differently.
      tf.keras.layers.Conv2D(4, 3, activation='tanh'),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(10),
    ]
  )


def build(mechanism, keras_model, local_steps=2):
  return federated.build_learning_process(
    federated.functional_model(models.MODELS['mlp'], keras_model),
    mechanism,
    local_steps=local_steps,
    learning_rate=0.3,
  )


def make_users():
  digits = datasets.load('digits')
  parts = partitions.dirichlet(digits.train_labels[:300], 4, 1.0, seed=4)
  users = [
    (digits.train_features[part], digits.train_labels[part]) for part in parts
  ]
  for features, labels in users:
    features.flags.writeable = labels.flags.writeable = False
  return users


def data_of(users, round_number):
  return [
    client_data.client_sequence(
      features, labels, noise.seeded_noise_key(1, round_number, user), 0.01
    )
    for user, (features, labels) in enumerate(users)
  ]


def train(process, users, rounds=5):
  state = process.initialize()
  metrics = None
  for m in range(1, rounds + 1):
    # Cohorts of several sizes.
    state, metrics = process.next(state, data_of(users[: 2 + m % 3], m))
  return state, metrics


def check_noise_without_a_key(case, device):
  """Of four clients, in two rounds."""
  factory = federated.TimeVaryingGaussianFactory(
    privacy.GeometricSchedule(1.0, 100, 1.0)
  )
  process = factory.create(
    tff.TensorType(np.float32, [5000]), tff.TensorType(np.float32)
  )
  zeros = [np.zeros([5000], np.float32)] * 4
  with runtimes.compiled_runtime(device):
    state = process.initialize()
    first = process.next(state, zeros, [1.0] * 4)
    again = process.next(state, zeros, [1.0] * 4)
  case.assertAlmostEqual(np.std(first.result), 0.5, delta=0.03)
  correlation = np.corrcoef(first.result, again.result)[0, 1]
  case.assertLess(abs(correlation), 0.06)


class SameModelTest(parameterized.TestCase):
  @parameterized.parameters(
    *((mechanism, 'mlp') for mechanism in MECHANISMS),
    ('gradient', 'convolutional'),
    ('paper', 'convolutional'),
  )
  def test_equals_the_worker(self, mechanism, model):
    keras_model = (
      models.MODELS['mlp'].build([8, 8, 1], 10, 1)
      if model == 'mlp'
      else convolutional_model()
    )
    process = build(MECHANISMS[mechanism], keras_model)
    users = make_users()
    with runtimes.local_runtime():
      expected, expected_metrics = train(process, users)
    with runtimes.compiled_runtime('cpu'):
      actual, metrics = train(process, users)
    tf.nest.assert_same_structure(
      actual.global_model_weights, expected.global_model_weights
    )
    self.assertIs(type(actual), type(expected))
    self.assertIs(type(actual.aggregator), type(expected.aggregator))
    for one, other in zip(
      tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
    ):
      if np.array(one).dtype.kind not in 'iuf':
        self.assertEqual(np.array(one), np.array(other))
      else:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(
      tf.nest.flatten(metrics), tf.nest.flatten(expected_metrics), strict=True
    ):
      np.testing.assert_allclose(one, other, rtol=1e-4)

  def test_a_model_beyond_ghost_clipping(self):
    keras_model = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer([8, 8, 1]),
        tf.keras.layers.Conv2DTranspose(2, 3, activation='tanh'),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
      ]
    )
    self.assertFalse(
      ghost_list.supports(
        functional.FunctionalModel(keras_model), models.MODELS['mlp'].loss
      )
    )
    process = build(MECHANISMS['gradient'], keras_model, local_steps=1)
    users = make_users()
    with runtimes.local_runtime():
      expected, _ = train(process, users, 3)
    with runtimes.compiled_runtime('cpu'):
      actual, _ = train(process, users, 3)
    for one, other in zip(
      actual.global_model_weights.trainable,
      expected.global_model_weights.trainable,
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

  def test_many_local_steps(self):
    process = build(
      MECHANISMS['gradient'], models.MODELS['mlp'].build([8, 8, 1], 10, 1), 30
    )
    users = make_users()
    with runtimes.local_runtime():
      expected, _ = train(process, users, 1)
    with runtimes.compiled_runtime('cpu'):
      actual, _ = train(process, users, 1)
    for one, other in zip(
      actual.global_model_weights.trainable,
      expected.global_model_weights.trainable,
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


class CompiledRuntimeTest(parameterized.TestCase):
  def test_a_round_beyond_the_schedule_is_an_error(self):
    process = build(
      mechanisms.PaperMechanism(privacy.GeometricSchedule(1.0, 1, 0.1), 4.0),
      models.MODELS['mlp'].build([8, 8, 1], 10, 1),
    )
    users = make_users()
    with runtimes.compiled_runtime('cpu'):
      state = process.next(process.initialize(), data_of(users, 1)).state
      with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'no further round'
      ):
        process.next(state, data_of(users, 2))

  def test_arrays_that_can_change_are_read_every_time(self):
    process = build(
      MECHANISMS['none'], models.MODELS['mlp'].build([8, 8, 1], 10, 1)
    )
    digits = datasets.load('digits')
    users = [(digits.train_features[:200].copy(), digits.train_labels[:200])]
    with runtimes.compiled_runtime('cpu'):
      state = process.initialize()
      one = process.next(state, data_of(users, 1)).state
      users[0][0][:] = 0
      two = process.next(state, data_of(users, 1)).state
    change = np.abs(
      one.global_model_weights.trainable[0]
      - two.global_model_weights.trainable[0]
    ).max()
    self.assertGreater(change, 1e-3)

  def test_noise_without_a_key_is_fresh_for_every_client(self):
    check_noise_without_a_key(self, 'cpu')

  def test_plain_computations(self):
    @tff.tensorflow.computation(np.int32, np.int32)
    def difference(x, y):
      return x - y

    with runtimes.compiled_runtime('cpu'):
      self.assertEqual(int(difference(5, 3)), 2)

  def test_results_that_are_shapes(self):
    @tf.function
    def size(x):
      return tf.size(x)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 3]))
    def shapes(x):
      return tf.shape(x), tf.shape(x)[0], size(x), x

    x = np.ones([4, 3], np.float32)
    with runtimes.compiled_runtime('cpu'):
      shape, count, number, same = shapes(x)
    self.assertEqual(
      (shape.numpy().tolist(), int(count), int(number)), ([4, 3], 4, 12)
    )
    np.testing.assert_array_equal(same, x)

  def test_same_bits_however_updates_are_added(self):
    process = build(
      MECHANISMS['paper'], models.MODELS['mlp'].build([8, 8, 1], 10, 1)
    )
    digits = datasets.load('digits')
    parts = partitions.iid(300, 13, seed=4)
    users = [
      (digits.train_features[part], digits.train_labels[part]) for part in parts
    ]

    def models_after_two_rounds(threads, together):
      with (
        mock.patch.object(ordered_fold, '_TOGETHER', together),
        mock.patch.object(devices, 'cores', lambda: threads),
        runtimes.compiled_runtime('cpu'),
      ):
        state = process.initialize()
        for m in (1, 2):
          state = process.next(state, data_of(users[m:], m)).state
      return state.global_model_weights.trainable

    expected = models_after_two_rounds(1, 1)
    for together, threads in itertools.product((1, 2, 4, 8), (1, 3)):
      with self.subTest(together=together, threads=threads):
        found = models_after_two_rounds(threads, together)
        for one, other in zip(found, expected, strict=True):
          np.testing.assert_array_equal(one, other)

  def test_large_updates_are_added_one_by_one(self):
    value_type = tff.TensorType(np.float32, [2**18 + 1])
    process = tff.aggregators.SumFactory().create(value_type)
    sizes = []
    add = ordered_fold.Adder.__call__

    def noted(self, totals, updates):
      sizes.append((self.together, len(updates)))
      return add(self, totals, updates)

    with (
      mock.patch.object(ordered_fold.Adder, '__call__', noted),
      mock.patch.object(devices, 'cores', lambda: 1),
      runtimes.compiled_runtime('cpu'),
    ):
      value = np.ones([2**18 + 1], np.float32)
      result = process.next(process.initialize(), [value] * 5).result
    self.assertEqual(sizes, [(1, 1)] * 5)
    self.assertEqual(float(result[-1]), 5.0)

  def test_aligned_data_is_not_copied(self):
    shared = aligned.empty([3, 64, 100], np.float32)
    shared[...] = 1
    users = [shared[user] for user in range(3)]
    plain = np.ones([64, 100], np.float32)
    views: list[np.ndarray] = [shared]
    while isinstance(views[-1].base, np.ndarray):
      views.append(views[-1].base)
    for array in (*users, plain, *views):
      array.flags.writeable = False
    resident = runtime._Resident()
    tensors = [resident(array) for array in (*users, plain)]
    self.assertIs(resident(users[1]), tensors[1])
    for array in reversed(views):
      array.flags.writeable = True
    shared[1] = 2
    self.assertEqual([float(t[5, 5]) for t in tensors], [1, 2, 1, 1])

  def test_a_read_only_view_of_what_can_change_is_read_anew(self):
    changing = np.ones([64, 100], np.float32)
    view = changing[:]
    view.flags.writeable = False
    self.assertIs(runtime._Resident()(view), view)

  def test_arrays_that_nobody_has_any_more_are_let_go(self):
    resident = runtime._Resident()
    kept = np.zeros([64, 100], np.float32)
    kept.flags.writeable = False
    tensor = resident(kept)
    for _ in range(1000):
      array = np.zeros([64, 100], np.float32)
      array.flags.writeable = False
      resident(array)
    self.assertIs(resident(kept), tensor)
    self.assertLess(len(resident._tensors), 100)

  def test_secure_sums_are_refused(self):
    process = tff.aggregators.SecureSumFactory(10).create(
      tff.TensorType(np.int32)
    )
    with runtimes.compiled_runtime('cpu'):
      state = process.initialize()
      with self.assertRaisesRegex(NotImplementedError, 'secure sums'):
        process.next(state, [1, 2])

  def test_leaves_the_context_as_it_was(self):
    before = tff.framework.get_context_stack().current
    with contextlib.suppress(RuntimeError), runtimes.compiled_runtime('cpu'):
      raise RuntimeError
    self.assertIs(tff.framework.get_context_stack().current, before)

  def test_gpu_that_is_not_there(self):
    if tf.config.list_physical_devices('GPU'):
      self.skipTest('there is a GPU')
    with (
      self.assertRaisesRegex(
        runtimes.DeviceUnavailableError, 'device must be auto or cpu'
      ),
      runtimes.compiled_runtime('gpu'),
    ):
      pass

  def test_discrete_noise_is_refused_on_a_gpu(self):
    @tff.tensorflow.computation(np.int64, tff.TensorType(np.int64, [2]))
    def drawn(total, key):
      return total + tf.reduce_sum(discrete_gaussian.discrete_gaussian(key, 9))

    @tff.federated_computation(
      tff.FederatedType(np.int64, tff.SERVER),
      tff.FederatedType(tff.TensorType(np.int64, [2]), tff.CLIENTS),
    )
    def process(total, keys):
      everywhere = tff.federated_broadcast(total)
      return total, tff.federated_sum(
        tff.federated_map(drawn, (everywhere, keys))
      )

    keys = [np.array([1, 2], np.int64)]
    with runtimes.compiled_runtime('cpu'):
      process(np.int64(0), keys)
    with (
      mock.patch.object(devices, 'device_name', return_value='/device:GPU:0'),
      runtimes.compiled_runtime('gpu'),
    ):
      for call in (
        lambda: process(np.int64(0), keys),
        lambda: drawn(0, keys[0]),
      ):
        with self.assertRaisesRegex(NotImplementedError, 'discrete noise'):
          call()

  def test_sequences_of_several_elements_are_refused(self):
    process = build(
      MECHANISMS['none'], models.MODELS['mlp'].build([8, 8, 1], 10, 1)
    )
    users = make_users()
    data = data_of(users, 1)
    with runtimes.compiled_runtime('cpu'):
      state = process.initialize()
      with self.assertRaisesRegex(ValueError, 'exactly one element'):
        process.next(state, [data[0] + data[1]])


if __name__ == '__main__':
  absltest.main()
