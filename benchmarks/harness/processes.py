"""A process and its descendants."""

import contextlib
import pathlib
import time

import psutil


def tree(pid: int) -> list[int]:
  """Returns the process and its running descendants, parents first."""
  try:
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]
  except psutil.NoSuchProcess:
    return []


def _is_running(pid: int) -> bool:
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def kill(pids: list[int], patience_s: float = 30.0) -> None:
  """Kills processes and waits until their memory is free.

  Processes that have ended are ignored, and so are those that have not ended in
  time. Exit statuses are left to the parent; `psutil.wait_procs` would collect
  them.
  """
  for pid in pids:
    with contextlib.suppress(psutil.NoSuchProcess):
      psutil.Process(pid).kill()
  deadline = time.monotonic() + patience_s
  while time.monotonic() < deadline and any(map(_is_running, pids)):
    time.sleep(0.01)


def peak_bytes(pids: list[int]) -> int:
  """Sums the peaks of resident memory; shared pages count for each process.

  It does not use `getrusage`, whose peak a process inherits from the one that
  forked it; and psutil has no peaks on Linux.
  """
  total = 0
  for pid in pids:
    with contextlib.suppress(OSError):
      for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('VmHWM:'):
          total += 1024 * int(line.split()[1])
  return total
