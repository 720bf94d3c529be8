import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tvdp_tf.learning import xla_functions

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPECS = (tf.TensorSpec([3], tf.int64), tf.TensorSpec([], tf.int64))


def _power(x, exponent):
  """With functions of its own: what a loop runs and what it asks."""
  return tf.while_loop(
    lambda index, _: index < exponent,
    lambda index, y: (index + 1, y * x),
    (tf.constant(0, tf.int64), tf.ones_like(x)),
  )[1]


def _library(function) -> tf.compat.v1.GraphDef:
  """The graph of what calls a function, whose library says what it is."""
  with tf.Graph().as_default() as graph:
    function(tf.zeros([3], tf.int64), tf.zeros([], tf.int64))
  return graph.as_graph_def().library.function


class TraceTest(absltest.TestCase):
  def test_is_called_in_graphs_and_without(self):
    with tf.Graph().as_default() as graph, tf.device('/device:GPU:7'):
      function = xla_functions.trace(_power, _SPECS)
      self.assertEmpty(graph.get_operations())
    x = np.array([1, 2, 3])
    np.testing.assert_array_equal(function(x, np.int64(3)), x**3)
    traced = tf.function(lambda x: function(x, tf.constant(2, tf.int64)))
    np.testing.assert_array_equal(traced(tf.constant(x)), x**2)

  def test_what_fails(self):
    def fails(x, exponent):
      del x, exponent
      raise ValueError('no such thing')

    with self.assertRaisesRegex(ValueError, 'no such thing'):
      xla_functions.trace(fails, _SPECS)

  @unittest.skipUnless(
    importlib.util.find_spec('tensorflow_federated'), 'needs TFF'
  )
  def test_compiled_ahead_and_once(self):
    # What XLA compiles, it writes to files. It reads its flags once.
    code = """
import pathlib, sys, threading
import numpy as np
import tensorflow_federated as tff
from tests.learning.xla_functions_test import _SPECS, _power
from tvdp_tf.learning import xla_functions
from tvdp_tf.runtimes.compiled import graph_function

@tff.tensorflow.computation(
  tff.TensorType(np.int64, [3]), tff.TensorType(np.int64)
)
def power(x, exponent):
  with xla_functions.compiled_ahead('/device:CPU:0'):
    return xla_functions.trace(_power, _SPECS)(x, exponent)

def compiled():
  return len([*pathlib.Path(sys.argv[1]).glob('*before_optimizations.txt')])

function = graph_function.GraphFunction(power)
for thread in threading.enumerate():
  if thread.name.startswith('compiled-ahead'):
    thread.join()
print(compiled())
print(function(np.array([1, 2, 3]), np.int64(5))[0].numpy())
print(compiled())
"""
    with tempfile.TemporaryDirectory() as folder:
      done = subprocess.run(
        [sys.executable, '-c', code, folder],
        cwd=_ROOT,
        env=os.environ
        | {'XLA_FLAGS': f'--xla_dump_to={folder} --xla_dump_hlo_as_text'},
        capture_output=True,
        text=True,
        check=True,
      )
    self.assertEqual(done.stdout.split('\n'), ['1', '[  1  32 243]', '1', ''])


class KnownTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.function = xla_functions.trace(_power, _SPECS)
    self.library = _library(self.function)

  def test_all_that_it_calls(self):
    names = {definition.signature.name for definition in self.library}
    self.assertGreaterEqual(len(names), 3)
    self.assertEqual(xla_functions.known(self.library), names)
    self.assertEmpty(xla_functions.known([]))

  def test_what_others_trace_is_not_known(self):
    other = tf.function(_power, jit_compile=True).get_concrete_function(*_SPECS)
    self.assertEmpty(xla_functions.known(_library(other)))

  def test_another_function_of_the_same_name(self):
    # One that is not, or is another, anywhere below: none of it is known.
    for index in range(len(self.library)):
      changed = _library(self.function)
      changed[index].node_def[0].name += 'x'
      self.assertEmpty(xla_functions.known(changed))
      del changed[index]
      self.assertEmpty(xla_functions.known(changed))


if __name__ == '__main__':
  absltest.main()
