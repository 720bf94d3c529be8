"""Values that reach the compiled runtime are of the types that they should be.

TensorFlow would wrap, broadcast or drop what does not fit, in silence.
"""

from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import runtimes

_SERVER = tff.FederatedType(np.int32, tff.SERVER)


def _of(dtype: Any, shape: Any = ()) -> tff.TensorType:
  return tff.TensorType(dtype, shape)


@attrs.define
class _State:
  count: Any
  mean: Any


class ValuesTest(parameterized.TestCase):
  @parameterized.parameters(
    (_of(np.float32, [None, 4]), np.ones([3, 5]), r'float64\[3, 5\]'),
    (_of(np.float32, [None, 4]), np.ones([4]), r'float64\[4\]'),
    (_of(np.float32, [4]), np.ones([1, 4], np.float32), r'float32\[1, 4\]'),
    (_of(np.float32), tf.ones([1]), r'float32\[1\]'),
    (_of(np.int8), 300, r'int64\[\] beyond its range'),
    (_of(np.uint8), -1, r'int64\[\] beyond its range'),
    (_of(np.int32, [2]), np.array([0, 2**40]), r'int64\[2\] beyond its range'),
    (_of(np.int32), 2.0, r'float64\[\]'),
    (_of(np.float32), 1 + 2j, r'complex128\[\]'),
    (_of(np.float32), 'one', r'str\d*\[\]'),
    (_of(np.str_), 1, r'int64\[\]'),
  )
  def test_what_does_not_fit(self, tensor_type, value, found):
    @tff.tensorflow.computation(tensor_type)
    def same(x):
      return tf.identity(x)

    @tff.federated_computation(
      _SERVER, tff.FederatedType(tensor_type, tff.CLIENTS)
    )
    def counted(state, data):
      del data
      return state, tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    with runtimes.compiled_runtime('cpu'):
      with self.assertRaisesRegex(ValueError, f'must be .*, got {found}$'):
        same(value)
      with self.assertRaisesRegex(ValueError, f'must be .*, got {found}$'):
        counted(1, [value])

  @parameterized.parameters(
    (_of(np.float32, [None, 4]), np.ones([3, 4])),
    (_of(np.float32, [None, 4]), tf.ones([0, 4])),
    (_of(np.float32, None), np.ones([3, 5], np.float32)),
    (_of(np.float32, [2]), [1, 2]),
    (_of(np.int8), 127),
    (_of(np.int32, [2]), np.array([0, 5])),
    (_of(np.float32), True),
    (_of(np.str_), 'one'),
  )
  def test_what_fits(self, tensor_type, value):
    @tff.tensorflow.computation(tensor_type)
    def same(x):
      return tf.identity(x)

    with runtimes.compiled_runtime('cpu'):
      found = same(value)
    self.assertEqual(found.dtype, tensor_type.dtype)
    expected = value.encode() if isinstance(value, str) else value
    np.testing.assert_array_equal(found, expected)

  def test_a_server_state_of_attrs(self):
    @tff.tensorflow.computation
    def initial():
      return _State(tf.constant(1), tf.constant(2.0))

    state_type = initial.type_signature.result

    @tff.tensorflow.computation(state_type, np.float32)
    def following(state, total):
      return _State(state.count + 1, state.mean + total)

    @tff.federated_computation(
      tff.FederatedType(state_type, tff.SERVER),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def call(state, data):
      total = tff.federated_sum(data)
      return tff.federated_map(following, (state, total)), total

    with runtimes.compiled_runtime('cpu'):
      state = initial()
      for _ in range(2):
        state, _ = call(state, [1.0, 2.5])
      self.assertIsInstance(state, _State)
      self.assertEqual((int(state.count), float(state.mean)), (3, 9.0))
      with self.assertRaisesRegex(ValueError, 'must have the 2 parts of .*got'):
        call([1], [1.0])

  def test_other_forms(self):
    clients = tff.FederatedType(np.float32, tff.CLIENTS)

    @tff.federated_computation(clients)
    def without_state(data):
      return tff.federated_sum(data)

    @tff.federated_computation(_SERVER, _SERVER, clients)
    def two_at_the_server(state, other, data):
      del other
      return state, tff.federated_sum(data)

    @tff.federated_computation(_SERVER, clients)
    def no_output(state, data):
      del data
      return state

    for computation, arguments in (
      (without_state, ([1.0],)),
      (two_at_the_server, (1, 2, [1.0])),
      (no_output, (1, [1.0])),
    ):
      with (
        runtimes.compiled_runtime('cpu'),
        self.assertRaisesRegex(NotImplementedError, 'run it in local_runtime'),
      ):
        computation(*arguments)


if __name__ == '__main__':
  absltest.main()
