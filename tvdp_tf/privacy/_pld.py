r"""Accounting by privacy loss distributions, composed by dp_accounting.

A round is described by its hockey-stick divergences on a grid of epsilons, from
which dp_accounting makes a pessimistic distribution ("connect the dots"). With
G(eps) the delta of the Gaussian release, they are for eps >= 0:

  unsampled  G(eps), once, for 1/z^2 = sum of 1/z_m^2: nothing is composed
  visible    q G(eps): a round is a Gaussian release or nothing
  Poisson    q G(ln(1 + (e^eps - 1)/q)) for removing the user; for adding it
             q r G(eps - ln r), r = 1 - (e^eps - 1)(1 - q)/q, 0 where r <= 0

For eps < 0 the divergence follows from delta', that of the two distributions
exchanged: delta(eps) = 1 - e^eps + e^eps delta'(-eps).

Equal noise multipliers are composed as one power; every distinct one costs a
discretization and a convolution (0.01 to 0.3 s). The grid follows the spread of
the losses, so that cost and relative error do not depend on the noise level.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvdp_tf.privacy import gaussian

# Grid step over the spread of the loss of one round. The relative error of an
# epsilon of that size or above grows with its square: 1e-4 at 0.04.
_SAMPLED_STEPS = {'visible': 0.02, 'poisson': 0.04}
_UNSAMPLED_STEP = 1e-3
_MAX_POINTS = 400_000
# dp_accounting computes e^step, and nobody needs epsilons of this size.
_MAX_STEP = 500.0
# Ln of the mass beyond the grid, which counts as an infinite loss.
_LOG_TAIL = -50.0
# FFT convolutions leave noise of either sign in the tail: about 4e-17 of delta
# per round where the exact value is known. Far more is set aside.
_FFT_NOISE = 1e-14
_FFT_NOISE_PER_ROUND = 2e-15
# More than the relative rounding of an epsilon before it goes into G.
_ROUNDING = 2e-15


def _reach(log_tail: float) -> float:
  """Standard scores beyond which a Gaussian has mass below exp(log_tail)."""
  return math.sqrt(-2 * log_tail)


def _grid_step(mu: np.ndarray, step: float, log_tail: float) -> float:
  """Returns `step`, or more if the largest loss of a round requires it."""
  span = float(np.max(mu * mu + 2 * _reach(log_tail) * mu))
  return max(step, span / _MAX_POINTS)


def _gaussian_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
  """Returns G, rounded up; `epsilon` >= 0."""
  return np.exp(gaussian.log_delta_upper(mu, epsilon * (1 - _ROUNDING)))


def _visible_delta(mu: float, q: float, epsilon: np.ndarray) -> np.ndarray:
  return q * _gaussian_delta(mu, epsilon)


def _removal_delta(mu: float, q: float, epsilon: np.ndarray) -> np.ndarray:
  """Divergence of (1-q) N(0, 1) + q N(mu, 1) from N(0, 1); `epsilon` >= 0."""
  near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
  large = np.maximum(epsilon, 1.0)
  far = large - math.log(q) + np.log1p((q - 1) * np.exp(-large))
  return q * _gaussian_delta(mu, np.where(epsilon < 1, near, far))


def _addition_delta(mu: float, q: float, epsilon: np.ndarray) -> np.ndarray:
  """Divergence of N(0, 1) from (1-q) N(0, 1) + q N(mu, 1); `epsilon` >= 0."""
  taken = (1 - q) / q * np.expm1(np.minimum(epsilon, 700.0)) * (1 - _ROUNDING)
  # log1p, not ln(q/c): the shift may be tiny.
  left = np.minimum(taken, 1 - 1e-16)
  chance = q * (1 - left) * _gaussian_delta(mu, epsilon - np.log1p(-left))
  return np.where(taken < 1, chance, 0.0)


_Delta = Callable[[float, float, np.ndarray], np.ndarray]


def _pmf(
  delta: _Delta,
  exchanged: _Delta,
  mu: float,
  q: float,
  bounds: tuple[float, float],
  step: float,
):
  """The pessimistic distribution of one round's loss within `bounds`."""
  from dp_accounting.pld import pld_pmf  # noqa: PLC0415

  low, high = math.floor(bounds[0] / step) - 1, math.ceil(bounds[1] / step) + 1
  epsilon = np.arange(low, high + 1) * step
  negative = epsilon[epsilon < 0]
  deltas = np.concatenate(
    [
      -np.expm1(negative) + np.exp(negative) * exchanged(mu, q, -negative),
      delta(mu, q, epsilon[epsilon >= 0]),
    ]
  )
  # Rounding must not give a larger epsilon a larger delta.
  deltas = np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0)
  return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
    step, low, high, deltas
  )


def _sampled_loss(sampling: str, z: float, q: float, step: float):
  from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

  mu = 1 / z
  # Range of the loss of the Gaussian release itself.
  low = mu * mu / 2 - _reach(_LOG_TAIL) * mu
  high = mu * mu / 2 + _reach(_LOG_TAIL) * mu
  if sampling == 'visible':
    pmfs = [
      _pmf(
        *(_visible_delta, _visible_delta, mu, q),
        (min(low, 0.0), high),
        step,
      )
    ]
  else:
    # If y is that loss, removing the user has the loss ln(1 - q + q e^y).
    # Adding the user has its negative, with y drawn as without the user.
    def sampled(y: float) -> float:
      if y < 1:
        return math.log1p(q * math.expm1(y))
      return float(np.logaddexp(math.log1p(-q), math.log(q) + y))

    pmfs = [
      _pmf(
        *(_removal_delta, _addition_delta, mu, q),
        (sampled(-high), sampled(high)),
        step,
      ),
      _pmf(
        *(_addition_delta, _removal_delta, mu, q),
        (min(-sampled(-low), 0.0), -sampled(-high)),
        step,
      ),
    ]
  return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def unsampled_epsilon(mu: float, delta: float) -> float:
  """Returns epsilon at `delta` of one Gaussian release, multiplier 1/mu."""
  log_tail = min(_LOG_TAIL, math.log(delta) - 10)
  step = _grid_step(np.array([mu]), _UNSAMPLED_STEP * mu, log_tail)
  if step > _MAX_STEP:
    return math.inf
  high = mu * mu / 2 + _reach(log_tail) * mu
  pmf = _pmf(_visible_delta, _visible_delta, mu, 1.0, (0.0, high), step)
  # Binary64 is too coarse for dp_accounting's sums if the losses are tiny.
  with np.errstate(over='ignore'):
    epsilon = float(pmf.get_epsilon_for_delta(delta))
  return max(epsilon, gaussian.epsilon_of_mu(mu, delta))


def _squared_spreads(sampling: str, mu: np.ndarray, q: float) -> np.ndarray:
  """Approximates E[loss^2] of a round, to choose the grid."""
  # Near mu^2/2, the loss still varies on a scale no wider than mu.
  visible = q * mu * mu + np.minimum(q * mu**4 / 4, mu * mu)
  if sampling == 'visible':
    return visible
  return np.minimum(visible, q * q * np.expm1(np.minimum(mu * mu, 700.0)))


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
    multipliers: Distinct noise multipliers, float64 [n].
    counts: Number of rounds with each of them, int [n].
    q: Probability of taking part, in (0, 1).
    delta: In (0, 1).

  Returns:
    An upper bound on epsilon; inf if delta is lost in the FFT's noise.
  """
  mu = 1 / multipliers
  rounds = float(counts.sum())
  spread = float(counts @ _squared_spreads(sampling, mu, q)) / rounds
  step = _SAMPLED_STEPS[sampling] * math.sqrt(spread)
  step = _grid_step(mu, step, _LOG_TAIL)
  left = delta - _FFT_NOISE - _FFT_NOISE_PER_ROUND * rounds
  if step > _MAX_STEP or left <= 0:
    return math.inf
  total: Any = None
  for z, count in zip(multipliers, counts, strict=True):
    loss = _sampled_loss(sampling, float(z), q, step)
    if count > 1:
      loss = loss.self_compose(int(count))
    total = loss if total is None else total.compose(loss)
  with np.errstate(over='ignore'):
    return float(total.get_epsilon_for_delta(left))
