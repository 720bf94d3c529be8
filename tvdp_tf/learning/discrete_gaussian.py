"""The discrete Gaussian over the integers, from a cryptographic generator.

It uses only integers, so the last bits of a value do not reveal what the noise
was added to (Mironov, "On significance of the least significant bits for
differential privacy", 2012), and every runtime draws the same numbers. The
method is rejection sampling, similar to those of Karney ("Sampling exactly from
the normal distribution", 2016) and of Canonne, Kamath and Steinke ("The
discrete Gaussian for differential privacy", 2020). With
sigma = 2**m sigma_0, a candidate is

  a coarse K >= 0 with P(K) ~ exp(-K^2 / (2 sigma_0^2)), from a table,
  a sign s and m bits y, all uniform,
  x = K 2^m + y, or for negative s its complement -1 - x,

which produces every integer in exactly one way. Let y' = y, or y + 1 for
negative s, so that |x| = K 2^m + y'. Then

  exp(-x^2 / (2 sigma^2)) = exp(-K^2 / (2 sigma_0^2)) exp(-gamma),
  gamma = y' (2 K 2^m + y') / (2 sigma^2),

and x is kept with probability exp(-gamma). This needs no exponential: draw
events of probability gamma / i, for i = 1, 2, ..., until one does not happen.
The number of events that happened is even with exactly this probability (von
Neumann, 1951). gamma is a multiple of 2^-63, because sigma = 2^31 gives
2 sigma^2 = 2^63.

For all but one candidate in 120, the first 64-bit word decides: it determines K
and shows that the first event does not happen. The other candidates need
further words, and are drawn again if rejected.
"""

import decimal
import functools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import chacha20, xla_functions
from tvdp_tf.privacy import noise_distance

GRID_STDDEV = noise_distance.GRID_STDDEV

# Total variation distance of a drawn value from N_Z(0, GRID_STDDEV^2), if the
# generator's words were uniform and independent. For a candidate:
#
# * K is below 896. The cut-off tail, the sum of exp(-j^2 / 8192) over j >= 896
#   divided by that over all j, is below exp(-98) 6 / 80 < 2^-145;
# * 895 thresholds of K are each rounded by at most 2^-127, and the distance of
#   two distributions on a line is at most the sum of the differences of their
#   thresholds: below 2^-117.1. The rounding of `decimal` is below 2^-200;
# * an event of probability gamma / i, i >= 2, is off by at most i 2^-126, and
#   is reached with probability gamma^(i-1) / (i-1)!, gamma < 0.22: in all below
#   2^-126.
#
# Together d < 2^-117. Among candidates that are accepted with probability
# a > 0.98 the distance is at most 1.5 d / a.
DISTANCE_FROM_DISCRETE = 2.0**-116

# Total variation distance of N_Z(0, s^2), s = GRID_STDDEV, from N(0, s^2)
# rounded to the nearest integer. Let f be the density of N(0, s^2). By the
# midpoint rule with Peano's kernel k(t) = (1/2 - |t|)^2 / 2, of integral 1/24,
#
#   P(round = x) - f(x) = integral of k(t) f''(x + t) over |t| < 1/2.
#
# The sum over x of |f''(x + t)| is, for any t, at most its integral,
# 4 / (sqrt(2 pi e) s^2) = 0.968 / s^2, plus its variation, 1.51 / s^3. And
# P(discrete = x) = f(x) / z, where by Poisson's summation z - 1, the sum of
# 2 exp(-2 pi^2 s^2 j^2) over j >= 1, is below 2.1 exp(-2 pi^2 s^2). So the
# distance, half the sum of the differences, is at most
# (0.968 + 1.51 / s) / (48 s^2) + 1.05 exp(-2 pi^2 s^2), here below
# 1 / (48 s^2) = 2^-67.5.
DISTANCE_FROM_ROUNDED = 1 / (48 * GRID_STDDEV**2)

# Increase it when a key's integers change: a resumed seeded run would otherwise
# release a round again with different noise.
STREAM = 2

# Replaces K where the table does not decide it; every K is smaller.
_UNDECIDED = 255

# Number of blocks of the generator's stream that are reserved for each attempt
# at a draw, and the first of them that is not drawn in advance.
_ATTEMPT = 2**44
_FURTHER = 2**43


class _Scheme(NamedTuple):
  """How a candidate is made from words; tests use smaller schemes.

  Attributes:
    fine_bits: m.
    coarse_log: log2 of sigma_0.
    coarse_count: K is below it. gamma < 1 requires
      2 coarse_count - 1 < 2 sigma_0^2.
    table_bits: Bits of a candidate's word that index the table of K.
    first_bits: Bits of the word for the first event. Together with
      `table_bits`, the sign and y, at most 64.
    threshold_bits: Bits of the first of two words that decide on K where the
      table does not. The second word always has 63.
  """

  fine_bits: int = 25
  coarse_log: int = 6
  coarse_count: int = 896
  table_bits: int = 16
  first_bits: int = 22
  threshold_bits: int = 63

  @property
  def gamma_bits(self) -> int:
    """log2 of 2 sigma^2: gamma is a multiple of 2^-gamma_bits."""
    return 2 * (self.fine_bits + self.coarse_log) + 1


_SCHEME = _Scheme()


class _Coarse(NamedTuple):
  """The distribution of K, divided as by Knuth and Yao.

  Attributes:
    table: uint8 [2^table_bits]. Each K fills as many entries as fit wholly into
      its probability; the others are `_UNDECIDED`.
    high: int64 [coarse_count - 1]. The remainders of the probabilities are the
      distribution of an undecided K. These are its cumulative sums: the first
      `threshold_bits` bits after the binary point.
    low: int64 [coarse_count - 1], the next 63 bits, rounded.
  """

  table: np.ndarray
  high: np.ndarray
  low: np.ndarray


@functools.cache
def _coarse(scheme: _Scheme) -> _Coarse:
  """Computes the table and the thresholds, to a hundred digits."""
  with decimal.localcontext(decimal.Context(prec=100)) as context:
    entries = decimal.Decimal(2**scheme.table_bits)
    scale = decimal.Decimal(2 * 4**scheme.coarse_log)
    # `decimal` rounds exponentials correctly.
    weights = [
      context.exp(-decimal.Decimal(k * k) / scale)
      for k in range(scheme.coarse_count)
    ]
    total = sum(weights)
    shares = [weight / total * entries for weight in weights]
    whole = [int(share) for share in shares]
    undecided = 2**scheme.table_bits - sum(whole)
    one = 2 ** (scheme.threshold_bits + 63)
    below, thresholds = decimal.Decimal(0), []
    for share, count in zip(shares[:-1], whole[:-1], strict=True):
      below += share - count
      threshold = (below / undecided * one).to_integral_value()
      thresholds.append(min(int(threshold), one - 1))
  table = np.full([2**scheme.table_bits], _UNDECIDED, np.uint8)
  decided = np.repeat(np.arange(len(whole)), whole)
  assert decided[-1] < _UNDECIDED
  table[: len(decided)] = decided
  return _Coarse(
    table,
    np.array([threshold >> 63 for threshold in thresholds], np.int64),
    np.array([threshold % 2**63 for threshold in thresholds], np.int64),
  )


def _low_bits(words: tf.Tensor, count: int) -> tf.Tensor:
  return tf.bitwise.bitwise_and(words, tf.constant(2**count - 1, tf.int64))


def _shifted(words: tf.Tensor, count: int) -> tf.Tensor:
  """Shifts to the right; negative words are filled with ones."""
  return tf.bitwise.right_shift(words, tf.constant(count, tf.int64))


def _table_k(words: tf.Tensor, table: tf.Tensor, scheme: _Scheme) -> tf.Tensor:
  """K of candidates, int64, or `_UNDECIDED`."""
  index = tf.cast(_low_bits(words, scheme.table_bits), tf.int32)
  return tf.cast(tf.gather(table, index), tf.int64)


def _undecided_k(
  first: tf.Tensor, second: tf.Tensor, scheme: _Scheme
) -> tf.Tensor:
  """K where the table does not decide, from two words each."""
  coarse = _coarse(scheme)
  high, low = tf.constant(coarse.high), tf.constant(coarse.low)
  first = _low_bits(first, scheme.threshold_bits)
  second = _low_bits(second, 63)
  below = tf.searchsorted(high, first, side='left', out_type=tf.int64)
  reached = tf.searchsorted(high, first, side='right', out_type=tf.int64)

  def compare_both():
    at_first = tf.equal(high, first[:, tf.newaxis])
    passed = tf.logical_and(at_first, low <= second[:, tf.newaxis])
    return below + tf.math.count_nonzero(passed, axis=1)

  # Once in 2^54 of the undecided.
  return tf.cond(
    tf.reduce_any(below < reached), compare_both, lambda: tf.identity(below)
  )


def _candidates(
  words: tf.Tensor, coarse: tf.Tensor, scheme: _Scheme
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Computes the candidates, given K.

  Args:
    words: int64 [n].
    coarse: int64 [n], K.
    scheme: How the words are read.

  Returns:
    Their values, 2^gamma_bits gamma, and the first bits of the number that
    gamma is compared with: int64 [n] each.
  """
  m = scheme.fine_bits
  first = _low_bits(_shifted(words, scheme.table_bits), scheme.first_bits)
  y = _low_bits(_shifted(words, scheme.table_bits + scheme.first_bits), m)
  negative = _shifted(words, 63)  # 0 or -1.
  base = tf.bitwise.left_shift(coarse, tf.constant(m, tf.int64))
  values = tf.bitwise.bitwise_xor(base + y, negative)
  y = y - negative
  return values, y * (base + base + y), first


def _event(
  gammas: tf.Tensor,
  index: tf.Tensor,
  first: tf.Tensor,
  second: tf.Tensor,
  scheme: _Scheme,
) -> tf.Tensor:
  """Events of probability gamma / index, bool [n], from two words each."""
  whole = gammas // index
  # The remainder of the division decides between neighbors: its fraction
  # 2^63 (gammas - whole index) / index, minus at most index.
  part = (gammas - whole * index) * (tf.constant(2**63 - 1, tf.int64) // index)
  first = _low_bits(first, scheme.gamma_bits)
  second = _low_bits(second, 63)
  return tf.logical_or(
    first < whole, tf.logical_and(tf.equal(first, whole), second < part)
  )


class _Reader(NamedTuple):
  """Reads further words that decide on candidates, in order.

  Attributes:
    ready: int64 [words], the first words. They are nearly always enough.
    noise_key: int64 [2], the key that further words are generated from.
    nonce: Scalar int64, the nonce of their stream.
    start: Scalar int64, the first block of further words.
  """

  ready: tf.Tensor
  noise_key: tf.Tensor
  nonce: tf.Tensor
  start: tf.Tensor

  def read(
    self, block: tf.Tensor, rows: int, columns: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads words, int64 [rows, columns].

    Args:
      block: Scalar int64, number of blocks that have been read so far.
      rows: The first dimension.
      columns: The second dimension, scalar int32.

    Returns:
      The words, and the number of blocks that have been read including them.
    """
    count = tf.cast(rows * columns, tf.int64)
    blocks = -(-count // chacha20.WORDS_PER_BLOCK)
    begin = block * chacha20.WORDS_PER_BLOCK

    def others():
      words = _other_words(
        self.noise_key, blocks, self.nonce, self.start + block
      )
      return words[:count]

    words = tf.cond(
      begin + count <= tf.size(self.ready, tf.int64),
      lambda: self.ready[begin : begin + count],
      others,
    )
    return tf.reshape(words, [rows, columns]), block + blocks


@tf.function(
  input_signature=[
    tf.TensorSpec([2], tf.int64),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.int64),
  ],
  autograph=False,
)
def _other_words(noise_key, num_blocks, nonce, start):
  # Not compiled: XLA would compile it again for every number of blocks.
  return chacha20.words_of_few_ops(noise_key, num_blocks, nonce, start)


def _judge(
  words: tf.Tensor, table: tf.Tensor, reader: _Reader, scheme: _Scheme
) -> tuple[tf.Tensor, tf.Tensor]:
  """Decides on candidates.

  Args:
    words: int64 [n], the first word of each candidate.
    table: The table of K.
    reader: Where further words come from.
    scheme: How the words are read.

  Returns:
    The candidates' values, int64 [n], and which are accepted, bool [n].
  """
  count = tf.size(words)
  extra, block = reader.read(tf.constant(0, tf.int64), 5, count)
  coarse = _table_k(words, table, scheme)
  coarse = tf.where(
    tf.equal(coarse, _UNDECIDED),
    _undecided_k(extra[0], extra[1], scheme),
    coarse,
  )
  values, gammas, first = _candidates(words, coarse, scheme)
  missing = scheme.gamma_bits - scheme.first_bits
  first = tf.bitwise.left_shift(first, tf.constant(missing, tf.int64))
  happened = first + _low_bits(extra[2], missing) < gammas

  def next_event(index, running, extra):
    happens = _event(gammas, index, extra[0], extra[1], scheme)
    return tf.logical_and(running, happens)

  def body(index, block, running, odd):
    extra, block = reader.read(block, 2, count)
    running = next_event(index, running, extra)
    return index + 1, block, running, tf.math.logical_xor(odd, running)

  # Few candidates reach a third event.
  running = next_event(tf.constant(2, tf.int64), happened, extra[3:])
  _, _, _, odd = tf.while_loop(
    lambda index, block, running, odd: tf.reduce_any(running),
    body,
    (
      tf.constant(3, tf.int64),
      block,
      running,
      tf.math.logical_xor(happened, running),
    ),
  )
  return values, tf.logical_not(odd)


def _first_pass(
  noise_key: tf.Tensor,
  nonce: tf.Tensor,
  start: tf.Tensor,
  table: tf.Tensor,
  num_blocks: int,
  num_ready: int,
  scheme: _Scheme,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  """Draws candidates and evaluates their first words.

  Args:
    noise_key: int64 [2].
    nonce: Scalar int64.
    start: Scalar int64, the first block to use.
    table: The table of K.
    num_blocks: An eighth of the number n of candidates.
    num_ready: Blocks of words to decide on the open candidates.
    scheme: How the words are read.

  Returns:
    The words of the candidates, their values where accepted, and which are
    open (not yet accepted): int64, int64, bool, [n] each; and the words to
    decide on the open ones, int64 [8 num_ready].
  """
  words = chacha20.unordered_words(
    noise_key, num_blocks + num_ready, nonce, start
  )
  num_ready *= chacha20.WORDS_PER_BLOCK
  ready, words = words[:num_ready], words[num_ready:]
  words = words[: num_blocks * chacha20.WORDS_PER_BLOCK]
  coarse = _table_k(words, table, scheme)
  values, gammas, first = _candidates(words, coarse, scheme)
  # Equal first bits leave it undecided.
  is_open = tf.logical_or(
    tf.equal(coarse, _UNDECIDED),
    first <= _shifted(gammas, scheme.gamma_bits - scheme.first_bits),
  )
  return words, values, is_open, ready


@functools.cache
def _traced_judge(scheme: _Scheme):
  """Returns `_judge` as a function of its tensors, traced once for all sizes.

  It has half of the ops of a draw.
  """

  def judge(words, table, ready, noise_key, nonce, start):
    reader = _Reader(ready, noise_key, nonce, start)
    return _judge(words, table, reader, scheme)

  scalar = tf.TensorSpec([], tf.int64)
  return tf.function(
    judge,
    input_signature=[
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([2**scheme.table_bits], tf.uint8),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([2], tf.int64),
      scalar,
      scalar,
    ],
    autograph=False,
  )


@functools.cache
def _compiled_first_pass(num_blocks: int, num_ready: int, scheme: _Scheme):
  """Returns `_first_pass` as a compiled function of its tensors."""

  def first_pass(noise_key, nonce, start, table):
    return _first_pass(
      noise_key, nonce, start, table, num_blocks, num_ready, scheme
    )

  scalar = tf.TensorSpec([], tf.int64)
  return xla_functions.trace(
    first_pass,
    [
      tf.TensorSpec([2], tf.int64),
      scalar,
      scalar,
      tf.TensorSpec([2**scheme.table_bits], tf.uint8),
    ],
  )


# Draws of at most this many blocks are rounded up to a power of two, so that
# XLA compiles only a few first passes for them.
_FEW_BLOCKS = 512


def _num_blocks(size: int) -> int:
  """Number of blocks that yield `size` candidates, except once in 2^64."""
  surplus = 16 + size // 128 + math.isqrt(size)
  blocks = -(-(size + surplus) // chacha20.WORDS_PER_BLOCK)
  if blocks > _FEW_BLOCKS:
    return blocks
  return max(64, 1 << (blocks - 1).bit_length())


def _num_ready(num_blocks: int) -> int:
  """Number of blocks that nearly always suffice for the open candidates."""
  return 32 + num_blocks // 12


def _attempt(
  noise_key: tf.Tensor,
  nonce: tf.Tensor,
  start: tf.Tensor,
  size: int,
  scheme: _Scheme,
  num_blocks: int,
  num_ready: int,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Draws `size` values, and tells if any of them are rejected candidates.

  The number of accepted candidates reveals nothing about their values, so the
  next attempt may depend on it.
  """
  table = tf.constant(_coarse(scheme).table)
  first_pass = _compiled_first_pass(num_blocks, num_ready, scheme)
  words, values, is_open, ready = first_pass(noise_key, nonce, start, table)
  places = tf.where(is_open)  # Ascending, as all places below.
  judged, accepted = _traced_judge(scheme)(
    tf.gather_nd(words, places),
    table,
    ready,
    noise_key,
    nonce,
    start + _FURTHER,
  )
  inside = tf.math.count_nonzero(places < size)
  # Accepted candidates beyond `size` replace rejected ones within it.
  beyond = places[inside:] - size
  others = tf.tensor_scatter_nd_update(values[size:], beyond, judged[inside:])
  is_spare = tf.tensor_scatter_nd_update(
    tf.ones_like(others, tf.bool), beyond, accepted[inside:]
  )
  spare = tf.gather_nd(others, tf.where(is_spare))
  gaps = tf.where(tf.logical_not(accepted[:inside]))
  missing = tf.shape(gaps)[0]
  filled = tf.minimum(missing, tf.size(spare))
  chosen = tf.tensor_scatter_nd_update(
    judged[:inside], gaps[:filled], spare[:filled]
  )
  # All values are copied only once.
  values = tf.tensor_scatter_nd_update(values, places[:inside], chosen)
  return values[:size], filled < missing


def _draw(
  noise_key: tf.Tensor,
  size: int,
  nonce: tf.Tensor,
  scheme: _Scheme = _SCHEME,
  num_blocks: int | None = None,
  num_ready: int | None = None,
) -> tf.Tensor:
  """Like `discrete_gaussian`, for any scheme and any number of blocks."""
  num_blocks = _num_blocks(size) if num_blocks is None else num_blocks
  num_ready = _num_ready(num_blocks) if num_ready is None else num_ready

  def body(start, unused_values, unused_short):
    values, short = _attempt(
      noise_key, nonce, start, size, scheme, num_blocks, num_ready
    )
    return start + _ATTEMPT, values, short

  _, values, _ = tf.while_loop(
    lambda start, values, short: short,
    body,
    (tf.constant(0, tf.int64), tf.zeros([0], tf.int64), tf.constant(True)),
    shape_invariants=(
      tf.TensorShape([]),
      tf.TensorShape([None]),
      tf.TensorShape([]),
    ),
  )
  return tf.ensure_shape(values, [size])


_traced_draw = tf.function(_draw, autograph=False)


def discrete_gaussian(
  noise_key: tf.Tensor, size: int, release: int | tf.Tensor = 0
) -> tf.Tensor:
  """Draws `size` independent integers from N_Z(0, 2^62).

  P(x) is proportional to exp(-x^2 / 2^63), up to `DISTANCE_FROM_DISCRETE`. The
  scale is fixed; for another one, choose the unit of the integers. Adding such
  noise to an integer is as good as adding the continuous Gaussian of the same
  standard deviation and rounding the sum, up to `DISTANCE_FROM_ROUNDED` for
  each value.

  The number of candidates that need further words depends on the words, so this
  function cannot be used within `jit_compile` or `tf.vectorized_map`.

  Args:
    noise_key: int64 tensor [2], the key of ChaCha20. The integers are a pure
      function of it, `release` and `size`. Do not use a key from which `noise`
      draws: Philox reveals its key.
    size: Number of values, at most 2**40.
    release: Which of several independent draws with this key: in [0, 2**63),
      or a scalar integer tensor.

  Returns:
    int64 tensor [size]; absolute values are at most 896 2^25 < 2^35.

  Raises:
    ValueError: If a number is out of its range.
  """
  size = _validate.integer('size', size, 0, 2**40)
  if not isinstance(release, tf.Tensor):
    _validate.integer('release', release, 0, 2**63 - 1)
  if size == 0:
    return tf.zeros([0], tf.int64)
  noise_key = tf.convert_to_tensor(noise_key, tf.int64)
  return _traced_draw(noise_key, size, tf.cast(release, tf.int64))
