"""TFF's federated programs on the runtimes of this package.

```
with runtimes.local_runtime() as runtime, runtimes.program_context(runtime):
  asyncio.run(tff.learning.programs.train_model(...))
```

`tff.program` wants a context whose computations run in the background.
"""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow_federated as tff


class _InBackground:
  """A synchronous context as the asynchronous one that programs want."""

  def __init__(
    self,
    context: tff.framework.SyncContext,
    thread: concurrent.futures.Executor,
  ):
    self._context = context
    self._thread = thread

  async def invoke(self, comp: Any, arg: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(
      self._thread, self._context.invoke, comp, arg
    )


@contextlib.contextmanager
def program_context(
  context: tff.framework.SyncContext,
) -> Iterator[tff.program.FederatedContext]:
  """Runs the federated programs of this thread on a runtime.

  Args:
    context: The target of `local_runtime` or `simulation.compiled_runtime`.

  Yields:
    The context that is installed, in which computations return references to
    values that are yet to come. They run one after the other.
  """
  # A thread of its own: an evaluation in the background takes its turn.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    program = tff.program.NativeFederatedContext(_InBackground(context, thread))
    with tff.framework.get_context_stack().install(program):
      yield program
