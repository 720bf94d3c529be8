"""A claim of another tool as one word of a command line."""

import math
from typing import Any

from tvdp_tf import errors
from tvdp_tf.privacy import claims

_NUMBERS = (
  *('delta', 'epsilon', 'noise_multiplier', 'clip', 'sensitivity'),
  'sampling_rate',
)


def check(text: str) -> claims.CheckedClaim:
  """Checks a claim.

  Args:
    text: FORMULA:NAME=VALUE,... with the arguments of `claims.check_claim`.

  Raises:
    ValueError: If it is something else.
  """
  formula, _, rest = text.partition(':')
  arguments: dict[str, Any] = {}
  try:
    for part in filter(None, rest.split(',')):
      name, _, value = part.partition('=')
      if name in arguments:
        raise ValueError(f'{name} is given twice')
      if name in _NUMBERS:
        arguments[name] = float(value)
      elif name == 'rounds':
        arguments[name] = int(value)
      elif name == 'batches':
        arguments[name] = value
      else:
        allowed = ', '.join([*_NUMBERS, 'rounds', 'batches'])
        raise ValueError(f'{name!r} is none of {allowed}')
    for name in ('delta', 'rounds'):
      if name not in arguments:
        raise ValueError(f'{name} must be given')
    return claims.check_claim(formula, **arguments)
  except ValueError as error:
    raise ValueError(
      f'claim must be FORMULA:NAME=VALUE,..., got {text!r}: {error}'
    ) from error


def refuse(claim: claims.CheckedClaim) -> None:
  """Raises `TvdpError` for a claim that does not hold."""
  if not (math.isnan(claim.claimed_epsilon) or claim.holds):
    raise errors.TvdpError('the claim does not hold')
