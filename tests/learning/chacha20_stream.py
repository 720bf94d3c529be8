"""The beginning of a ChaCha20 stream, compiled by XLA as training does it."""

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import chacha20


def ordered_words(
  noise_key: tf.Tensor, num_blocks: int, nonce: tf.Tensor, start: tf.Tensor
) -> tf.Tensor:
  """Words of whole blocks in their order, from the tiles that are drawn."""
  tiles = chacha20._tiles(noise_key, num_blocks, nonce, start)
  words = tf.reshape(tf.transpose(tiles, [0, 2, 1]), [-1, 2])
  words = tf.bitcast(words, tf.int64)
  return words[: chacha20.WORDS_PER_BLOCK * num_blocks]


_compiled_words = tf.function(ordered_words, jit_compile=True, autograph=False)


def keystream(
  noise_key: np.ndarray | tf.Tensor, num_words: int, nonce: int | tf.Tensor = 0
) -> tf.Tensor:
  """So many words of the stream of a key and a nonce, int64 [num_words]."""
  words = _compiled_words(
    tf.convert_to_tensor(noise_key, tf.int64),
    -(-num_words // chacha20.WORDS_PER_BLOCK),
    tf.cast(nonce, tf.int64),
    tf.constant(0, tf.int64),
  )
  return words[:num_words]
