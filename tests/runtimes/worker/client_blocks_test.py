"""Rounds that the worker feeds with data by itself, a block of clients a call.

The same to the bit as with the clients' data as arguments.
"""

import collections
import contextlib
import functools
import os
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data
from tvdp_tf.learning import datasets, models, noise, partitions
from tvdp_tf.runtimes.worker import client_blocks, client_files

SCHEDULE = privacy.GeometricSchedule(theta=0.9, rounds=4, initial_stddev=0.02)
MECHANISMS: dict[str, mechanisms.GraphMechanism] = {
  'paper': mechanisms.PaperMechanism(SCHEDULE, 4.0),
  'laplace': mechanisms.LaplaceMechanism(0.01, 4, 4.0),
  'gradient': mechanisms.GradientMechanism(SCHEDULE, 1.0),
  'central': mechanisms.CentralMechanism(SCHEDULE, 0.5, 3.0, seed=4),
  'none': mechanisms.NoMechanism(4.0),
}
SHAPE = (8, 8, 1)

_resources = contextlib.ExitStack()


def setUpModule():
  # No computation, argument or result may be longer than a megabyte.
  _resources.enter_context(runtimes.local_runtime(max_message_megabytes=1))


def tearDownModule():
  _resources.close()


def sequential(*layers):
  return tf.keras.Sequential([tf.keras.layers.InputLayer(SHAPE), *layers])


def make_model(name):
  layers = tf.keras.layers
  if name == 'mlp':
    return models.MODELS['mlp'].build(SHAPE, 10, 1)
  if name == 'convolutional':
    return sequential(
      layers.Conv2D(4, 3, activation='tanh'), layers.Flatten(), layers.Dense(10)
    )
  return sequential(  # Beyond ghost clipping.
    layers.Conv2D(4, 3, activation='tanh'),
    layers.GroupNormalization(2),
    layers.Flatten(),
    layers.Dense(10),
  )


@functools.cache
def build(mechanism, model='mlp', local_steps=2):
  return federated.build_learning_process(
    federated.functional_model(models.MODELS['mlp'], make_model(model)),
    MECHANISMS[mechanism],
    local_steps=local_steps,
    learning_rate=0.3,
  )


def make_users():
  """Four users with numbers of examples that differ."""
  digits = datasets.load('digits')
  parts = partitions.dirichlet(digits.train_labels[:200], 4, 1.0, seed=4)
  return [
    (digits.train_features[part], digits.train_labels[part]) for part in parts
  ]


def cohorts(mechanism):
  # Only the sum of `central` exists for nobody at all.
  return [[0, 1, 2, 3], [] if mechanism == 'central' else [2], [3, 1]]


def keys_of(round_number, cohort):
  return [noise.seeded_noise_key(1, round_number, user) for user in cohort]


def scales_of(cohort):
  return [0.01 * (user + 1) for user in cohort]


def train_on_arguments(process, users, mechanism):
  state, metrics = process.initialize(), None
  for m, cohort in enumerate(cohorts(mechanism), start=1):
    keys, scales = keys_of(m, cohort), scales_of(cohort)
    data = [
      client_data.client_sequence(users[user][0], users[user][1], key, scale)
      for user, key, scale in zip(cohort, keys, scales, strict=True)
    ]
    state, metrics = process.next(state, data)
  return state, metrics


def train_on_files(process, mechanism):
  state, metrics = process.initialize(), None
  for m, cohort in enumerate(cohorts(mechanism), start=1):
    state, metrics = process.next(
      state,
      client_data.client_block(cohort, keys_of(m, cohort), scales_of(cohort)),
    )
  return state, metrics


class EqualTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.users = make_users()
    cls.files = cls.enterClassContext(client_files.ClientFiles(cls.users))

  @classmethod
  @functools.cache
  def on_files(cls, mechanism, model='mlp', local_steps=2):
    lean = client_blocks.read_in_worker(
      build(mechanism, model, local_steps), cls.files
    )
    assert isinstance(lean, tff.learning.templates.LearningProcess)
    return train_on_files(lean, mechanism)

  @parameterized.parameters(
    *((mechanism, 'mlp', 2) for mechanism in MECHANISMS),
    ('paper', 'convolutional', 2),
    ('gradient', 'convolutional', 2),
    ('none', 'normalized', 2),
    # More steps than are unrolled: a loop within the loop over clients.
    ('gradient', 'mlp', 21),
  )
  def test_equals_data_as_arguments_to_the_bit(
    self, mechanism, model, local_steps
  ):
    process = build(mechanism, model, local_steps)
    expected = train_on_arguments(process, self.users, mechanism)
    actual = self.on_files(mechanism, model, local_steps)
    # Types of Python too: checkpoints and callers see no difference.
    tf.nest.assert_same_structure(actual, expected)
    self.assertIs(type(actual[0].aggregator), type(expected[0].aggregator))
    for one, other in zip(
      tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
    ):
      np.testing.assert_array_equal(one, other)
    start = process.initialize().global_model_weights.trainable[0]
    moved = np.abs(actual[0].global_model_weights.trainable[0] - start).max()
    self.assertGreater(moved, 1e-3)

  @parameterized.parameters('paper', 'central')
  def test_equals_the_compiled_runtime(self, mechanism):
    process = build(mechanism)
    with runtimes.compiled_runtime('cpu'):
      expected, _ = train_on_arguments(process, self.users, mechanism)
    actual, _ = self.on_files(mechanism)
    for one, other in zip(
      actual.global_model_weights.trainable,
      expected.global_model_weights.trainable,
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

  def test_how_clients_are_grouped_does_not_matter_but_for_rounding(self):
    process = build('paper')

    def run(parallel_clients, *blocks):
      lean = client_blocks.read_in_worker(process, self.files, parallel_clients)
      data = []
      for block in blocks:
        data += client_data.client_block(
          block, keys_of(1, block), scales_of(block)
        )
      return lean.next(lean.initialize(), data).state.global_model_weights

    together = run(4, [0, 1, 2, 3])
    for one, other in zip(
      together.trainable, run(1, [0, 1, 2, 3]).trainable, strict=True
    ):
      np.testing.assert_array_equal(one, other)
    for one, other in zip(
      together.trainable, run(2, [0], [], [1, 2, 3]).trainable, strict=True
    ):
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

  def test_no_such_client(self):
    process = client_blocks.read_in_worker(build('none'), self.files)
    with self.assertRaisesRegex(Exception, r'indices\[1\] = 5 is not in'):
      process.next(
        process.initialize(),
        client_data.client_block([4], keys_of(1, [4]), [1.0]),
      )

  def test_refuses(self):
    process = build('none')
    parallel: Any
    for parallel in (0, True, 1.5):
      with self.assertRaisesRegex(ValueError, 'parallel_clients must be'):
        client_blocks.read_in_worker(process, self.files, parallel)
    with (
      client_files.ClientFiles([(np.zeros([2, 3]), np.zeros([2]))]) as files,
      self.assertRaisesRegex(TypeError, 'No sequence parameter assignable'),
    ):
      client_blocks.read_in_worker(process, files)
    with (
      runtimes.compiled_runtime('cpu'),
      self.assertRaisesRegex(RuntimeError, 'within local_runtime'),
    ):
      client_blocks.read_in_worker(process, self.files)


class DataTest(absltest.TestCase):
  def test_data_stay_out_of_the_messages(self):
    # Three megabytes, where a message has one at most.
    count = 12000
    users = [
      (np.zeros([count, *SHAPE], np.float32), np.zeros([count], np.int32))
    ]
    process = build('none', local_steps=1)
    with client_files.ClientFiles(users) as files:
      lean = client_blocks.read_in_worker(process, files)
      output = lean.next(
        lean.initialize(), client_data.client_block([0], keys_of(1, [0]), [1.0])
      )
    self.assertEqual(output.metrics['aggregator']['used_clients'], 1)


def next_of(draw, sum_values=tff.federated_sum):
  """A round whose metrics are the sums of the clients' values and squares."""
  client_type = tff.to_type(
    collections.OrderedDict(client=tff.TensorType(np.int64))
  )

  @tff.tensorflow.computation(client_type)
  def work(client):
    values = draw(client['client'])
    return values, values**2

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(client_type, tff.CLIENTS),
  )
  def next_fn(state, clients):
    return tff.learning.templates.LearningProcessOutput(
      state, sum_values(tff.federated_map(work, clients))
    )

  return next_fn


class RandomnessTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'noise_without_a_key',
      lambda _: tf.cast(
        noise.standard_normal(noise.system_noise_key(), 5000), tf.float32
      ),
    ),
    ('random_op', lambda _: tf.random.normal([5000])),
  )
  def test_is_fresh_for_every_client_and_round(self, draw):
    # The compiler must not take it out of the loop, nor for a constant.
    run = client_blocks.in_blocks(next_of(draw))
    block = collections.OrderedDict(client=np.arange(4))
    totals = []
    for _ in range(2):
      total, squares = run(0.0, [block]).metrics
      self.assertAlmostEqual(np.mean(squares), 4.0, delta=0.3)
      # It would be 4 if all clients had drawn the same.
      self.assertAlmostEqual(np.std(total), 2.0, delta=0.15)
      totals.append(total)
    correlation = np.corrcoef(*totals)[0, 1]
    self.assertLess(abs(correlation), 0.07)


class SideBySideTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'normalization',
      lambda images: tf.compat.v1.nn.fused_batch_norm(images, [1.0], [0.0])[0],
      1,
    ),
    (
      'convolution_bias_addition',
      lambda images: (
        tf.nn.bias_add(tf.nn.conv2d(images, [[[[2.0]]]], 1, 'SAME'), [1.0])
        + images
      ),
      1,
    ),
    ('nothing_of_the_kind', tf.nn.relu, 2 * len(os.sched_getaffinity(0))),
  )
  def test_only_what_kernels_keep_apart(self, compute, at_once):
    def draw(client):
      images = tf.reshape(tf.range(72.0), [2, 6, 6, 1])
      return compute(images + tf.cast(client, tf.float32))

    with mock.patch.object(tf, 'while_loop', wraps=tf.while_loop) as loop:
      run = client_blocks.in_blocks(next_of(draw))
    loop.assert_called()
    for call in loop.call_args_list:
      self.assertEqual(call.kwargs['parallel_iterations'], at_once)
    block = collections.OrderedDict(client=np.arange(4))
    total, _ = run(0.0, [block]).metrics
    np.testing.assert_allclose(
      total, tf.add_n([draw(client) for client in range(4)]), rtol=1e-4
    )


class SecureSumsTest(absltest.TestCase):
  def test_secure_sums_are_refused(self):
    computation = next_of(
      lambda client: tf.cast(client, tf.int32),
      lambda values: tff.federated_secure_sum(values, (9, 9)),
    )
    with self.assertRaisesRegex(NotImplementedError, 'summed securely'):
      client_blocks.in_blocks(computation)


if __name__ == '__main__':
  absltest.main()
