"""Calls what runs an event loop, from within another: a cell of a notebook.

`asyncio.run` refuses to run where a loop is running already, as in Jupyter.
Then the work goes to a thread of its own.
"""

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar('_Result')
Run = Callable[[Coroutine[Any, Any, None]], None]


def call(function: Callable[[Run], _Result]) -> _Result:
  """The result of `function`, in this thread unless a loop is running in it.

  Ctrl-C, or the button that interrupts a notebook, ends it as it would end
  `asyncio.run`: what is awaited is cancelled, and KeyboardInterrupt is raised
  when `function` has ended.

  Args:
    function: Called with what stands for `asyncio.run`.

  Raises:
    KeyboardInterrupt: If it was interrupted; and whatever `function` raises.
  """
  try:
    asyncio.get_running_loop()
  except RuntimeError:
    return function(asyncio.run)
  return _in_a_thread(function)


def _in_a_thread(function: Callable[[Run], _Result]) -> _Result:
  interrupted = False
  running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

  def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def main():
      task = asyncio.current_task()
      assert task is not None
      running.append((asyncio.get_running_loop(), task))
      if interrupted:
        task.cancel()
      try:
        await coroutine
      finally:
        running.clear()

    asyncio.run(main())

  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    # The context tells a notebook which cell the output belongs to.
    future = pool.submit(contextvars.copy_context().run, function, run)
    try:
      return future.result()
    except KeyboardInterrupt:
      interrupted = True
      for loop, task in list(running):
        loop.call_soon_threadsafe(task.cancel)
      concurrent.futures.wait([future])
      raise
