r"""The exact privacy of Gaussian noise (Balle and Wang, 2018), in log space.

Gaussian noise of standard deviation z times the sensitivity is (eps, delta)-DP
if and only if, with mu = 1/z,

  delta >= Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

The paper's Theorem 1 bounds this curve through moments. For unsampled releases
a bound gains nothing, because any number of Gaussian releases discloses exactly
as much as one with 1/z^2 = sum of 1/z_m^2.

Numerics. With s = eps/mu - mu/2 the right side is phi(s) [R(s) - R(s + mu)],
where R = (1 - Phi)/phi is Mills' ratio: there is no e^eps, and no difference of
numbers near one. For large mu, R is a scaled erfcx. For small mu, the
difference is the integral of -R'(x) = 1 - x R(x) > 0. Unknowns are parametrized
so that neither s nor the result is a difference (`_log_delta_bound` adds the
error bound). An epsilon, a delta or a noise multiplier returned here is rounded
up, never down.

Visibly selected releases of equal noise are exact, too. The server sees who
takes part. A user takes part in n of M rounds with probability Binom(M, q)(n),
and then its releases are one Gaussian with multiplier z / sqrt(n), so that

  delta(eps) = sum_n Binom(M, q)(n) delta_Gauss(eps; sqrt(n) / z).

The selection is random but not secret: only delta is averaged over it.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# phi(40) < 1e-347: no binary64 delta lies beyond.
_LARGEST_SCORE = 40.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
# -R'(x) = 1/x^2 - 3/x^4 + 15/x^6 - ..., used where 1 - x R(x) cancels.
_ASYMPTOTIC_FROM = 25.0
_ASYMPTOTIC = [(-1) ** k * math.prod(range(1, 2 * k + 2, 2)) for k in range(10)]


def _mills_ratio(x: np.ndarray) -> np.ndarray:
  return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _negative_mills_slope(x: np.ndarray) -> np.ndarray:
  near = np.minimum(x, _ASYMPTOTIC_FROM)
  slope = 1 - near * _mills_ratio(near)
  far = x > _ASYMPTOTIC_FROM
  if not far.any():
    return slope
  inverse_square = 1 / np.maximum(x, _ASYMPTOTIC_FROM) ** 2
  series = np.zeros_like(x)
  for coefficient in reversed(_ASYMPTOTIC):
    series = (series + coefficient) * inverse_square
  return np.where(far, series, slope)


def _log_delta_bound(
  score: np.ndarray,
  mu: np.ndarray | float,
  score_error: np.ndarray | float = 0.0,
) -> np.ndarray:
  """Returns ln of an upper bound on delta, elementwise over broadcast arrays.

  Args:
    score: s = eps/mu - mu/2.
    mu: 1/z >= 0.
    score_error: Bound on the absolute rounding error of `score`.

  Returns:
    ln delta rounded up by its own rounding error (relative 3e-13 of delta).
  """
  score, mu = np.broadcast_arrays(
    np.asarray(score, np.float64), np.asarray(mu, np.float64)
  )
  # Below -30 delta is 1 to binary64; above 1e100 it is 0.
  s = np.clip(score, -30.0, 1e100)
  with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
    difference = _mills_ratio(s) - _mills_ratio(s + mu)
    is_large = mu > 1
    if not is_large.all():
      small = np.minimum(mu, 1.0)[..., np.newaxis]
      slopes = _negative_mills_slope(s[..., np.newaxis] + small * _NODES)
      integral = small[..., 0] * (slopes @ _WEIGHTS)
      difference = np.where(is_large, difference, integral)
    log_delta = np.log(difference)
    log_delta = log_delta - s * s / 2 - _HALF_LOG_2PI
    error = 3e-13 - 8e-15 * log_delta
    error = error + score_error * (np.abs(score) + 2)
    bound = np.where(log_delta == -np.inf, -np.inf, log_delta + error)
  return np.where(score < -30, 0.0, np.minimum(bound, 0.0))


def log_delta_upper(
  mu: np.ndarray | float, epsilon: np.ndarray | float
) -> np.ndarray:
  """Returns ln delta of Gaussian noise, rounded up; vectorized, unchecked.

  Args:
    mu: 1/z >= 0; 0 means that nothing is released.
    epsilon: >= 0. Broadcast against `mu`.

  Returns:
    ln delta, float64 of the broadcast shape.
  """
  mu, epsilon = np.broadcast_arrays(
    np.asarray(mu, np.float64), np.asarray(epsilon, np.float64)
  )
  with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
    ratio = np.where(mu > 0, epsilon / mu, np.inf)
    # Where both are infinite (mu beyond 1e308), no privacy is left.
    score = np.where(mu == np.inf, -np.inf, ratio - mu / 2)
    error = np.where(np.isfinite(score), (ratio + mu) * 2.0**-51, 0.0)
    return _log_delta_bound(score, mu, error)


def first_passing(
  passes: Callable[[np.ndarray], np.ndarray], low: float, high: float
) -> float:
  """The smallest number in (low, high] that passes, up to rounding.

  Args:
    passes: Vectorized predicate, False and then True as its argument grows;
      `low` fails and `high` passes.
    low: Lower end of the bracket.
    high: Upper end of the bracket.

  Returns:
    A number that passes, within rounding of one that does not.
  """
  for _ in range(12):  # 64^12 parts: the ends become adjacent numbers.
    grid = np.linspace(low, high, 65)
    with np.errstate(over='ignore', invalid='ignore'):
      passing = passes(grid[1:])
    first = int(np.argmax(passing)) + 1 if passing.any() else 64
    low, high = float(grid[first - 1]), float(grid[first])
    if high - low <= math.ulp(high):
      break
  return high


def epsilon_of_mu(mu: float, delta: float) -> float:
  """Returns `gaussian_epsilon` of multiplier 1/mu, for 0 <= mu <= inf."""
  if mu == 0:
    return 0.0
  if mu == math.inf:
    return math.inf
  log_delta = math.log(delta)
  if log_delta_upper(mu, 0.0) <= log_delta:
    return 0.0
  # With p = ln(2 eps / mu^2), both s = mu/2 (e^p - 1) and eps = mu^2/2 e^p are
  # free of cancellation.
  half = mu / 2

  def passes(p: np.ndarray) -> np.ndarray:
    score = half * np.expm1(p)
    return _log_delta_bound(score, mu, np.abs(score) * 2.0**-50) <= log_delta

  log_half = math.log(mu) - math.log(2.0)
  high = math.log(_LARGEST_SCORE) + np.logaddexp(
    -math.log(_LARGEST_SCORE), -log_half
  )
  # Epsilons below 1e-300 are not distinguished from it.
  low = min(math.log(1e-300) - 2 * log_half - math.log(2.0), 0.0)
  root = low if passes(np.array([low]))[0] else first_passing(passes, low, high)
  log_epsilon = 2 * log_half + math.log(2.0) + root
  if log_epsilon > 700 or log_epsilon < -700:
    scale = 1 + 1e-12
    return _log_space.round_up(_log_space.exp_or_inf(log_epsilon) * scale)
  return _log_space.round_up(mu * (half * math.exp(root)))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
  """The epsilon that Gaussian noise delivers at `delta`, rounded up.

  >>> round(gaussian_epsilon(1.0, 1e-5), 6)
  4.377178

  Args:
    noise_multiplier: Standard deviation over sensitivity, > 0; inf means that
      nothing is released.
    delta: In (0, 1), down to 1e-300 and below.

  Returns:
    The smallest epsilon >= 0 for which the release is (epsilon, delta)-DP; inf
    if it exceeds binary64.

  Raises:
    ValueError: If an argument is out of range.
  """
  delta = _validate.open_unit('delta', delta)
  if noise_multiplier == math.inf:
    return 0.0
  noise_multiplier = _validate.positive('noise_multiplier', noise_multiplier)
  return epsilon_of_mu(_log_space.round_up(1 / noise_multiplier, 1), delta)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
  """The delta that Gaussian noise delivers at `epsilon`, rounded up.

  >>> round(gaussian_delta(1.0, 1.0), 9)
  0.126936738

  Args:
    noise_multiplier: Standard deviation over sensitivity, > 0; inf means that
      nothing is released.
    epsilon: >= 0.

  Returns:
    The smallest delta for which the release is (epsilon, delta)-DP. If it
    underflows, the result is the smallest positive number, not 0.

  Raises:
    ValueError: If an argument is out of range.
  """
  epsilon = _validate.non_negative('epsilon', epsilon)
  if noise_multiplier == math.inf:
    return 0.0
  noise_multiplier = _validate.positive('noise_multiplier', noise_multiplier)
  mu = _log_space.round_up(1 / noise_multiplier, 1)
  delta = math.exp(float(log_delta_upper(mu, epsilon)))
  return min(1.0, _log_space.round_up(delta, 2))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
  """The smallest noise multiplier that is (epsilon, delta)-DP, rounded up.

  >>> round(gaussian_noise_multiplier(1.0, 1e-5), 6)
  3.730632

  Args:
    epsilon: Target, > 0.
    delta: In (0, 1).

  Returns:
    z = standard deviation / sensitivity. Over several releases, the target is
    met if and only if the sum of 1/z_m^2 is at most 1/z^2.

  Raises:
    ValueError: If an argument is out of range or the result is not
      representable.
  """
  return _noise_multiplier(
    _validate.positive('epsilon', epsilon), _validate.open_unit('delta', delta)
  )


# All plans that are compared have the same target.
@functools.lru_cache(maxsize=256)
def _noise_multiplier(epsilon: float, delta: float) -> float:
  log_delta = math.log(delta)
  # mu = sqrt(2 eps) e^-r and s = sqrt(2 eps) sinh(r) are free of cancellation.
  root = math.sqrt(2.0) * math.sqrt(epsilon)

  def passes(r: np.ndarray) -> np.ndarray:
    score, mu = root * np.sinh(r), root * np.exp(-r)
    return _log_delta_bound(score, mu, np.abs(score) * 2.0**-49) <= log_delta

  high = math.asinh(_LARGEST_SCORE / root)
  r = first_passing(passes, -high, high)
  multiplier = math.exp(r) / root
  if not 0 < multiplier < math.inf:
    raise ValueError(
      'epsilon must leave the noise multiplier representable, got'
      f' {epsilon!r} at delta={delta!r}'
    )
  return _log_space.round_up(multiplier)


# Counts that are e^-60 times rarer than delta are charged in full instead.
_NEGLIGIBLE = 60.0


def visible_epsilon(
  noise_multiplier: float, rounds: int, q: float, delta: float
) -> float:
  """The epsilon at `delta` of visibly selected releases, rounded up.

  Args:
    noise_multiplier: z of every round, > 0.
    rounds: M >= 1.
    q: Probability of taking part in a round, in (0, 1).
    delta: In (0, 1).

  Returns:
    The smallest epsilon >= 0 for which delta(epsilon) <= delta.
  """
  counts = np.arange(1, rounds + 1, dtype=np.float64)
  log_weights = (
    special.gammaln(rounds + 1)
    - special.gammaln(counts + 1)
    - special.gammaln(rounds - counts + 1)
    + counts * math.log(q)
    + (rounds - counts) * math.log1p(-q)
  )
  # gammaln is accurate to a few units in the last place of rounds * ln(rounds).
  log_weights += 1e-15 * (10 + rounds * math.log1p(rounds))
  log_delta = math.log(delta)
  kept = log_weights > log_delta - _NEGLIGIBLE
  dropped = float(np.sum(np.exp(log_weights[~kept])))
  if not kept.any():
    return 0.0
  weights = np.exp(log_weights[kept])
  with np.errstate(over='ignore'):
    mu = np.sqrt(counts[kept]) / noise_multiplier

  def delta_at(epsilon: np.ndarray) -> np.ndarray:
    log_deltas = log_delta_upper(mu, epsilon[:, np.newaxis])
    return np.exp(log_deltas) @ weights + dropped

  def passes(log_epsilon: np.ndarray) -> np.ndarray:
    # Work in blocks: the work array has 24 elements for each pair.
    blocks = np.array_split(np.exp(log_epsilon), 8)
    return np.concatenate([delta_at(block) for block in blocks]) <= delta

  if delta_at(np.zeros(1))[0] <= delta:
    return 0.0
  # Taking part in all the rounds that matter is the worst that can happen.
  high = epsilon_of_mu(float(mu[-1]), delta)
  if high == math.inf:
    return math.inf
  log_high = math.log(high) + 1e-9
  low = min(math.log(1e-300), log_high - 1)
  root = first_passing(passes, low, log_high)
  return _log_space.round_up(math.exp(root) * (1 + 1e-13))
