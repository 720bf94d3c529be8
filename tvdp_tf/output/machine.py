"""Describes the machine that a measurement was made on."""

import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping
from typing import Any

import psutil


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
  """The commit of the checkout, with `+` if files differ; None without git."""
  name = _git(root, 'rev-parse', 'HEAD')
  return f'{name}+' if name and _git(root, 'status', '--porcelain') else name


def _processor() -> str:
  """The processor's name as in Linux, because psutil does not have it."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8')
  except OSError:
    return platform.machine()
  found = re.search(r'^model name\s*: (.+)$', text, re.MULTILINE)
  return found[1] if found else platform.machine()


def _cores() -> int | None:
  """The number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return psutil.cpu_count()


def _gpus() -> list[str]:
  """The names of NVIDIA GPUs, from the driver's program."""
  try:
    done = subprocess.run(
      ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'],
      capture_output=True,
      text=True,
      check=True,
      timeout=30,  # It waits forever if the driver is broken.
    )
  except (OSError, subprocess.SubprocessError):
    return []
  return done.stdout.splitlines()


def describe() -> dict[str, Any]:
  """Processor, memory, system and GPUs, and how busy the machine is now."""
  gpus = _gpus()
  return {
    'processor': _processor(),
    'cores': _cores(),
    'memory_gib': round(psutil.virtual_memory().total / 2**30, 1),
    'system': platform.platform(),
    'python': platform.python_version(),
    'load_average': psutil.getloadavg()[0],
    **({'gpus': gpus} if gpus else {}),
  }


def in_words(host: Mapping[str, Any]) -> str:
  """The result of `describe`, except the load, as part of a sentence."""
  return (
    f'{host["processor"]}, {host["cores"]} cores, {host["memory_gib"]} GiB, '
    + ''.join(f'{gpu}, ' for gpu in host.get('gpus', ()))
    + f'{host["system"]}, Python {host["python"]}'
  )
