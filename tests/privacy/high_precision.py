"""Formulas in 60-digit arithmetic, as they stand in the literature.

No care for cancellation is needed at this precision, so none is taken: what is
tested against them shares no code with them.
"""

from typing import Any

import mpmath
from mpmath import mpf

DIGITS = 60
Number = Any


def workdps(function):
  """Runs `function` with `DIGITS` digits."""
  return mpmath.workdps(DIGITS)(function)


def _cdf(x: mpf) -> mpf:
  return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


@workdps
def gaussian_delta(noise_multiplier: Number, epsilon: Number) -> mpf:
  """Balle and Wang (2018), Theorem 8."""
  mu, epsilon = 1 / mpf(noise_multiplier), mpf(epsilon)
  near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
  return _cdf(near) - mpmath.exp(epsilon) * _cdf(far)


@workdps
def visible_delta(
  noise_multiplier: Number, rounds: int, q: Number, epsilon: Number
) -> mpf:
  """Mixture over how often the user takes part; equal noise."""
  q = mpf(q)
  return mpmath.fsum(
    mpmath.binomial(rounds, n)
    * q**n
    * (1 - q) ** (rounds - n)
    * gaussian_delta(mpf(noise_multiplier) / mpmath.sqrt(n), epsilon)
    for n in range(1, rounds + 1)
  )


@workdps
def poisson_delta(
  noise_multiplier: Number, q: Number, epsilon: Number
) -> tuple[mpf, mpf]:
  """One round of secret sampling: deltas of removing and adding the user."""
  q, growth = mpf(q), mpmath.exp(mpf(epsilon))
  removal = q * gaussian_delta(
    noise_multiplier, mpmath.log((growth - (1 - q)) / q)
  )
  rest = 1 - growth * (1 - q)
  if rest <= 0:
    return removal, mpf(0)
  addition = rest * gaussian_delta(
    noise_multiplier, mpmath.log(growth * q / rest)
  )
  return removal, addition


@workdps
def poisson_moment(noise_multiplier: Number, q: Number, order: Number) -> mpf:
  """ln E[(1 - q + q e^(u/z - 1/(2 z^2)))^order] for u ~ N(0, 1)."""
  z, q, order = mpf(noise_multiplier), mpf(q), mpf(order)

  def integrand(u):
    ratio = 1 - q + q * mpmath.exp(u / z - 1 / (2 * z * z))
    return mpmath.npdf(u) * (ratio**order - 1)

  peak = order / z
  knots = sorted({mpf(-20), mpf(-6), mpf(0), mpf(6), peak, peak + 20})
  return mpmath.log1p(mpmath.quad(integrand, knots))


@workdps
def geometric_sum(ratio: Number, terms: int) -> mpf:
  """sum_{k=0..terms-1} ratio^k."""
  ratio = mpf(ratio)
  if ratio == 1:
    return mpf(terms)
  return (ratio**terms - 1) / (ratio - 1)


@workdps
def precision_sum(theta: Number, rounds: int) -> mpf:
  """R(theta, M), the sum of theta^(1-m)."""
  return geometric_sum(1 / mpf(theta), rounds)


@workdps
def noise_sum(theta: Number, contraction: Number, rounds: int) -> mpf:
  """S(theta, A, M), the sum of A^(M-m) theta^(m-1)."""
  contraction = mpf(contraction)
  ratio = mpf(theta) / contraction
  return contraction ** (rounds - 1) * geometric_sum(ratio, rounds)


def relative_error(value: Number, reference: Number) -> float:
  """|value/reference - 1|; 0 if both are 0."""
  if reference == 0:
    return 0.0 if value == 0 else float('inf')
  with mpmath.workdps(DIGITS):
    return float(abs(mpf(value) / mpf(reference) - 1))
