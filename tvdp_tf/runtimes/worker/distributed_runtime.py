"""Runs TFF computations on workers of several hosts, some of which may fail.

```
with remote_runtime(['one:8443', 'two:8443'], credentials=...) as context:
  state = process.next(state, data).state
```

A computation is split at its aggregation by TFF's own compiler
(`tff.backends.native.compile_to_mergeable_comp_form`). Each worker adds up a
share of the clients; then one of them merges the sums and does the server's
part. Shares and the order of the sums depend only on the number of workers, not
on which of them are alive or fast: if noise is a function of its key, a
computation has the same result on every attempt.

A worker is lost when it closes a connection or does not answer a call within
`timeout_s`; dead, disconnected and hung workers cannot be distinguished. Only
its share goes to another worker, with the same noise keys: this computes the
same release again, not another one. The worker is used again once it answers.
TFF itself would wait forever.

If the workers draw the key (`central` without a seed), a lost attempt had
different noise, but nothing of it was released.

docs/DISTRIBUTED.md explains how to start workers, and how to protect them.
"""

import collections
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import tensorflow_federated as tff
from absl import logging

from tvdp_tf import _validate, errors
from tvdp_tf.runtimes.worker import _worker_client, worker_runtime

WorkerError = worker_runtime.WorkerError

# How often a worker may fail with the same work.
_MAX_TRIES = 2
_POLL_INTERVAL_S = 0.05
# gRPC's defaults are 20 s for a connection, and up to 120 s between attempts.
_RECONNECT_OPTIONS = (
  ('grpc.initial_reconnect_backoff_ms', 200),
  ('grpc.min_reconnect_backoff_ms', 5000),
  ('grpc.max_reconnect_backoff_ms', 2000),
)


def _shared_compiler() -> _worker_client.Compiler:
  """TFF's compiler, which compiles a computation once for all workers."""
  lock = threading.Lock()
  compiled = functools.lru_cache(
    tff.backends.native.desugar_and_transform_to_native
  )

  def compile_once(comp: Any) -> Any:
    with lock:
      return compiled(comp)

  return compile_once


def _is_at_clients(type_: tff.Type) -> bool:
  return isinstance(type_, tff.FederatedType) and type_.placement is tff.CLIENTS


def _count_clients(value: Any, type_: tff.Type) -> int:
  """The number of clients of an argument; 0 if it has none."""
  if isinstance(type_, tff.StructType):
    elements = zip(tff.structure.from_container(value), type_, strict=True)
    return max((_count_clients(*element) for element in elements), default=0)
  if _is_at_clients(type_) and not type_.all_equal:
    return len(value)
  return 0


def _of_clients(value: Any, type_: tff.Type, clients: slice) -> Any:
  """Returns an argument restricted to some of its clients."""
  if isinstance(type_, tff.StructType):
    elements = zip(
      tff.structure.to_elements(tff.structure.from_container(value)),
      type_,
      strict=True,
    )
    return tff.structure.Struct(
      [
        (name, _of_clients(element, element_type, clients))
        for (name, element), element_type in elements
      ]
    )
  if _is_at_clients(type_) and not type_.all_equal:
    return value[clients]
  return value


class RemoteContext(tff.framework.SyncContext):
  """Runs TFF computations on several workers; made by `remote_runtime`.

  Contexts belong to threads. To use this one in another thread, install it
  there with `with tff.framework.get_context_stack().install(context):`.
  """

  def __init__(
    self, workers: Sequence[_worker_client.RemoteWorker], timeout_s: float
  ):
    self._workers = workers
    self._timeout_s = timeout_s
    self._closed = False
    self._forms: dict[Any, tff.framework.MergeableCompForm] = {}
    self._threads = concurrent.futures.ThreadPoolExecutor(
      len(workers), 'tvdp_tf remote worker'
    )

  @property
  def lost_workers(self) -> dict[str, str]:
    """Addresses of the workers that are lost now, each with the reason."""
    return {w.target: w.reason for w in self._workers if w.is_lost}

  def wait_for_workers(self, timeout_s: float) -> None:
    """Waits for the workers.

    Args:
      timeout_s: Seconds to wait for all of them.

    Raises:
      WorkerError: If no worker is there by then.
    """
    deadline = time.monotonic() + timeout_s
    while [w for w in self._workers if not w.is_there()]:
      if time.monotonic() > deadline:
        break
      time.sleep(_POLL_INTERVAL_S)
    list(self._threads.map(_worker_client.RemoteWorker.diagnose, self._workers))
    if all(w.is_lost for w in self._workers):
      raise self._nobody()
    for target, reason in self.lost_workers.items():
      logging.warning('worker %s is lost: %s', target, reason)

  def _nobody(self) -> WorkerError:
    reasons = '; '.join(f'{w.target}: {w.reason}' for w in self._workers)
    return WorkerError(f'no worker is left: {reasons}')

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation on the workers; TFF calls this.

    Args:
      comp: The computation. If it has clients in its argument and results at
        the server, it is split over the workers, and no aggregation may depend
        on another.
      arg: Its argument, or `None`.

    Returns:
      Its result.

    Raises:
      WorkerError: No worker is left, or the runtime is closed.
    """
    if self._closed:
      raise WorkerError('the remote runtime is closed')
    signature = comp.type_signature
    count = 0
    if arg is not None and not tff.types.contains(
      signature.result, _is_at_clients
    ):
      count = _count_clients(arg, signature.parameter)
    if not count:
      return self._run(comp, arg, 0)
    if comp not in self._forms:
      self._forms[comp] = tff.backends.native.compile_to_mergeable_comp_form(
        comp
      )
    form = self._forms[comp]
    shares = min(len(self._workers), count)
    ends = [count * i // shares for i in range(shares + 1)]
    sums = [
      self._threads.submit(
        self._run,
        form.up_to_merge,
        _of_clients(arg, signature.parameter, slice(*ends[i : i + 2])),
        i,
      )
      for i in range(shares)
    ]
    concurrent.futures.wait(sums)
    merged = functools.reduce(
      lambda one, other: self._run(
        form.merge, tff.structure.Struct.unnamed(one, other), 0
      ),
      [future.result() for future in sums],
    )
    # The server's part uses no client.
    server = _of_clients(arg, signature.parameter, slice(0))
    return self._run(
      form.after_merge, tff.structure.Struct.unnamed(server, merged), 0
    )

  def _run(self, comp: Any, arg: Any, preferred: int) -> Any:
    """Runs a computation on a worker, or on another if that one is lost."""
    tries: collections.Counter[_worker_client.RemoteWorker] = (
      collections.Counter()
    )
    while True:
      worker = self._pick(preferred, tries)
      tries[worker] += 1
      with contextlib.suppress(_worker_client.LostError):
        return worker.invoke(comp, arg)

  def _pick(
    self,
    preferred: int,
    tries: collections.Counter[_worker_client.RemoteWorker],
  ) -> _worker_client.RemoteWorker:
    """Returns the first available worker, starting with the preferred one."""
    workers = [*self._workers[preferred:], *self._workers[:preferred]]
    deadline = time.monotonic() + self._timeout_s
    said = False
    while True:
      if self._closed:
        raise WorkerError('the remote runtime is closed')
      left = [w for w in workers if tries[w] < _MAX_TRIES]
      there = [w for w in left if w.is_there()]
      if there:
        return min(there, key=lambda worker: tries[worker])
      if not left or time.monotonic() > deadline:
        raise self._nobody()
      if not said and self.lost_workers:
        said = True
        logging.warning(
          'no worker is left: waiting for one to answer again, at most %g s;'
          ' Ctrl-C ends the wait (%s)',
          self._timeout_s,
          '; '.join(f'{w}: {why}' for w, why in self.lost_workers.items()),
        )
      time.sleep(_POLL_INTERVAL_S)

  def close(self) -> None:
    """Disconnects from the workers, which ends any running call."""
    self._closed = True
    for worker in self._workers:
      worker.close()
    self._threads.shutdown()


def tls_credentials(
  folder: str | os.PathLike[str],
) -> grpc.ChannelCredentials:
  """Returns credentials for workers behind `deploy/tls/haproxy.cfg`.

  Args:
    folder: The folder with `ca.crt`, the authority of the workers'
      certificates, and `tls.crt` and `tls.key`, the trainer's own. It is
      created by `deploy/tls/certificates.sh`.

  Raises:
    UsageError: If a file cannot be read.
  """
  try:
    ca, key, certificate = (
      pathlib.Path(folder, name).read_bytes()
      for name in ('ca.crt', 'tls.key', 'tls.crt')
    )
  except OSError as error:
    raise errors.UsageError(
      f'cannot read {error.filename}: {error.strerror}'
    ) from error
  return grpc.ssl_channel_credentials(ca, key, certificate)


def remote_runtime(
  targets: Sequence[str],
  *,
  credentials: grpc.ChannelCredentials | None = None,
  insecure: bool = False,
  timeout_s: float = 300.0,
  startup_timeout_s: float = 30.0,
  max_message_megabytes: int = _worker_client.MAX_MESSAGE_MEGABYTES,
) -> contextlib.AbstractContextManager[RemoteContext]:
  """Runs TFF computations of this thread on remote workers.

  Enter and leave the block in the same thread. Client data must be arguments:
  workers cannot read files of this host (`client_blocks.read_in_worker`).

  Args:
    targets: gRPC addresses of the workers: 'host:port', 'unix:/path'. They
      share the clients of a computation evenly.
    credentials: TLS credentials, such as `tls_credentials`.
    insecure: Whether to work without TLS. Then anyone on the network path can
      read and change the client data and the models.
    timeout_s: The longest duration of one call; it must exceed the time that a
      worker needs for its share of the clients. A loss is noticed after this
      time at the latest, and if all workers are lost, this is how long to wait
      for one to return.
    startup_timeout_s: How long to wait for the workers at the entry.
    max_message_megabytes: Largest argument, computation or result, in 10^6
      bytes, from 1 to 2000; the workers have their own limit.

  Returns:
    A context manager whose target is the context installed in its block.

  Raises:
    ValueError: An argument is out of range, or not exactly one of `credentials`
      and `insecure` is given.
    WorkerError: (At the entry) no worker answers. (In the block) no worker is
      left, or each of them has failed twice with the same work.
  """
  if isinstance(targets, str) or not targets:
    raise ValueError(f'targets must be a list of addresses, got {targets!r}')
  if len(set(targets)) < len(targets):
    raise ValueError(f'targets must be distinct, got {targets!r}')
  if (credentials is None) != insecure:
    raise ValueError(
      'insecure must be True if there are no credentials, and only then, got '
      f'{insecure!r}'
    )
  _validate.positive('timeout_s', timeout_s)
  _validate.positive('startup_timeout_s', startup_timeout_s)
  options = [
    *_worker_client.channel_options(
      _validate.integer(
        'max_message_megabytes',
        max_message_megabytes,
        maximum=_worker_client.MAX_MESSAGE_MEGABYTES,
      )
    ),
    *_RECONNECT_OPTIONS,
  ]

  def connect(target: str) -> grpc.Channel:
    if credentials is None:
      return grpc.insecure_channel(target, options)
    return grpc.secure_channel(target, credentials, options)

  @contextlib.contextmanager
  def installed() -> Iterator[RemoteContext]:
    compiler = _shared_compiler()
    workers = [
      _worker_client.RemoteWorker(
        target, functools.partial(connect, target), timeout_s, compiler
      )
      for target in targets
    ]
    with contextlib.closing(RemoteContext(workers, timeout_s)) as context:
      context.wait_for_workers(startup_timeout_s)
      with tff.framework.get_context_stack().install(context):
        yield context

  return installed()
