import bisect
import fractions
import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized
from scipy import stats

from tests import noise_checks
from tvdp_tf import federated, simulation
from tvdp_tf.learning import chacha20, discrete_gaussian, noise

RUNTIMES: tuple[Callable[[], Any], ...] = (
  federated.local_runtime,
  lambda: simulation.compiled_runtime('cpu'),
)
SIGMA = discrete_gaussian.GRID_STDDEV
REAL = discrete_gaussian._SCHEME
# sigma = 4, cut off at |x| = 8; a quarter of the entries of the table do not
# decide, and first words of two or three bits are equal all the time.
SMALL = discrete_gaussian._Scheme(
  fine_bits=1,
  coarse_log=1,
  coarse_count=4,
  table_bits=3,
  first_bits=2,
  threshold_bits=2,
)
# sigma = 16, cut off at |x| = 64.
MIDDLE = discrete_gaussian._Scheme(
  fine_bits=2,
  coarse_log=2,
  coarse_count=16,
  table_bits=5,
  first_bits=3,
  threshold_bits=3,
)
# sigma = 4, cut off at |x| = 16: y has no bits.
COARSE = discrete_gaussian._Scheme(
  fine_bits=0,
  coarse_log=2,
  coarse_count=16,
  table_bits=6,
  first_bits=0,
  threshold_bits=1,
)
SCHEMES = (('small', SMALL), ('middle', MIDDLE), ('coarse', COARSE))
# Rare enough to never happen, far above what wrong samplers get.
FALSE_ALARM = 1e-6
CERTAIN = 1e-8


def key(*words):
  return tf.constant(words or (5, -7), tf.int64)


def sigma_of(scheme):
  return 2 ** (scheme.fine_bits + scheme.coarse_log)


def support_of(scheme):
  bound = scheme.coarse_count * 2**scheme.fine_bits
  return np.arange(-bound, bound)


def normalized(weights):
  return weights / weights.sum()


def exact_probabilities(scheme, sigma=None):
  x = support_of(scheme)
  return normalized(np.exp(-(x**2) / (2 * (sigma or sigma_of(scheme)) ** 2)))


def gammas_of(scheme):
  x = support_of(scheme)
  k = np.where(x < 0, ~x, x) >> scheme.fine_bits
  squares = x**2 - (k << scheme.fine_bits) ** 2
  return squares / (2 * sigma_of(scheme) ** 2)


def p_value(counts, probabilities):
  """Pearson's test; cells that expect less than 20 are taken together."""
  expected = counts.sum() * probabilities
  rare = expected < 20
  if rare.any():
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
  return stats.chisquare(counts, expected).pvalue


def counts_of(values, scheme):
  support = support_of(scheme)
  counts = np.bincount(values - support[0], minlength=len(support))
  assert len(counts) == len(support)
  return counts


def draw(scheme, size, noise_key, num_blocks=None, num_ready=None):
  # A fifth of the candidates of small schemes are rejected.
  return discrete_gaussian._traced_draw(
    noise_key,
    size,
    tf.constant(0, tf.int64),
    scheme,
    num_blocks or size // 6 + 16,
    num_ready or size // 2 + 16,
  ).numpy()


def int64(values):
  return tf.constant(np.asarray(values, np.int64))


class CoarseTest(parameterized.TestCase):
  @parameterized.named_parameters(('real', REAL), *SCHEMES)
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
      if scheme is REAL:
        self.assertGreater(distance, 2.0**-140)  # It is not zero by mistake.
        self.assertLess(distance, 2.0**-117)

  @parameterized.named_parameters(*SCHEMES)
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
    found = discrete_gaussian._undecided_k(int64(first), int64(second), scheme)
    np.testing.assert_array_equal(found, expected)
    self.assertGreater(len(set(expected)), scheme.coarse_count // 2)


class CandidateTest(parameterized.TestCase):
  @parameterized.named_parameters(*SCHEMES)
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
      int64(words), int64(coarse), scheme
    )
    # Each integer in one way.
    counts = counts_of(values.numpy(), scheme)
    self.assertSetEqual(set(counts), {2**scheme.first_bits})
    np.testing.assert_array_equal(values < 0, sign < 0)
    np.testing.assert_array_equal(
      gammas, values.numpy() ** 2 - (coarse << m) ** 2
    )
    np.testing.assert_array_equal(found_first, first)
    self.assertLess(gammas.numpy().max(), 2**scheme.gamma_bits)

  def test_greatest_gamma(self):
    k = REAL.coarse_count - 1
    word = -1  # y and the first bits are ones, and the sign.
    values, gammas, first = discrete_gaussian._candidates(
      int64([word]), int64([k]), REAL
    )
    x = -REAL.coarse_count * 2**REAL.fine_bits
    self.assertEqual(values.numpy()[0], x)
    self.assertEqual(gammas.numpy()[0], x**2 - (k << REAL.fine_bits) ** 2)
    self.assertLess(gammas.numpy()[0] / 2**63, 0.22)
    self.assertEqual(first.numpy()[0], 2**REAL.first_bits - 1)

  def test_words_are_used_up(self):
    used = REAL.table_bits + REAL.first_bits + REAL.fine_bits + 1
    self.assertEqual(used, 64)
    self.assertEqual(REAL.gamma_bits, 63)
    self.assertEqual(2**REAL.gamma_bits, 2 * SIGMA**2)

  @parameterized.product(
    scheme=[SMALL, MIDDLE], index=[1, 2, 3, 7], part=[0.0, 0.1, 0.5, 0.9]
  )
  def test_events_have_their_probabilities(self, scheme, index, part):
    gamma = int(part * 2**scheme.gamma_bits) + 1
    words = np.arange(2**scheme.gamma_bits)

    def count(second):
      return np.count_nonzero(
        discrete_gaussian._event(
          int64(np.full_like(words, gamma)),
          tf.constant(index, tf.int64),
          int64(words | -(2**63)),
          int64(np.full_like(words, second)),
          scheme,
        )
      )

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
  @parameterized.named_parameters(*SCHEMES)
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
      int64(ready), key(), tf.constant(0, tf.int64), tf.constant(0, tf.int64)
    )
    found_values, found_accepted = discrete_gaussian._judge(
      int64(words), tf.constant(coarse.table), reader, scheme
    )
    np.testing.assert_array_equal(found_values, values)
    np.testing.assert_array_equal(found_accepted, accepted)


class SmallSchemeTest(parameterized.TestCase):
  @parameterized.named_parameters(*SCHEMES)
  def test_distribution(self, scheme):
    # The rarer the events that a mistake is about, the more values.
    size = 4 * 10**6 if scheme is SMALL else 10**6
    counts = counts_of(draw(scheme, size, key()), scheme)
    exact = exact_probabilities(scheme)
    self.assertGreater(p_value(counts, exact), FALSE_ALARM)
    # The same test finds what mistakes would lead to.
    x, gammas = support_of(scheme), gammas_of(scheme)
    twice_zero = np.where(x == 0, 2, 1) * exact
    k = np.where(x < 0, ~x, x) >> scheme.fine_bits
    proposal = normalized(np.exp(-(k**2) / (2 * 4**scheme.coarse_log)))
    wrong = {
      'zero twice': normalized(twice_zero),
      'wider': exact_probabilities(scheme, 1.01 * sigma_of(scheme)),
      'narrower': exact_probabilities(scheme, 0.99 * sigma_of(scheme)),
      'signs': np.where(x < 0, 0.98, 1.02) * exact,
      'complement unshifted': np.where(x < 0, np.roll(exact, -1), exact),
      'never rejected': proposal,
      'one event': normalized(proposal * (1 - gammas)),
    }
    if scheme is SMALL:  # Where gamma is large enough to see it.
      two_events = 1 - gammas + gammas**2 / 2
      wrong['two events'] = normalized(proposal * two_events)
      wrong['three events'] = normalized(
        proposal * (two_events - gammas**3 / 6)
      )
    for name, probabilities in wrong.items():
      with self.subTest(name):
        self.assertLess(p_value(counts, normalized(probabilities)), CERTAIN)

  def test_words_that_are_not_ready(self):
    size = 10**5
    nonce, start = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
    _, _, is_open, _ = discrete_gaussian._first_pass(
      key(),
      nonce,
      start,
      tf.constant(discrete_gaussian._coarse(SMALL).table),
      num_blocks=size // 8,
      num_ready=1,
      scheme=SMALL,
    )
    self.assertGreater(np.count_nonzero(is_open), size // 4)
    values = draw(SMALL, size, key(), num_ready=1)
    counts = counts_of(values, SMALL)
    self.assertGreater(p_value(counts, exact_probabilities(SMALL)), FALSE_ALARM)

  @parameterized.parameters(1, 64)
  def test_attempts(self, num_ready):
    # Candidates in order, in the place of rejected ones those at the end; and
    # all anew if these do not suffice.
    size, num_blocks = 40, 6
    nonce = tf.constant(0, tf.int64)
    table = tf.constant(discrete_gaussian._coarse(SMALL).table)

    @tf.function
    def parts(noise_key, start):
      words, values, is_open, ready = discrete_gaussian._first_pass(
        noise_key, nonce, start, table, num_blocks, num_ready, SMALL
      )
      reader = discrete_gaussian._Reader(
        ready, noise_key, nonce, start + discrete_gaussian._FURTHER
      )
      waiting = tf.boolean_mask(words, is_open)
      return (
        values,
        is_open,
        *discrete_gaussian._judge(waiting, table, reader, SMALL),
      )

    attempts = []
    for index in range(30):
      for attempt in itertools.count():
        start = tf.constant(attempt * 2**44, tf.int64)
        values, is_open, judged, accepted = (
          part.numpy() for part in parts(key(index, 3), start)
        )
        values[is_open] = judged
        kept = ~is_open
        kept[is_open] = accepted
        if np.count_nonzero(kept) >= size:
          break
      attempts.append(attempt)
      gaps = np.flatnonzero(~kept[:size])
      values[gaps] = values[size:][kept[size:]][: len(gaps)]
      drawn = draw(SMALL, size, key(index, 3), num_blocks, num_ready)
      np.testing.assert_array_equal(drawn, values[:size])
    self.assertEqual(min(attempts), 0)
    self.assertGreater(max(attempts), 1)


class ReaderTest(parameterized.TestCase):
  def test_reads_every_word_once(self):
    start = tf.constant(7, tf.int64)
    nonce = tf.constant(9, tf.int64)
    ready = tf.range(-48, 0, dtype=tf.int64)
    reader = discrete_gaussian._Reader(ready, key(), nonce, start)
    block = tf.constant(0, tf.int64)
    stream = [*ready.numpy(), *[None] * 8]
    others = chacha20.ordered_words(key(), 40, nonce, start).numpy()
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


class BoundTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 3, 8)
  def test_distance_from_rounded(self, sigma):
    with mpmath.workdps(40):
      x = [mpmath.mpf(i) for i in range(-16 * sigma, 16 * sigma + 1)]
      weights = [mpmath.exp(-(v**2) / (2 * sigma**2)) for v in x]
      total = mpmath.fsum(weights)
      distance = mpmath.fsum(
        abs(
          weight / total
          - mpmath.ncdf((v + 0.5) / sigma)
          + mpmath.ncdf((v - 0.5) / sigma)
        )
        for v, weight in zip(x, weights, strict=True)
      )
      distance = float(distance / 2)
    bound = (0.968 + 1.51 / sigma) / (48 * sigma**2)
    bound += 1.05 * math.exp(-2 * math.pi**2 * sigma**2)
    self.assertLess(distance, bound)
    # Nor is it much less: a smaller constant would not do.
    self.assertGreater(distance, 0.75 / (48 * sigma**2))
    self.assertLess(2.0**-67.6, discrete_gaussian.DISTANCE_FROM_ROUNDED)
    self.assertLess(discrete_gaussian.DISTANCE_FROM_ROUNDED, 2.0**-67.5)

  def test_distance_from_discrete(self):
    with mpmath.workdps(60):
      count, scale = REAL.coarse_count, 2 * mpmath.mpf(4) ** REAL.coarse_log
      cut = mpmath.nsum(
        lambda j: mpmath.exp(-(j**2) / scale), [count, mpmath.inf]
      )
      total = mpmath.nsum(
        lambda j: mpmath.exp(-(j**2) / scale), [0, mpmath.inf]
      )
      self.assertLess(cut / total, mpmath.mpf(2) ** -145)
      accepted = SIGMA * mpmath.sqrt(2 * mpmath.pi)
      accepted /= 2 * 2**REAL.fine_bits * total
    self.assertBetween(float(accepted), 0.98, 1)
    rounding = (count - 1) * 2.0**-127
    gamma = (2 * count - 1) / float(scale)
    events = 2.0**-126 * sum(
      i * gamma ** (i - 1) / math.factorial(i - 1) for i in range(2, 40)
    )
    of_candidate = rounding + 2.0**-145 + events
    self.assertLess(
      1.5 * of_candidate / float(accepted),
      discrete_gaussian.DISTANCE_FROM_DISCRETE,
    )

  @parameterized.parameters(1, 2, 7, 100, 1000, 25_450, 10**6, 10**8, 2**40)
  def test_surplus(self, size):
    candidates = 8 * discrete_gaussian._num_blocks(size)
    rejected = 1 - 1 / (1 + 1 / (64 * math.sqrt(2 * math.pi)))
    # More are rejected than there are beyond `size`: Chernoff's bound.
    share = (candidates - size + 1) / candidates
    exponent = (
      share * math.log2(share / rejected)
      + (1 - share) * math.log2((1 - share) / (1 - rejected))
      if share < 1
      else -math.log2(rejected)
    )
    self.assertGreater(share, rejected)
    self.assertGreater(candidates * exponent, 64)


class DiscreteGaussianTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.size = 10**6
    cls.draws = np.stack(
      [
        discrete_gaussian.discrete_gaussian(key(), cls.size, release).numpy()
        for release in range(10)
      ]
    )

  def test_is_normal(self):
    values = self.draws / SIGMA
    count = values.size
    self.assertLess(abs(values.mean()), 6 / math.sqrt(count))
    self.assertLess(abs(values.var() - 1), 6 * math.sqrt(2 / count))
    self.assertLess(abs((values**4).mean() - 3), 6 * math.sqrt(96 / count))
    edges = np.arange(-6 * 16, 6 * 16 + 1) / 16
    counts, _ = np.histogram(values, edges)
    self.assertEqual(counts.sum(), count)

    def probabilities(sigma):
      return normalized(np.diff(stats.norm.cdf(edges / sigma)))

    self.assertGreater(p_value(counts, probabilities(1)), FALSE_ALARM)
    self.assertLess(p_value(counts, probabilities(1.005)), CERTAIN)
    self.assertLess(p_value(counts, probabilities(0.995)), CERTAIN)

  def test_fine_part_is_not_uniform(self):
    # E y / 2^m is 1/2 - E gamma / 6 or so, were it not for rejection 1/2.
    steps = np.where(self.draws < 0, ~self.draws, self.draws) / 2**25
    mean = np.mean(steps % 1)
    k = np.arange(896)
    weights = np.array(
      [
        stats.norm.cdf((k + (i + 1) / 64) / 64)
        - stats.norm.cdf((k + i / 64) / 64)
        for i in range(64)
      ]
    ).sum(axis=1)
    expected = np.sum(normalized(weights) * (np.arange(64) + 0.5) / 64)
    error = 0.2887 / math.sqrt(self.draws.size)
    self.assertLess(abs(mean - expected), 6 * error + 1e-5)
    self.assertGreater(abs(mean - 0.5), 8 * error)

  def test_tails(self):
    values = np.abs(self.draws) / SIGMA
    for bound in (3, 4, 4.5):
      beyond = np.count_nonzero(values > bound)
      expected = 2 * stats.norm.sf(bound)
      test = stats.binomtest(beyond, values.size, expected)
      self.assertGreater(test.pvalue, FALSE_ALARM)
    # Of ten million.
    self.assertBetween(values.max(), 4.9, 7.2)
    self.assertLess(stats.norm.sf(7.2) * 2e7, 1e-5)
    self.assertLess(stats.norm.cdf(4.9) ** (2 * 10**7), 1e-4)

  def test_low_bits_are_uniform(self):
    low = self.draws.ravel() & 255
    self.assertGreater(
      stats.chisquare(np.bincount(low, minlength=256)).pvalue, FALSE_ALARM
    )
    # Pairs of them too, and with the sign.
    pairs = (
      (low[:-1] & 15) * 32 + (low[1:] & 15) * 2 + (self.draws.ravel()[1:] < 0)
    )
    self.assertGreater(
      stats.chisquare(np.bincount(pairs, minlength=512)).pvalue, FALSE_ALARM
    )

  def test_draws_are_independent(self):
    rows = [*self.draws[:3]]
    for words in ((5, -8), (-5, -7), (-7, 5)):
      drawn = discrete_gaussian.discrete_gaussian(key(*words), self.size)
      rows.append(drawn.numpy())
    self.assertTrue(noise_checks.are_independent(np.stack(rows)))
    self.assertTrue(noise_checks.are_independent(np.abs(rows)))
    # No value comes twice more often than by chance, once in 2^33.
    self.assertLess(
      len(rows) * self.size - len(np.unique(rows)),
      6 * (len(rows) * self.size) ** 2 / 2**33,
    )

  def test_a_repeated_release_is_caught(self):
    again = discrete_gaussian.discrete_gaussian(key(), self.size, 1).numpy()
    rows = np.stack([*self.draws[:2], again])
    self.assertFalse(noise_checks.are_independent(rows))

  @parameterized.parameters(0, 1, 7, 1001)
  def test_size(self, size):
    values = discrete_gaussian.discrete_gaussian(key(), size)
    self.assertEqual(values.dtype, tf.int64)
    self.assertEqual(values.shape, [size])
    self.assertLen(np.unique(values), size)

  def test_the_same_everywhere(self):
    size, release = 1001, 3
    expected = discrete_gaussian.discrete_gaussian(key(), size, release).numpy()

    graph = tf.function(discrete_gaussian.discrete_gaussian)
    np.testing.assert_array_equal(graph(key(), size, release), expected)

    @tff.tensorflow.computation(
      tff.TensorType(np.int64, [2]), tff.TensorType(np.int32)
    )
    def computation(noise_key, release):
      return discrete_gaussian.discrete_gaussian(noise_key, size, release)

    for runtime in RUNTIMES:
      with runtime():
        found = computation(key().numpy(), np.int32(release))
      np.testing.assert_array_equal(found, expected)

    tf.config.run_functions_eagerly(True)
    try:
      eager = discrete_gaussian.discrete_gaussian(key(), size, release)
    finally:
      tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(eager, expected)

  @parameterized.named_parameters(
    ('size', -1, 0, 'size'),
    ('large', 2**40 + 1, 0, 'size'),
    ('negative', 8, -1, 'release'),
    ('release', 8, 2**63, 'release'),
  )
  def test_refuses(self, size, release, name):
    with self.assertRaisesRegex(ValueError, f'{name} must be an integer'):
      discrete_gaussian.discrete_gaussian(key(), size, release)


class LowBitsTest(parameterized.TestCase):
  """Mironov (2012): which numbers can a release be at all?"""

  def test_floats_tell(self):
    # 1 + noise is a multiple of 2^-53 wherever it is near zero. Noise is not.
    def finer(value):
      tensors = [tf.fill([10_000], tf.constant(value, tf.float64))]
      noise_key = tf.constant(noise.seeded_noise_key(1, 2, 3))
      (released,) = noise.perturb(tensors, 1.0, noise_key)
      return np.mean(released.numpy() * 2.0**53 % 1 != 0)

    # At this scale the mechanism would be (epsilon, delta)-private with
    # epsilon = 5, delta = 1e-5; the event has 0.1 against zero.
    self.assertGreater(finer(0.0), 0.1)
    self.assertEqual(finer(1.0), 0)

  def test_integers_do_not(self):
    size = 10**5
    drawn = discrete_gaussian.discrete_gaussian(key(2, 3), size).numpy()
    other = discrete_gaussian.discrete_gaussian(key(2, 4), size).numpy()
    for value in (1, 2**20, 2**31, 3 * 2**30 + 5):
      released = value + other
      np.testing.assert_array_equal(released - value, other)
      for bits in (1, 3, 8):
        worlds = [
          np.bincount(world % 2**bits, minlength=2**bits)
          for world in (drawn, released)
        ]
        found = stats.chi2_contingency(worlds)[1]
        self.assertGreater(found, FALSE_ALARM)
        # Floats of which all are multiples in one world would not pass.
        multiples = released << bits
        worlds[1] = np.bincount(multiples % 2**bits, minlength=2**bits)
        self.assertLess(stats.chi2_contingency(worlds)[1], CERTAIN)


if __name__ == '__main__':
  absltest.main()
