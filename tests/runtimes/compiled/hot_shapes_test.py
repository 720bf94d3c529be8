import concurrent.futures
import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.runtimes.compiled import graph_function

SPECS = [tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([], tf.float32)]


def mean(x, factor):
  return [tf.reduce_mean(x) * factor, tf.shape(x)]


def examples(count):
  return np.arange(3.0 * count, dtype=np.float32).reshape(count, 3)


CALLS = 20  # That make a shape hot.


class HotShapesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Each call takes one step of the clock: of exact numbers.
    self.enter_context(
      mock.patch.object(graph_function, '_HOT_SECONDS', float(CALLS))
    )
    self.enter_context(
      mock.patch.object(
        graph_function.time, 'perf_counter', itertools.count().__next__
      )
    )

  def hot(self, function=mean, specs=SPECS):
    return graph_function.HotShapes(
      graph_function.TensorFunction(function, specs)
    )

  def test_gives_the_same_whatever_the_shape(self):
    hot = self.hot()
    for _ in range(CALLS + 2):
      for count in range(1, 8):
        found, shape = hot(examples(count), tf.constant(2.0))
        self.assertEqual(found.numpy(), examples(count).mean() * 2)
        self.assertEqual(shape.numpy().tolist(), [count, 3])
    self.assertLen(hot._forms, graph_function._MOST_SHAPES)
    # One form knows its shape.
    (form, *_) = hot._forms.values()
    self.assertTrue(all(spec.shape.is_fully_defined() for spec in form.specs))

  def test_only_what_is_called_often(self):
    hot = self.hot()
    for _ in range(CALLS - 1):
      hot(examples(2), tf.constant(1.0))
    self.assertEmpty(hot._forms)
    hot(examples(2), tf.constant(1.0))
    self.assertEqual(list(hot._forms), [((2, 3),)])

  def test_without_unknown_dimensions_there_is_nothing_to_gain(self):
    hot = self.hot(specs=[tf.TensorSpec([2, 3], tf.float32), SPECS[1]])
    for _ in range(CALLS + 1):
      hot(examples(2), tf.constant(1.0))
    self.assertEmpty(hot._forms)

  def test_a_form_of_other_bits_is_not_used(self):
    class Odd(graph_function.TensorFunction):
      """Adds something where it is told the shape."""

      def __init__(self, specs):
        known = specs[0].shape.is_fully_defined()
        super().__init__(
          lambda x, factor: [tf.reduce_mean(x) * factor + 1e-7 * known], specs
        )

    hot = graph_function.HotShapes(Odd(SPECS))
    self.enter_context(
      mock.patch.object(
        graph_function, 'TensorFunction', lambda traced, specs: Odd(specs)
      )
    )
    x = examples(2)
    found = {float(hot(x, tf.constant(1e-3))[0]) for _ in range(CALLS + 5)}
    self.assertLen(hot._forms, 1)
    self.assertEqual(found, {float(np.float32(2.5) * np.float32(1e-3))})

  def test_threads(self):
    hot = self.hot()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
      found = list(
        pool.map(
          lambda i: float(hot(examples(1 + i % 3), tf.constant(1.0))[0]),
          range(6 * CALLS),
        )
      )
    self.assertEqual(
      found, [float(examples(1 + i % 3).mean()) for i in range(len(found))]
    )
    self.assertLen(hot._forms, 3)

  def test_strings(self):
    hot = self.hot(
      lambda x: [tf.strings.as_string(tf.size(x))],
      [tf.TensorSpec([None], tf.float32)],
    )
    for _ in range(CALLS + 1):
      self.assertEqual(hot(np.ones(7, np.float32))[0].numpy(), b'7')

  def test_numbers(self):
    hot = self.hot(lambda x: [x + 1], [tf.TensorSpec(None, tf.float32)])
    self.assertEqual(float(hot(1.0)[0]), 2.0)


if __name__ == '__main__':
  absltest.main()
