import itertools
import math

import mpmath
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from scipy import stats

from tests import noise_checks
from tests.learning import discrete_gaussian_cases as cases
from tvdp_tf.learning import discrete_gaussian, noise


class SmallSchemeTest(parameterized.TestCase):
  @parameterized.named_parameters(*cases.SCHEMES)
  def test_distribution(self, scheme):
    # The rarer the events that a mistake is about, the more values.
    size = 4 * 10**6 if scheme is cases.SMALL else 10**6
    counts = cases.counts_of(cases.draw(scheme, size, cases.key()), scheme)
    exact = cases.exact_probabilities(scheme)
    self.assertGreater(cases.p_value(counts, exact), cases.FALSE_ALARM)
    # The same test finds what mistakes would lead to.
    x, gammas = cases.support_of(scheme), cases.gammas_of(scheme)
    twice_zero = np.where(x == 0, 2, 1) * exact
    k = np.where(x < 0, ~x, x) >> scheme.fine_bits
    proposal = cases.normalized(np.exp(-(k**2) / (2 * 4**scheme.coarse_log)))
    wrong = {
      'zero twice': cases.normalized(twice_zero),
      'wider': cases.exact_probabilities(scheme, 1.01 * cases.sigma_of(scheme)),
      'narrower': cases.exact_probabilities(
        scheme, 0.99 * cases.sigma_of(scheme)
      ),
      'signs': np.where(x < 0, 0.98, 1.02) * exact,
      'complement unshifted': np.where(x < 0, np.roll(exact, -1), exact),
      'never rejected': proposal,
      'one event': cases.normalized(proposal * (1 - gammas)),
    }
    if scheme is cases.SMALL:  # Where gamma is large enough to see it.
      two_events = 1 - gammas + gammas**2 / 2
      wrong['two events'] = cases.normalized(proposal * two_events)
      wrong['three events'] = cases.normalized(
        proposal * (two_events - gammas**3 / 6)
      )
    for name, probabilities in wrong.items():
      with self.subTest(name):
        self.assertLess(
          cases.p_value(counts, cases.normalized(probabilities)), cases.CERTAIN
        )

  def test_words_that_are_not_ready(self):
    size = 10**5
    nonce, start = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
    _, _, is_open, _ = discrete_gaussian._first_pass(
      cases.key(),
      nonce,
      start,
      tf.constant(discrete_gaussian._coarse(cases.SMALL).table),
      num_blocks=size // 8,
      num_ready=1,
      scheme=cases.SMALL,
    )
    self.assertGreater(np.count_nonzero(is_open), size // 4)
    values = cases.draw(cases.SMALL, size, cases.key(), num_ready=1)
    counts = cases.counts_of(values, cases.SMALL)
    self.assertGreater(
      cases.p_value(counts, cases.exact_probabilities(cases.SMALL)),
      cases.FALSE_ALARM,
    )

  @parameterized.parameters(1, 64)
  def test_attempts(self, num_ready):
    # Candidates in order, in the place of rejected ones those at the end; and
    # all anew if these do not suffice.
    size, num_blocks = 40, 6
    nonce = tf.constant(0, tf.int64)
    table = tf.constant(discrete_gaussian._coarse(cases.SMALL).table)

    @tf.function(autograph=False)
    def parts(noise_key, start):
      words, values, is_open, ready = discrete_gaussian._first_pass(
        noise_key, nonce, start, table, num_blocks, num_ready, cases.SMALL
      )
      reader = discrete_gaussian._Reader(
        ready, noise_key, nonce, start + discrete_gaussian._FURTHER
      )
      waiting = tf.boolean_mask(words, is_open)
      return (
        values,
        is_open,
        *discrete_gaussian._judge(waiting, table, reader, cases.SMALL),
      )

    attempts = []
    for index in range(30):
      for attempt in itertools.count():
        start = tf.constant(attempt * 2**44, tf.int64)
        values, is_open, judged, accepted = (
          part.numpy() for part in parts(cases.key(index, 3), start)
        )
        values[is_open] = judged
        kept = ~is_open
        kept[is_open] = accepted
        if np.count_nonzero(kept) >= size:
          break
      attempts.append(attempt)
      gaps = np.flatnonzero(~kept[:size])
      values[gaps] = values[size:][kept[size:]][: len(gaps)]
      drawn = cases.draw(
        cases.SMALL, size, cases.key(index, 3), num_blocks, num_ready
      )
      np.testing.assert_array_equal(drawn, values[:size])
    self.assertEqual(min(attempts), 0)
    self.assertGreater(max(attempts), 1)


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
      count, scale = (
        cases.REAL.coarse_count,
        2 * mpmath.mpf(4) ** cases.REAL.coarse_log,
      )
      # What is beyond is below 10^-800.
      terms = [mpmath.exp(-(mpmath.mpf(j) ** 2) / scale) for j in range(4096)]
      cut, total = mpmath.fsum(terms[count:]), mpmath.fsum(terms)
      self.assertLess(cut / total, mpmath.mpf(2) ** -145)
      accepted = cases.SIGMA * mpmath.sqrt(2 * mpmath.pi)
      accepted /= 2 * 2**cases.REAL.fine_bits * total
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
        discrete_gaussian.discrete_gaussian(
          cases.key(), cls.size, release
        ).numpy()
        for release in range(10)
      ]
    )

  def test_is_normal(self):
    values = self.draws / cases.SIGMA
    count = values.size
    self.assertLess(abs(values.mean()), 6 / math.sqrt(count))
    self.assertLess(abs(values.var() - 1), 6 * math.sqrt(2 / count))
    self.assertLess(abs((values**4).mean() - 3), 6 * math.sqrt(96 / count))
    edges = np.arange(-6 * 16, 6 * 16 + 1) / 16
    counts, _ = np.histogram(values, edges)
    self.assertEqual(counts.sum(), count)

    def probabilities(sigma):
      return cases.normalized(np.diff(stats.norm.cdf(edges / sigma)))

    self.assertGreater(
      cases.p_value(counts, probabilities(1)), cases.FALSE_ALARM
    )
    self.assertLess(cases.p_value(counts, probabilities(1.005)), cases.CERTAIN)
    self.assertLess(cases.p_value(counts, probabilities(0.995)), cases.CERTAIN)

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
    expected = np.sum(cases.normalized(weights) * (np.arange(64) + 0.5) / 64)
    error = 0.2887 / math.sqrt(self.draws.size)
    self.assertLess(abs(mean - expected), 6 * error + 1e-5)
    self.assertGreater(abs(mean - 0.5), 8 * error)

  def test_tails(self):
    values = np.abs(self.draws) / cases.SIGMA
    for bound in (3, 4, 4.5):
      beyond = np.count_nonzero(values > bound)
      expected = 2 * stats.norm.sf(bound)
      test = stats.binomtest(beyond, values.size, expected)
      self.assertGreater(test.pvalue, cases.FALSE_ALARM)
    # Of ten million.
    self.assertBetween(values.max(), 4.9, 7.2)
    self.assertLess(stats.norm.sf(7.2) * 2e7, 1e-5)
    self.assertLess(stats.norm.cdf(4.9) ** (2 * 10**7), 1e-4)

  def test_low_bits_are_uniform(self):
    low = self.draws.ravel() & 255
    self.assertGreater(
      stats.chisquare(np.bincount(low, minlength=256)).pvalue, cases.FALSE_ALARM
    )
    # Pairs of them too, and with the sign.
    pairs = (
      (low[:-1] & 15) * 32 + (low[1:] & 15) * 2 + (self.draws.ravel()[1:] < 0)
    )
    self.assertGreater(
      stats.chisquare(np.bincount(pairs, minlength=512)).pvalue,
      cases.FALSE_ALARM,
    )

  def test_draws_are_independent(self):
    rows = [*self.draws[:3]]
    for words in ((5, -8), (-5, -7), (-7, 5)):
      drawn = discrete_gaussian.discrete_gaussian(cases.key(*words), self.size)
      rows.append(drawn.numpy())
    self.assertTrue(noise_checks.are_independent(np.stack(rows)))
    self.assertTrue(noise_checks.are_independent(np.abs(rows)))
    # No value comes twice more often than by chance, once in 2^33.
    self.assertLess(
      len(rows) * self.size - len(np.unique(rows)),
      6 * (len(rows) * self.size) ** 2 / 2**33,
    )

  def test_a_repeated_release_is_caught(self):
    again = discrete_gaussian.discrete_gaussian(
      cases.key(), self.size, 1
    ).numpy()
    rows = np.stack([*self.draws[:2], again])
    self.assertFalse(noise_checks.are_independent(rows))

  @parameterized.parameters(0, 1, 7, 1001)
  def test_size(self, size):
    values = discrete_gaussian.discrete_gaussian(cases.key(), size)
    self.assertEqual(values.dtype, tf.int64)
    self.assertEqual(values.shape, [size])
    self.assertLen(np.unique(values), size)

  def test_the_same_in_a_graph_and_eagerly(self):
    size, release = 1001, 3
    expected = discrete_gaussian.discrete_gaussian(
      cases.key(), size, release
    ).numpy()

    graph = tf.function(discrete_gaussian.discrete_gaussian)
    np.testing.assert_array_equal(graph(cases.key(), size, release), expected)

    tf.config.run_functions_eagerly(True)
    try:
      eager = discrete_gaussian.discrete_gaussian(cases.key(), size, release)
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
      discrete_gaussian.discrete_gaussian(cases.key(), size, release)


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
    drawn = discrete_gaussian.discrete_gaussian(cases.key(2, 3), size).numpy()
    other = discrete_gaussian.discrete_gaussian(cases.key(2, 4), size).numpy()
    for value in (1, 2**20, 2**31, 3 * 2**30 + 5):
      released = value + other
      np.testing.assert_array_equal(released - value, other)
      for bits in (1, 3, 8):
        worlds = [
          np.bincount(world % 2**bits, minlength=2**bits)
          for world in (drawn, released)
        ]
        found = stats.chi2_contingency(worlds)[1]
        self.assertGreater(found, cases.FALSE_ALARM)
        # Floats of which all are multiples in one world would not pass.
        multiples = released << bits
        worlds[1] = np.bincount(multiples % 2**bits, minlength=2**bits)
        self.assertLess(stats.chi2_contingency(worlds)[1], cases.CERTAIN)


if __name__ == '__main__':
  absltest.main()
