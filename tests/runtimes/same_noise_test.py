"""Noise from a key is the same in every runtime, to the bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests.learning import chacha20_stream
from tvdp_tf import runtimes
from tvdp_tf.learning import discrete_gaussian

KEY = np.array([0x0123456789ABCDEF, -0x7EDCBA9876543210], np.int64)
SIZE = 1001
RUNTIMES: tuple[Callable[[], Any], ...] = (
  runtimes.local_runtime,
  lambda: runtimes.compiled_runtime('cpu'),
)


class SameNoiseTest(absltest.TestCase):
  def assert_same(self, expected, computation, *arguments):
    for runtime in RUNTIMES:
      with runtime():
        found = computation(*arguments)
      np.testing.assert_array_equal(found, expected)

  def test_chacha20(self):
    nonce = 0x7766554433221100

    @tff.tensorflow.computation(
      tff.TensorType(np.int64, [2]), tff.TensorType(np.int64)
    )
    def computation(key, nonce):
      return chacha20_stream.keystream(key, SIZE, nonce)

    expected = chacha20_stream.keystream(tf.constant(KEY), SIZE, nonce)
    self.assert_same(expected, computation, KEY, np.int64(nonce))

  def test_discrete_gaussian(self):
    @tff.tensorflow.computation(
      tff.TensorType(np.int64, [2]), tff.TensorType(np.int32)
    )
    def computation(noise_key, release):
      return discrete_gaussian.discrete_gaussian(noise_key, SIZE, release)

    expected = discrete_gaussian.discrete_gaussian(tf.constant(KEY), SIZE, 3)
    self.assert_same(expected, computation, KEY, np.int32(3))


if __name__ == '__main__':
  absltest.main()
