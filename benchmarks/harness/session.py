"""The other side of the protocol of `program`: commands out, answers in."""

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import subprocess
import tempfile
import threading
import time
from typing import Any

import numpy as np

from benchmarks.harness import contenders, processes
from benchmarks.harness import work as work_lib
from tvdp_tf import errors

# torch.compile takes half a minute, or more on a busy machine.
TIMEOUT_S = 900.0
_QUIT_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 2000
_LIMIT = 1e300  # An integer may be too large for a float.


class ProgramError(errors.TvdpError):
  """A benchmark program died, is silent, or does not do what it should."""


@dataclasses.dataclass(frozen=True)
class Start:
  """How a program started.

  Attributes:
    seconds: Seconds from the start of the process until it was ready for a
      round, without generating the data.
    build_seconds: The part of it after imports.
    digest: Digest of the data that it works on.
    versions: Versions of its libraries.
  """

  seconds: float
  build_seconds: float
  digest: str
  versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Check:
  """The model after some rounds without noise.

  Attributes:
    loss: Mean cross-entropy on the first user's examples.
    parameter_norm: L2 norm of all parameters.
    weights: The parameters.
  """

  loss: float
  parameter_norm: float
  weights: list[np.ndarray]


def parse(line: str, event: str, **types: type) -> dict[str, Any]:
  """Parses a line of a program.

  Args:
    line: The line.
    event: The expected event.
    **types: The expected fields; floats must be finite, and a list must consist
      of such floats.

  Returns:
    The fields.

  Raises:
    ValueError: If the line is not as expected.
  """
  try:
    message = json.loads(line)
  except RecursionError as error:
    raise ValueError('nested too deeply') from error
  if not isinstance(message, dict) or message.get('event') != event:
    raise ValueError(f'event {event!r} is missing')
  for name, kind in types.items():
    value = message.get(name)
    numbers = value if isinstance(value, list) and kind is list else []
    numbers = [value] if kind is float else numbers
    wrong = [
      n
      for n in numbers
      if isinstance(n, bool)
      or not isinstance(n, int | float)
      or not abs(n) < _LIMIT
    ]
    if wrong or (kind is not float and not isinstance(value, kind)):
      raise ValueError(f'field {name} is no {kind.__name__}')
  return message


def read_weights(path: str | os.PathLike[str]) -> list[np.ndarray]:
  """Reads the arrays that `np.savez(path, *weights)` wrote.

  Raises:
    ValueError: If it is not such a file.
  """
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return [arrays[f'arr_{i}'] for i in range(len(arrays.files))]
  except Exception as error:  # Any, for a damaged archive.
    raise ValueError(f'not the arrays of a model: {error}') from error


class Session:
  """A running program that waits for commands.

  Args:
    contender: The contender to run.
    work: The work to do.
    root: The checkout.
    timeout_s: Seconds within which an answer must come.

  Raises:
    ProgramError: If it does not start.
  """

  def __init__(
    self,
    contender: contenders.Contender,
    work: work_lib.Work,
    root: pathlib.Path,
    timeout_s: float = TIMEOUT_S,
  ):
    self.contender = contender
    self._timeout_s = timeout_s
    self._patience_s = _QUIT_TIMEOUT_S
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
    self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    started = time.perf_counter()
    self._process = subprocess.Popen(
      [
        contender.interpreter(root),
        '-m',
        contender.module,
        f'--form={contender.form}',
        f'--work={json.dumps(dataclasses.asdict(work))}',
      ],
      cwd=root,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._log,
      text=True,
      start_new_session=True,
    )
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()
    try:
      ready = self._answer(
        'ready',
        build_seconds=float,
        data_seconds=float,
        digest=str,
        versions=dict,
      )
    except BaseException:
      self.close()
      raise
    self.start = Start(
      time.perf_counter() - started - ready['data_seconds'],
      ready['build_seconds'],
      ready['digest'],
      ready['versions'],
    )

  def _read(self) -> None:
    assert self._process.stdout is not None  # It is a pipe.
    for line in self._process.stdout:
      self._lines.put(line)
    self._lines.put('')

  def _error(self, what: str) -> ProgramError:
    size = os.fstat(self._log.fileno()).st_size
    tail = os.pread(
      self._log.fileno(), _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES)
    ).decode(errors='replace')
    last = (tail.strip().splitlines() or ['(it wrote no error)'])[-1]
    error = ProgramError(f'{self.contender.name} {what}; its last line: {last}')
    error.add_note(tail)
    return error

  def _answer(self, event: str, **types: type) -> dict[str, Any]:
    try:
      line = self._lines.get(timeout=self._timeout_s)
    except queue.Empty:
      self._patience_s = 0.0
      raise self._error(
        f'has given no answer in {self._timeout_s:g} s'
      ) from None
    if not line:
      code = self._process.wait()
      raise self._error(f'ended with exit status {code}')
    try:
      return parse(line, event, **types)
    except ValueError as error:
      raise self._error(
        f'was to answer with {event!r}, got {line.strip()[:80]!r} ({error})'
      ) from error

  def _ask(self, command: str, event: str, **types: type) -> dict[str, Any]:
    assert self._process.stdin is not None  # It is a pipe.
    with contextlib.suppress(BrokenPipeError):  # `_answer` reports its end.
      self._process.stdin.write(f'{command}\n')
      self._process.stdin.flush()
    return self._answer(event, **types)

  def run(self, rounds: int) -> list[float]:
    """Runs rounds; returns the seconds of each."""
    answer = self._ask(f'run {rounds}', 'rounds', seconds=list)
    seconds = answer['seconds']
    if len(seconds) != rounds or min(seconds) <= 0:
      raise self._error(f'was to run {rounds} rounds, got {seconds}')
    return seconds

  def check(self, rounds: int) -> Check:
    """Runs rounds without noise from the initial model."""
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'weights.npz')
      answer = self._ask(
        f'check {rounds} {path}', 'check', loss=float, parameter_norm=float
      )
      try:
        weights = read_weights(path)
      except ValueError as error:
        raise self._error('has written no model') from error
    return Check(answer['loss'], answer['parameter_norm'], weights)

  def peak_bytes(self) -> int:
    """Returns the peak memory of the program's processes so far."""
    return processes.peak_bytes(processes.tree(self._process.pid))

  def close(self) -> None:
    """Ends the program and its processes; it is safe to call it again."""
    members = processes.tree(self._process.pid)
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
      self._process.communicate('quit\n', timeout=self._patience_s)
    processes.kill(members)
    self._process.wait()
    self._log.close()

  def __enter__(self) -> 'Session':
    return self

  def __exit__(self, *unused: object) -> None:
    self.close()
