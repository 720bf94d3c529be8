"""Runs programs on the same work in turns, and checks that it is the same.

Each block of rounds of one program is followed by a block of the next one, so
that a temporary slowdown of the machine affects all of them.
"""

import contextlib
import dataclasses
import math
import pathlib
import random
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import session as session_lib
from benchmarks.harness import warm_up
from benchmarks.harness import work as work_lib

CHECK_ROUNDS = 3
# Relative tolerance of loss and norm.
CHECK_TOLERANCE = 1e-3
# Distance of two models, in units of the distance that training has covered.
CHECK_DISTANCE = 1e-2


@dataclasses.dataclass(frozen=True)
class Block:
  """The measurements of a program in one turn.

  Attributes:
    contender: Name of the contender.
    number: Number of the turn, from 1.
    seconds: Seconds of each round that counts.
  """

  contender: str
  number: int
  seconds: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Program:
  """What is known about a program besides its speed.

  Attributes:
    contender: Name of the contender.
    start: How it started.
    check: The check of its model; None for a program without a model.
    distance: Distance of its model from ours, in units of the distance that our
      training has covered.
    peak_bytes: Peak memory at the end.
  """

  contender: contenders_lib.Contender
  start: session_lib.Start
  check: session_lib.Check | None
  distance: float
  peak_bytes: int


def _distance(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
  return work_lib.norm(
    [a.astype(np.float64) - b for a, b in zip(one, other, strict=True)]
  )


def distance(
  work: work_lib.Work,
  model: Sequence[np.ndarray],
  reference: Sequence[np.ndarray],
) -> float:
  """Returns a model's distance from the reference, in units of its path.

  The path is from the initial weights to the reference: a program that leaves
  something out takes another path. In a projected work, the path starts from
  the projected weights.

  Raises:
    ValueError: If the models have different shapes.
  """
  initial = work.initial_weights()
  shapes = [w.shape for w in initial]
  for weights in (model, reference):
    if [w.shape for w in weights] != shapes:
      raise ValueError(f'model must have shapes {shapes}')
  scale = min(1.0, (work.l2_norm_clip or math.inf) / work_lib.norm(initial))
  way = _distance(reference, [w * scale for w in initial])
  return _distance(model, reference) / way


def verify(
  work: work_lib.Work,
  name: str,
  check: session_lib.Check,
  reference: session_lib.Check,
) -> float:
  """Checks that a program has reached the same model as ours.

  Returns:
    The distance of the two models.

  Raises:
    ProgramError: If the models differ.
  """
  for field in ('loss', 'parameter_norm'):
    value, expected = getattr(check, field), getattr(reference, field)
    if not abs(value - expected) <= CHECK_TOLERANCE * abs(expected):
      raise session_lib.ProgramError(
        f'{name} does other work: after {CHECK_ROUNDS} rounds without noise '
        f'its {field} is {value:.6g}, ours is {expected:.6g}'
      )
  try:
    found = distance(work, check.weights, reference.weights)
  except ValueError as error:
    raise session_lib.ProgramError(f'{name}: {error}') from error
  if not found <= CHECK_DISTANCE:
    raise session_lib.ProgramError(
      f'{name} does other work: after {CHECK_ROUNDS} rounds without noise its '
      f'model is {found:.3g} of the way of ours away, {CHECK_DISTANCE:g} is '
      'allowed'
    )
  return found


class _Player:
  """A contender in a comparison; one that is not quiet only runs for a turn."""

  def __init__(
    self,
    contender: contenders_lib.Contender,
    work: work_lib.Work,
    root: pathlib.Path,
  ):
    self._contender = contender
    self._open_session = lambda: session_lib.Session(contender, work, root)
    self._session: session_lib.Session | None = self._open_session()
    self.start = self._session.start
    self.peak_bytes = 0
    self.check: session_lib.Check | None = None
    try:
      warm_up.until_all_took_part(self._session, work)
      if contender not in contenders_lib.references(work):
        self.check = self._session.check(CHECK_ROUNDS)
    except BaseException:
      self.close()
      raise
    self._rest()

  def run(self, rounds: int) -> list[float]:
    """Runs one turn; the first round, with cold caches, is not counted."""
    if self._session is None:
      self._session = self._open_session()
      self._session.run(warm_up.ROUNDS)
    seconds = self._session.run(1 + rounds)
    self._rest()
    return seconds[1:]

  def _rest(self) -> None:
    assert self._session is not None  # It has just run.
    self.peak_bytes = max(self.peak_bytes, self._session.peak_bytes())
    if not self._contender.is_quiet:
      self.close()

  def close(self) -> None:
    """Ends the session, if there is one."""
    if self._session is not None:
      self._session.close()
      self._session = None


def compare(
  work: work_lib.Work,
  contenders: Sequence[contenders_lib.Contender],
  root: pathlib.Path,
  blocks: int,
  rounds_per_block: int,
  on_turn: Callable[[str], None] = lambda name: None,
) -> tuple[list[Block], list[Program]]:
  """Runs the programs, and the references for them, in turns.

  Args:
    work: The work that they do.
    contenders: The contenders, all present; ours comes first.
    root: The checkout.
    blocks: Number of turns of each.
    rounds_per_block: Number of rounds of a turn that count.
    on_turn: Called with the name of a program that starts, or that has had a
      turn; for a progress bar.

  Returns:
    The blocks, and what else is known about each program.

  Raises:
    ProgramError: If a program fails, or does different work than ours.
  """
  measured = []
  with contextlib.ExitStack() as stack:
    players: dict[contenders_lib.Contender, _Player] = {}
    distances: dict[contenders_lib.Contender, float] = {}
    for contender in [*contenders, *contenders_lib.references(work)]:
      on_turn(contender.name)
      player = players[contender] = _Player(contender, work, root)
      stack.callback(player.close)
      ours = players[contenders[0]]
      if player.start.digest != ours.start.digest:
        raise session_lib.ProgramError(
          f'{contender.name} has made other data than ours'
        )
      if player.check and ours.check:
        distances[contender] = verify(
          work, contender.name, player.check, ours.check
        )
    rng = random.Random(work.seed)
    for number in range(1, blocks + 1):
      # A program's aftereffects hit another one in each turn. Those that wait
      # run next to each other, the others start in between.
      order = sorted(
        players.items(), key=lambda item: (not item[0].is_quiet, rng.random())
      )
      for contender, player in order:
        seconds = player.run(rounds_per_block)
        measured.append(Block(contender.name, number, seconds))
        on_turn(contender.name)
  programs = [
    Program(
      contender,
      player.start,
      player.check,
      distances.get(contender, 0.0),
      player.peak_bytes,
    )
    for contender, player in players.items()
  ]
  return measured, programs
