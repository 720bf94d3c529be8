"""Sums over items whose parts are computed in parallel threads.

The parts are added in the order of the items, so the sum is the same to the bit
for any number of threads. The thread that finishes the next part adds it,
together with the parts that wait for it. The number of waiting parts is
bounded.

`Adder` adds clients' updates to totals, several in one call of TFF's
`accumulate`.
"""

import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tvdp_tf.runtimes.compiled import graph_function

# Most results that one thread holds.
MAX_CHUNK = 16


class _Fold:
  """One sum."""

  def __init__(
    self,
    work: Callable[[Any], Any],
    add: Callable[[Any, list[Any]], Any],
    total: Any,
    chunks: Sequence[Sequence[Any]],
    added_together: int,
    most_ahead: int,
  ):
    self._work = work
    self._add = add
    self.total = total
    self._chunks = chunks
    self._added_together = added_together  # Chunks.
    self._most_ahead = most_ahead
    self._changed = threading.Condition()
    self._taken = 0  # Chunks, in their order.
    self._added = 0
    self._waiting: dict[int, list[Any]] = {}
    self._adding = False
    self._stopped = False

  def run(self) -> None:
    """Works until no chunk is left; called by every thread."""
    try:
      while (index := self._take()) is not None:
        results = []
        for item in self._chunks[index]:
          if self._stopped:
            return
          results.append(self._work(item))
        self._hand_in(index, results)
    except BaseException:
      self.stop()
      raise

  def stop(self) -> None:
    """Lets the threads end after the items that they are at."""
    with self._changed:
      self._stopped = True
      self._changed.notify_all()

  def _take(self) -> int | None:
    def may_go_on():
      return (
        self._stopped
        or self._taken == len(self._chunks)
        or self._taken - self._added < self._most_ahead
      )

    with self._changed:
      self._changed.wait_for(may_go_on)
      if self._stopped or self._taken == len(self._chunks):
        return None
      self._taken += 1
      return self._taken - 1

  def _hand_in(self, index: int, results: list[Any]) -> None:
    with self._changed:
      self._waiting[index] = results
    while chunks := self._to_add():
      parts = [part for chunk in chunks for part in chunk]
      self.total = self._add(self.total, parts)
      with self._changed:
        self._added += len(chunks)
        self._adding = False
        self._changed.notify_all()

  def _to_add(self) -> list[list[Any]]:
    """The chunks that the caller is to add now; no one else gets any then."""
    with self._changed:
      end = self._added
      while end in self._waiting:
        end += 1
      enough = end - self._added >= self._added_together
      if self._adding or not (enough or end == len(self._chunks)):
        return []  # They are added by another thread, or later.
      self._adding = True
      return [self._waiting.pop(i) for i in range(self._added, end)]


class OrderedFold:
  """Folds by a number of threads, including the caller's."""

  def __init__(
    self,
    threads: int,
    in_thread: Callable[[], contextlib.AbstractContextManager],
  ):
    """Starts no thread yet.

    Args:
      threads: How many.
      in_thread: A context that each of them works in.
    """
    self._threads = threads
    self._in_thread = in_thread
    # One more for work that waits; the first use starts it.
    self._pool = concurrent.futures.ThreadPoolExecutor(threads)

  def __call__(
    self,
    work: Callable[[Any], Any],
    add: Callable[[Any, list[Any]], Any],
    total: Any,
    items: Sequence[Any],
    added_together: int = 1,
    waits: bool = False,
  ) -> Any:
    """Adds `work(item)` of all items to `total`, in their order.

    Args:
      work: Computes an item's part; called by several threads at once.
      add: (total, parts) -> total; called by one thread at a time.
      total: The sum of no parts.
      items: The items.
      added_together: How many parts are waited for before they are added, where
        there are more to come.
      waits: Whether `work` waits for other threads: one more of ours then has
        work for the core that would be idle.

    Returns:
      The sum.

    Raises:
      BaseException: What `work` or `add` raises first; then no thread is at
        work any more.
    """
    # To take one item at a time costs more than a small item's work.
    threads = self._threads + waits
    size = max(1, min(MAX_CHUNK, len(items) // (8 * threads)))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    together = -(-added_together // size)
    # All threads wait only when so many chunks do that some can be added.
    most_ahead = 2 * threads + together
    fold = _Fold(work, add, total, chunks, together, most_ahead)

    def run():
      with self._in_thread():
        fold.run()

    helpers = min(threads, len(chunks)) - 1
    futures = [self._pool.submit(run) for _ in range(helpers)]
    try:
      run()
      concurrent.futures.wait(futures)
    except BaseException:
      fold.stop()
      concurrent.futures.wait(futures)
      raise
    for future in futures:
      future.result()
    return fold.total

  def close(self) -> None:
    """Ends the threads."""
    self._pool.shutdown()


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
