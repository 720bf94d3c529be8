"""A worker of another host, which may be lost and come back.

It is lost when it breaks a connection off, or gives a call no answer in time;
then it gets a new connection, and is there again once it answers on that.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from absl import logging

from tvdp_tf.runtimes.worker import _worker_client

_DIAGNOSIS_TIMEOUT_S = 2.0
# What a broken connection, a deadline, a worker that has been restarted, and a
# proxy that does not let us in come as.
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
  """The worker is lost, or was so a moment ago."""


def _reason(error: grpc.RpcError, timeout_s: float) -> str:
  assert isinstance(error, grpc.Call)
  if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
    return f'no answer within {timeout_s:g} s'
  return str(error.details()).rpartition('last error: ')[2]


class RemoteWorker:
  """One worker, over one connection after the other.

  Attributes:
    target: Its address.
    is_lost: Whether it is lost now.
    reason: Why it is, or was last; empty if it never was.
  """

  def __init__(
    self,
    target: str,
    connect: Callable[[], grpc.Channel],
    timeout_s: float,
    compiler: _worker_client.Compiler,
  ):
    """Begins to connect.

    Args:
      target: Its address.
      connect: Makes a channel to it.
      timeout_s: How long one call may wait for its answer.
      compiler: TFF's, shared with other workers.
    """
    self.target = target
    self.is_lost = True
    self.reason = ''
    self._connect = connect
    self._timeout_s = timeout_s
    self._compiler = compiler
    self._lock = threading.Lock()
    self._client: _worker_client.WorkerClient | None = None
    self._closed = False
    self._open()

  def _open(self) -> None:
    """A new connection, on which the worker is asked whether it is there."""
    self._channel = _worker_client.opened(self._connect())
    # No such method: the answer is an error, and the worker keeps no state.
    self._ask = self._channel.unary_unary('/tvdp_tf/AreYouThere')
    self._answer = self._ask.future(b'', wait_for_ready=True)

  def is_there(self) -> bool:
    """Whether it can be used now; does not wait."""
    with self._lock:
      if self._closed:
        return False
      if self._client is None and self._answer.done():
        if self._answer.code() is grpc.StatusCode.UNIMPLEMENTED:
          logging.info('worker %s is there', self.target)
          self._client = _worker_client.WorkerClient(
            self._channel, self._guard, self._timeout_s, self._compiler
          )
          self.is_lost = False
        else:
          self._answer = self._ask.future(b'', wait_for_ready=True)
      return self._client is not None

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation; raises `LostError` if the worker is lost by that."""
    client = self._client
    if client is None:
      raise LostError
    try:
      return client.invoke(comp, arg)
    except LostError as error:
      self._lose(client, str(error))
      raise
    except _worker_client.ClientClosedError as error:
      raise LostError(self.reason) from error  # Lost by another thread.

  def _lose(self, client: _worker_client.WorkerClient, reason: str) -> None:
    with self._lock:
      if self._client is not client:
        return
      logging.warning('worker %s is lost: %s', self.target, reason)
      self.is_lost, self.reason = True, reason
      self._client = None
      self._open()
    client.close()

  def diagnose(self) -> None:
    """Finds out why there is no connection, if there is none."""
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
    """Ends the connection, and with it any call that still runs."""
    with self._lock:
      self._closed = True
      client, self._client = self._client, None
      _worker_client.close_channel(self._channel)
    if client is not None:
      client.close()
