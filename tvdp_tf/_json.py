"""Numbers in JSON, which has no infinity."""

import math
from typing import Any


def number(value: Any) -> Any:
  """Returns a value for JSON: 'inf' for infinity and for NaN."""
  is_nan = value != value  # noqa: PLR0124
  return 'inf' if value == math.inf or is_nan else value


def parsed(value: Any) -> Any:
  """The inverse of `number`."""
  return math.inf if value == 'inf' else value
