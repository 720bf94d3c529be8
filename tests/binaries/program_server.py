"""Runs programs in forks of a process that has imported what is slow.

Started by `program_runner`, with the descriptor of a Unix socket. A request is
the program's arguments and folder in JSON, with its standard output and error
as descriptors; the answers are the number of its process, then its exit code.
Not tested by a fork is how Python starts and ends: see `program_runner.run`.
"""

import atexit
import gc
import json
import os
import runpy
import socket
import sys
import threading
import traceback

from absl import logging

# As programs do before they import TensorFlow, which else has its own handler.
logging.use_absl_handler()

import matplotlib.pyplot  # noqa: E402, F401
import scipy.stats  # noqa: E402, F401
import tensorflow  # noqa: E402, F401
import tensorflow_federated  # noqa: E402, F401
import tensorflow_privacy  # noqa: E402, F401


def _next_program(connection: socket.socket) -> list[str] | None:
  """Forks for each request; returns in the forks, and at the end with None."""
  while True:
    line, descriptors, _, _ = socket.recv_fds(connection, 2**20, 2)
    if not line:
      return None
    request = json.loads(line)
    child = os.fork()
    if not child:
      connection.close()
      with open(os.devnull, 'rb') as nothing:
        os.dup2(nothing.fileno(), 0)
      for stream, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
      os.chdir(request['cwd'])
      return request['argv']
    for descriptor in descriptors:
      os.close(descriptor)
    connection.sendall(f'{child}\n'.encode())
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    connection.sendall(f'{code}\n'.encode())


def _run(argv: list[str]) -> int:
  """Runs a program as Python does; returns its exit code."""
  sys.argv = argv
  sys.path[0] = os.path.dirname(argv[0])
  try:
    runpy.run_path(argv[0], run_name='__main__')
    code: object = 0
  except SystemExit as error:
    code = error.code
  except BaseException:
    traceback.print_exc()
    code = 1
  threading._shutdown()  # type: ignore[attr-defined]
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  return code if isinstance(code, int) else int(code is not None)


if __name__ == '__main__':
  gc.freeze()
  gc.set_threshold(50_000, 20, 20)
  found = _next_program(socket.socket(fileno=int(sys.argv[1])))
  if found is not None:
    # Without the end of the interpreter: TFF's objects complain there if they
    # were never used.
    os._exit(_run(found))
