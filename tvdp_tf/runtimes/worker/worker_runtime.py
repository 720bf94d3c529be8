"""TFF's packaged worker as a runtime that leaves no process behind.

```
with local_runtime():
  state = process.initialize()
```

Differences from the context that TFF installs by default: no worker survives
its parent, however the parent ends; if a worker dies, `WorkerError` is raised,
where TFF would retry forever; it starts in a tenth of a second instead of one
or two; and leaving the block releases every thread and file descriptor.

Importing this module replaces TFF's default context by one that refuses to run.
Otherwise the first computation outside of a runtime would start a worker that
nothing ends. See `drop_stock_default_context`.

Security: TFF's worker listens on all network interfaces, without TLS or
authentication, and executes any TensorFlow graph, which may read and write
files: whoever reaches the port acts as the user who started it. So the worker
runs in its own network namespace (`worker_launcher`), which only this process
can reach. Where the system does not permit that, as in most containers, no
worker is started; `contained=False` starts it anyway, on an open port.

`program_context` is for TFF's federated programs:

```
with runtimes.local_runtime() as runtime, runtimes.program_context(runtime):
  asyncio.run(tff.learning.programs.train_model(...))
```

`tff.program` wants a context whose computations run in the background.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.runtimes.worker import _worker_client, _worker_process

WorkerError = _worker_process.WorkerError

# gRPC notices a broken connection before the kernel reports the exit.
_EXIT_GRACE_S = 5.0


class _NoRuntimeContext(tff.framework.SyncContext):
  """Refuses to run anything, in place of a context without protection."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError(
      "no TFF runtime, because tvdp_tf has removed TFF's default one: run the"
      ' computation inside `with compiled_runtime():` or `with'
      ' local_runtime():`, or restore the default with'
      ' tff.backends.native.set_sync_local_cpp_execution_context()'
    )


def drop_stock_default_context() -> None:
  """Replaces the current context if it would start an unprotected worker.

  `import tensorflow_federated` installs such a context: its worker survives a
  parent that is killed, and even when it never started one it can print an
  ignored exception at the end of the interpreter. Any other context, such as
  one to remote workers, is left alone.

  Contexts belong to threads: call this in the thread that first imported
  `tensorflow_federated`, if that is not the one that imports this module.
  """
  context = tff.framework.get_context_stack().current
  factory = getattr(context, 'executor_factory', None)
  stack_fn = getattr(factory, '_executor_stack_fn', None)
  name = getattr(stack_fn, '__qualname__', '')
  if name.startswith(tff.framework.local_cpp_executor_factory.__name__):
    tff.framework.set_default_context(_NoRuntimeContext())


class LocalContext(tff.framework.SyncContext):
  """Runs TFF computations on a worker process; made by `local_runtime`.

  Contexts belong to threads. To use this one in another thread, install it
  there with `with tff.framework.get_context_stack().install(context):`. Calls
  of several threads are correct and run one after the other.
  """

  def __init__(
    self, worker: _worker_process.WorkerProcess, max_message_megabytes: int
  ):
    self._worker = worker
    self._client = _worker_client.WorkerClient(
      _worker_client.opened(
        grpc.insecure_channel(
          worker.target, _worker_client.channel_options(max_message_megabytes)
        )
      ),
      self._guard,
    )

  @property
  def worker_pid(self) -> int:
    """The worker's process id."""
    return self._worker.pid

  def worker_log(self) -> str:
    """Returns the end of the worker's output, such as that of `tf.print`."""
    return self._worker.log_tail()

  def path_in_worker(self, descriptor: int) -> str:
    """Returns a path by which the worker can open a file of this process.

    Without root, a worker in its own network also has its own user namespace,
    from which it may not look into this process's `/proc`.

    Args:
      descriptor: Descriptor of the file, which is held until the worker ends.

    Raises:
      WorkerError: The worker was lost.
    """
    return self._worker.path_in_worker(descriptor)

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation on the worker; TFF calls this.

    Args:
      comp: The computation.
      arg: Its argument, or `None`.

    Returns:
      Its result.

    Raises:
      WorkerError: The worker was lost, or the runtime is closed.
    """
    try:
      return self._client.invoke(comp, arg)
    except _worker_client.ClientClosedError as error:
      raise WorkerError(f'the local runtime {error}') from error

  def close(self) -> None:
    """Ends the worker, and with it any running call."""
    # The worker first: a waiting call must see that it has ended.
    self._worker.stop()
    self._client.close()

  @contextlib.contextmanager
  def _guard(self) -> Iterator[None]:
    """Raises `WorkerError` if the worker is lost; it does not come back."""
    if self._worker.has_exited:
      raise self._worker.error('the worker is gone')
    try:
      yield
    except grpc.RpcError as error:
      code = error.code() if isinstance(error, grpc.Call) else None
      if code is grpc.StatusCode.UNAVAILABLE:
        self._worker.wait_for_exit(_EXIT_GRACE_S)
      if self._worker.has_exited:
        raise self._worker.error('the worker died in a call') from error
      if isinstance(error, tff.framework.RetryableError):
        raise WorkerError(f'the worker refused a call: {error}') from error
      raise


class _LocalRuntime(contextlib.AbstractContextManager[LocalContext]):
  """Starts a worker and its context at the entry, and ends both at the exit.

  This is a class, because a generator that is never left is finalized after the
  interpreter has already cleared its modules.
  """

  def __init__(
    self,
    start_worker: Callable[[], _worker_process.WorkerProcess],
    max_message_megabytes: int,
  ):
    self._start_worker = start_worker
    self._max_message_megabytes = max_message_megabytes
    self._exit_stack = contextlib.ExitStack()

  def __enter__(self) -> LocalContext:
    with contextlib.ExitStack() as stack:
      worker = self._start_worker()
      stack.callback(worker.stop)
      context = LocalContext(worker, self._max_message_megabytes)
      stack.callback(context.close)
      stack.enter_context(tff.framework.get_context_stack().install(context))
      self._exit_stack = stack.pop_all()
    return context

  def __exit__(self, *error: object) -> None:
    self._exit_stack.close()


def local_runtime(
  *,
  max_concurrent_computation_calls: int | None = None,
  startup_timeout_s: float = 60.0,
  max_message_megabytes: int = _worker_client.MAX_MESSAGE_MEGABYTES,
  worker_binary: str | os.PathLike[str] | None = None,
  contained: bool = True,
) -> contextlib.AbstractContextManager[LocalContext]:
  """Runs TFF computations of this thread on a worker process of this host.

  The worker inherits the environment (such as `TF_CPP_MIN_LOG_LEVEL`) and has
  neither CUDA nor XLA. Enter and leave the block in the same thread.

  Args:
    max_concurrent_computation_calls: How many clients the worker computes at
      the same time, to limit memory; `None` for no limit.
    startup_timeout_s: The number of seconds within which the worker must
      listen.
    max_message_megabytes: Largest argument, computation or result, in 10^6
      bytes, from 1 to 2000.
    worker_binary: The path of another build of TFF's worker; `None` for the
      build in the `tensorflow_federated` package.
    contained: Whether the worker runs in its own network namespace. If not, it
      listens on all interfaces, and anyone who reaches this host can act as
      this user; see the module's note on security.

  Returns:
    A context manager that starts the worker and ends it. Its target is the
    installed `LocalContext`.

  Raises:
    ValueError: An argument is out of range.
    WorkerError: (At the entry) the worker did not start, cannot be contained,
      or this is not Linux. (In the block) the worker died: computations raise
      within seconds of its death. It is not restarted; leave the block and
      enter a new one.
  """
  calls = -1  # No limit.
  if max_concurrent_computation_calls is not None:
    calls = _validate.integer(
      'max_concurrent_computation_calls', max_concurrent_computation_calls
    )
  megabytes = _validate.integer(
    'max_message_megabytes',
    max_message_megabytes,
    maximum=_worker_client.MAX_MESSAGE_MEGABYTES,
  )
  if worker_binary is None:
    worker_binary = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'
  start_worker = functools.partial(
    _worker_process.WorkerProcess,
    os.fspath(worker_binary),
    [
      f'--max_concurrent_computation_calls={calls}',
      f'--grpc_max_message_length_megabytes={megabytes}',
    ],
    _validate.positive('startup_timeout_s', startup_timeout_s),
    contained,
  )
  return _LocalRuntime(start_worker, megabytes)


drop_stock_default_context()


class _InBackground:
  """Adapts a synchronous context to the asynchronous one that programs need."""

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
    context: The target of `local_runtime` or `compiled_runtime`.

  Yields:
    The installed context. Its computations return references to future values
    and run one after the other.

  Raises:
    TypeError: If `context` is not such a target.
  """
  if not isinstance(context, tff.framework.SyncContext):
    raise TypeError(
      'context must be the target of a runtime, as in `with'
      ' compiled_runtime() as context`, got an object of the type '
      f'{type(context).__name__}'
    )
  # A separate thread, in which evaluations in the background take turns.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    program = tff.program.NativeFederatedContext(_InBackground(context, thread))
    with tff.framework.get_context_stack().install(program):
      yield program
