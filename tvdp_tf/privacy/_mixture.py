r"""Exact privacy of visibly selected Gaussian releases of equal noise.

The server sees who takes part. A user takes part in n of M rounds with
probability Binom(M, q)(n), and then its releases are one Gaussian with
multiplier z / sqrt(n), so that

  delta(eps) = sum_n Binom(M, q)(n) delta_Gauss(eps; sqrt(n) / z).

The selection is the user's luck, not a secret: only delta is averaged over it.
"""

import math

import numpy as np
from scipy import special

from tvdp_tf.privacy import _rounding, gaussian

# Counts that are e^-60 times rarer than delta are charged in full instead.
_NEGLIGIBLE = 60.0


def visible_epsilon(
  noise_multiplier: float, rounds: int, q: float, delta: float
) -> float:
  """The epsilon at `delta`, rounded up.

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
  # gammaln is good to a few units in the last place of rounds * ln(rounds).
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
    log_deltas = gaussian.log_delta_upper(mu, epsilon[:, np.newaxis])
    return np.exp(log_deltas) @ weights + dropped

  def passes(log_epsilon: np.ndarray) -> np.ndarray:
    # In blocks: the work array has 24 elements for each pair.
    blocks = np.array_split(np.exp(log_epsilon), 8)
    return np.concatenate([delta_at(block) for block in blocks]) <= delta

  if delta_at(np.zeros(1))[0] <= delta:
    return 0.0
  # Taking part in all the rounds that matter is the worst that can happen.
  high = gaussian.epsilon_of_mu(float(mu[-1]), delta)
  if high == math.inf:
    return math.inf
  log_high = math.log(high) + 1e-9
  low = min(math.log(1e-300), log_high - 1)
  root = gaussian.first_passing(passes, low, log_high)
  return _rounding.round_up(math.exp(root) * (1 + 1e-13))
