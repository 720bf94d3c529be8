"""How this library's rounds grow with one size of the work at a time.

Every point is a process of its own, so that its peak of memory is its own. It
is measured when every user has taken part, with all that is kept of them. The
peak of the matrix product is measured between the points.
"""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Mapping

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import session as session_lib
from benchmarks.harness import warm_up
from benchmarks.harness import work as work_lib

_PRODUCTS = 5


@dataclasses.dataclass(frozen=True)
class Series:
  """Points that differ in one size.

  Attributes:
    label: Of the axis.
    works: By that size.
  """

  label: str
  works: Mapping[int, work_lib.Work]


def series(smoke: bool = False) -> dict[str, Series]:
  """What is measured, by name; for `smoke` so small that it takes seconds."""
  replace = dataclasses.replace
  base = work_lib.Work()
  cohorts = [10, 30, 100, 300, 1000]
  users = [100, 1000, 10_000]
  widths = [8, 32, 128, 512, 2048]
  # So few examples a user that those of 10,000 fit into the memory.
  many_users = replace(base, examples_per_user=60)
  if smoke:
    base = many_users = work_lib.SMOKE_WORKS['mlp-round']
    cohorts, users, widths = [2, 4], [4, 8], [8, 16]
  most_users = max(cohorts)
  return {
    'users_per_round': Series(
      f'users per round, K, of {most_users:,}',
      {k: replace(base, users=most_users, users_per_round=k) for k in cohorts},
    ),
    'users': Series(
      f'users, U, of {many_users.examples_per_user} examples each',
      {u: replace(many_users, users=u) for u in users},
    ),
    'hidden_units': Series(
      'hidden units of the model',
      {h: replace(base, hidden_units=h) for h in widths},
    ),
  }


ROUNDS = 'rounds'


def round_numbers(smoke: bool = False) -> tuple[int, ...]:
  """After how many rounds of one run it is looked at."""
  return (5, 10) if smoke else (10, 30, 100, 300, 1000)


@dataclasses.dataclass(frozen=True)
class Point:
  """One point of a series.

  Attributes:
    series: Its name.
    size: The size that differs.
    seconds: Of each round; in the series of rounds, of those since the last
      point.
    flops: Of a round.
    peak_flops_per_second: Of the matrix product beside it.
    data_bytes: Of the users' features, once.
    peak_bytes: Of the process's memory.
  """

  series: str
  size: int
  seconds: list[float]
  flops: int
  peak_flops_per_second: float
  data_bytes: int
  peak_bytes: int


def measure(
  root: pathlib.Path,
  rounds: int,
  smoke: bool = False,
  on_point: Callable[[str], None] = lambda name: None,
) -> list[Point]:
  """Measures all series.

  Args:
    root: The checkout.
    rounds: Of each point, after the warm-up.
    smoke: As of `series`.
    on_point: Is told which point begins.

  Returns:
    The points.

  Raises:
    ProgramError: If a program fails.
  """
  found = []
  with session_lib.Session(
    contenders_lib.MATRIX_PRODUCT, work_lib.SMOKE_WORKS['mlp-round'], root
  ) as product:
    product.run(warm_up.ROUNDS)

    def point(name, size, work, session, seconds):
      fastest = min(product.run(_PRODUCTS))
      return Point(
        name,
        size,
        seconds,
        work.flops_per_round,
        work_lib.MATRIX_FLOPS / fastest,
        work.data_bytes,
        session.peak_bytes(),
      )

    for name, one in series(smoke).items():
      for size, work in one.works.items():
        on_point(f'{name} {size}')
        with session_lib.Session(contenders_lib.OURS, work, root) as session:
          warm_up.until_all_took_part(session, work, math.inf)
          seconds = session.run(rounds)
          found.append(point(name, size, work, session, seconds))
    on_point(ROUNDS)
    work = work_lib.SMOKE_WORKS['mlp-round'] if smoke else work_lib.Work()
    with session_lib.Session(contenders_lib.OURS, work, root) as session:
      session.run(warm_up.ROUNDS)
      for before, number in itertools.pairwise((0, *round_numbers(smoke))):
        seconds = session.run(number - before)
        found.append(point(ROUNDS, number, work, session, seconds))
  return found
