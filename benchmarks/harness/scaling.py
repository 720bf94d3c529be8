"""Measures how this library's rounds scale with one size at a time.

Every point is a separate process, so that it has its own peak of memory. It is
measured after every user has taken part, with all that is kept of them. The
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
    label: Label of the axis.
    works: Size -> work.
  """

  label: str
  works: Mapping[int, work_lib.Work]


def series(smoke: bool = False) -> dict[str, Series]:
  """Returns the series by name; with `smoke`, they only take seconds."""
  replace = dataclasses.replace
  base = work_lib.Work()
  cohorts = [10, 30, 100, 300, 1000]
  users = [100, 1000, 10_000]
  widths = [8, 32, 128, 512, 2048]
  # So few examples per user that 10,000 users fit into memory.
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
  """Returns after how many rounds of one run to measure."""
  return (5, 10) if smoke else (10, 30, 100, 300, 1000)


@dataclasses.dataclass(frozen=True)
class Point:
  """One point of a series.

  Attributes:
    series: Name of the series.
    size: The size that differs.
    seconds: Seconds of each round; in the series of rounds, of those since the
      last point.
    flops: Floating-point operations of a round.
    peak_flops_per_second: Speed of the matrix product measured next to it.
    data_bytes: Bytes of the users' features, counted once.
    peak_bytes: Peak memory of the process.
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
    rounds: Number of rounds of each point, after the warm-up.
    smoke: As for `series`.
    on_point: Called with the name of each point that starts.

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
