"""A child process that serves TFF computations and cannot outlive its parent.

TFF's own starter of local workers ends them in a `__del__`, which does not run
when the parent is killed and fails when the interpreter shuts down, so workers
stay behind. Here, the Linux kernel ends the worker with its parent
(`PR_SET_PDEATHSIG`), whatever ended the parent.

The worker is reached through a socket that nobody else can find, or through an
open port. Once the worker has inherited the descriptors, `hand_over` closes
them in this process.

This module deals with processes and logs. All it knows about TFF is that its
worker listens on the port that `worker_launcher` passes to it.
"""

import atexit
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from tvdp_tf import errors
from tvdp_tf.runtimes.worker import worker_launcher

_ANSWER_TIMEOUT_S = 10.0


class PrivateSocket:
  """An unnamed unix socket into a worker's own network.

  It is bound in a folder of mode 0700, and both are removed before the worker
  runs, so nothing can be left behind. Only a descriptor remains, by which this
  process can connect; others would have to read this process's memory.

  Attributes:
    target: The worker's address for gRPC in this process.
    port: The worker's port, in its own network.
    flags: The launcher's flags for the socket.
    descriptors: The descriptors that the launcher must inherit.
  """

  def __init__(self) -> None:
    """Listens; connections wait until the worker takes them.

    Raises:
      OSError: If there is no folder for temporary files.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
      with tempfile.TemporaryDirectory() as folder:
        # Through /proc, because a socket's address is limited to 107 bytes.
        folder_fd = os.open(folder, os.O_PATH)
        try:
          listener.bind(f'/proc/self/fd/{folder_fd}/worker')
          self._path_fd = os.open('worker', os.O_PATH, dir_fd=folder_fd)
        finally:
          os.close(folder_fd)
      listener.listen()
      self._control, relay_control = socket.socketpair()
    except BaseException:
      listener.close()
      raise
    self._workers_ends = [listener, relay_control]
    self._lock = threading.Lock()
    self.target = f'unix:/proc/self/fd/{self._path_fd}'
    self.port = worker_launcher.CONTAINED_PORT
    self.descriptors = [end.fileno() for end in self._workers_ends]
    self.flags = ['--descriptors', *map(str, self.descriptors)]

  def hand_over(self) -> None:
    """Closes what the worker has inherited."""
    for end in self._workers_ends:
      end.close()

  def path_in_worker(self, descriptor: int) -> str:
    """Returns a path by which the worker can open a file of this process.

    In its own user namespace, it may not look into this process's `/proc`. The
    file stays open as long as the worker runs.

    Args:
      descriptor: Descriptor of the file.

    Returns:
      A path for the worker.

    Raises:
      OSError: If the relay does not answer.
    """
    with self._lock:
      self._control.settimeout(_ANSWER_TIMEOUT_S)
      socket.send_fds(self._control, [b'f'], [descriptor])
      path = self._control.recv(100).decode()
    if not path:
      raise ConnectionResetError('the relay has ended')
    return path

  def close(self) -> None:
    """Waits for the end of the relay, whose worker has ended.

    It is safe to call it again.
    """
    self.hand_over()
    with self._lock:
      if self._control.fileno() < 0:
        return
      with contextlib.suppress(OSError):
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        self._control.recv(1)  # Returns when its last holder has ended.
      self._control.close()
      os.close(self._path_fd)


class OpenPort:
  """A free TCP port of this host, on all interfaces.

  Until `hand_over` is called, nobody else gets the port, neither a program that
  asks for any free port nor one of another user. The worker gets it, because
  gRPC sets SO_REUSEPORT like the reservation. The reservation never listens, so
  it takes no connection from the worker.

  Attributes:
    target: The worker's address for gRPC.
    port: The port.
    flags: The launcher's flags for the port.
    descriptors: The descriptors that the launcher must inherit: none.
  """

  def __init__(self) -> None:
    """Reserves the port.

    Raises:
      OSError: If there is no free port.
    """
    dual_stack = socket.has_dualstack_ipv6()
    self._reserved = socket.socket(
      socket.AF_INET6 if dual_stack else socket.AF_INET
    )
    try:
      if dual_stack:
        self._reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
      self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      self._reserved.bind(('', 0))
    except OSError:
      self._reserved.close()
      raise
    self.port: int = self._reserved.getsockname()[1]
    # An IPv4 address: a worker on [::] accepts it, and no resolver is needed.
    self.target = f'ipv4:127.0.0.1:{self.port}'
    self.descriptors: list[int] = []
    self.flags = ['--open_port', str(self.port)]

  def path_in_worker(self, descriptor: int) -> str:
    """Returns a path by which the worker can open a file of this process."""
    return f'/proc/{os.getpid()}/fd/{descriptor}'

  def hand_over(self) -> None:
    """Leaves the port to the worker, which is listening on it."""
    self._reserved.close()

  def close(self) -> None:
    """Hands the socket over, as `hand_over` does."""
    self.hand_over()


_POLL_INTERVAL_S = 0.005
_KILL_TIMEOUT_S = 10.0
_LOG_TAIL_BYTES = 4000


class WorkerError(errors.TvdpError):
  """The worker process did not start, was lost, or finally refused a call.

  A traceback also shows, as a note, the worker's command and last log lines.
  """


def _listens(pid: int, port: int) -> bool:
  """Whether the process listens on `port`, and no other process does.

  A successful connect would prove less: with SO_REUSEPORT a second process of
  the same user may listen on the port too and take half of the connections.
  """
  proc = pathlib.Path('/proc', str(pid))
  listening = set()
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    for table in ('tcp', 'tcp6'):  # A kernel without IPv6 has no tcp6.
      for row in (proc / 'net' / table).read_text().splitlines()[1:]:
        fields = row.split()
        if fields[3] == '0A' and int(fields[1].rpartition(':')[2], 16) == port:
          listening.add(f'socket:[{fields[9]}]')
  owned = set()
  with contextlib.suppress(FileNotFoundError, ProcessLookupError):
    for descriptor in (proc / 'fd').iterdir():
      with contextlib.suppress(FileNotFoundError):
        owned.add(os.readlink(descriptor))
  return bool(listening) and listening <= owned


class WorkerProcess:
  """A running worker that this process can reach.

  It ends with `stop()`, with the interpreter, or with this process, however
  that ends (`SIGKILL` and `os._exit` included). It has its own session, so a
  Ctrl-C in the terminal does not reach it; it reads nothing, and writes to an
  unlinked temporary file, so nothing of it stays on disk.
  """

  def __init__(
    self,
    binary: str,
    flags: Sequence[str],
    startup_timeout_s: float,
    contained: bool = True,
  ):
    """Starts the worker and returns once it listens.

    Args:
      binary: Path of an executable that takes `--port=<number>`.
      flags: Its other command line arguments.
      startup_timeout_s: The number of seconds within which it must listen.
      contained: Whether it gets its own network namespace, so that only this
        process can reach it; else it listens on all interfaces of this host.

    Raises:
      WorkerError: It ended or did not listen in time, this is not Linux, or it
        cannot be contained.
    """
    if sys.platform != 'linux':
      raise WorkerError(
        'a local worker needs Linux: elsewhere nothing ends it when this '
        f'process is killed (this is {sys.platform})'
      )
    self._parent_pid = os.getpid()
    self._lock = threading.Lock()
    self._last_log = ''
    self._started = threading.Event()
    self._exited = threading.Event()
    self._process: subprocess.Popen[bytes] | None = None
    self._start_error: Exception | None = None
    self._entrance: PrivateSocket | OpenPort
    self._entrance = PrivateSocket() if contained else OpenPort()
    self._command = [binary, *flags]
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
    # The signal is sent when the *thread* that forked ends, so one thread forks
    # and stays. It is a daemon, so that the interpreter does not wait for it.
    self._keeper = threading.Thread(
      target=self._keep, name='tvdp_tf worker keeper', daemon=True
    )
    atexit.register(self.stop)
    try:
      self._keeper.start()
      self._await_listening(startup_timeout_s)
      self._entrance.hand_over()
    except BaseException:
      self.stop()
      raise

  @property
  def pid(self) -> int:
    """The worker's process id."""
    assert self._process is not None  # Set before the constructor returns.
    return self._process.pid

  @property
  def target(self) -> str:
    """The worker's address for gRPC in this process."""
    return self._entrance.target

  @property
  def has_exited(self) -> bool:
    """Whether the worker has ended."""
    return self._exited.is_set()

  def wait_for_exit(self, timeout_s: float) -> bool:
    """Waits at most `timeout_s` seconds; returns whether the worker ended."""
    return self._exited.wait(timeout_s)

  def path_in_worker(self, descriptor: int) -> str:
    """Returns a path by which the worker can open a file of this process.

    Args:
      descriptor: Descriptor of the file, which a contained worker keeps open.

    Raises:
      WorkerError: The worker is lost.
    """
    try:
      return self._entrance.path_in_worker(descriptor)
    except OSError as error:
      raise self.error('the worker takes no file') from error

  def log_tail(self) -> str:
    """Returns the last lines that the worker wrote, at most 4000 bytes."""
    with self._lock:
      if not self._log.closed:
        # pread does not change the file offset, which the worker shares.
        start = max(0, os.fstat(self._log.fileno()).st_size - _LOG_TAIL_BYTES)
        tail = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, start)
        self._last_log = tail.decode(errors='replace')
      return self._last_log

  def error(self, what: str) -> WorkerError:
    """Returns an error with what happened, the exit status and the last log."""
    if self._process is None or self._process.returncode is None:
      status = ''
    elif self._process.returncode < 0:
      number = -self._process.returncode
      status = f' (killed by signal {number}, {signal.strsignal(number)})'
    else:
      status = f' (exit status {self._process.returncode})'
    log = self.log_tail().rstrip() or '(it wrote nothing)'
    error = WorkerError(f'{what}{status}: {log.splitlines()[-1]}')
    error.add_note(f'{" ".join(self._command)}\nits last log lines:\n{log}')
    return error

  def stop(self) -> None:
    """Kills the worker and waits for its end; it is safe to call it again."""
    if os.getpid() != self._parent_pid:
      return  # A fork of the parent must not end the worker.
    atexit.unregister(self.stop)
    if self._keeper.ident is not None:  # Otherwise the thread did not start.
      self._started.wait(_KILL_TIMEOUT_S)
      if self._process is not None and not self._exited.is_set():
        # It needs no orderly shutdown, and SIGKILL cannot be ignored.
        self._process.kill()
      self._keeper.join(_KILL_TIMEOUT_S)
    self._entrance.close()
    self.log_tail()
    with self._lock:
      self._log.close()

  def _keep(self) -> None:
    """Forks the worker and waits for its end (the keeper thread)."""
    # Starts a launcher program, because a `preexec_fn` could deadlock in a
    # parent with threads.
    launcher = [sys.executable, '-I', '-S', worker_launcher.__file__]
    launcher += [f'--parent_pid={self._parent_pid}', *self._entrance.flags]
    try:
      self._process = subprocess.Popen(
        [*launcher, '--', *self._command],
        pass_fds=self._entrance.descriptors,
        stdin=subprocess.DEVNULL,
        stdout=self._log,
        stderr=self._log,
        start_new_session=True,
      )
      self._started.set()
      self._process.wait()
    except Exception as error:  # For the thread that waits for the start.
      self._start_error = error
      self._started.set()
    finally:
      self._exited.set()

  def _await_listening(self, timeout_s: float) -> None:
    """Waits until the worker listens.

    Args:
      timeout_s: Seconds to wait.

    Raises:
      WorkerError: The worker ended, or did not listen in time.
    """
    deadline = time.monotonic() + timeout_s
    self._started.wait()
    if self._start_error is not None:
      raise self.error('cannot start the worker') from self._start_error
    assert self._process is not None
    while not _listens(self.pid, self._entrance.port):
      if self._exited.wait(_POLL_INTERVAL_S):
        if self._process.returncode == worker_launcher.CANNOT_CONTAIN:
          raise WorkerError(
            'the worker cannot have its own network'
            f' ({self.log_tail().strip()}), and without one it listens on all'
            ' interfaces and runs what it is sent: allow user namespaces, or'
            ' pass contained=False (train.py: --allow_open_port) if only you'
            ' can reach this host'
          )
        raise self.error('the worker ended before it listened')
      if time.monotonic() > deadline:
        raise self.error(f'the worker did not listen within {timeout_s} s')
