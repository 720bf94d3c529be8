"""Measures cold starts: from nothing to the end of the first round."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import session as session_lib
from benchmarks.harness import work as work_lib


@dataclasses.dataclass(frozen=True)
class ColdStart:
  """One start of a program, without generating the data.

  Attributes:
    contender: Name of the contender.
    import_seconds: The interpreter and its imports.
    build_seconds: Until it was ready for a round.
    first_round_seconds: The first round, in which it may compile.
  """

  contender: str
  import_seconds: float
  build_seconds: float
  first_round_seconds: float

  @property
  def seconds(self) -> float:
    """The whole start."""
    return self.import_seconds + self.build_seconds + self.first_round_seconds


def measure(
  work: work_lib.Work,
  contenders: Sequence[contenders_lib.Contender],
  root: pathlib.Path,
  repeats: int,
  on_turn: Callable[[str], None] = lambda name: None,
) -> list[ColdStart]:
  """Starts every program in turn, `repeats` times.

  Raises:
    ProgramError: If a program fails.
  """
  found = []
  for _ in range(repeats):
    for contender in contenders:
      on_turn(contender.name)
      with session_lib.Session(contender, work, root) as session:
        first_round = session.run(1)[0]
        start = session.start
      found.append(
        ColdStart(
          contender.name,
          start.seconds - start.build_seconds,
          start.build_seconds,
          first_round,
        )
      )
  return found
