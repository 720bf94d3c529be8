r"""Renyi accounting of Gaussian releases, with and without sampling.

At Renyi order a, with K(a) = (a - 1) * RDP(a) and y(a) = a (a - 1) / (2 z^2):

  unsampled  K = y
  visible    K = ln(1 - q + q e^y): the server sees who takes part, so a round
             is either a Gaussian release or nothing
  Poisson    K = ln E[(1 - q + q e^(u/z - 1/(2 z^2)))^a], u ~ N(0, 1), the exact
             moment of the secretly sampled Gaussian (Mironov, Talwar and
             Zhang, 2019). The paper's moment bound (eq-bound) is q y, which
             the visible moment exceeds for every 0 < q < 1.

dp_accounting computes the last one order by order in Python, which takes 30 ms
to 1 s per round. Here it is vectorized over the rounds, as e^K - 1, which is a
sum (integer a) or an integral (fractional a) of positive terms. There is no
cancellation, so a thousand rounds of tiny moments add up correctly. The
conversion to epsilon is dp_accounting's, and so are the orders, except for some
smaller and larger ones. Any set of orders is sound, so fractional ones, which
cost most, are evaluated only around the best integer.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

# Covers the quadrature error at fractional orders and all rounding.
_SAFETY = 1 + 1e-10
# Number of elements in the work arrays of the Poisson moments (8 MB each).
_CHUNK = 1_000_000
# Below this noise multiplier the sampled moment at fractional orders is
# replaced by the visible one, an upper bound within ln(1/q) of it (and of 200).
_SMALLEST_QUADRATURE = 0.05
_LARGEST_POISSON_ORDER = 2**14
# Beyond these, dp_accounting's formulas leave the range of binary64. Less noise
# counts as none; beyond the other two, the limit is used, which discloses more.
SMALLEST_MULTIPLIER = 1e-50
LARGEST_MULTIPLIER = 1e50
SMALLEST_RATE = 1e-50
# Orders below dp_accounting's smallest, 1.1, which are best if the noise is
# tiny. Its conversion to epsilon accepts orders above 1.01.
_LOW_ORDERS = np.array([1.011, 1.02, 1.03, 1.05, 1.07])


@functools.cache
def _default_orders() -> np.ndarray:
  from dp_accounting.rdp import rdp_privacy_accountant  # noqa: PLC0415

  return np.array(rdp_privacy_accountant.DEFAULT_RDP_ORDERS, np.float64)


def _cheap_orders() -> np.ndarray:
  """More orders, up to 2^50, for moments in closed form."""
  high = 2.0 ** np.arange(6.25, 50.25, 0.25)
  return np.concatenate([_LOW_ORDERS, _default_orders(), high])


def epsilon_at(orders: np.ndarray, moments: np.ndarray, delta: float) -> float:
  """Returns the smallest epsilon at `delta` over orders with these moments."""
  from dp_accounting import rdp as rdp_lib  # noqa: PLC0415

  rdp = moments / (orders - 1) * _SAFETY
  epsilon, _ = rdp_lib.compute_epsilon(orders, rdp, delta)
  return float(epsilon)


def _visible_moments(
  multipliers: np.ndarray, counts: np.ndarray, q: float, orders: np.ndarray
) -> np.ndarray:
  """Sum over rounds of K with visible selection; float64 [orders]."""
  total = np.zeros_like(orders)
  for z, count in zip(multipliers, counts, strict=True):
    with np.errstate(over='ignore', divide='ignore'):
      y = orders * (orders - 1) / 2 / z / z
      small = np.log1p(q * np.expm1(np.minimum(y, 1.0)))
      large = np.logaddexp(math.log1p(-q), math.log(q) + y)
    total += count * np.where(y < 1, small, large)
  return total


def _integer_moment(
  multipliers: np.ndarray, q: float, order: int
) -> np.ndarray:
  """K of the Poisson-sampled Gaussian at an integer order; [rounds].

  e^K - 1 = sum_{k=2..a} C(a,k) (1-q)^(a-k) q^k (e^(k(k-1)/(2 z^2)) - 1).
  """
  k = np.arange(2, order + 1, dtype=np.float64)
  log_binomial = (
    special.gammaln(order + 1)
    - special.gammaln(k + 1)
    - special.gammaln(order - k + 1)
    + k * math.log(q)
    + (order - k) * math.log1p(-q)
  )
  with np.errstate(divide='ignore'):
    inverse_square = 1 / multipliers / multipliers
    exponent = inverse_square[:, np.newaxis] * (k * (k - 1) / 2)
    log_terms = log_binomial + exponent + np.log(-np.expm1(-exponent))
  return np.logaddexp(0, special.logsumexp(log_terms, axis=1))


def _log_excess(likelihood: np.ndarray, order: float) -> np.ndarray:
  """Ln of (1+w)^a - 1 - a w for ln(1+w) = `likelihood`, stable at any w."""
  w = np.expm1(np.minimum(likelihood, 1.0))
  series = np.zeros_like(w)
  for k in range(18, 2, -1):
    series = (1 + series) * w * ((order - k + 1) / k)
  small = order * (order - 1) / 2 * w * w * (1 + series)
  direct = np.expm1(order * np.minimum(likelihood, 1.0)) - order * w
  # (1+w)^a [1 - (1 + a w) (1+w)^-a] with w = e^likelihood - 1.
  log_ratio = -(order - 1) * likelihood + np.log(
    order - (order - 1) * np.exp(-np.maximum(likelihood, 0.0))
  )
  large = order * likelihood + np.log1p(-np.exp(np.minimum(log_ratio, -1e-9)))
  positive = np.where(np.abs(order * w) < 0.3, small, direct)
  return np.where(
    likelihood > 1,
    large,
    np.log(np.maximum(positive, np.finfo(np.float64).tiny)),
  )


def _fractional_moment(
  multipliers: np.ndarray, q: float, order: float
) -> np.ndarray:
  """K of the Poisson-sampled Gaussian at any order; [rounds].

  It applies the trapezoid rule to
  e^K - 1 = integral of phi(u) [(1+w)^a - 1 - a w] du,
  w = q (e^(u/z - 1/(2 z^2)) - 1). The integrand is analytic within pi z of the
  real line: with a step of min(z, 1)/2 the error is below e^-39.
  """
  smallest = multipliers.min()
  step = 0.5 * min(smallest, 1.0)
  points = math.ceil((24 + order / smallest) / step)
  grid = -12 + step * np.arange(points + 1)
  if len(grid) * len(multipliers) > _CHUNK and len(multipliers) > 1:
    half = len(multipliers) // 2
    parts = (multipliers[:half], multipliers[half:])
    return np.concatenate([_fractional_moment(p, q, order) for p in parts])
  z = multipliers[:, np.newaxis]
  y = grid / z - 0.5 / z / z
  likelihood = np.where(
    y < 1,
    np.log1p(q * np.expm1(np.minimum(y, 1.0))),
    np.logaddexp(math.log1p(-q), math.log(q) + y),
  )
  log_terms = _log_excess(likelihood, order) - grid * grid / 2
  log_integral = special.logsumexp(log_terms, axis=1) + math.log(
    step / math.sqrt(2 * math.pi)
  )
  return np.logaddexp(0, log_integral)


def _poisson_moment(
  multipliers: np.ndarray, counts: np.ndarray, q: float, order: float
) -> float:
  """Sum over rounds of K at one order; `multipliers` ascending."""
  if order == int(order):
    size = max(1, _CHUNK // int(order))
    moments = np.concatenate(
      [
        _integer_moment(multipliers[i : i + size], q, int(order))
        for i in range(0, len(multipliers), size)
      ]
    )
    return float(counts @ moments)
  tiny = multipliers < _SMALLEST_QUADRATURE
  total = 0.0
  if tiny.any():
    total += float(
      _visible_moments(multipliers[tiny], counts[tiny], q, np.array([order]))[0]
    )
  if not tiny.all():
    moments = _fractional_moment(multipliers[~tiny], q, order)
    total += float(counts[~tiny] @ moments)
  return total


def unsampled_epsilon(inverse_square_sum: float, delta: float) -> float:
  """Returns epsilon at `delta` if the sum of 1/z^2 is `inverse_square_sum`."""
  orders = _cheap_orders()
  moments = orders * (orders - 1) / 2 * inverse_square_sum
  return epsilon_at(orders, moments, delta)


def poisson_moments(
  multipliers: np.ndarray, counts: np.ndarray, q: float, orders: np.ndarray
) -> np.ndarray:
  """Sum over rounds of (a - 1) RDP(a) at every order a; float64 [orders]."""
  return np.array(
    [_poisson_moment(multipliers, counts, q, order) for order in orders]
  )


def round_moment(multiplier: float, q: float, order: float) -> float:
  """(a - 1) RDP(a) of one Poisson-sampled round; inf without noise.

  Args:
    multiplier: Noise multiplier, >= 0.
    q: Sampling rate in (0, 1].
    order: a > 1.
  """
  if multiplier < SMALLEST_MULTIPLIER:
    return math.inf
  multiplier = min(multiplier, LARGEST_MULTIPLIER)
  if q == 1:
    return order * (order - 1) / 2 / multiplier / multiplier
  q = max(q, SMALLEST_RATE)
  return _poisson_moment(np.array([multiplier]), np.array([1]), q, order)


def order_of_least_share(
  multipliers: np.ndarray, q: float, epsilon: float, delta: float
) -> float:
  """The order at which Poisson-sampled rounds take the least part of a target.

  At order a, their RDP(a) may reach epsilon minus the cost of the conversion.
  If they fit at any order that `sampled_epsilon` evaluates, they fit at this
  one. For q = 1, the same is true of the orders of `unsampled_epsilon`, up to
  the largest order for sampled rounds.

  Raises:
    ValueError: If no order leaves anything for them.
  """
  # As `round_moment`, but all rounds at once, which is ten times as fast.
  q = max(q, SMALLEST_RATE)
  values, counts = np.unique(
    np.minimum(multipliers, LARGEST_MULTIPLIER), return_counts=True
  )

  def rdp_at(orders: np.ndarray) -> np.ndarray:
    if values[0] < SMALLEST_MULTIPLIER:
      return np.full_like(orders, np.inf)
    if q == 1:
      moments = orders * (orders - 1) / 2 * (counts @ values**-2.0)
    else:
      moments = poisson_moments(values, counts, q, orders)
    return moments / (orders - 1) * _SAFETY

  def room_at(orders: np.ndarray) -> np.ndarray:
    cost = -np.log(delta * orders) / (orders - 1) + np.log1p(-1 / orders)
    return epsilon - cost

  def shares(rdp: np.ndarray, orders: np.ndarray) -> np.ndarray:
    room = room_at(orders)
    return np.where(room > 0, rdp / np.maximum(room, 1e-300), np.inf)

  defaults = _default_orders()
  doubled = 2.0 ** np.arange(11, math.log2(_LARGEST_POISSON_ORDER) + 1)
  orders = np.concatenate([defaults[defaults == np.floor(defaults)], doubled])
  if q == 1:  # In closed form: use the orders of unsampled rounds.
    cheap = _cheap_orders()
    orders = cheap[cheap <= _LARGEST_POISSON_ORDER]
  rdp = rdp_at(orders)
  # The orders of the smallest share and of the smallest epsilon.
  best = orders[
    [np.argmin(shares(rdp, orders)), np.argmin(rdp - room_at(orders))]
  ]
  candidates = np.concatenate([_LOW_ORDERS, defaults])
  fractional = candidates[candidates != np.floor(candidates)]
  near = fractional[np.abs(fractional[:, np.newaxis] - best).min(axis=1) < 1]
  orders = np.concatenate([orders, near])
  taken = shares(np.concatenate([rdp, rdp_at(near)]), orders)
  if not np.isfinite(taken).any():
    raise ValueError(
      f'epsilon must be within reach of Renyi accounting, got {epsilon!r} at'
      f' delta {delta!r}'
    )
  return float(orders[np.argmin(taken)])


def orders_near_best(
  multipliers: np.ndarray, q: float, delta: float
) -> list[float]:
  """dp_accounting's orders around the best one for Poisson-sampled rounds.

  Use them with dp_accounting's own moments, which are slow (see the module
  docstring): at these orders it finds the same epsilon as at all orders.
  """
  values, counts = np.unique(multipliers, return_counts=True)
  orders = _default_orders()
  integers = orders[orders == np.floor(orders)]
  moments = poisson_moments(values, counts, q, integers)
  best = np.argmin(
    [
      epsilon_at(integers[i : i + 1], moments[i : i + 1], delta)
      for i in range(len(integers))
    ]
  )
  low = integers[best - 1] if best > 0 else orders[0]
  high = integers[min(best + 1, len(integers) - 1)]
  return orders[(low <= orders) & (orders <= high)].tolist()


def epsilon_of_moments(
  moment_at: Callable[[float], float], delta: float
) -> float:
  """Returns the smallest epsilon over the orders evaluated.

  Args:
    moment_at: Returns the sum over the rounds of (a - 1) RDP(a) at an order a.
    delta: In (0, 1).

  Returns:
    An upper bound on epsilon.
  """
  defaults = _default_orders()
  orders = [float(order) for order in defaults if order == int(order)]
  moments = [moment_at(order) for order in orders]

  def epsilon_of(i: int) -> float:
    return epsilon_at(np.array([orders[i]]), np.array([moments[i]]), delta)

  epsilons = [epsilon_of(i) for i in range(len(orders))]
  best = int(np.argmin(epsilons))
  # A tiny epsilon is best at an order beyond dp_accounting's.
  while orders[best] == orders[-1] < _LARGEST_POISSON_ORDER:
    orders.append(2 * orders[-1])
    moments.append(moment_at(orders[-1]))
    epsilons.append(epsilon_of(-1))
    best = int(np.argmin(epsilons))
  candidates = np.concatenate([_LOW_ORDERS, defaults])
  near = candidates[
    (candidates != np.floor(candidates))
    & (np.abs(candidates - orders[best]) < 1)
  ]
  fractional = np.array([moment_at(order) for order in near])
  return min(
    epsilons[best],
    epsilon_at(near, fractional, delta) if len(near) else math.inf,
  )


def sampled_epsilon(
  sampling: str,
  multipliers: np.ndarray,
  counts: np.ndarray,
  q: float,
  delta: float,
) -> float:
  """Returns epsilon at `delta` of sampled releases.

  Args:
    sampling: 'visible' or 'poisson'.
    multipliers: Distinct noise multipliers, ascending, float64 [n].
    counts: Number of rounds with each of them, [n].
    q: Probability of taking part, in (0, 1).
    delta: In (0, 1).

  Returns:
    An upper bound on epsilon.
  """
  if sampling == 'poisson':
    return epsilon_of_moments(
      lambda order: _poisson_moment(multipliers, counts, q, order), delta
    )
  orders = _cheap_orders()
  moments = _visible_moments(multipliers, counts, q, orders)
  return epsilon_at(orders, moments, delta)
