"""TFF's own algorithms in this process: batches, variables, Keras models."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, runtimes
from tvdp_tf.federated import withheld
from tvdp_tf.learning import models

_SPEC = (
  tf.TensorSpec([None, 4], tf.float32),
  tf.TensorSpec([None], tf.int32),
)


def data_sets():
  """Of six clients: one to three batches, of three examples but the last."""
  rng = np.random.default_rng(0)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.normal(size=(n, 4)).astype(np.float32),
        rng.integers(0, 3, n).astype(np.int32),
      )
    ).batch(3)
    for n in (3, 4, 9, 1, 8, 2)
  ]


def functional():
  mlp = models.MODELS['mlp']
  return tff.learning.algorithms.build_unweighted_fed_avg(
    federated.functional_model(mlp, mlp.build([4], 3, 0)),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  )


def _keras_model(normalization=tf.keras.layers.BatchNormalization):
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([4]),
      tf.keras.layers.Dense(5, 'tanh', kernel_initializer='ones'),
      normalization(),
      tf.keras.layers.Dense(
        3, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=0)
      ),
    ]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=_SPEC,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def keras():
  # The model's variables, and those of metrics and of both optimizers' state.
  # Adam's epsilon bounds by how much it can amplify the rounding, in which
  # runtimes differ, of a gradient that is nearly zero.
  return tff.learning.algorithms.build_weighted_fed_avg(
    _keras_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
    server_optimizer_fn=tff.learning.optimizers.build_adam(0.1, epsilon=1e-2),
  )


def prox():
  return tff.learning.algorithms.build_unweighted_fed_prox(
    _keras_model,
    proximal_strength=0.1,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    metrics_aggregator=withheld.withheld_metrics,
  )


def normalized():
  # Keras normalizes each example by batch normalization's kernel, which oneDNN
  # lets calls of other sizes mix.
  return tff.learning.algorithms.build_unweighted_fed_avg(
    lambda: _keras_model(tf.keras.layers.LayerNormalization),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  )


def train(process, data, rounds=3):
  state, metrics = process.initialize(), None
  for _ in range(rounds):
    state, metrics = process.next(state, data)
  return tf.nest.flatten((state, metrics))


class StockAlgorithmsTest(parameterized.TestCase):
  @parameterized.parameters(functional, keras, prox, normalized)
  def test_equals_the_worker(self, build):
    process = build()
    data = data_sets()
    lists = [list(client.as_numpy_iterator()) for client in data]
    with runtimes.local_runtime():
      expected = train(process, data)
    with runtimes.compiled_runtime('cpu'):
      for form in (data, lists):
        actual = train(process, form)
        for one, other in zip(actual, expected, strict=True):
          np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

  def test_the_same_every_time(self):
    process, data = normalized(), data_sets()
    with runtimes.compiled_runtime('cpu'):
      expected, *others = (train(process, data) for _ in range(20))
    for other in others:
      for one, same in zip(expected, other, strict=True):
        np.testing.assert_array_equal(one, same)

  def test_calls_side_by_side_share_no_variables(self):
    # Each call adds up what it is given, starting from zero.
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def total(numbers):
      variable = tf.Variable(np.int64(0))
      add = tf.function(variable.assign_add)
      last = numbers.reduce(np.int64(0), lambda _, n: add(n))
      with tf.control_dependencies([last]):
        return variable.read_value()

    @tff.federated_computation(
      tff.FederatedType(np.int64, tff.SERVER),
      tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS),
    )
    def totals(server, numbers):
      return server, tff.federated_sum(tff.federated_map(total, numbers))

    with runtimes.compiled_runtime('cpu'):
      self.assertEqual(int(total([np.int64(1), np.int64(2)])), 3)
    data = [tf.data.Dataset.range(300 + client) for client in range(20)]
    expected = sum(sum(range(300 + client)) for client in range(20))
    with runtimes.compiled_runtime('cpu'):
      for _ in range(5):
        self.assertEqual(int(totals(np.int64(0), data)[1]), expected)

  def test_what_does_not_fit(self):
    process = functional()
    x, y = np.ones([2, 4], np.float32), np.ones([2], np.int32)
    with runtimes.compiled_runtime('cpu'):
      state = process.initialize()
      for wrong in ([(x[:, :3], y)], [(x, y.astype(np.int64))], [(x,)]):
        with self.assertRaisesRegex(
          ValueError, r'must bring elements of <.*float32\[\?,4\].*, got <'
        ):
          process.next(state, [wrong])
      with self.assertRaisesRegex(ValueError, 'without elements'):
        process.next(state, [[]])

  def test_tables_are_refused(self):
    @tff.tensorflow.computation(np.int32)
    def look_up(key):
      table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(2), tf.range(2)),
        0,
      )
      return table.lookup(key)

    with (
      runtimes.compiled_runtime('cpu'),
      self.assertRaisesRegex(NotImplementedError, 'tables'),
    ):
      look_up(1)

  @parameterized.parameters('FIFOQueueV2', 'Stage', 'RandomShuffleQueueV2')
  def test_what_outlives_a_call_is_refused(self, kind):
    """Else one client would move the numbers of those that come after it."""

    @tff.tensorflow.computation(np.float32)
    def count(value):
      if kind == 'Stage':
        put = tf.raw_ops.Stage(values=[value], shared_name='kept')
        size = functools.partial(
          tf.raw_ops.StageSize, dtypes=[tf.float32], shared_name='kept'
        )
      else:
        queue = (
          tf.queue.FIFOQueue(9, tf.float32, [[]])
          if kind == 'FIFOQueueV2'
          else tf.queue.RandomShuffleQueue(9, 0, tf.float32, [[]])
        )
        put, size = queue.enqueue(value), queue.size
      with tf.control_dependencies([put]):
        return size()

    with (
      runtimes.compiled_runtime('cpu'),
      self.assertRaisesRegex(NotImplementedError, f'go from .*{kind}'),
    ):
      count(1.0)

  @parameterized.parameters(
    ('VarHandleOp .in a function', 'variable'),
    ('VarHandleOp .in a function', 'variable_of_a_loop'),
    ('CacheDataset.* .with a file', 'cache'),
    ('CacheDataset.* .with a file', 'computed_cache'),
    ('SnapshotDataset', 'snapshot'),
  )
  def test_a_hidden_state_is_refused(self, kind, how):
    folder = self.create_tempdir().full_path

    def exchanged(value):
      kept = tf.raw_ops.VarHandleOp(
        dtype=tf.float32, shape=[], shared_name='kept'
      )
      put = tf.raw_ops.AssignVariableOp(resource=kept, value=value)
      with tf.control_dependencies([put]):
        return tf.raw_ops.ReadVariableOp(resource=kept, dtype=tf.float32)

    def of_data_set(change):
      def computed(value):
        data = change(tf.data.Dataset.from_tensors(value))
        return data.reduce(0.0, lambda total, one: total + one)

      return computed

    functions = {
      'variable': tf.function(exchanged),
      'variable_of_a_loop': lambda value: tf.map_fn(exchanged, value[None])[0],
      'cache': of_data_set(lambda data: data.cache(folder)),
      'computed_cache': of_data_set(
        lambda data: data.cache(tf.strings.join([folder, '/x']))
      ),
      'snapshot': of_data_set(lambda data: data.snapshot(folder)),
    }
    function = functions[how]
    computation = tff.tensorflow.computation(function, np.float32)
    with (
      runtimes.compiled_runtime('cpu'),
      self.assertRaisesRegex(NotImplementedError, f'go from .*{kind}'),
    ):
      computation(1.0)

  def test_a_cache_in_memory_is_taken(self):
    @tff.tensorflow.computation(np.float32)
    def doubled(value):
      data = tf.data.Dataset.from_tensors(value).cache().repeat(2)
      nested = data.flat_map(
        lambda one: tf.data.Dataset.from_tensors(one).cache()
      )
      return nested.reduce(0.0, lambda total, one: total + one)

    with runtimes.compiled_runtime('cpu'):
      self.assertEqual([float(doubled(v)) for v in (1, 2, 3)], [2, 4, 6])


if __name__ == '__main__':
  absltest.main()
