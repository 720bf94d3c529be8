r"""Lemma 1: how far local steps drift from centralised gradient descent.

  H(x) = gamma/L ((1 + eta L)^x - 1) - eta gamma x

The formula is right for full participation, no noise, no active clipping, and a
reference that restarts from the global model every round; the paper uses it
where none of these holds. As a function of the number of rounds M at a fixed
number T of local steps, its derivative is printed without eta and 1/L:

  printed    (gamma T / M^2) [1 - (1 + eta L)^(T/M) ln(1 + eta L)]
  corrected  (gamma T / M^2) [eta - (1/L) (1 + eta L)^(T/M) ln(1 + eta L)]

so that the paper's condition on tau for it to be negative is spurious: the
corrected one is negative for every tau >= 1.
"""

import math

from tvdp_tf import _validate
from tvdp_tf.privacy import descent

FORMS = descent.FORMS
# Where eta L and eta L x are below this the closed form cancels, and the
# binomial series converges.
_SERIES_BELOW = 0.5


def _expm1(x: float) -> float:
  try:
    return math.expm1(x)
  except OverflowError:
    return math.inf


def _log1p_excess(u: float) -> float:
  """U - ln(1 + u), accurate for small u > 0."""
  if u > 0.1:
    return u - math.log1p(u)
  total = 0.0
  for k in range(18, 1, -1):
    total = total * -u + 1 / k
  return u * u * total


def divergence_gap(
  x: float, gamma: float, eta: float, smoothness: float
) -> float:
  """H(x), the bound of the distance after x local steps (Lemma 1).

  >>> round(divergence_gap(5, gamma=1.3, eta=0.1, smoothness=2.0), 6)
  0.317408

  Args:
    x: Number of local steps, >= 0; a real number is T/M in the planner.
    gamma: Bound of the gradient divergence, >= 0.
    eta: Learning rate, > 0.
    smoothness: L > 0.

  Returns:
    H(x); inf where it overflows, 0 at x = 0 and x = 1, negative between.

  Raises:
    ValueError: If an argument is out of range.
  """
  x = _validate.non_negative('x', x)
  gamma = _validate.non_negative('gamma', gamma)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  if gamma == 0 or x in (0, 1):
    return 0.0
  u = eta * smoothness
  growth = math.log1p(u)
  if max(u, u * x) >= _SERIES_BELOW:
    if x < 0.5:
      return gamma / smoothness * (_expm1(x * growth) - u * x)
    # The same, without cancellation for x near 1.
    more = x - 1
    return gamma / smoothness * ((1 + u) * _expm1(more * growth) - u * more)
  # sum_{k>=2} C(x, k) u^k: no cancellation, ratio of terms below u x / 3.
  term = 1.0
  total = 0.0
  for k in range(2, 60):
    total += term
    term *= u * (x - k) / (k + 1)
  return gamma * eta * (x * (x - 1) / 2 * u * total)


def divergence_gap_derivative(
  total_steps: float,
  rounds: float,
  gamma: float,
  eta: float,
  smoothness: float,
  form: str = 'corrected',
) -> float:
  """D H(T/M) / dM at fixed T.

  Args:
    total_steps: T > 0, local steps over all rounds.
    rounds: M > 0.
    gamma: Bound of the gradient divergence, >= 0.
    eta: Learning rate, > 0.
    smoothness: L > 0.
    form: 'corrected', or 'printed' as in the paper (without eta and 1/L).

  Returns:
    The derivative; -inf where it overflows.

  Raises:
    ValueError: If an argument is out of range.
  """
  total_steps = _validate.positive('total_steps', total_steps)
  rounds = _validate.positive('rounds', rounds)
  gamma = _validate.non_negative('gamma', gamma)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  _validate.one_of('form', form, FORMS)
  if gamma == 0:
    return 0.0
  growth = math.log1p(eta * smoothness)
  power_minus_1 = _expm1(total_steps / rounds * growth)
  if form == 'printed':
    bracket = (1 - growth) - power_minus_1 * growth
  else:
    excess = _log1p_excess(eta * smoothness)
    bracket = (excess - power_minus_1 * growth) / smoothness
  return gamma * total_steps / rounds / rounds * bracket
