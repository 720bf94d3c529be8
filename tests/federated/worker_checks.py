"""What the tests of local workers share: looks at processes and threads."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

from absl.testing import absltest

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# For what takes milliseconds to seconds, on a machine with other work.
PATIENCE_S = 30.0


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


def start_child(
  test: absltest.TestCase, code: str, *arguments: str
) -> subprocess.Popen[str]:
  """Starts Python on the code; the end of the test ends it."""
  environment = {
    **os.environ,
    'PYTHONPATH': str(_ROOT),
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }
  child = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(code), *arguments],
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
