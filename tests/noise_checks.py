"""Statistical checks of noise, strict enough to fail for the wrong noise.

With the few thousand values that the tests draw, a standard deviation that is
off by a factor of 2/3 or 3/2 is rejected with a probability of practically 1,
and the right one with the stated probability.
"""

import numpy as np
from scipy import stats

_FALSE_ALARM = 1e-9


def has_stddev(values: np.ndarray, stddev: float) -> bool:
  """Kolmogorov-Smirnov: are the values N(0, stddev**2)?"""
  return stats.kstest(np.ravel(values) / stddev, 'norm').pvalue > _FALSE_ALARM


def rejects_neighbours(values: np.ndarray, stddev: float) -> bool:
  """Does the same test reject 2/3 and 3/2 of the standard deviation?"""
  return not has_stddev(values, stddev * 2 / 3) and not has_stddev(
    values, stddev * 3 / 2
  )


def are_independent(rows: np.ndarray) -> bool:
  """Are the rows [releases, values] uncorrelated, at any lag of 0 to 3?

  A row that repeats another, or is a shift or a multiple of it, is found.
  """
  rows = rows - rows.mean(axis=1, keepdims=True)
  rows = rows / rows.std(axis=1, keepdims=True)
  count, size = rows.shape
  pairs = count * (count - 1) / 2
  limit = stats.norm.isf(_FALSE_ALARM / (2 * 7 * pairs)) / np.sqrt(size - 3)
  for lag in range(-3, 4):
    correlations = rows @ np.roll(rows, lag, axis=1).T / size
    if np.abs(correlations[np.triu_indices(count, 1)]).max() > limit:
      return False
  return True
