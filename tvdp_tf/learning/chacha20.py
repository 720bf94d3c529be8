"""ChaCha20's keystream in plain TensorFlow ops: random bits from a 128-bit key.

Implements Bernstein, "ChaCha, a variant of Salsa20" (2008), with 20 rounds, a
64-bit block counter, a 64-bit nonce, and the variant for 128-bit keys ('expand
16-byte k', the key twice). Unlike Philox, it is a cryptographic generator: any
part of its output reveals nothing about the key or the rest of the output.

Every runtime computes the same words. In this process, XLA compiles the rounds,
which takes half a second for each number of words and makes them several times
as fast as separate ops. TFF's worker runs the separate ops, because
`jit_compile` has no effect there.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

WORDS_PER_BLOCK = 8  # 64-bit words.

# 'expand 16-byte k'; 32-byte keys have other constants.
_CONSTANTS = np.frombuffer(b'expand 16-byte k', '<u4')

_DOUBLE_ROUNDS = 10
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))

# Blocks that go through the rounds together: few enough for their state, 64
# bytes each, to stay in the second-level cache, and enough that the overhead of
# starting separate ops does not dominate.
_TILE = 4096
# When XLA compiles the rounds: the state stays in the first-level cache.
_COMPILED_TILE = 128


def _rotate(words: tf.Tensor, count: int) -> tf.Tensor:
  return tf.bitwise.bitwise_or(
    tf.bitwise.left_shift(words, tf.constant(count, tf.uint32)),
    tf.bitwise.right_shift(words, tf.constant(32 - count, tf.uint32)),
  )


def _quarter_round(
  a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  for first, second in ((16, 12), (8, 7)):
    a = a + b
    d = _rotate(tf.bitwise.bitwise_xor(d, a), first)
    c = c + d
    b = _rotate(tf.bitwise.bitwise_xor(b, c), second)
  return a, b, c, d


def _double_round(state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  state = list(state)
  for indices in (*_COLUMNS, *_DIAGONALS):
    parts = _quarter_round(*(state[index] for index in indices))
    for index, part in zip(indices, parts, strict=True):
      state[index] = part
  return state


def block_rows(
  constants: tf.Tensor,
  key: tf.Tensor,
  nonce: tf.Tensor,
  first: tf.Tensor,
  count: int | tf.Tensor,
) -> tf.Tensor:
  """Computes the block function at consecutive values of the counter.

  Uses sixteen vectors, one for each word of the state, so that neither XLA nor
  separate ops move data between columns and diagonals. The rounds are a loop:
  if they are unrolled, XLA recomputes parts repeatedly, takes a minute to
  compile, and the result is slower than separate ops.

  Args:
    constants: uint32 [4], the first row of the state.
    key: uint32 [8], the second and third rows.
    nonce: Scalar int64, the last two words of the state, lower half first.
    first: Scalar int64, the counter of the first block.
    count: Number of blocks.

  Returns:
    uint32 [16, count]: column i holds the 16 words of block first + i.
  """
  counters = first + tf.range(tf.cast(count, tf.int64), dtype=tf.int64)
  # A cast to fewer bits keeps the lower bits.
  high = tf.bitwise.right_shift(counters, tf.constant(32, tf.int64))
  fixed = tf.concat([constants, key, tf.bitcast(nonce, tf.uint32)], axis=0)
  rows = [tf.fill([count], word) for word in tf.unstack(fixed, num=14)]
  rows[12:12] = [tf.cast(counters, tf.uint32), tf.cast(high, tf.uint32)]

  def body(index, *state):
    return (index + 1, *_double_round(state))

  _, *mixed = tf.while_loop(
    lambda index, *_: index < _DOUBLE_ROUNDS, body, (tf.constant(0), *rows)
  )
  return tf.stack([row + word for row, word in zip(rows, mixed, strict=True)])


def _whole_key(noise_key: tf.Tensor) -> tf.Tensor:
  """Returns the second and third rows of the state, uint32 [8]."""
  key = tf.reshape(tf.bitcast(noise_key, tf.uint32), [4])
  return tf.concat([key, key], axis=0)


def _num_tiles(num_blocks: int) -> tuple[int, int]:
  """Returns how many tiles, and of how many blocks, hold `num_blocks`."""
  tiles = -(-num_blocks // _TILE)
  return tiles, -(-num_blocks // tiles)


def _tiles(
  noise_key: tf.Tensor, num_blocks: int, nonce: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
  """Returns >= `num_blocks` consecutive blocks, uint32 [tiles, 16, blocks]."""
  constants = tf.constant(_CONSTANTS, tf.uint32)
  key = _whole_key(noise_key)
  if num_blocks <= _TILE:
    return block_rows(constants, key, nonce, start, num_blocks)[tf.newaxis]
  tiles, size = _num_tiles(num_blocks)
  done = tf.TensorArray(tf.uint32, tiles, element_shape=[16, size])

  def body(index, done):
    first = start + tf.cast(index, tf.int64) * size
    rows = block_rows(constants, key, nonce, first, size)
    return index + 1, done.write(index, rows)

  _, done = tf.while_loop(
    lambda index, _: index < tiles, body, (tf.constant(0), done)
  )
  return done.stack()


def _paired(rows: tf.Tensor) -> tf.Tensor:
  """Combines uint32 [..., 16, n] into 64-bit words, int64 [..., 8, n].

  It does not matter which words of a block are paired.
  """
  low, high = tf.split(rows, 2, axis=-2)
  high = tf.bitwise.left_shift(
    tf.cast(high, tf.int64), tf.constant(32, tf.int64)
  )
  return tf.bitwise.bitwise_or(tf.cast(low, tf.int64), high)


def _words_of_small_tiles(
  noise_key: tf.Tensor, num_blocks: int, nonce: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
  """Computes `_paired(_tiles(...))` for XLA, int64 [tiles, 8, blocks]."""
  constants = tf.constant(_CONSTANTS, tf.uint32)
  key = _whole_key(noise_key)
  tiles, size = _num_tiles(num_blocks)
  small = -(-size // _COMPILED_TILE)  # Per tile; the last one is cut.
  done = tf.TensorArray(
    tf.int64, tiles * small, element_shape=[8, _COMPILED_TILE]
  )

  def body(index, done):
    blocks = index // small * size + index % small * _COMPILED_TILE
    first = start + tf.cast(blocks, tf.int64)
    rows = block_rows(constants, key, nonce, first, _COMPILED_TILE)
    return index + 1, done.write(index, _paired(rows))

  _, done = tf.while_loop(
    lambda index, _: index < tiles * small, body, (tf.constant(0), done)
  )
  words = tf.reshape(done.stack(), [tiles, small, 8, _COMPILED_TILE])
  words = tf.transpose(words, [0, 2, 1, 3])
  return tf.reshape(words, [tiles, 8, -1])[:, :, :size]


def _is_compiled() -> tf.Tensor:
  """Whether XLA has compiled this code, or TensorFlow's ops run separately.

  When compiled, the op returns no device of its list, and XLA drops the branch
  that is not taken.
  """
  devices = ['CPU', 'GPU']
  index = tf.raw_ops.DeviceIndex(device_names=devices)
  return tf.equal(index, len(devices))


def words_of_few_ops(
  noise_key: tf.Tensor,
  num_blocks: tf.Tensor,
  nonce: tf.Tensor,
  start: tf.Tensor,
) -> tf.Tensor:
  """Consecutive words of the stream of a key and a nonce, in whole blocks.

  Streams of different pairs (key, nonce) are unrelated, and no stream returns
  to its beginning: the nonce has 64 bits, all of which enter the state
  unchanged, and so does the block counter. Use different nonces to draw other
  numbers with the same key. Never use a key that `noise` has used: Philox
  reveals it.

  This version has few ops but moves more data. It is for code that is in every
  graph and rarely runs, because tracing time depends on the number of ops.

  Args:
    noise_key: int64 tensor [2], the 128 bits of the key: little-endian, the
      first word holds the first eight bytes.
    num_blocks: Scalar int64 tensor.
    nonce: Scalar int64 tensor.
    start: Scalar int64 tensor, the first block.

  Returns:
    int64 tensor [8 num_blocks]: ChaCha20's bytes, read as little-endian words.
  """
  counters = start + tf.range(num_blocks)
  shape = [4, tf.size(counters)]
  key = tf.broadcast_to(
    tf.reshape(tf.bitcast(noise_key, tf.uint32), [4, 1]), shape
  )
  constants = tf.broadcast_to(tf.constant(_CONSTANTS[:, np.newaxis]), shape)
  # Pairs of 32-bit words, the lower half first.
  counted = tf.stack([counters, tf.broadcast_to(nonce, [shape[1]])], axis=1)
  counted = tf.transpose(tf.bitcast(counted, tf.uint32), [1, 2, 0])
  rows = (constants, key, key, tf.reshape(counted, shape))

  def body(index, *rows):
    columns = _quarter_round(*rows)
    diagonals = _quarter_round(
      *(tf.roll(row, -shift, 0) for shift, row in enumerate(columns))
    )
    rows = tuple(tf.roll(row, shift, 0) for shift, row in enumerate(diagonals))
    return (index + 1, *rows)

  _, *mixed = tf.while_loop(
    lambda index, *_: index < _DOUBLE_ROUNDS, body, (tf.constant(0), *rows)
  )
  words = tf.concat(rows, 0) + tf.concat(mixed, 0)
  words = tf.reshape(tf.transpose(words), [-1, 2])
  return tf.bitcast(words, tf.int64)


def unordered_words(
  noise_key: tf.Tensor, num_blocks: int, nonce: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
  """Returns words of consecutive blocks in an order that avoids transposing.

  Args:
    noise_key: int64 tensor [2].
    num_blocks: Number of blocks.
    nonce: Scalar int64 tensor.
    start: Scalar int64 tensor, the first block.

  Returns:
    int64 tensor of at least 8 num_blocks words: all words of the first blocks
    (fewer than 2 num_blocks of them), in an order that depends on `num_blocks`.
  """
  state = noise_key, num_blocks, nonce, start
  words = tf.cond(
    _is_compiled(),
    lambda: _words_of_small_tiles(*state),
    lambda: _paired(_tiles(*state)),
  )
  return tf.reshape(words, [-1])
