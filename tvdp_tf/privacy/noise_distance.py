r"""The part of delta that the noise generators leave for the accountants.

The accountants assume exact Gaussian noise. The drawn noise differs from it, in
total variation distance, by at most d per value:

  continuous  2^-106: a radius beyond 12.1 standard deviations is not drawn
              (`learning.noise.standard_normal`). This ignores floating point,
              which no distance covers: two values that round differently share
              nothing.
  discrete    2^-67: the noise is a discrete Gaussian of standard deviation
              2^31, not N(0, 2^62) rounded to an integer, which is
              post-processing of the Gaussian mechanism
              (`learning.discrete_gaussian`).

A sum of H discrete draws of standard deviation s = 2^31, which are shares of
one noise, is as close: each draw is within 2^-116 of the discrete Gaussian
N_Z(0, s^2). The max-divergence of a sum of H of those from N_Z(0, H s^2) is at
most the sum over 0 < k < H of 10 exp(-2 pi^2 s^2 k / (k + 1)) (Kairouz, Liu and
Steinke, 2021), which is below exp(-2^60). N_Z(0, H s^2) is within 2^-67.5 of
the rounded Gaussian, as one draw is. The total is below 2^-67 for any H up to
2^47.

If a mechanism with exact noise is (epsilon, delta')-DP, then with noise at a
total distance of D it is (epsilon, delta' + (1 + e^epsilon) D)-DP: on either of
two neighboring data sets, the probability of any event changes by at most D.
"""

import math
from typing import Any

from tvdp_tf import _validate

# Standard deviation of discrete noise, in steps of its grid, and the number of
# standard deviations beyond which none is drawn.
GRID_STDDEV = 2**31
LARGEST_DISCRETE = 14

# Gaussian noise in floating point, or on a grid of integers.
CONTINUOUS = 'continuous'
DISCRETE = 'discrete'
NOISES = (CONTINUOUS, DISCRETE)
# Largest share that rounding to the grid may add to a sensitivity that is not
# of integers; more would waste the noise.
LARGEST_ROUNDING = 0.5
# Distance of one value. The second is the sum of DISTANCE_FROM_ROUNDED,
# 2^-67.5, and DISTANCE_FROM_DISCRETE, 2^-116, rounded up.
DISTANCES = {CONTINUOUS: 2.0**-106, DISCRETE: 2.0**-67}

# Largest share of delta for the generator; more means epsilon is out of reach.
LARGEST_SHARE = 1e-3
# An interrupted run may release more than planned, but at most this many times
# as much: it then ends (`training.recorder`).
TIMES_PLANNED = 16


def distance(values: int, noise: str) -> float:
  """Returns D, how far all noise of a run may be from Gaussian noise.

  Args:
    values: As for `share_of_delta`.
    noise: As for `share_of_delta`.

  Raises:
    ValueError: If an argument is out of range.
  """
  values = _validate.integer('values', values)
  _validate.one_of('noise', noise, NOISES)
  return TIMES_PLANNED * values * DISTANCES[noise]


def share_stddev(noise_multiplier: Any, sensitivity: float, shares: int) -> Any:
  """Returns the standard deviation of each of several shares of one noise.

  Args:
    noise_multiplier: Noise multiplier of the sum of the shares; a number, array
      or tensor.
    sensitivity: The sensitivity that it is relative to.
    shares: Number of shares.
  """
  return noise_multiplier * (sensitivity / math.sqrt(shares))


def rounding_of_grid(size: int, noise_multiplier: Any) -> Any:
  """How much discrete noise adds to a sensitivity by rounding to its grid.

  The tensors of two neighbors, of `size` values, are rounded by half a step
  each. They are then at most sqrt(size) steps further apart, and the
  sensitivity is 2^31 / noise_multiplier steps.

  Args:
    size: Number of values of the release.
    noise_multiplier: Standard deviation of the noise over the sensitivity, a
      number or a float64 tensor.

  Returns:
    The increase, as a share of the sensitivity.
  """
  return math.sqrt(size) * noise_multiplier / GRID_STDDEV


def share_of_distance(epsilon: float, total: float) -> float:
  """Returns (1 + e^epsilon) D; inf if that is huge.

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
  """Returns the generator's part of delta, (1 + e^epsilon) D; inf if huge.

  Args:
    epsilon: Target, > 0.
    values: Planned number of noise values that a client (or the server) draws
      in the run: size of the model times releases. 16 times as many are
      covered.
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
    epsilon: As for `share_of_delta`.
    values: As for `share_of_delta`.
    noise: As for `share_of_delta`.

  Raises:
    ValueError: If less than half of it, or nothing, is left.
  """
  delta = _validate.open_unit('delta', delta)
  share = share_of_delta(epsilon, values, noise)
  if not share <= delta / 2:
    if share > 0.5:
      raise ValueError(
        f'epsilon must be lower, got {epsilon:g}: {noise} noise, as it is'
        ' drawn, is too far from Gaussian for any delta'
      )
    raise ValueError(
      f'delta must be at least {2 * share:.2g}, or epsilon smaller, got'
      f' {delta!r}: {noise} noise, as it is drawn, is Gaussian only up to that'
      f' at epsilon = {epsilon:g}'
    )
  return math.nextafter(delta - share, 0.0)
