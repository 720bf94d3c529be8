"""The ways into a worker: a socket that nobody else can find, or an open port.

What the worker is started with is the worker's: `hand_over` closes it here once
the worker has it.
"""

import contextlib
import os
import socket
import tempfile
import threading

from tvdp_tf.runtimes.worker import worker_launcher

_ANSWER_TIMEOUT_S = 10.0


class PrivateSocket:
  """A unix socket without a name, into a worker's own network.

  It is bound in a folder of mode 0700, and both are gone before the worker
  runs, so nothing can be left behind. What stays is a descriptor, by which this
  process can connect; others would have to read this process's memory.

  Attributes:
    target: Where gRPC in this process reaches the worker.
    port: The worker's port, in its own network.
    flags: What tells the launcher about it.
    descriptors: What the launcher has to inherit.
  """

  def __init__(self) -> None:
    """Listens; connections wait until the worker takes them.

    Raises:
      OSError: If there is no folder for temporary files.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
      with tempfile.TemporaryDirectory() as folder:
        # By way of /proc, as the address of a socket holds 107 bytes.
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
    """Lets the worker open a file of this process.

    In a user namespace of its own it may not look into this process's `/proc`.
    The file stays open as long as the worker runs.

    Args:
      descriptor: Of the file.

    Returns:
      A path, for the worker.

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

    Harmless when called again.
    """
    self.hand_over()
    with self._lock:
      if self._control.fileno() < 0:
        return
      with contextlib.suppress(OSError):
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        self._control.recv(1)  # Nothing, when the last who had it has ended.
      self._control.close()
      os.close(self._path_fd)


class OpenPort:
  """A free TCP port of this host, on all interfaces.

  While `hand_over` has not been called nobody else gets the port, neither a
  program that asks for any free port nor one of another user. The worker does,
  because gRPC sets SO_REUSEPORT as the reservation does, which never listens,
  so that it takes no connection from the worker.

  Attributes:
    target: Where gRPC reaches the worker.
    port: The port.
    flags: What tells the launcher about it.
    descriptors: What the launcher has to inherit: nothing.
  """

  def __init__(self) -> None:
    """Reserves the port.

    Raises:
      OSError: If there is none.
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
    # The IPv4 form: a worker on [::] takes it too, and no resolver is needed.
    self.target = f'ipv4:127.0.0.1:{self.port}'
    self.descriptors: list[int] = []
    self.flags = ['--open_port', str(self.port)]

  def path_in_worker(self, descriptor: int) -> str:
    """A path by which the worker can open a file of this process."""
    return f'/proc/{os.getpid()}/fd/{descriptor}'

  def hand_over(self) -> None:
    """Leaves the port to the worker, which listens on it by now."""
    self._reserved.close()

  def close(self) -> None:
    """Hands the socket over, as `hand_over` does."""
    self.hand_over()
