"""Leaving log space, and rounding to the safe side."""

import math
import sys

_MAX_LOG = math.log(sys.float_info.max)
_MIN_LOG = math.log(sys.float_info.min)  # the smallest normal number


def representable(name: str, log_value: float) -> float:
  """exp(log_value).

  Raises:
    ValueError: If the result is not a normal binary64 number. A noise that
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
  """exp(log_value), inf where it overflows."""
  return math.exp(log_value) if log_value < _MAX_LOG else math.inf


def round_up(value: float, ulps: int = 8) -> float:
  """A number at least `ulps` units in the last place above `value` >= 0."""
  if math.isinf(value):
    return value
  return value + ulps * math.ulp(value)
