"""Runs the programs in `binaries/` as a user does."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def command(program: str, *arguments: object) -> list[str]:
  """The command line of `binaries/<program>`."""
  return [
    sys.executable,
    str(ROOT / 'binaries' / program),
    *map(str, arguments),
  ]


def run(
  program: str, *arguments: object, timeout_s: float = 240, **kwargs
) -> subprocess.CompletedProcess:
  """Runs a program to its end; text in `stdout` and `stderr`."""
  return subprocess.run(
    command(program, *arguments),
    capture_output=True,
    stdin=subprocess.DEVNULL,
    text=True,
    timeout=timeout_s,
    check=False,
    **kwargs,
  )
