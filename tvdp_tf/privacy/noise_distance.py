r"""The part of delta that the noise generators leave for the accountants.

The accountants assume exact Gaussian noise. The drawn noise differs from it, in
total variation distance, by at most d per value:

  continuous  2^-106: a radius beyond 12.1 standard deviations is not drawn
              (`learning.noise.standard_normal`). Floating point apart, which no
              distance covers: two values that round differently share nothing.
  discrete    2^-67: a discrete Gaussian of standard deviation 2^31, and not
              N(0, 2^62) rounded to an integer, which is post-processing of the
              Gaussian mechanism (`learning.discrete_gaussian`).

A sum of H discrete draws of standard deviation s = 2^31, shares of one noise,
is as near: each draw is within 2^-116 of the discrete Gaussian N_Z(0, s^2). The
max-divergence of a sum of H of those from N_Z(0, H s^2) is at most the sum over
0 < k < H of 10 exp(-2 pi^2 s^2 k / (k + 1)) (Kairouz, Liu and Steinke, 2021),
which is below exp(-2^60); and that is within 2^-67.5 of the rounded Gaussian,
as one draw is. Together that is below 2^-67 for any H up to 2^47.

A mechanism with exact noise that is (epsilon, delta')-DP is, with noise at a
distance of D in all, (epsilon, delta' + (1 + e^epsilon) D)-DP: on either of two
neighbours' sides the probability of any event moves by at most D.
"""

import math
from typing import Any

from tvdp_tf import _validate

# Gaussian noise in floating point, or on a grid of integers.
# Standard deviation of discrete noise, in steps of its grid, and the standard
# deviations beyond which none is drawn.
GRID_STDDEV = 2**31
LARGEST_DISCRETE = 14

CONTINUOUS = 'continuous'
DISCRETE = 'discrete'
NOISES = (CONTINUOUS, DISCRETE)
# Of a sensitivity that is not of integers, to rounding; more wastes the noise.
LARGEST_ROUNDING = 0.5
# Of one value. The second is the sum of DISTANCE_FROM_ROUNDED, 2^-67.5, and
# DISTANCE_FROM_DISCRETE, 2^-116.
DISTANCES = {CONTINUOUS: 2.0**-106, DISCRETE: 2.0**-67}

# Of delta, for the generator; more is an epsilon out of reach.
LARGEST_SHARE = 1e-3
# A run that is interrupted releases more than it planned, but not so much: it
# ends there (`training.recorder`).
TIMES_PLANNED = 16


def distance(values: int, noise: str) -> float:
  """D: how far all that a run draws may be from Gaussian noise.

  Args:
    values: As of `share_of_delta`.
    noise: The same.

  Raises:
    ValueError: If an argument is out of range.
  """
  values = _validate.integer('values', values)
  _validate.one_of('noise', noise, NOISES)
  return TIMES_PLANNED * values * DISTANCES[noise]


def share_stddev(noise_multiplier: Any, sensitivity: float, shares: int) -> Any:
  """Standard deviation of each of several shares of one noise.

  Args:
    noise_multiplier: Of the sum of the shares, a number, array or tensor.
    sensitivity: What it is relative to.
    shares: How many.
  """
  return noise_multiplier * (sensitivity / math.sqrt(shares))


def rounding_of_grid(size: int, noise_multiplier: Any) -> Any:
  """How much discrete noise adds to a sensitivity by rounding to its grid.

  Two neighbours' tensors of `size` values are rounded by half a step each, so
  that they are sqrt(size) steps further apart at most; of the 2^31 /
  noise_multiplier steps that the sensitivity has.

  Args:
    size: Number of values of the release.
    noise_multiplier: Standard deviation of the noise over the sensitivity, a
      number or a float64 tensor.

  Returns:
    The share of the sensitivity.
  """
  return math.sqrt(size) * noise_multiplier / GRID_STDDEV


def share_of_distance(epsilon: float, total: float) -> float:
  """(1 + e^epsilon) D; inf if that is huge.

  Args:
    epsilon: Target, > 0.
    total: D >= 0; the distances of several runs add up.

  Raises:
    ValueError: If an argument is out of range.
  """
  epsilon = _validate.positive('epsilon', epsilon)
  total = _validate.non_negative('total', total)
  if total == 0:
    return 0.0
  if epsilon > 700:
    return math.inf
  return (1 + math.exp(epsilon)) * total * (1 + 1e-12)


def share_of_delta(epsilon: float, values: int, noise: str) -> float:
  """(1 + e^epsilon) D: what the generator costs of delta; inf if that is huge.

  Args:
    epsilon: Target, > 0.
    values: How many values of noise a client (or the server) is to draw in the
      run: size of the model times releases. 16 times as many are covered.
    noise: One of `NOISES`.

  Raises:
    ValueError: If an argument is out of range.
  """
  return share_of_distance(epsilon, distance(values, noise))


def accounted_delta(
  delta: float, epsilon: float, values: int, noise: str
) -> float:
  """The delta that is left for the accountant.

  Args:
    delta: Target, in (0, 1).
    epsilon: As of `share_of_delta`.
    values: The same.
    noise: The same.

  Raises:
    ValueError: If nothing is left, or less than half.
  """
  delta = _validate.open_unit('delta', delta)
  share = share_of_delta(epsilon, values, noise)
  if not share <= delta / 2:
    if share > 0.5:
      raise ValueError(
        f'epsilon must be lower: what is drawn as {noise} noise is too far from'
        f' Gaussian for any delta, got {epsilon:g}'
      )
    raise ValueError(
      f'delta must be at least {2 * share:.2g}, for what is drawn as {noise}'
      f' noise is Gaussian only up to that at epsilon = {epsilon:g}, got'
      f' {delta!r}'
    )
  return math.nextafter(delta - share, 0.0)
