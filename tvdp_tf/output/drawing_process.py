"""A process that draws a run's curves while the run does something else.

Matplotlib takes a third of a second to import and as long to draw. In a
separate process this happens while TensorFlow is imported and while the model
is exported. If there is no such process, or if it fails, the caller draws the
picture.
"""

import atexit
import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
from multiprocessing import connection

# How long to wait for a picture before it is drawn in this process.
_PATIENCE_S = 5.0

# The pipe to the process, if there is one, and the picture it was asked for.
_pipes: list[connection.Connection] = []
_asked: list[tuple[pathlib.Path, pathlib.Path, str]] = []


def _serve(pipe: connection.Connection, other: connection.Connection) -> None:
  """Draws what it is asked for, until the other end of the pipe is closed."""
  other.close()
  # Ctrl-C goes to all processes of a terminal; the parent decides.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  with contextlib.suppress(EOFError, OSError):
    with open(os.devnull, 'r+b', buffering=0) as devnull:
      for stream in range(3):
        os.dup2(devnull.fileno(), stream)
    from tvdp_tf.output import plots  # noqa: PLC0415

    while True:
      wanted = pipe.recv()
      try:
        plots.draw_training_curves(*wanted)
      except Exception:  # The caller then draws it, and sees why it fails.
        pipe.send(False)
      else:
        pipe.send(True)


def start() -> None:
  """Starts the process, if it can be forked: only before there are threads.

  It ends when this process ends, for whatever reason.
  """
  if _pipes or threading.active_count() > 1:
    return
  if sys.platform != 'linux':  # Elsewhere, forks cannot use some libraries.
    return
  fork = multiprocessing.get_context('fork')
  here, there = fork.Pipe()
  with contextlib.suppress(OSError):  # The process is optional.
    fork.Process(target=_serve, args=(there, here), daemon=True).start()
    _pipes.append(here)
    atexit.register(_forget)
  there.close()


def _forget() -> None:
  """Closes the pipe, which ends the process."""
  _asked.clear()
  while _pipes:
    _pipes.pop().close()


def begin(
  metrics_path: pathlib.Path, picture_path: pathlib.Path, title: str
) -> None:
  """Lets the process start on the picture that `draw` will be asked for.

  Args:
    metrics_path: As for `plots.draw_training_curves`.
    picture_path: The PNG to write.
    title: One line above the picture.
  """
  if not _pipes or _asked:
    return
  _asked.append((metrics_path, picture_path, title))
  try:
    _pipes[0].send(_asked[0])
  except OSError:
    _forget()


def draw(
  metrics_path: pathlib.Path, picture_path: pathlib.Path, title: str
) -> None:
  """Draws training curves, unless the process has already drawn them.

  Args:
    metrics_path: As for `plots.draw_training_curves`.
    picture_path: The PNG to write, atomically.
    title: One line above the picture.
  """
  if _asked:
    asked = _asked.pop()
    try:
      drawn = _pipes[0].poll(_PATIENCE_S) and _pipes[0].recv()
    except (EOFError, OSError):
      drawn = False
    if not drawn:
      _forget()
    elif asked == (metrics_path, picture_path, title):
      return
  from tvdp_tf.output import plots  # noqa: PLC0415

  plots.draw_training_curves(metrics_path, picture_path, title)
