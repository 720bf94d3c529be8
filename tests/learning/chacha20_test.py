import struct
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from tests.learning import chacha20_stream
from tvdp_tf.learning import chacha20

KEY = np.array([0x0123456789ABCDEF, -0x7EDCBA9876543210], np.int64)
NONCE = 0x7766554433221100


def reference_block(key: bytes, counter: int, nonce: int) -> bytes:
  """The block function of a 128-bit key, in Python's integers."""
  initial = [
    *struct.unpack('<4I', b'expand 16-byte k'),
    *struct.unpack('<8I', key + key),
    *struct.unpack('<4I', struct.pack('<QQ', counter, nonce)),
  ]
  state = list(initial)
  for _ in range(10):
    for a, b, c, d in (
      *((i, 4 + i, 8 + i, 12 + i) for i in range(4)),
      *(
        (i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        for i in range(4)
      ),
    ):
      for to, by, turned, bits in (
        (a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)
      ):  # fmt: skip
        state[to] = (state[to] + state[by]) % 2**32
        mixed = state[turned] ^ state[to]
        state[turned] = (mixed << bits | mixed >> (32 - bits)) % 2**32
  sums = [(x + y) % 2**32 for x, y in zip(initial, state, strict=True)]
  return struct.pack('<16I', *sums)


def reference(key, num_words, nonce=0, first=0):
  blocks = range(first, first + -(-num_words // 8))
  stream = [reference_block(key.tobytes(), i % 2**64, nonce) for i in blocks]
  return np.frombuffer(b''.join(stream), '<i8')[:num_words]


def long_key_bytes(key: bytes, iv: bytes, count: int) -> bytes:
  """Our blocks for a key of 256 bits; iv: counter, nonce, as OpenSSL has it."""
  counter, nonce = struct.unpack('<qq', iv)
  rows = chacha20.block_rows(
    tf.constant(np.frombuffer(b'expand 32-byte k', '<u4')),
    tf.constant(np.frombuffer(key, '<u4')),
    tf.constant(nonce, tf.int64),
    tf.constant(counter, tf.int64),
    count,
  )
  return rows.numpy().T.astype('<u4').tobytes()


class BlockTest(parameterized.TestCase):
  def test_rfc_8439(self):
    # Section 2.3.2.
    key = bytes(range(32))
    iv = bytes.fromhex('01000000000000090000004a00000000')
    expected = (
      '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
      'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e'
    )
    self.assertEqual(long_key_bytes(key, iv, 1).hex(), expected)

  def test_long_keys_as_openssl(self):
    rng = np.random.default_rng(0)
    for counter in (0, 1, 2**31 - 2, 2**40 + 3):
      key = rng.bytes(32)
      iv = struct.pack('<Q', counter) + rng.bytes(8)
      cipher = Cipher(algorithms.ChaCha20(key, iv), mode=None)
      expected = cipher.encryptor().update(bytes(64 * 5))
      self.assertEqual(long_key_bytes(key, iv, 5), expected)

  def test_counter_carries_into_its_upper_half(self):
    first = 2**32 - 2
    found = chacha20_stream.ordered_words(
      tf.constant(KEY), 4, tf.constant(NONCE), tf.constant(first)
    )
    np.testing.assert_array_equal(found, reference(KEY, 32, NONCE, first))
    # Not so if the counter had 32 bits.
    wrapped = reference(KEY, 16, NONCE, 0)
    self.assertFalse(np.isin(found[16:], wrapped).any())


class KeystreamTest(parameterized.TestCase):
  def test_published_stream(self):
    # draft-strombergson-chacha-test-vectors-01, TC1: 128-bit key, 20 rounds.
    expected = (
      '89670952608364fd00b2f90936f031c8e756e15dba04b8493d00429259b20f46'
      'cc04f111246b6c2ce066be3bfb32d9aa0fddfbc12123d4b9e44f34dca05a103f'
    )
    words = chacha20_stream.keystream(np.zeros(2, np.int64), 8)
    self.assertEqual(words.numpy().astype('<i8').tobytes().hex(), expected)

  @parameterized.parameters(1, 7, 8, 9, 203)
  def test_as_reference(self, size):
    found = chacha20_stream.keystream(tf.constant(KEY), size, NONCE)
    self.assertEqual(found.dtype, tf.int64)
    np.testing.assert_array_equal(found, reference(KEY, size, NONCE))

  def test_many_tiles(self):
    size = 8 * (2 * chacha20._TILE + 5)
    found = chacha20_stream.keystream(tf.constant(KEY), size, 1).numpy()
    self.assertEqual(found.shape, (size,))
    for block in (0, 2732, 2733, 4095, 4096, 5465, 5466, 8196):
      np.testing.assert_array_equal(
        found[8 * block : 8 * block + 8], reference(KEY, 8, 1, block)
      )
    self.assertLen(np.unique(found), size)

  @parameterized.parameters(1, 5, 8, 9, 17)
  def test_small_tiles(self, num_blocks):
    with mock.patch.object(chacha20, '_TILE', 4):
      found = chacha20_stream.ordered_words(
        tf.constant(KEY),
        num_blocks,
        tf.constant(NONCE),
        tf.constant(3, tf.int64),
      )
    np.testing.assert_array_equal(
      found, reference(KEY, 8 * num_blocks, NONCE, 3)
    )

  @parameterized.parameters(0, 1, 40)
  def test_words_of_few_ops(self, num_blocks):
    for key, nonce, first in ((KEY, NONCE, 2**32 - 2), (KEY[::-1], 0, 3)):
      found = chacha20.words_of_few_ops(
        tf.constant(key),
        tf.constant(num_blocks, tf.int64),
        tf.constant(nonce, tf.int64),
        tf.constant(first, tf.int64),
      )
      np.testing.assert_array_equal(
        found, reference(key, 8 * num_blocks, nonce, first)
      )

  @parameterized.parameters(4, 9)
  def test_unordered_words_are_the_same(self, num_blocks):
    with mock.patch.object(chacha20, '_TILE', 4):
      found = chacha20.unordered_words(
        tf.constant(KEY),
        num_blocks,
        tf.constant(NONCE),
        tf.constant(7, tf.int64),
      ).numpy()
    self.assertBetween(len(found), 8 * num_blocks, 16 * num_blocks - 1)
    expected = reference(KEY, len(found), NONCE, 7)
    np.testing.assert_array_equal(
      np.sort(found.view('<u4')), np.sort(expected.view('<u4'))
    )
    self.assertFalse(np.array_equal(found, expected))

  @parameterized.parameters(1000, 1, 127, 128, 129, 300)
  def test_compiled_words_are_in_the_same_order(self, num_blocks):
    # What XLA compiles takes smaller tiles: a key's noise must not tell.
    def words(key, nonce, start):
      return chacha20.unordered_words(key, num_blocks, nonce, start)

    state = (
      tf.constant(KEY),
      tf.constant(NONCE),
      tf.constant(2**32 - 100, tf.int64),
    )
    with mock.patch.object(chacha20, '_TILE', 400):
      plain = tf.function(words)(*state).numpy()
      compiled = tf.function(words, jit_compile=True)(*state).numpy()
    np.testing.assert_array_equal(compiled, plain)
    self.assertLen(np.unique(plain), len(plain))

  def test_the_op_tells_what_is_compiled(self):
    for compiled in (False, True):
      tells = tf.function(chacha20._is_compiled, jit_compile=compiled)
      self.assertEqual(tells(), compiled)

  def test_the_same_in_a_graph(self):
    size = 1001
    expected = reference(KEY, size, NONCE)

    @tf.function(autograph=False)
    def plain(key, nonce):
      words = chacha20_stream.ordered_words(
        key, 126, nonce, tf.constant(0, tf.int64)
      )
      return words[:size]

    np.testing.assert_array_equal(
      plain(tf.constant(KEY), tf.constant(NONCE)), expected
    )

  def test_every_bit_of_key_and_nonce_counts(self):
    size = 64
    keys = [KEY] * 65
    for bit in range(128):
      key = KEY.view(np.uint64).copy()
      key[bit // 64] ^= np.uint64(2 ** (bit % 64))
      keys.append(key.view(np.int64))
    nonces = [0, *(np.uint64(2**bit).view(np.int64) for bit in range(64))]
    nonces += [0] * 128
    streams = np.stack(
      [
        chacha20_stream.keystream(
          tf.constant(key), size, tf.constant(nonce, tf.int64)
        ).numpy()
        for key, nonce in zip(keys, nonces, strict=True)
      ]
    )
    self.assertLen(np.unique(streams), streams.size)
    bits = np.unpackbits(streams.view(np.uint8), axis=1)
    changed = np.mean(bits[1:] != bits[0], axis=1)
    # Half of 4,096 bits, within six standard errors.
    np.testing.assert_allclose(changed, 0.5, atol=6 * 0.5 / 64)


if __name__ == '__main__':
  absltest.main()
