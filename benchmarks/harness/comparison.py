"""Programs on the same work, in turns, and the proof that it is the same.

Each block of rounds of one program is followed by one of the next, so that
whatever slows the machine for a while slows all of them.
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
# Loss and norm, relatively.
CHECK_TOLERANCE = 1e-3
# The distance of two models, in units of the way that training has gone.
CHECK_DISTANCE = 1e-2


@dataclasses.dataclass(frozen=True)
class Block:
  """What a program did in one turn.

  Attributes:
    contender: Its name.
    number: The turn, from 1.
    seconds: Of each round that counts.
  """

  contender: str
  number: int
  seconds: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Program:
  """What is known of a program besides its speed.

  Attributes:
    contender: Which.
    start: How it started.
    check: Of its model; None for a program that has none.
    distance: Of its model from ours, in units of the way that ours has gone.
    peak_bytes: Of memory, at the end.
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
  """How far a model is from the reference, in units of the reference's way.

  Its way is from the initial weights to what it is: a program that leaves
  something out goes another one. In a projected work it starts from the weights
  projected.

  Raises:
    ValueError: If the models have other shapes.
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
  """Checks that a program has come to the same model as ours.

  Returns:
    The distance of the two models.

  Raises:
    ProgramError: If it has not.
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
  """A contender in a comparison; one that is not quiet lives for a turn."""

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
    """One turn: rounds of which the first, with cold caches, is left out."""
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
    """Ends its session, if it has one."""
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
  """Runs the programs in turns, what they are held against among them.

  Args:
    work: What they do.
    contenders: Which, all present; ours comes first.
    root: The checkout.
    blocks: Turns of each.
    rounds_per_block: Rounds of a turn that count.
    on_turn: Is told who starts, or has had a turn; for a progress bar.

  Returns:
    The blocks, and what else is known of each program.

  Raises:
    ProgramError: If a program fails, or does other work than ours.
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
      # What one leaves behind hits another in each turn. Those that wait run
      # next to each other, the others start in between.
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
