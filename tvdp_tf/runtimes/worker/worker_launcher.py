"""Starts TFF's worker in its own network namespace, behind a unix socket.

TFF's worker listens on all network interfaces, without TLS, and executes any
graph that it receives, as the user who started it. Its own network namespace
has only a loopback interface. The worker can be reached only through a relay,
which forwards connections from a unix socket with file permissions, and the
worker cannot reach any host.

This file is a program that needs nothing but Python. `local_runtime` runs it,
and so does a host of `remote_runtime` (docs/DISTRIBUTED.md):

  python3 -I -S worker_launcher.py --socket=PATH -- worker_binary FLAGS...

The process becomes the worker, so it keeps its id; the relay is a child of it.
Neither survives the other.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import pathlib
import selectors
import signal
import socket
import struct
import sys
import threading

# Exit status if the system does not permit namespaces; EX_NOPERM.
CANNOT_CONTAIN = 77

# In its own network, nobody else uses the port.
CONTAINED_PORT = 8000

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_COPY_BYTES = 1 << 20
_RELAY = '--relay'


def _die_with(parent_pid: int) -> None:
  """Makes the kernel kill this process when its parent ends.

  Raises:
    ProcessLookupError: If the parent has ended already.
  """
  if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit('prctl(PR_SET_PDEATHSIG) failed')
  # The kernel sends the signal only if the parent ends after this call.
  if os.getppid() != parent_pid:
    raise ProcessLookupError('the parent process has ended')


def _unshare(flags: int) -> None:
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.unshare(flags) != 0:
    number = ctypes.get_errno()
    raise OSError(number, f'unshare: {os.strerror(number)}')


def _enter_network() -> None:
  """Moves this process into a new network that only has a loopback.

  Raises:
    OSError: If the system does not permit it.
  """
  uid, gid = os.geteuid(), os.getegid()
  try:
    _unshare(_CLONE_NEWNET)  # For root, which keeps all rights.
  except PermissionError:
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    for name, text in (
      ('setgroups', 'deny'),
      ('uid_map', f'{uid} {uid} 1'),
      ('gid_map', f'{gid} {gid} 1'),
    ):
      pathlib.Path('/proc/self', name).write_text(text)
  with socket.socket() as any_socket:
    request = struct.pack('16sh14x', b'lo', _IFF_UP)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _fork_relay(descriptors: list[int]) -> None:
  """Starts the relay, which takes over the descriptors."""
  parent_pid = os.getpid()
  if os.fork():
    for descriptor in descriptors:
      os.close(descriptor)
    return
  try:
    for descriptor in descriptors:
      os.set_inheritable(descriptor, True)
    # A new interpreter has only the worker's rights; otherwise, the worker
    # could not open the files that the relay holds.
    command = [sys.executable, '-I', '-S', __file__, _RELAY]
    os.execv(command[0], [*command, *map(str, [parent_pid, *descriptors])])
  finally:
    os._exit(1)


def _pump(source: socket.socket, sink: socket.socket) -> None:
  """Copies one direction of a connection until its end."""
  buffer = memoryview(bytearray(_COPY_BYTES))
  with contextlib.suppress(OSError):  # Either side may disconnect.
    while count := source.recv_into(buffer):
      sink.sendall(buffer[:count])
  with contextlib.suppress(OSError):
    sink.shutdown(socket.SHUT_WR)


def _bridge(connection: socket.socket) -> None:
  """Copies both directions of a connection until their end."""
  with (
    connection,
    contextlib.suppress(OSError),
    socket.create_connection(('127.0.0.1', CONTAINED_PORT)) as worker,
  ):
    worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_pump, args=(worker, connection))
    back.start()
    _pump(connection, worker)
    back.join()


def _relay(parent_pid: int, listener_fd: int, control_fd: int = -1) -> None:
  """Passes connections on to the worker, and holds files for it.

  Args:
    parent_pid: The worker's process id.
    listener_fd: A listening unix socket.
    control_fd: A unix socket that receives descriptors of files; the answer to
      each is a path by which the worker can open the file.
  """
  try:
    _die_with(parent_pid)
  except ProcessLookupError:
    return
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Meant for the worker.
  listener = socket.socket(fileno=listener_fd)
  with selectors.DefaultSelector() as selector:
    selector.register(listener, selectors.EVENT_READ)
    if control_fd >= 0:
      control = socket.socket(fileno=control_fd)
      selector.register(control, selectors.EVENT_READ)
    while True:
      for key, _ in selector.select():
        if key.fd == listener_fd:
          connection, _ = listener.accept()
          threading.Thread(
            target=_bridge, args=(connection,), daemon=True
          ).start()
          continue
        _, held, _, _ = socket.recv_fds(control, 1, 1)
        if not held:
          return  # The parent has closed its end.
        control.sendall(f'/proc/{os.getpid()}/fd/{held[0]}'.encode())


def _listen(path: pathlib.Path) -> int:
  """Listens on a unix socket at a path; only this user may connect to it."""
  if path.is_socket():
    path.unlink()  # From an earlier worker.
  listener = socket.socket(socket.AF_UNIX)
  mask = os.umask(0o177)
  listener.bind(os.fspath(path))
  os.umask(mask)
  listener.listen()
  return listener.detach()


def main() -> None:
  """Becomes the worker."""
  if sys.argv[1:2] == [_RELAY]:
    return _relay(*map(int, sys.argv[2:]))
  parser = argparse.ArgumentParser(description="TFF's worker, contained.")
  way_in = parser.add_mutually_exclusive_group(required=True)
  way_in.add_argument(
    '--socket', type=pathlib.Path, help='unix socket on which to be reached'
  )
  # For `_worker_process`.
  way_in.add_argument('--descriptors', type=int, nargs=2)
  way_in.add_argument('--open_port', type=int, help='no containment')
  parser.add_argument(
    '--parent_pid', type=int, help='process that it must not outlive'
  )
  parser.add_argument('command', nargs='+', help="worker's program and flags")
  args = parser.parse_args()
  port = args.open_port
  if port is None:
    port = CONTAINED_PORT
    try:
      descriptors = args.descriptors or [_listen(args.socket)]
    except OSError as error:
      sys.exit(f'cannot listen on {args.socket}: {error}')
    try:
      _enter_network()
    except OSError as error:
      print(error, file=sys.stderr)
      sys.exit(CANNOT_CONTAIN)
    _fork_relay(descriptors)
  command = [*args.command, f'--port={port}']
  try:
    if args.parent_pid is not None:
      _die_with(args.parent_pid)
    os.execv(command[0], command)
  except ProcessLookupError as error:
    sys.exit(str(error))
  except OSError as error:
    sys.exit(f'cannot execute {command[0]}: {error}')


if __name__ == '__main__':
  main()
