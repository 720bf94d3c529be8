"""Reductions as loops: the same results, and no reduction left."""

from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.compiled import stock_algorithms_test
from tvdp_tf import runtimes
from tvdp_tf.runtimes import graph_import
from tvdp_tf.runtimes.compiled import graph_function, reductions

_NUMBERS = tff.SequenceType(np.int64)


def total(numbers):
  return numbers.reduce(np.int64(0), lambda state, n: state + n)


def other_argument(numbers):
  factor = tf.size(numbers.batch(100).get_single_element(), tf.int64)
  return numbers.reduce(np.int64(0), lambda state, n: state + factor * n)


def growing(numbers):
  return numbers.reduce(
    tf.zeros([0], tf.int64), lambda state, n: tf.concat([state, [n]], 0)
  )


def structure(numbers):
  return numbers.enumerate().reduce(
    {'text': tf.constant(''), 'odd': False, 'sum': np.float32(0)},
    lambda state, pair: {
      'text': state['text'] + tf.strings.as_string(pair[0] * pair[1]),
      'odd': tf.math.logical_xor(state['odd'], pair[1] % 2 == 1),
      'sum': state['sum'] + tf.cast(pair[1], tf.float32),
    },
  )


def nested(numbers):
  def add(state, n):
    inner = tf.data.Dataset.range(n).reduce(n, lambda s, m: s + m * m)
    return state + inner

  return numbers.reduce(np.int64(0), add)


def nested_data_set(numbers):
  return numbers.window(2).reduce(
    np.int64(0), lambda state, window: 10 * state + total(window)
  )


def within_a_pipeline(numbers):
  return total(numbers.map(lambda n: total(tf.data.Dataset.range(n))))


def in_a_condition(numbers):
  return tf.cond(
    total(numbers) > 3, lambda: growing(numbers), lambda: growing(numbers)[:1]
  )


def in_a_loop(numbers):
  return tf.while_loop(
    lambda i, _: i < 3,
    lambda i, state: (i + 1, state + total(numbers.skip(i))),
    (np.int64(0), np.int64(0)),
  )[1]


def in_functions(numbers):
  inner = tf.function(total)
  return tf.function(lambda data: inner(data) + inner(data.skip(1)))(numbers)


def iterated(numbers):
  @tf.function
  def last_above_two(data):
    result = np.int64(0)
    for n in data:
      if n > 2:
        result = n
    return result

  return last_above_two(numbers)


def early_end(numbers):
  @tf.function
  def until_two(data):
    result = np.int64(0)
    for n in data:
      if n == 2:
        break
      result += n
    return result

  return until_two(numbers)


def parallel(numbers):
  return growing(
    numbers.map(lambda n: n * n, num_parallel_calls=tf.data.AUTOTUNE)
    .prefetch(tf.data.AUTOTUNE)
    .shuffle(10, seed=1)
  )


def ops_of(definition):
  nodes = [*definition.node]
  for function in definition.library.function:
    nodes.extend(function.node_def)
  return [node.op for node in nodes]


class ReductionsTest(parameterized.TestCase):
  @parameterized.product(
    reduce=[
      total,
      other_argument,
      growing,
      structure,
      nested,
      nested_data_set,
      within_a_pipeline,
      in_a_condition,
      in_a_loop,
      in_functions,
      iterated,
      early_end,
      parallel,
    ],
    values=[(1, 5, 2, 7), (3,)],
  )
  def test_same_result(self, reduce, values):
    data = tf.data.Dataset.from_tensor_slices(np.array(values, np.int64))
    computation = tff.tensorflow.computation(reduce, _NUMBERS)
    with (
      runtimes.compiled_runtime('cpu'),
      mock.patch.object(reductions, 'as_loops'),
    ):
      expected = [tf.nest.flatten(computation(data)) for _ in range(2)]
    with runtimes.compiled_runtime('cpu'):
      actual = [tf.nest.flatten(computation(data)) for _ in range(2)]
    tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)

  def test_no_element(self):
    computation = tff.tensorflow.computation(total, _NUMBERS)
    with runtimes.compiled_runtime('cpu'):
      self.assertEqual(int(computation(tf.data.Dataset.range(0))), 0)

  def test_an_element_sees_what_came_before(self):
    # It reads the variable that the step before it has assigned.
    @tff.tensorflow.computation(_NUMBERS)
    def doubled(numbers):
      variable = tf.Variable(np.int64(1))
      step = tf.function(lambda n: variable.assign(variable + n))
      return numbers.map(lambda n: n * variable).reduce(
        np.int64(0), lambda _, n: step(n)
      )

    with runtimes.compiled_runtime('cpu'):
      # 1 + 1, 2 + 2, 4 + 4.
      self.assertEqual(int(doubled([np.int64(1)] * 3)), 8)

  def test_an_error_is_raised(self):
    def checked(numbers):
      def add(state, n):
        with tf.control_dependencies(
          [tf.debugging.assert_less(n, np.int64(2))]
        ):
          return state + n

      return numbers.reduce(np.int64(0), add)

    computation = tff.tensorflow.computation(checked, _NUMBERS)
    with runtimes.compiled_runtime('cpu'):
      with self.assertRaises(tf.errors.InvalidArgumentError):
        computation(tf.data.Dataset.range(4))
      self.assertEqual(int(computation(tf.data.Dataset.range(2))), 1)

  @parameterized.parameters(
    stock_algorithms_test.functional, stock_algorithms_test.keras
  )
  def test_none_is_left(self, build):
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      build().next, graph_import.compiler_config()
    )
    definition = tf.compat.v1.GraphDef()
    tff.framework.serialize_computation(form.work).tensorflow.graph_def.Unpack(
      definition
    )
    self.assertIn('ReduceDataset', ops_of(definition))
    function = graph_function.GraphFunction(form.work)
    self.assertNotIn(
      'ReduceDataset', ops_of(function.traced.graph.as_graph_def())
    )

  def test_gpu(self):
    # Placement is not proven there.
    computation = tff.tensorflow.computation(total, _NUMBERS)
    with mock.patch.object(
      tf.config, 'list_logical_devices', return_value=['GPU:0']
    ):
      function = graph_function.GraphFunction(computation)
    self.assertIn('ReduceDataset', ops_of(function.traced.graph.as_graph_def()))


if __name__ == '__main__':
  absltest.main()
