"""Runs TFF computations on one worker, over one gRPC channel.

TFF's own context of this kind repeats a call forever if gRPC reports that the
worker is unavailable or has lost its state. It also never closes unused
executors, and never ends its threads.

A worker on another host may be lost and come back. It is lost when it closes a
connection or does not answer a call in time. Then a new connection is opened,
and the worker is used again once it answers there.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import tensorflow_federated as tff
from absl import logging

# Protocol buffers are limited to 2 GiB.
MAX_MESSAGE_MEGABYTES = 2000

_MAX_EXECUTORS = 10

# Entered around every call of the worker: converts gRPC's exceptions to those
# for the caller. TFF would repeat a `RetryableError` forever.
Guard = Callable[[], contextlib.AbstractContextManager[None]]

Compiler = Callable[[Any], Any]


class ClientClosedError(Exception):
  """The client was closed before the computation was finished."""


def channel_options(max_message_megabytes: int) -> list[tuple[str, int]]:
  """Options of a gRPC channel to a worker.

  Args:
    max_message_megabytes: Largest message in either direction, in 10^6 bytes.
  """
  max_bytes = max_message_megabytes * 1000 * 1000
  return [
    ('grpc.max_receive_message_length', max_bytes),
    ('grpc.max_send_message_length', max_bytes),
    ('grpc.enable_http_proxy', 0),
    ('grpc.use_local_subchannel_pool', 1),
  ]


# Channels that `close_channel` has not closed.
_open_channels: set[grpc.Channel] = set()


def opened(channel: grpc.Channel) -> grpc.Channel:
  """Registers a channel to be closed when the program ends, if not before.

  An interrupt at the wrong time may leave a channel open. Python would then
  wait forever at its end for gRPC's threads, which it has stopped.

  Args:
    channel: A channel before its first call; close it by `close_channel`.
  """
  _open_channels.add(channel)
  return channel


def close_channel(channel: grpc.Channel) -> None:
  """Closes a channel and ends its calls; it is safe to call it again."""
  channel.close()
  _open_channels.discard(channel)


# The channels belong to the parent, not to a fork.
os.register_at_fork(after_in_child=_open_channels.clear)


@atexit.register
def _close_channels() -> None:
  for channel in [*_open_channels]:
    close_channel(channel)


class _StubChannel:
  """The channel for TFF's stub: with deadlines, and without a watch.

  The stub subscribes to the channel's state for `is_ready`, which starts a
  thread that fails when the channel is closed. The calls themselves tell more.
  """

  def __init__(self, channel: grpc.Channel, timeout_s: float | None):
    self._channel = channel
    self._timeout_s = timeout_s

  def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
    pass

  def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    call = self._channel.unary_unary(*args, **kwargs)
    return functools.partial(call, timeout=self._timeout_s)


class _GuardedStub:
  """A TFF executor stub whose calls are guarded."""

  def __init__(self, stub: tff.framework.RemoteExecutorStub, guard: Guard):
    self._stub = stub
    self._guard = guard

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    method = getattr(self._stub, name)

    def call(request: Any) -> Any:
      with self._guard():
        return method(request)

    def call_if_possible(request: Any) -> Any:
      with contextlib.suppress(Exception):
        return call(request)

    # A lost worker's values are gone, but their finalizers may run later.
    return call_if_possible if name.startswith('dispose') else call


class _ExecutorFactory(tff.framework.ExecutorFactory):
  """Keeps an executor for each of the last few numbers of clients.

  An executor has about eight threads in the worker. TFF's own factory drops the
  oldest one without closing it, so threads would accumulate with cohorts of
  random size, as in Poisson sampling.
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
    self._executors[key] = executor  # Most recently used.
    if len(self._executors) > _MAX_EXECUTORS:
      self._executors.pop(next(iter(self._executors))).close()
    return executor

  def clean_up_executor(self, cardinalities: Any) -> None:
    executor = self._executors.pop(cardinalities.get(tff.CLIENTS, 0), None)
    if executor is not None:
      executor.close()


class WorkerClient:
  """Runs computations on a worker; calls from several threads take turns."""

  def __init__(
    self,
    channel: grpc.Channel,
    guard: Guard,
    timeout_s: float | None = None,
    compiler: Compiler = tff.backends.native.desugar_and_transform_to_native,
  ):
    """Starts a thread, which runs until `close`.

    Args:
      channel: Channel to the worker, with `channel_options`; `close` closes it.
      guard: Context for every call.
      timeout_s: How long a call may wait for its answer; None for no limit.
      compiler: TFF's native compiler, or one that several clients share.
    """
    self._channel = channel
    self._guard = guard
    stub = tff.framework.RemoteExecutorGrpcStub(
      _StubChannel(channel, timeout_s)
    )
    self._async_context = tff.framework.AsyncExecutionContext(
      executor_fn=_ExecutorFactory(_GuardedStub(stub, self._guard_if_open)),
      compiler_fn=compiler,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    # TFF's own synchronous context has such a thread, too, but never ends it.
    self._turn = asyncio.Lock()
    self._lock = threading.Lock()
    self._closed = False
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._run_loop, name='tvdp_tf event loop', daemon=True
    )
    self._thread.start()

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation on the worker.

    Args:
      comp: The computation.
      arg: Its argument, or `None`.

    Returns:
      Its result.

    Raises:
      ClientClosedError: If the client is closed before or during the call.
    """
    with self._lock:
      if self._closed:
        raise ClientClosedError('is closed')
      future = asyncio.run_coroutine_threadsafe(
        self._invoke_in_turn(comp, arg), self._loop
      )
    try:
      return future.result()
    except concurrent.futures.CancelledError as error:
      raise ClientClosedError('was closed in a call') from error

  async def _invoke_in_turn(self, comp: Any, arg: Any) -> Any:
    # A call that fails closes its executor, which another call may be using.
    async with self._turn:
      return await self._async_context.invoke(comp, arg)

  def close(self) -> None:
    """Releases the thread and the channel; it is safe to call it again."""
    with self._lock:
      if self._closed:
        return
      self._closed = True
    # The channel first: a call that waits for an answer blocks the event loop.
    close_channel(self._channel)
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()

  @contextlib.contextmanager
  def _guard_if_open(self) -> Iterator[None]:
    try:
      with self._guard():
        yield
    except Exception as error:
      if self._closed:
        raise ClientClosedError('was closed in a call') from error
      raise

  def _run_loop(self) -> None:
    with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
      runner.get_loop().run_forever()


_DIAGNOSIS_TIMEOUT_S = 2.0
# Status codes of a broken connection, a deadline, a restarted worker, and a
# proxy that refuses access.
_LOST_CODES = frozenset(
  {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
  }
)


class LostError(Exception):
  """The worker is lost, or was lost a moment ago."""


def _reason(error: grpc.RpcError, timeout_s: float) -> str:
  assert isinstance(error, grpc.Call)
  if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
    return f'no answer within {timeout_s:g} s'
  return str(error.details()).rpartition('last error: ')[2]


class RemoteWorker:
  """A worker that may be reached over one connection after the other.

  Attributes:
    target: The worker's address.
    is_lost: Whether it is lost now.
    reason: Why it is or was last lost; empty if it never was.
  """

  def __init__(
    self,
    target: str,
    connect: Callable[[], grpc.Channel],
    timeout_s: float,
    compiler: Compiler,
  ):
    """Starts to connect.

    Args:
      target: The worker's address.
      connect: Creates a channel to the worker.
      timeout_s: How long a call may wait for its answer.
      compiler: TFF's compiler, shared with other workers.
    """
    self.target = target
    self.is_lost = True
    self.reason = ''
    self._connect = connect
    self._timeout_s = timeout_s
    self._compiler = compiler
    self._lock = threading.Lock()
    self._client: WorkerClient | None = None
    self._closed = False
    self._open()

  def _open(self) -> None:
    """Opens a new connection, and asks the worker whether it is there."""
    self._channel = opened(self._connect())
    # There is no such method: the answer is an error, and no state is kept.
    self._ask = self._channel.unary_unary('/tvdp_tf/AreYouThere')
    self._answer = self._ask.future(b'', wait_for_ready=True)

  def is_there(self) -> bool:
    """Whether the worker can be used now; does not wait."""
    with self._lock:
      if self._closed:
        return False
      if self._client is None and self._answer.done():
        if self._answer.code() is grpc.StatusCode.UNIMPLEMENTED:
          logging.info('worker %s is there', self.target)
          self._client = WorkerClient(
            self._channel, self._guard, self._timeout_s, self._compiler
          )
          self.is_lost = False
        else:
          self._answer = self._ask.future(b'', wait_for_ready=True)
      return self._client is not None

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation; raises `LostError` if the worker gets lost."""
    client = self._client
    if client is None:
      raise LostError
    try:
      return client.invoke(comp, arg)
    except LostError as error:
      self._lose(client, str(error))
      raise
    except ClientClosedError as error:
      raise LostError(self.reason) from error  # Another thread lost it.

  def _lose(self, client: WorkerClient, reason: str) -> None:
    with self._lock:
      if self._client is not client:
        return
      logging.warning('worker %s is lost: %s', self.target, reason)
      self.is_lost, self.reason = True, reason
      self._client = None
      self._open()
    client.close()

  def diagnose(self) -> None:
    """Determines why there is no connection, if there is none."""
    if not self.is_lost:
      return
    try:
      self._ask(b'', timeout=_DIAGNOSIS_TIMEOUT_S)
    except grpc.RpcError as error:
      self.reason = _reason(error, _DIAGNOSIS_TIMEOUT_S)

  @contextlib.contextmanager
  def _guard(self) -> Iterator[None]:
    try:
      yield
    except grpc.RpcError as error:
      if isinstance(error, grpc.Call) and error.code() in _LOST_CODES:
        raise LostError(_reason(error, self._timeout_s)) from error
      raise

  def close(self) -> None:
    """Closes the connection, which ends any running call."""
    with self._lock:
      self._closed = True
      client, self._client = self._client, None
      close_channel(self._channel)
    if client is not None:
      client.close()
