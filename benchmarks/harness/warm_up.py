"""Unmeasured rounds, in which programs compile and first touch the data."""

import time

from benchmarks.harness import session as session_lib
from benchmarks.harness import work as work_lib

# Minimum number of rounds.
ROUNDS = 3
_ROUNDS_AT_ONCE = 10
_SECONDS = 10.0


def rounds_until_all_took_part(work: work_lib.Work) -> int:
  """Returns the first round by which every user has taken part."""
  missing = set(range(work.users))
  number = 0
  while missing:
    number += 1
    missing.difference_update(work.cohort(number).tolist())
  return number


def until_all_took_part(
  session: session_lib.Session, work: work_lib.Work, seconds: float = _SECONDS
) -> None:
  """Runs a fresh program until every user has taken part.

  Args:
    session: The program.
    work: The work that it does.
    seconds: Time limit.
  """
  last = session.run(ROUNDS)[-1]
  deadline = time.monotonic() + seconds
  left = rounds_until_all_took_part(work) - ROUNDS
  while left > 0 and (still := deadline - time.monotonic()) > 0:
    # Slow rounds: only as many as there is time for.
    rounds = min(left, _ROUNDS_AT_ONCE, max(1, int(min(still / last, left))))
    last = session.run(rounds)[-1]
    left -= rounds
