"""One side of the benchmark's protocol: a program that does rounds on demand.

A program is a process. It reports that it is ready, waits for a command on its
standard input, and answers with one line of JSON on its standard output:

  run N         -> {"event": "rounds", "seconds": [N numbers]}
  check N FILE  -> {"event": "check", "loss": ..., "parameter_norm": ...}
  quit

`check` runs N rounds without noise from the initial model, and writes the model
to FILE (a NumPy archive): all programs must reach the same one. `session` is
the other side.

It uses only Python's library and NumPy: see `work`.
"""

import abc
import argparse
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from benchmarks.harness import reference_model
from benchmarks.harness import work as work_lib


class Program(abc.ABC):
  """Runs the rounds of a work."""

  @abc.abstractmethod
  def reset(self, noise_stddev: float) -> None:
    """Restores the initial model; 0 turns the noise off."""

  @abc.abstractmethod
  def round(self, round_number: int) -> None:
    """Runs a round (from 1); the new model is ready when it returns."""

  @abc.abstractmethod
  def weights(self) -> list[np.ndarray]:
    """Returns the global model, in the form of `Work.initial_weights`."""


class Server:
  """Answers the commands; made by `start`.

  Attributes:
    work: The work to do.
    form: The form of the program.
    features: The work's features; only until `serve`, because a program may
      have a copy.
    labels: The work's labels.
  """

  def __init__(
    self, work: work_lib.Work, form: str, commands: TextIO, answers: TextIO
  ):
    self.work = work
    self.form = form
    self._commands = commands
    self._answers = answers
    started = time.perf_counter()
    self.features = work.features()
    self.labels = work.labels()
    self._digest = work.digest(self.features, self.labels)
    self._built_from = time.perf_counter()
    self._data_seconds = self._built_from - started

  def _answer(self, event: str, **fields: Any) -> None:
    self._answers.write(json.dumps({'event': event, **fields}) + '\n')
    self._answers.flush()

  def _next_commands(self) -> Iterator[list[str]]:
    while line := self._commands.readline():
      if line.strip() == 'quit':
        return
      yield line.rstrip('\n').split(maxsplit=2)

  def serve(self, program: Program, **versions: str) -> None:
    """Reports that the program is ready, and executes commands until `quit`.

    Args:
      program: The program, ready to run.
      **versions: Versions of the libraries that it uses.

    Raises:
      ValueError: If a command is not part of the protocol.
    """
    example = self.features[0].copy(), self.labels[0].copy()
    del self.features, self.labels
    program.reset(self.work.noise_stddev)
    self._answer(
      'ready',
      build_seconds=time.perf_counter() - self._built_from,
      data_seconds=self._data_seconds,
      digest=self._digest,
      versions=versions,
    )
    completed = 0
    for command, *arguments in self._next_commands():
      if command == 'run':
        seconds = []
        for _ in range(int(arguments[0])):
          completed += 1
          started = time.perf_counter()
          program.round(completed)
          seconds.append(time.perf_counter() - started)
        self._answer('rounds', seconds=seconds)
      elif command == 'check':
        self._check(program, int(arguments[0]), arguments[1], *example)
        completed = 0
      else:
        raise ValueError(f'command must be run, check or quit, got {command!r}')

  def _check(
    self,
    program: Program,
    rounds: int,
    path: str,
    features: np.ndarray,
    labels: np.ndarray,
  ) -> None:
    program.reset(0.0)
    for number in range(rounds):
      program.round(number + 1)
    weights = program.weights()
    np.savez(path, *weights)
    program.reset(self.work.noise_stddev)
    self._answer(
      'check',
      loss=reference_model.loss(self.work, weights, features, labels),
      parameter_norm=work_lib.norm(weights),
    )


def start(default_form: str) -> Server:
  """Reads the command line: --work, as JSON, and --form.

  The process ends with its parent. The output of libraries goes to standard
  error.
  """
  pr_set_pdeathsig = 1
  ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
  parser = argparse.ArgumentParser()
  parser.add_argument('--work', type=work_lib.from_json, required=True)
  parser.add_argument('--form', default=default_form)
  arguments = parser.parse_args()
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
  os.dup2(2, 1)
  return Server(arguments.work, arguments.form, sys.stdin, answers)
