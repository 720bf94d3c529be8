"""A process and its descendants, as Linux shows them in /proc."""

import contextlib
import os
import pathlib
import signal
import time

_PROC = pathlib.Path('/proc')


def _state_and_parent(pid: str) -> tuple[str, int]:
  # The name, in parentheses, may hold anything.
  fields = (_PROC / pid / 'stat').read_text().rpartition(')')[2].split()
  return fields[0], int(fields[1])


def tree(pid: int) -> list[int]:
  """The process and all below it, parents first; those that have ended not."""
  children: dict[int, list[int]] = {}
  for entry in _PROC.iterdir():
    if entry.name.isdigit():
      with contextlib.suppress(OSError):
        _, parent = _state_and_parent(entry.name)
        children.setdefault(parent, []).append(int(entry.name))
  found = [pid] if (_PROC / str(pid)).exists() else []
  for member in found:  # It grows as it goes.
    found += children.get(member, [])
  return found


def _is_running(pid: int) -> bool:
  try:
    state, _ = _state_and_parent(str(pid))
  except OSError:
    return False
  return state not in 'XZ'


def kill(pids: list[int], patience_s: float = 30.0) -> None:
  """Kills processes and waits until their memory is free.

  Those that have ended are passed over, and so are, when the patience is at an
  end, those that are not.
  """
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
  deadline = time.monotonic() + patience_s
  while time.monotonic() < deadline and any(map(_is_running, pids)):
    time.sleep(0.01)


def peak_bytes(pids: list[int]) -> int:
  """Sum of the peaks of resident memory, pages shared counted in each.

  Not `getrusage`, whose peak a process inherits from the one that forked it.
  """
  total = 0
  for pid in pids:
    with contextlib.suppress(OSError):
      for line in (_PROC / str(pid) / 'status').read_text().splitlines():
        if line.startswith('VmHWM:'):
          total += 1024 * int(line.split()[1])
  return total
