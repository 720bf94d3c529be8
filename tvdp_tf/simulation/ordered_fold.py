"""Sums over items whose parts are computed side by side, a thread each.

The parts are added in the order of the items, so that the sum is the same to
the bit whatever the number of threads; whoever finishes the part that is next
adds it. Parts that wait for an earlier one are few, however many items there
are.
"""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

# Most results that one thread holds.
MAX_CHUNK = 16


class _Fold:
  """One sum."""

  def __init__(
    self,
    work: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
    total: Any,
    chunks: Sequence[Sequence[Any]],
    most_ahead: int,
  ):
    self._work = work
    self._add = add
    self.total = total
    self._chunks = chunks
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
      if self._adding or self._added not in self._waiting:
        return  # It is added by another thread, now or later.
      self._adding = True
    while (chunk := self._next_to_add()) is not None:
      for result in chunk:
        self.total = self._add(self.total, result)
      with self._changed:
        self._added += 1
        self._changed.notify_all()

  def _next_to_add(self) -> list[Any] | None:
    with self._changed:
      chunk = self._waiting.pop(self._added, None)
      self._adding = chunk is not None
      return chunk


class OrderedFold:
  """Folds by a number of threads, of which the caller's is one."""

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
    # A pool must have one; the first use starts it.
    self._pool = concurrent.futures.ThreadPoolExecutor(max(1, threads - 1))

  def __call__(
    self,
    work: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
    total: Any,
    items: Sequence[Any],
  ) -> Any:
    """Adds `work(item)` of all items to `total`, in their order.

    Args:
      work: Computes an item's part; called by several threads at once.
      add: (total, part) -> total; called by one thread at a time.
      total: The sum of no parts.
      items: The items.

    Returns:
      The sum.

    Raises:
      BaseException: What `work` or `add` raises first; then no thread is at
        work any more.
    """
    # To take one item at a time costs more than a small item's work.
    size = max(1, min(MAX_CHUNK, len(items) // (8 * self._threads)))
    chunks = [items[i : i + size] for i in range(0, len(items), size)]
    fold = _Fold(work, add, total, chunks, most_ahead=2 * self._threads)

    def run():
      with self._in_thread():
        fold.run()

    helpers = min(self._threads, len(chunks)) - 1
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
