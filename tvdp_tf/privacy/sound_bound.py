r"""A convergence bound that is proved for tau local steps of K of U users.

The paper's Corollary 1 contracts once a round although tau steps are taken, and
adds the drift of one round only. Here the reference is reset to the global
model every round, so that the contraction is that of tau steps and the drift
accumulates; the noise is taken as it is, whatever it was calibrated to.
"""

import math
from collections.abc import Sequence

from tvdp_tf import _validate
from tvdp_tf.privacy import _rounding, _series
from tvdp_tf.privacy import drift as drift_lib


def sound_bound(
  initial_gap: float,
  rounds: int,
  theta: float,
  initial_stddev: float,
  pl_constant: float,
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  local_steps: int,
  gradient_divergences: Sequence[float],
  lipschitz: float,
  dimension: int,
) -> float:
  """A proved bound of E[F(w(M))] - F* for tau local steps and K of U users.

  With A = (1 - rho eta (2 - eta L))^tau and
  g_k = (gamma_k/L) ((1 + eta L)^tau - 1):

    A^M Theta + [L_c H(tau) + V] (1 - A^M)/(1 - A)
      + L d sigma^2 / (2K) S(theta, A, M),
    V = (L/2) (U-K)/(K (U-1)) mean_k g_k^2

  It holds for convex, L-smooth, L_c-Lipschitz local losses with the
  Polyak-Lojasiewicz condition and clipping that is never active; it is 10 to
  400 times larger than what small simulations show.

  Args:
    initial_gap: Theta = F(w(0)) - F*, > 0.
    rounds: M >= 1.
    theta: Ratio of the variances of successive rounds, > 0.
    initial_stddev: Noise standard deviation of round 1, whatever its origin.
    pl_constant: rho, 0 < rho <= L.
    eta: Learning rate, 0 < eta <= 1/L.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    local_steps: tau >= 1.
    gradient_divergences: gamma_k >= 0 of every user, [U]; H takes their mean.
    lipschitz: L_c > 0.
    dimension: d >= 1, number of model parameters.

  Returns:
    The bound; inf where it overflows.

  Raises:
    ValueError: If an argument is out of range.
  """
  initial_gap = _validate.positive('initial_gap', initial_gap)
  rounds = _validate.integer('rounds', rounds)
  theta = _validate.positive('theta', theta)
  initial_stddev = _validate.positive('initial_stddev', initial_stddev)
  pl_constant = _validate.positive('pl_constant', pl_constant)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  users = _validate.integer('users', users, 2)
  users_per_round = _validate.integer(
    'users_per_round', users_per_round, 1, users
  )
  local_steps = _validate.integer('local_steps', local_steps)
  lipschitz = _validate.positive('lipschitz', lipschitz)
  dimension = _validate.integer('dimension', dimension)
  gammas = [
    _validate.non_negative('gradient_divergences', g)
    for g in gradient_divergences
  ]
  if len(gammas) != users:
    raise ValueError(
      f'gradient_divergences must be {users} numbers, one a user, got'
      f' {len(gammas)}'
    )
  if eta * smoothness > 1:
    raise ValueError(
      f'eta must be at most 1/smoothness = {1 / smoothness!r}, got {eta!r}'
    )
  step = pl_constant * eta * (2 - eta * smoothness)
  if not 0 < step < 1:
    raise ValueError(
      'pl_constant must be such that rho eta (2 - eta L) is strictly between 0'
      f' and 1, got {pl_constant!r} and hence {step!r}'
    )
  log_a = local_steps * math.log1p(-step)
  factor = math.exp(log_a)
  growth = math.expm1(local_steps * math.log1p(eta * smoothness)) / smoothness
  spread = sum((gamma * growth) ** 2 for gamma in gammas) / users
  selection = (
    smoothness
    / 2
    * (users - users_per_round)
    / (users_per_round * (users - 1))
    * spread
  )
  gap = lipschitz * drift_lib.divergence_gap(
    local_steps, sum(gammas) / users, eta, smoothness
  )
  rounds_left = math.expm1(rounds * log_a) / math.expm1(log_a)
  noise = _rounding.exp_or_inf(
    _series.log_noise_sum(theta, factor, rounds) + 2 * math.log(initial_stddev)
  )
  return (
    math.exp(rounds * log_a) * initial_gap
    + (gap + selection) * rounds_left
    + smoothness * dimension / (2 * users_per_round) * noise
  )
