"""What the tests of local workers share: looks at processes and threads."""

import contextlib
import ipaddress
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).resolve().parents[3]

# For what takes milliseconds to seconds, on a machine with other work.
PATIENCE_S = 30.0


# Makes `start(...)` of a child: it prints the ids of the worker and its relay.
# The packages would load TensorFlow Federated, for seconds in every child.
START_WORKER = f"""
import os, signal, socket, sys, threading, time, types
import tvdp_tf
for name in ('runtimes', 'runtimes/worker'):
  package = types.ModuleType('tvdp_tf.' + name.replace('/', '.'))
  sys.modules[package.__name__] = package
  package.__path__ = [{str(_ROOT / 'tvdp_tf')!r} + '/' + name]
from tvdp_tf.runtimes.worker import _worker_process
assert 'tensorflow' not in sys.modules

# A job in the background inherits an interrupt that is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def start(**kwargs):
  global worker
  worker = _worker_process.WorkerProcess(sys.argv[1], [], 60.0, **kwargs)
  with open(f'/proc/{{worker.pid}}/task/{{worker.pid}}/children') as relays:
    print(worker.pid, relays.read(), flush=True)
"""


@contextlib.contextmanager
def script(text: str) -> Iterator[str]:
  """The path of an executable file."""
  with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory, 'worker')
    path.write_text(text)
    path.chmod(0o755)
    yield str(path)


def process_lives(pid: int) -> bool:
  """Whether the process runs; a zombie does not."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return stat.rpartition(')')[2].split()[0] != 'Z'


def ends(pid: int, timeout_s: float = 5.0) -> bool:
  """Whether the process ends in time; a survivor is killed after the answer."""
  deadline = time.monotonic() + timeout_s
  while process_lives(pid):
    if time.monotonic() > deadline:
      os.kill(pid, signal.SIGKILL)
      return False
    time.sleep(0.01)
  return True


def error_of(function: Callable[[], Any]) -> Any:
  """What the call raises; a failure, not a hang, if it does not return."""
  outcome: list[Any] = []

  def call() -> None:
    try:
      outcome.append(f'no error but {function()!r}')
    except BaseException as error:
      outcome.append(error)

  thread = threading.Thread(target=call, daemon=True)
  thread.start()
  thread.join(PATIENCE_S)
  return outcome[0] if outcome else 'no end'


def threads_and_descriptors() -> tuple[int, int, int]:
  """This process's threads of Python, threads of the system, descriptors."""
  return (
    threading.active_count(),
    len(os.listdir('/proc/self/task')),
    len(os.listdir('/proc/self/fd')),
  )


def assert_cycles_leave_nothing(
  test: absltest.TestCase, cycle: Callable[[], None], cycles: int
) -> None:
  """That what starts and ends a runtime leaves no threads, no descriptors."""
  cycle()  # gRPC keeps a few threads from the first use on.
  before = threads_and_descriptors()
  for _ in range(cycles):
    cycle()
  python, system, descriptors = (
    after - old
    for after, old in zip(threads_and_descriptors(), before, strict=True)
  )
  test.assertEqual(python, 0, 'threads of Python')
  # gRPC's own threads come and go; one leak a cycle would be `cycles` or more.
  test.assertLess(system, cycles // 2, 'threads of the system')
  test.assertLess(descriptors, cycles // 2, 'descriptors')


def open_files(folder: str) -> list[pathlib.Path]:
  """This process's descriptors of files in a folder, with or without names."""
  found = []
  for descriptor in pathlib.Path('/proc/self/fd').iterdir():
    try:
      target = os.readlink(descriptor)
    except FileNotFoundError:  # That of the listing itself.
      continue
    if target.startswith(f'{folder}/'):
      found.append(descriptor)
  return found


def children(pid: int) -> list[int]:
  """Ids of a process's children."""
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(child) for child in path.read_text().split()]


def listening(pid: int) -> set[str]:
  """Addresses of this host on which a process listens: its sockets of TCP that
  are in the network of the process that asks.
  """
  owned = set()
  for descriptor in pathlib.Path(f'/proc/{pid}/fd').iterdir():
    with contextlib.suppress(FileNotFoundError):
      owned.add(os.readlink(descriptor))
  found = set()
  for table in ('tcp', 'tcp6'):
    rows = pathlib.Path('/proc/self/net', table).read_text().splitlines()[1:]
    for _, local, _, state, *_, inode in (row.split()[:10] for row in rows):
      if state == '0A' and f'socket:[{inode}]' in owned:
        address = bytes.fromhex(local.partition(':')[0])
        # In words of four bytes, each turned round.
        words = [address[i : i + 4][::-1] for i in range(0, len(address), 4)]
        found.add(str(ipaddress.ip_address(b''.join(words))))
  return found


def start_child(
  test: absltest.TestCase,
  code: str,
  *arguments: str,
  prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
  """Starts Python on the code; the end of the test ends it."""
  environment = {
    **os.environ,
    'PYTHONPATH': str(_ROOT),
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }
  child = subprocess.Popen(
    [*prefix, sys.executable, '-c', textwrap.dedent(code), *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=environment,
  )
  test.addCleanup(child.communicate)
  test.addCleanup(child.kill)
  return child


def first_line(child: subprocess.Popen[str]) -> str:
  """What the child prints first; its errors if it ends without a line."""
  assert child.stdout is not None
  assert child.stderr is not None
  return child.stdout.readline() or child.stderr.read()
