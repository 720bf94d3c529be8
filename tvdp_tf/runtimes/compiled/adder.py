"""Adds clients' updates to totals: TFF's `accumulate`, several in a call."""

import itertools
from typing import Any

from tvdp_tf.runtimes.compiled import graph_function

# Beside adding an update of more bytes, a call takes no time to speak of.
_SMALL_BYTES = 2**20
_TOGETHER = 4


class Adder:
  """Adds updates to totals, several in one call where they are small.

  Attributes:
    together: How many.
  """

  def __init__(self, accumulate: graph_function.GraphFunction, totals: int):
    """Traces nothing yet.

    Args:
      accumulate: (totals, update) -> totals.
      totals: The number of tensors that the totals are.
    """
    self._accumulate = accumulate
    self._num_totals = totals
    update = accumulate.specs[totals:]
    small = all(spec.shape.is_fully_defined() for spec in update) and (
      sum(spec.shape.num_elements() * spec.dtype.size for spec in update)
      <= _SMALL_BYTES
    )
    self.together = _TOGETHER if small else 1
    self._functions: dict[int, graph_function.TensorFunction] = {1: accumulate}

  def _function(self, count: int) -> graph_function.TensorFunction:
    """Adds so many; traced when it is first asked for."""
    if count not in self._functions:
      num, accumulate = self._num_totals, self._accumulate
      update = accumulate.specs[num:]

      def add(*tensors):
        totals, rest = tensors[:num], iter(tensors[num:])
        for _ in range(count):
          totals = accumulate.traced(*totals, *(next(rest) for _ in update))
        return totals

      self._functions[count] = graph_function.TensorFunction(
        add, accumulate.specs[:num] + update * count
      )
    return self._functions[count]

  def __call__(self, totals: Any, updates: list[Any]) -> Any:
    """The totals with the updates, added in their order."""
    start, count = 0, self.together
    while start < len(updates):
      while count > len(updates) - start:
        count //= 2
      flat = itertools.chain(*updates[start : start + count])
      totals = self._function(count)(*totals, *flat)
      start += count
    return totals
