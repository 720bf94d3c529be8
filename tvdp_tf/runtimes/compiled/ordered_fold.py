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

# The most results that a thread holds.
MAX_CHUNK = 16


class _Fold:
  """A single sum."""

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
    """Makes the threads stop after their current items."""
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
    """Returns the chunks that the caller must add; only one caller gets any."""
    with self._changed:
      end = self._added
      while end in self._waiting:
        end += 1
      enough = end - self._added >= self._added_together
      if self._adding or not (enough or end == len(self._chunks)):
        return []  # Another thread adds them, or they are added later.
      self._adding = True
      return [self._waiting.pop(i) for i in range(self._added, end)]


class OrderedFold:
  """Folds with a number of threads, including the caller's."""

  def __init__(
    self,
    threads: int,
    in_thread: Callable[[], contextlib.AbstractContextManager],
  ):
    """Does not start threads yet.

    Args:
      threads: Number of threads.
      in_thread: A context that each thread works in.
    """
    self._threads = threads
    self._in_thread = in_thread
    # One more for work that waits; it is started at its first use.
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
    """Adds `work(item)` for all items to `total`, in their order.

    Args:
      work: Computes an item's part; called by several threads at once.
      add: (total, parts) -> total; called by one thread at a time.
      total: The initial sum, without any part.
      items: The items.
      added_together: How many parts to wait for before adding them, if more
        parts are to come.
      waits: Whether `work` waits for other threads; if so, one more thread here
        uses the core that would be idle.

    Returns:
      The sum.

    Raises:
      BaseException: The first exception that `work` or `add` raises; then no
        thread is working any more.
    """
    # Taking single items costs more than a small item's work.
    threads = self._threads + waits
    size = max(1, min(MAX_CHUNK, len(items) // (8 * threads)))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    together = -(-added_together // size)
    # So many that if all threads wait, some of the chunks can be added.
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


# For updates with more bytes, the overhead of a call is negligible.
_SMALL_BYTES = 2**20
_TOGETHER = 4


class Adder:
  """Adds updates to totals, several in one call if they are small.

  Attributes:
    together: How many updates to add in one call.
  """

  def __init__(self, accumulate: graph_function.GraphFunction, totals: int):
    """Does not trace anything yet.

    Args:
      accumulate: (totals, update) -> totals.
      totals: The number of tensors in the totals.
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
    """Returns a function that adds `count` updates; traced at its first use."""
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
    """Adds the updates to the totals, in their order."""
    start, count = 0, self.together
    while start < len(updates):
      while count > len(updates) - start:
        count //= 2
      flat = itertools.chain(*updates[start : start + count])
      totals = self._function(count)(*totals, *flat)
      start += count
    return totals
