"""What a measurement was made on, for the record."""

import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping
from typing import Any


def _git(root: pathlib.Path, *arguments: str) -> str | None:
  try:
    done = subprocess.run(
      ['git', '-C', root, *arguments],
      capture_output=True,
      text=True,
      check=True,
    )
  except (OSError, subprocess.CalledProcessError):
    return None
  return done.stdout.strip()


def commit(root: pathlib.Path) -> str | None:
  """The checkout's commit, `+` if files differ from it; None without git."""
  name = _git(root, 'rev-parse', 'HEAD')
  return f'{name}+' if name and _git(root, 'status', '--porcelain') else name


def _field(path: str, name: str) -> str | None:
  """The value in the first line `name: value` of a file in /proc."""
  try:
    text = pathlib.Path(path).read_text(encoding='utf-8')
  except OSError:  # There is no /proc beyond Linux.
    return None
  for line in text.splitlines():
    key, _, value = line.partition(':')
    if key.strip() == name:
      return value.strip()
  return None


def _cores() -> int | None:
  """Those this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def describe() -> dict[str, Any]:
  """Processor, memory and system, and how busy the machine is now."""
  memory = _field('/proc/meminfo', 'MemTotal')
  return {
    'processor': _field('/proc/cpuinfo', 'model name') or platform.machine(),
    'cores': _cores(),
    'memory_gib': round(int(memory.split()[0]) / 2**20, 1) if memory else None,
    'system': platform.platform(),
    'python': platform.python_version(),
    'load_average': os.getloadavg()[0],
  }


def in_words(host: Mapping[str, Any]) -> str:
  """What `describe` says but for the load, as part of a sentence."""
  return (
    f'{host["processor"]}, {host["cores"]} cores, {host["memory_gib"]} GiB, '
    f'{host["system"]}, Python {host["python"]}'
  )
