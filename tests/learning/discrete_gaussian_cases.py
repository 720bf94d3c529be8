import numpy as np
import tensorflow as tf
from scipy import stats

from tvdp_tf.learning import discrete_gaussian

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
