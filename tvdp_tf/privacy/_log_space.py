"""Geometric series in log space, and conversion back with safe rounding.

Two sums carry all the closed forms of the paper:

  R(theta, M)    = sum_{m=1..M} theta^(1-m)          (sum of 1/variance)
  S(theta, A, M) = sum_{m=1..M} A^(M-m) theta^(m-1)  (noise left in the model)

The paper prints them as quotients that are 0/0 at theta = 1 or theta = A and
that overflow binary64 early (theta = 0.5 from M = 1024 on). Here each is the
logarithm of an expm1 quotient, which keeps full relative precision there.
"""

import math
import sys

_MAX_LOG = math.log(sys.float_info.max)
_MIN_LOG = math.log(sys.float_info.min)  # the smallest normal number


def representable(name: str, log_value: float) -> float:
  """Returns exp(log_value).

  Raises:
    ValueError: If the result is not a normal binary64 number. Noise that
      underflows would be no noise at all.
  """
  if not _MIN_LOG <= log_value < _MAX_LOG:
    exponent = log_value / math.log(10.0)
    raise ValueError(
      f'{name} must be representable as a normal binary64 number'
      f' (1e-307 to 1e308), got 10**{exponent:.6g}'
    )
  return math.exp(log_value)


def exp_or_inf(log_value: float) -> float:
  """Returns exp(log_value), or inf if it overflows."""
  return math.exp(log_value) if log_value < _MAX_LOG else math.inf


def round_up(value: float, ulps: int = 8) -> float:
  """Returns `value` >= 0 plus at least `ulps` units in the last place."""
  if math.isinf(value):
    return value
  return value + ulps * math.ulp(value)


# Below this, the terms are equal to far more digits than binary64 holds.
_CONSTANT = 1e-300


def log_geometric_sum(log_ratio: float, terms: float) -> float:
  """Ln of sum_{k=0..terms-1} exp(k * log_ratio); `terms` may be real, > 0."""
  if abs(log_ratio) < _CONSTANT:
    return math.log(terms)
  sign = -abs(log_ratio)
  log_sum = math.log(math.expm1(terms * sign) / math.expm1(sign))
  # sum_k e^(kv) = e^((n-1)v) sum_k e^(-kv): compute only the decaying sum.
  return log_sum + ((terms - 1) * log_ratio if log_ratio > 0 else 0.0)


def log_precision_sum(theta: float, rounds: float) -> float:
  """Ln R(theta, M), R = sum_{m=1..M} theta^(1-m)."""
  return log_geometric_sum(-math.log(theta), rounds)


def log_noise_sum(theta: float, contraction: float, rounds: float) -> float:
  """Ln S(theta, A, M), S = sum_{m=1..M} A^(M-m) theta^(m-1)."""
  return (rounds - 1) * math.log(contraction) + log_geometric_sum(
    math.log(theta) - math.log(contraction), rounds
  )
