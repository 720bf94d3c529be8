"""Runs the programs in `binaries/` as a user does."""

import atexit
import functools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def command(program: str, *arguments: object) -> list[str]:
  """The command line of `binaries/<program>`."""
  return [
    sys.executable,
    str(ROOT / 'binaries' / program),
    *map(str, arguments),
  ]


def run(
  program: str,
  *arguments: object,
  timeout_s: float = 240,
  cwd: str | os.PathLike[str] | None = None,
  fresh: bool = False,
) -> subprocess.CompletedProcess:
  """Runs a program to its end; text in `stdout` and `stderr`.

  Args:
    program: Its file in `binaries/`.
    *arguments: Of the command line.
    timeout_s: How long it may take.
    cwd: The folder to run it in; by default this one.
    fresh: Whether in a new interpreter. Otherwise it is a fork of a process
      that has TensorFlow and TFF already: their imports are most of the time of
      a short run.
  """
  argv = command(program, *arguments)
  if fresh:
    return subprocess.run(
      argv,
      capture_output=True,
      stdin=subprocess.DEVNULL,
      text=True,
      timeout=timeout_s,
      check=False,
      cwd=cwd,
    )
  with (
    tempfile.TemporaryFile() as output,
    tempfile.TemporaryFile() as error,
  ):
    code = _server().run(
      argv[1:],
      os.fspath(cwd or os.getcwd()),
      (output.fileno(), error.fileno()),
      timeout_s,
    )
    text = []
    for file in (output, error):
      file.seek(0)
      text.append(file.read().decode())
  return subprocess.CompletedProcess(argv, code, *text)


class _Server:
  """A `program_server`."""

  def __init__(self):
    self._socket, theirs = socket.socketpair()
    script = ROOT / 'tests' / 'binaries' / 'program_server.py'
    self._process = subprocess.Popen(
      [sys.executable, str(script), str(theirs.fileno())],
      pass_fds=[theirs.fileno()],
      cwd=ROOT,
    )
    theirs.close()
    self._answers = self._socket.makefile()

  def run(
    self,
    argv: list[str],
    cwd: str,
    descriptors: tuple[int, int],
    timeout_s: float,
  ) -> int:
    request = json.dumps({'argv': argv, 'cwd': cwd}).encode()
    socket.send_fds(self._socket, [request], descriptors)
    child = int(self._answers.readline())
    self._socket.settimeout(timeout_s)
    try:
      return int(self._answers.readline())
    except TimeoutError:
      os.kill(child, signal.SIGKILL)
      self.close()
      _server.cache_clear()
      raise subprocess.TimeoutExpired(argv, timeout_s) from None
    finally:
      self._socket.settimeout(None)

  def close(self) -> None:
    self._socket.close()
    self._answers.close()
    self._process.kill()
    self._process.wait()


@functools.cache
def _server() -> _Server:
  server = _Server()
  atexit.register(server.close)
  return server
