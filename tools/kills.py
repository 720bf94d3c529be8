"""Kills a training run at random times until it has finished."""

import contextlib
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tvdp_tf.training import run_folder

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TIMEOUT_S = 300.0
_POLL_S = 0.002

# When a kill may happen: before the first round of the process, in a round or
# while it is saved, and after the last round.
PHASES = ('start', 'rounds', 'end')


class Kill(NamedTuple):
  """One start of the program, and how it ended.

  Attributes:
    phase: One of `PHASES`.
    seconds: From the start of the process to its end.
    returncode: -9 if it was killed; its own exit code if it was faster.
    rounds_on_record: Number of records in the ledger at the end.
    checkpoint: Number of the newest checkpoint at the end; 0 without one.
    stderr: Its standard error.
  """

  phase: str
  seconds: float
  returncode: int
  rounds_on_record: int
  checkpoint: int
  stderr: str


def command(folder: pathlib.Path, *arguments: str) -> list[str]:
  """Returns the command line of `binaries/train.py`."""
  return [
    sys.executable,
    str(_ROOT / 'binaries' / 'train.py'),
    f'--output_dir={folder}',
    '--noprogress',
    *arguments,
  ]


def run(
  folder: pathlib.Path, *arguments: str, **kwargs
) -> subprocess.CompletedProcess:
  """Runs the program to its end; `stdout` and `stderr` are text."""
  return subprocess.run(
    command(folder, *arguments),
    capture_output=True,
    stdin=subprocess.DEVNULL,
    text=True,
    timeout=_TIMEOUT_S,
    check=False,
    **kwargs,
  )


def rounds_on_record(folder: pathlib.Path) -> int:
  """Counts the records in a run's own ledger, except incomplete ones."""
  try:
    lines = (folder / run_folder.LEDGER).read_bytes().count(b'\n')
  except FileNotFoundError:
    return 0
  return max(0, lines - 2)


def newest_checkpoint(folder: pathlib.Path) -> int:
  """Returns the round number of a run's newest checkpoint; 0 without one."""
  names = [
    path.name.removeprefix('round_')
    for path in (folder / run_folder.CHECKPOINTS).glob('round_*')
  ]
  return max((int(name) for name in names if name.isdigit()), default=0)


class Killer:
  """Kills a program at random times."""

  def __init__(self, rng: random.Random, arguments: Sequence[str], rounds: int):
    """Takes the program's arguments.

    Args:
      rng: Draws the times.
      arguments: The program's arguments, without folder and --resume.
      rounds: The run's maximum number of rounds.
    """
    self._rng = rng
    self._arguments = list(arguments)
    self._rounds = rounds

  def kill(self, folder: pathlib.Path, phase: str) -> Kill:
    """Starts or resumes the run, and kills it in a phase unless it is faster.

    Args:
      folder: The run's folder; if it does not exist, the run is started.
      phase: One of `PHASES`.
    """
    arguments = [*self._arguments, *(['--resume'] if folder.exists() else [])]
    with contextlib.ExitStack() as stack:
      process = subprocess.Popen(
        command(folder, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
      )
      stack.callback(process.wait)
      stack.callback(process.kill)
      started = time.monotonic()
      self._wait(folder, phase, process)
      process.kill()
      _, stderr = process.communicate(timeout=_TIMEOUT_S)
    return Kill(
      phase,
      time.monotonic() - started,
      process.returncode,
      rounds_on_record(folder),
      newest_checkpoint(folder),
      stderr,
    )

  def _wait(
    self, folder: pathlib.Path, phase: str, process: subprocess.Popen
  ) -> None:
    uniform = self._rng.uniform
    before = rounds_on_record(folder)
    if phase == 'start':
      # Imports, the folder, the process, the first round.
      self._until(process, lambda: False, uniform(0.0, 9.0))
    elif phase == 'rounds':
      target = before + self._rng.randint(1, 3)
      self._until(process, lambda: rounds_on_record(folder) >= target)
      self._until(process, lambda: False, uniform(0.0, 0.15))
    else:
      self._until(process, lambda: newest_checkpoint(folder) >= self._rounds)
      self._until(process, lambda: False, uniform(0.0, 1.5))

  def _until(
    self,
    process: subprocess.Popen,
    condition: Callable[[], bool],
    timeout_s: float = _TIMEOUT_S,
  ) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and not condition():
      if time.monotonic() >= deadline:
        return
      time.sleep(_POLL_S)

  def run(self, folder: pathlib.Path, phases: Sequence[str]) -> list[Kill]:
    """Kills the run once in each of the phases, then lets it finish.

    Returns:
      Every start of the program; the last one was not killed.

    Raises:
      RuntimeError: If the program fails itself, with its output.
    """
    kills = []
    for phase in phases:
      if run_folder.is_finished(folder):
        break
      kills.append(self.kill(folder, phase))
      if kills[-1].returncode not in (0, -9):
        raise RuntimeError(f'the program failed: {kills[-1].stderr}')
    started = time.monotonic()
    resume = ['--resume'] if folder.exists() else []
    last = run(folder, *self._arguments, *resume)
    kills.append(
      Kill(
        'none',
        time.monotonic() - started,
        last.returncode,
        rounds_on_record(folder),
        newest_checkpoint(folder),
        last.stderr,
      )
    )
    if last.returncode:
      raise RuntimeError(f'the program failed: {last.stderr}')
    return kills
