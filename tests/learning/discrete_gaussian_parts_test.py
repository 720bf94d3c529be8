import bisect
import fractions
import itertools

import mpmath
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import chacha20_stream
from tests.learning import discrete_gaussian_cases as cases
from tvdp_tf.learning import discrete_gaussian


class CoarseTest(parameterized.TestCase):
  @parameterized.named_parameters(('real', cases.REAL), *cases.SCHEMES)
  def test_probabilities_are_exact(self, scheme):
    coarse = discrete_gaussian._coarse(scheme)
    thresholds = [
      (int(high) << 63) + int(low)
      for high, low in zip(coarse.high, coarse.low, strict=True)
    ]
    self.assertEqual(thresholds, sorted(thresholds))
    steps = np.diff([0, *thresholds, 2 ** (scheme.threshold_bits + 63)])
    entries = np.bincount(coarse.table, minlength=256)
    undecided = fractions.Fraction(
      int(entries[discrete_gaussian._UNDECIDED]), 2**scheme.table_bits
    )
    with mpmath.workdps(80):
      scale = 2 * mpmath.mpf(4) ** scheme.coarse_log
      weights = [
        mpmath.exp(-(mpmath.mpf(k) ** 2) / scale)
        for k in range(scheme.coarse_count)
      ]
      total = mpmath.fsum(weights)
      distance = mpmath.mpf(0)
      for k, (weight, step) in enumerate(zip(weights, steps, strict=True)):
        found = undecided * int(step) / 2 ** (scheme.threshold_bits + 63)
        if k < discrete_gaussian._UNDECIDED:
          found += fractions.Fraction(int(entries[k]), 2**scheme.table_bits)
        found = mpmath.mpf(found.numerator) / found.denominator
        distance += abs(found - weight / total) / 2
      bound = scheme.coarse_count * mpmath.mpf(2) ** -(
        scheme.threshold_bits + 64
      )
      self.assertLess(distance, bound)
      if scheme is cases.REAL:
        self.assertGreater(distance, 2.0**-140)  # It is not zero by mistake.
        self.assertLess(distance, 2.0**-117)

  @parameterized.named_parameters(*cases.SCHEMES)
  def test_all_words_of_the_undecided(self, scheme):
    coarse = discrete_gaussian._coarse(scheme)
    thresholds = [
      (int(high) << 63) + int(low)
      for high, low in zip(coarse.high, coarse.low, strict=True)
    ]
    seconds = sorted(
      {0, 2**63 - 1, *coarse.low.tolist(), *(coarse.low - 1).tolist()}
    )
    pairs = [
      pair
      for pair in itertools.product(range(2**scheme.threshold_bits), seconds)
      if pair[1] >= 0
    ]
    expected = [
      bisect.bisect_right(thresholds, (first << 63) + second)
      for first, second in pairs
    ]
    first, second = np.array(pairs).T
    # Bits above those that count, and a sign.
    first = first | (5 << scheme.threshold_bits)
    second = second | np.int64(-(2**63))
    found = discrete_gaussian._undecided_k(
      cases.int64(first), cases.int64(second), scheme
    )
    np.testing.assert_array_equal(found, expected)
    self.assertGreater(len(set(expected)), scheme.coarse_count // 2)


class CandidateTest(parameterized.TestCase):
  @parameterized.named_parameters(*cases.SCHEMES)
  def test_all_words(self, scheme):
    m, low = scheme.fine_bits, scheme.table_bits + scheme.first_bits
    fields = list(
      itertools.product(
        range(scheme.coarse_count),
        range(2**m),
        (0, -1),
        range(2**scheme.first_bits),
      )
    )
    coarse, y, sign, first = np.array(fields).T
    words = (y << low) | (first << scheme.table_bits) | (sign << 63) | 3
    values, gammas, found_first = discrete_gaussian._candidates(
      cases.int64(words), cases.int64(coarse), scheme
    )
    # Each integer in one way.
    counts = cases.counts_of(values.numpy(), scheme)
    self.assertSetEqual(set(counts), {2**scheme.first_bits})
    np.testing.assert_array_equal(values < 0, sign < 0)
    np.testing.assert_array_equal(
      gammas, values.numpy() ** 2 - (coarse << m) ** 2
    )
    np.testing.assert_array_equal(found_first, first)
    self.assertLess(gammas.numpy().max(), 2**scheme.gamma_bits)

  def test_greatest_gamma(self):
    k = cases.REAL.coarse_count - 1
    word = -1  # y and the first bits are ones, and the sign.
    values, gammas, first = discrete_gaussian._candidates(
      cases.int64([word]), cases.int64([k]), cases.REAL
    )
    x = -cases.REAL.coarse_count * 2**cases.REAL.fine_bits
    self.assertEqual(values.numpy()[0], x)
    self.assertEqual(gammas.numpy()[0], x**2 - (k << cases.REAL.fine_bits) ** 2)
    self.assertLess(gammas.numpy()[0] / 2**63, 0.22)
    self.assertEqual(first.numpy()[0], 2**cases.REAL.first_bits - 1)

  def test_words_are_used_up(self):
    used = (
      cases.REAL.table_bits + cases.REAL.first_bits + cases.REAL.fine_bits + 1
    )
    self.assertEqual(used, 64)
    self.assertEqual(cases.REAL.gamma_bits, 63)
    self.assertEqual(2**cases.REAL.gamma_bits, 2 * cases.SIGMA**2)

  @parameterized.product(
    scheme=[cases.SMALL, cases.MIDDLE],
    index=[1, 2, 3, 7],
    part=[0.0, 0.1, 0.5, 0.9],
  )
  def test_events_have_their_probabilities(self, scheme, index, part):
    gamma = int(part * 2**scheme.gamma_bits) + 1
    words = np.arange(2**scheme.gamma_bits)

    def count(second):
      happens = discrete_gaussian._event(
        cases.int64(np.full_like(words, gamma)),
        tf.constant(index, tf.int64),
        cases.int64(words | -(2**63)),
        cases.int64(np.full_like(words, second)),
        scheme,
      )
      return int(np.count_nonzero(happens))

    always = count(2**63 - 1)
    # Where the first word is equal, the second decides: of its 2^63 values
    # those below a limit.
    low, high = 0, 2**63
    while low < high:
      middle = (low + high) // 2
      low, high = (
        (middle + 1, high) if count(middle) > always else (low, middle)
      )
    found = fractions.Fraction(always * 2**63 + low, 2**63)
    exact = fractions.Fraction(gamma, index)
    self.assertLessEqual(found, exact)
    self.assertLessEqual(exact - found, fractions.Fraction(index, 2**63))


class JudgeTest(parameterized.TestCase):
  @parameterized.named_parameters(*cases.SCHEMES)
  def test_as_exact_arithmetic(self, scheme):
    size = 20_000
    rng = np.random.default_rng(1)
    words, ready = (
      rng.integers(-(2**63), 2**63, count, np.int64)
      for count in (size, 26 * size)
    )
    coarse = discrete_gaussian._coarse(scheme)
    thresholds = [
      (int(high) << 63) + int(low)
      for high, low in zip(coarse.high, coarse.low, strict=True)
    ]
    # Rows of words that are read, each time from a whole block on.
    rows = [*ready[: 5 * size].reshape(5, -1)]
    for begin in range(-(-5 * size // 8) * 8, len(ready) - 2 * size, 2 * size):
      rows.extend(ready[begin : begin + 2 * size].reshape(2, -1))
    values, accepted, most = [], [], 0
    for place, word in enumerate(map(int, words)):
      column = [int(row[place]) for row in rows[:25]]
      k = int(coarse.table[word % 2**scheme.table_bits])
      if k == discrete_gaussian._UNDECIDED:
        first = column[0] % 2**scheme.threshold_bits
        k = bisect.bisect_right(thresholds, (first << 63) + column[1] % 2**63)
      first = (word >> scheme.table_bits) % 2**scheme.first_bits
      y = word >> (scheme.table_bits + scheme.first_bits)
      y %= 2**scheme.fine_bits
      x = (k << scheme.fine_bits) + y
      x = ~x if word < 0 else x
      gamma = x**2 - (k << scheme.fine_bits) ** 2
      missing = scheme.gamma_bits - scheme.first_bits
      happened = (first << missing) + column[2] % 2**missing < gamma
      index = 1
      while happened:
        index += 1
        first, second = column[2 * index - 1 : 2 * index + 1]
        first = (first % 2**scheme.gamma_bits << 63) + second % 2**63
        happened = first * index < gamma << 63
      values.append(x)
      accepted.append(index % 2 == 1)
      most = max(most, index)
    self.assertGreaterEqual(most, 4)
    reader = discrete_gaussian._Reader(
      cases.int64(ready),
      cases.key(),
      tf.constant(0, tf.int64),
      tf.constant(0, tf.int64),
    )
    found_values, found_accepted = discrete_gaussian._judge(
      cases.int64(words), tf.constant(coarse.table), reader, scheme
    )
    np.testing.assert_array_equal(found_values, values)
    np.testing.assert_array_equal(found_accepted, accepted)


class ReaderTest(parameterized.TestCase):
  def test_reads_every_word_once(self):
    start = tf.constant(7, tf.int64)
    nonce = tf.constant(9, tf.int64)
    ready = tf.range(-48, 0, dtype=tf.int64)
    reader = discrete_gaussian._Reader(ready, cases.key(), nonce, start)
    block = tf.constant(0, tf.int64)
    stream = [*ready.numpy(), *[None] * 8]
    others = chacha20_stream.ordered_words(
      cases.key(), 40, nonce, start
    ).numpy()
    stream = [*ready.numpy(), *others[48:]]
    begin = 0
    for rows, columns in ((1, 3), (5, 4), (2, 8), (2, 1), (3, 5), (1, 0)):
      words, block = reader.read(block, rows, tf.constant(columns))
      count = rows * columns
      np.testing.assert_array_equal(
        words, np.reshape(stream[begin : begin + count], [rows, columns])
      )
      begin += -(-count // 8) * 8
      self.assertEqual(block.numpy(), begin // 8)
    self.assertGreater(begin, 48)


if __name__ == '__main__':
  absltest.main()
