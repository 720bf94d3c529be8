"""TFF's packaged worker as a runtime that leaves no process behind.

```
with local_runtime():
  state = process.initialize()
```

Against the context that TFF installs by default: no worker survives, however
the parent ends; a worker that dies raises `WorkerError` where TFF would try
again for ever; it starts in a tenth of a second, not one or two; and leaving
the block gives every thread and file descriptor back.

Importing this module replaces TFF's default context by one that refuses to
run: the first computation outside of a runtime would start a worker that
nothing ends. See `drop_stock_default_context`.

Security: the worker listens on all network interfaces, without TLS or
authentication, and executes any TensorFlow graph, which may read and write
files. While it runs, whoever reaches the port acts as the user who started it,
which on a shared machine includes every local user. Run it in a container or
behind a firewall.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import grpc
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import _worker_process

WorkerError = _worker_process.WorkerError

# gRPC sees a broken connection before the kernel has reported the process.
_EXIT_GRACE_S = 5.0
# Protocol buffers end at 2 GiB.
_MAX_MESSAGE_MEGABYTES = 2000
_MAX_EXECUTORS = 10


class _NoRuntimeContext(tff.framework.SyncContext):
  """Refuses to run anything, in place of a context without protection."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError(
      'no TFF runtime: run the computation inside `with local_runtime():` or '
      'another installed context'
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


class _UnwatchedChannel:
  """A gRPC channel whose state nobody follows.

  TFF's stub subscribes to it for the sake of `is_ready`, which starts a thread
  that fails when the channel is closed. The worker's process tells more.
  """

  def __init__(self, channel: grpc.Channel):
    self._channel = channel

  def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
    pass

  def __getattr__(self, name: str) -> Any:
    return getattr(self._channel, name)


class _GuardedStub:
  """A TFF executor stub that turns the loss of its worker into `WorkerError`.

  TFF tries a call again, without end, when gRPC reports that the worker is
  unavailable or has forgotten its state. A local worker does not come back.
  """

  def __init__(
    self,
    stub: tff.framework.RemoteExecutorStub,
    worker: _worker_process.WorkerProcess,
  ):
    self._stub = stub
    self._worker = worker

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    method = getattr(self._stub, name)

    def call(request: Any) -> Any:
      if self._worker.has_exited:
        raise self._worker.error('the worker is gone')
      try:
        return method(request)
      except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNAVAILABLE:
          self._worker.wait_for_exit(_EXIT_GRACE_S)
        if self._worker.has_exited:
          raise self._worker.error('the worker died in a call') from error
        if isinstance(error, tff.framework.RetryableError):
          raise WorkerError(f'the worker refused a call: {error}') from error
        raise

    def call_if_possible(request: Any) -> Any:
      with contextlib.suppress(WorkerError):
        return call(request)

    # What a lost worker held is gone; finalizers of values may come later.
    return call_if_possible if name.startswith('dispose') else call


class _ExecutorFactory(tff.framework.ExecutorFactory):
  """Keeps an executor for each of the last few numbers of clients.

  An executor has about eight threads in the worker. TFF's own factory forgets
  the oldest without closing it, so that cohorts of random size, as Poisson
  sampling makes them, pile up threads.
  """

  def __init__(self, stub: _GuardedStub):
    self._stub = stub
    self._executors: dict[int, tff.framework.RemoteExecutor] = {}

  def create_executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
    key = cardinalities.get(tff.CLIENTS, 0)
    executor = self._executors.pop(key, None)
    if executor is None:
      executor = tff.framework.RemoteExecutor(self._stub)
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    self._executors[key] = executor  # The last in the order of use.
    if len(self._executors) > _MAX_EXECUTORS:
      self._executors.pop(next(iter(self._executors))).close()
    return executor

  def clean_up_executor(self, cardinalities: Any) -> None:
    executor = self._executors.pop(cardinalities.get(tff.CLIENTS, 0), None)
    if executor is not None:
      executor.close()


class LocalContext(tff.framework.SyncContext):
  """Runs TFF computations on a worker process; made by `local_runtime`.

  Contexts belong to threads. Another thread uses this one after
  `with tff.framework.get_context_stack().install(context):`; calls of several
  threads are correct, and take turns.
  """

  def __init__(
    self, worker: _worker_process.WorkerProcess, max_message_megabytes: int
  ):
    max_bytes = max_message_megabytes * 1000 * 1000
    self._worker = worker
    # The IPv4 form: a worker on [::] takes it too, and no resolver is needed.
    self._channel = grpc.insecure_channel(
      f'ipv4:127.0.0.1:{worker.port}',
      [
        ('grpc.max_receive_message_length', max_bytes),
        ('grpc.max_send_message_length', max_bytes),
        ('grpc.enable_http_proxy', 0),
        ('grpc.use_local_subchannel_pool', 1),
      ],
    )
    stub = tff.framework.RemoteExecutorGrpcStub(
      _UnwatchedChannel(self._channel)
    )
    self._async_context = tff.framework.AsyncExecutionContext(
      executor_fn=_ExecutorFactory(_GuardedStub(stub, worker)),
      compiler_fn=tff.backends.native.desugar_and_transform_to_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    # TFF's own synchronous context has such a thread too, but never ends it.
    self._turn = asyncio.Lock()
    self._lock = threading.Lock()
    self._closed = False
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._run_loop, name='tvdp_tf event loop', daemon=True
    )
    self._thread.start()

  @property
  def worker_pid(self) -> int:
    """The worker's process id."""
    return self._worker.pid

  def worker_log(self) -> str:
    """The end of what the worker wrote, such as the output of `tf.print`."""
    return self._worker.log_tail()

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
    with self._lock:
      if self._closed:
        raise WorkerError('the local runtime is closed')
      future = asyncio.run_coroutine_threadsafe(
        self._invoke_in_turn(comp, arg), self._loop
      )
    try:
      return future.result()
    except concurrent.futures.CancelledError as error:
      raise WorkerError('the local runtime was closed in a call') from error

  async def _invoke_in_turn(self, comp: Any, arg: Any) -> Any:
    # A call that fails closes its executor, which another call may be using.
    async with self._turn:
      return await self._async_context.invoke(comp, arg)

  def close(self) -> None:
    """Ends the worker, and with it any call that still runs."""
    with self._lock:
      if self._closed:
        return
      self._closed = True
    # First the worker: a call that waits for it holds the event loop.
    self._worker.stop()
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._channel.close()

  def _run_loop(self) -> None:
    with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
      runner.get_loop().run_forever()


class _LocalRuntime(contextlib.AbstractContextManager[LocalContext]):
  """Starts a worker and its context at the entry, ends both at the exit.

  A class, because a generator that is never left is finalized when the
  interpreter has already taken its modules apart.
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
  max_message_megabytes: int = _MAX_MESSAGE_MEGABYTES,
  worker_binary: str | os.PathLike[str] | None = None,
) -> contextlib.AbstractContextManager[LocalContext]:
  """Runs TFF computations of this thread on a worker process of this host.

  The worker inherits the environment (`TF_CPP_MIN_LOG_LEVEL`, for one) and has
  neither CUDA nor XLA. It listens on all interfaces and executes any graph: see
  the module's note on security. Enter and leave the block in one thread.

  Args:
    max_concurrent_computation_calls: How many clients the worker computes at
      the same time, against running out of memory; `None` for no limit.
    startup_timeout_s: Seconds within which the worker has to listen.
    max_message_megabytes: Longest argument, computation or result, in 10^6
      bytes, from 1 to 2000.
    worker_binary: Path of another build of TFF's worker; `None` for the one in
      the `tensorflow_federated` package.

  Returns:
    A context manager. Its block starts the worker and has the installed
    `LocalContext` as its target; the end of the block ends the worker.

  Raises:
    ValueError: An argument is out of range.
    WorkerError: (At the entry) the worker did not start, or this is not Linux.
      (In the block) the worker died: computations raise within seconds of its
      death, and it is not restarted, so leave the block and enter another.
  """
  calls = -1  # The worker's word for no limit.
  if max_concurrent_computation_calls is not None:
    calls = _validate.integer(
      'max_concurrent_computation_calls', max_concurrent_computation_calls
    )
  megabytes = _validate.integer(
    'max_message_megabytes',
    max_message_megabytes,
    maximum=_MAX_MESSAGE_MEGABYTES,
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
  )
  return _LocalRuntime(start_worker, megabytes)


drop_stock_default_context()
