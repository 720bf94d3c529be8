"""A process and its descendants, as Linux shows them in /proc."""

import contextlib
import os
import pathlib
import signal

_PROC = pathlib.Path('/proc')


def _parent(pid: str) -> int:
  # The name, in parentheses, may hold anything.
  fields = (_PROC / pid / 'stat').read_text().rpartition(')')[2].split()
  return int(fields[1])


def tree(pid: int) -> list[int]:
  """The process and all below it, parents first; those that have ended not."""
  children: dict[int, list[int]] = {}
  for entry in _PROC.iterdir():
    if entry.name.isdigit():
      with contextlib.suppress(OSError):
        children.setdefault(_parent(entry.name), []).append(int(entry.name))
  found = [pid] if (_PROC / str(pid)).exists() else []
  for member in found:  # It grows as it goes.
    found += children.get(member, [])
  return found


def kill(pids: list[int]) -> None:
  """Kills processes; those that have ended are passed over."""
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)


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
