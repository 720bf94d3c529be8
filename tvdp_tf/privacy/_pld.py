r"""Accounting by privacy loss distributions, through dp_accounting's classes.

  unsampled  the distribution of the one Gaussian with 1/z^2 = sum of 1/z_m^2,
             exact before discretisation; never one convolution a round
  visible    round by round (1 - q) {loss 0} + q Gaussian(z_m): its hockey-stick
             divergence is q delta_G(eps) for eps >= 0, which is discretised
             pessimistically ("connect the dots")
  Poisson    dp_accounting's PLDAccountant on PoissonSampledDpEvents

Equal noise multipliers are composed as one power; every distinct one costs a
discretisation and a convolution (0.05 to 0.3 s). The grid follows the spread of
the losses, so that cost and relative error do not depend on the noise level.
"""

import math

import numpy as np

from tvdp_tf.privacy import gaussian

# Grid step over the root mean square of the spread of one round's loss. The
# relative error in epsilon goes with its square: 1e-4 at 0.04.
_VISIBLE_STEP = 0.02
_POISSON_STEP = 0.04
_UNSAMPLED_STEP = 1e-3
_MAX_POINTS = 400_000
# dp_accounting takes e^step; and no one needs epsilons of this size.
_MAX_STEP = 500.0
# Convolutions by FFT leave noise of either sign in the tail, about 4e-17 of
# delta a round where the exact value is known. Far more is set aside.
_FFT_NOISE = 1e-14
_FFT_NOISE_PER_ROUND = 2e-15


def _reach(log_tail: float) -> float:
  """Standard scores beyond which a Gaussian has mass below exp(log_tail)."""
  return math.sqrt(-2 * log_tail)


def _grid_step(mu: np.ndarray, step: float, log_tail: float) -> float:
  """`step`, or the larger one that the largest loss of a round enforces."""
  span = float(np.max(mu * mu + 2 * _reach(log_tail) * mu))
  return max(step, span / _MAX_POINTS)


def unsampled_epsilon(mu: float, delta: float) -> float:
  """Epsilon at `delta` of one Gaussian release with multiplier 1/mu."""
  from dp_accounting.pld import privacy_loss_distribution  # noqa: PLC0415

  log_tail = min(-50.0, math.log(delta) - 10)
  step = _grid_step(np.array([mu]), _UNSAMPLED_STEP * mu, log_tail)
  if step > _MAX_STEP:
    return math.inf
  loss = privacy_loss_distribution.from_gaussian_mechanism(
    1 / mu,
    value_discretization_interval=step,
    log_mass_truncation_bound=log_tail,
  )
  return float(loss.get_epsilon_for_delta(delta))


def _visible_loss(z: float, q: float, step: float, log_tail: float):
  from dp_accounting.pld import (  # noqa: PLC0415
    pld_pmf,
    privacy_loss_distribution,
  )

  mu = 1 / z
  reach = _reach(log_tail)
  low = math.floor(min(mu * mu / 2 - reach * mu, 0.0) / step) - 1
  high = math.ceil((mu * mu / 2 + reach * mu) / step) + 1
  epsilon = np.arange(low, high + 1) * step
  # For eps < 0: delta(eps) = 1 - e^eps + e^eps delta(-eps).
  chance = q * np.exp(gaussian.log_delta_upper(mu, np.abs(epsilon)))
  deltas = np.where(
    epsilon < 0,
    -np.expm1(np.minimum(epsilon, 0)) + np.exp(np.minimum(epsilon, 0)) * chance,
    chance,
  )
  deltas = np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0)
  pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
    step, low, high, deltas
  )
  return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _root_mean_square(counts: np.ndarray, variances: np.ndarray) -> float:
  return math.sqrt(float(counts @ variances) / float(counts.sum()))


def _less_noise(delta: float, rounds: float) -> float:
  return delta - _FFT_NOISE - _FFT_NOISE_PER_ROUND * rounds


def visible_epsilon(
  multipliers: np.ndarray, counts: np.ndarray, q: float, delta: float
) -> float:
  """Epsilon at `delta` of visibly selected releases.

  Args:
    multipliers: Distinct noise multipliers, float64 [n].
    counts: Rounds with each of them, int [n].
    q: Probability of taking part, in (0, 1).
    delta: In (0, 1).

  Returns:
    An upper bound of epsilon; inf where delta is lost in the FFT's noise.
  """
  log_tail = -50.0
  mu = 1 / multipliers
  # E[loss^2] of a round in which the user takes part with probability q.
  variances = q * (mu * mu + mu**4 / 4)
  step = _VISIBLE_STEP * _root_mean_square(counts, variances)
  step = _grid_step(mu, step, log_tail)
  left = _less_noise(delta, float(counts.sum()))
  if step > _MAX_STEP or left <= 0:
    return math.inf
  total = None
  for z, count in zip(multipliers, counts, strict=True):
    loss = _visible_loss(float(z), q, step, log_tail)
    if count > 1:
      loss = loss.self_compose(int(count))
    total = loss if total is None else total.compose(loss)
  return float(total.get_epsilon_for_delta(left))


def poisson_epsilon(
  multipliers: np.ndarray, counts: np.ndarray, q: float, delta: float
) -> float:
  """Epsilon at `delta` of secretly, Poisson-sampled releases; see above."""
  import dp_accounting  # noqa: PLC0415
  from dp_accounting import pld  # noqa: PLC0415

  mu = 1 / multipliers
  # Near no noise the loss is log-normal-like: its spread is bounded by that of
  # the unsampled one.
  with np.errstate(over='ignore'):
    chi_square = q * q * np.expm1(np.minimum(mu * mu, 700.0))
  variances = np.minimum(chi_square, q * (mu * mu + mu**4 / 4))
  step = _POISSON_STEP * _root_mean_square(counts, variances)
  step = _grid_step(mu, step, -50.0)
  left = _less_noise(delta, float(counts.sum()))
  if step > _MAX_STEP or left <= 0:
    return math.inf
  accountant = pld.PLDAccountant(value_discretization_interval=step)
  for z, count in zip(multipliers, counts, strict=True):
    event = dp_accounting.PoissonSampledDpEvent(
      q, dp_accounting.GaussianDpEvent(float(z))
    )
    accountant.compose(event, int(count))
  return float(accountant.get_epsilon(left))
