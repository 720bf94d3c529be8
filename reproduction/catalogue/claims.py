"""Claims about an experiment, in a form that its results can decide.

A claim is decided for each seed separately: the seed's runs share data, initial
weights and cohorts, so its curves can be compared. The claim holds if it holds
in all seeds, and fails if it holds in none; otherwise it is open.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Row = Mapping[str, str]

# Tolerance (relative) for a loss to be at rest, and for two losses to be near.
NEAR = 0.02


class Seed:
  """The results of one seed.

  Args:
    rows: Label of a curve -> its rows of the CSV.
    x: The column against which the curve is drawn.
  """

  def __init__(self, rows: Mapping[str, Sequence[Row]], x: str):
    self._rows = rows
    self._x = x

  def column(self, label: str, name: str) -> dict[int, float]:
    """Returns the values of a curve's column, by x."""
    return {
      int(row[self._x]): float(row[name])
      for row in sorted(self._rows[label], key=lambda row: int(row[self._x]))
    }

  def first(self, label: str, name: str) -> float:
    """Returns the value at the least x."""
    return next(iter(self.column(label, name).values()))

  def last(self, label: str, name: str = 'test_loss') -> float:
    """Returns the value at the greatest x; inf if it is NaN."""
    value = list(self.column(label, name).values())[-1]
    return math.inf if math.isnan(value) else value

  def _losses(self, label: str) -> dict[int, float]:
    return {
      x: math.inf if math.isnan(loss) else loss
      for x, loss in self.column(label, 'test_loss').items()
    }

  def least(self, label: str) -> float:
    """Returns the least test loss of a curve; inf if none is finite."""
    return min(self._losses(label).values())

  def best_at(self, label: str) -> int:
    """Returns the x of a curve's least test loss."""
    losses = self._losses(label)
    return min(losses, key=losses.__getitem__)


@dataclasses.dataclass(frozen=True)
class Claim:
  """A statement about the curves of an experiment.

  Attributes:
    text: The statement.
    labels: The curves that it is about.
    holds: Seed -> whether the claim holds.
    measured: Seed -> the numbers that decide it, by name.
  """

  text: str
  labels: tuple[str, ...]
  holds: Callable[[Seed], bool]
  measured: Callable[[Seed], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Decision:
  """The decision on a claim.

  Attributes:
    text: The claim.
    measured: Name -> the numbers of all seeds.
    held: In how many seeds it held.
    seeds: The number of seeds.
  """

  text: str
  measured: Mapping[str, Sequence[float]]
  held: int
  seeds: int

  @property
  def verdict(self) -> str:
    """The verdict in words."""
    if self.held == self.seeds:
      return 'holds'
    if not self.held:
      return 'does not hold'
    return f'open: holds in {self.held} of {self.seeds} seeds'


def decide(claim: Claim, seeds: Sequence[Seed]) -> Decision:
  """Decides a claim using the seeds that have all of its curves."""
  numbers = [claim.measured(seed) for seed in seeds]
  return Decision(
    claim.text,
    {name: [of_seed[name] for of_seed in numbers] for name in numbers[0]},
    sum(claim.holds(seed) for seed in seeds),
    len(seeds),
  )


def text_of(values: Sequence[float]) -> str:
  """Formats mean and standard deviation over the seeds; lists integers."""
  if all(float(value).is_integer() for value in values):
    whole = [f'{value:.0f}' for value in values]
    return whole[0] if len(set(whole)) == 1 else ', '.join(whole)
  if not all(map(math.isfinite, values)):
    return 'diverged'
  mean = float(np.mean(values))
  form = '.3f' if abs(mean) >= 0.1 else '.3g'
  stddev = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
  if stddev < 1e-9 * abs(mean):
    return f'{mean:{form}}'
  return f'{mean:{form}} ± {stddev:{form}}'


def _least_losses(labels: Sequence[str]) -> Callable:
  return lambda seed: {label: seed.least(label) for label in labels}


def _rises(values: Sequence[float]) -> bool:
  return all(a < b for a, b in itertools.pairwise(values))


def order(text: str, *labels: str) -> Claim:
  """Claims that the least losses rise strictly from label to label."""
  return Claim(
    text,
    labels,
    lambda seed: _rises([seed.least(label) for label in labels]),
    _least_losses(labels),
  )


def best(text: str, winners: Sequence[str], losers: Sequence[str]) -> Claim:
  """Claims that the least loss of the winners is below that of all losers."""
  labels = (*winners, *losers)
  return Claim(
    text,
    labels,
    lambda seed: min(map(seed.least, winners)) < min(map(seed.least, losers)),
    _least_losses(labels),
  )


def worst(text: str, loser: str, winners: Sequence[str]) -> Claim:
  """Claims that the least loss of one curve is above that of all others."""
  labels = (*winners, loser)
  return Claim(
    text,
    labels,
    lambda seed: seed.least(loser) > max(map(seed.least, winners)),
    _least_losses(labels),
  )


def each_better(
  text: str, pairs: Sequence[tuple[str, str]], at: str = 'least'
) -> Claim:
  """Claims that each pair's first curve has the lower loss at `at`."""
  labels = tuple(dict.fromkeys(label for pair in pairs for label in pair))

  def losses(seed: Seed) -> dict[str, float]:
    return {label: getattr(seed, at)(label) for label in labels}

  def holds(seed: Seed) -> bool:
    found = losses(seed)
    return all(found[a] < found[b] for a, b in pairs)

  return Claim(text, labels, holds, losses)


def near(text: str, labels: Sequence[str], reference: str) -> Claim:
  """Claims that the least losses are within `NEAR` of the reference's."""
  every = (*labels, reference)
  return Claim(
    text,
    every,
    lambda seed: all(
      seed.least(label) <= (1 + NEAR) * seed.least(reference)
      for label in labels
    ),
    _least_losses(every),
  )


def _best_places(labels: Sequence[str]) -> Callable:
  return lambda seed: {
    f'best at, {label}': seed.best_at(label) for label in labels
  }


def best_place_moves(text: str, *labels: str) -> Claim:
  """Claims that the x of the least loss never falls over labels, but rises."""

  def holds(seed: Seed) -> bool:
    places = [seed.best_at(label) for label in labels]
    return places == sorted(places) and places[0] < places[-1]

  return Claim(text, labels, holds, _best_places(labels))


def best_place_is(text: str, x: int, *labels: str) -> Claim:
  """Claims that the least loss of every curve is at a given x."""
  return Claim(
    text,
    labels,
    lambda seed: all(seed.best_at(label) == x for label in labels),
    _best_places(labels),
  )


def best_place_inside(text: str, *labels: str) -> Claim:
  """Claims that no curve's least loss is at its first or last x."""

  def inside(seed: Seed, label: str) -> bool:
    places = list(seed.column(label, 'test_loss'))
    return places[0] < seed.best_at(label) < places[-1]

  return Claim(
    text,
    labels,
    lambda seed: all(inside(seed, label) for label in labels),
    _best_places(labels),
  )


def _last_over_least(labels: Sequence[str]) -> Callable:
  return lambda seed: {
    f'last over least, {label}': seed.last(label) / seed.least(label)
    for label in labels
  }


def degrades(text: str, *labels: str) -> Claim:
  """Claims that every curve ends more than `NEAR` above its least loss."""
  return Claim(
    text,
    labels,
    lambda seed: all(
      seed.last(label) > (1 + NEAR) * seed.least(label) for label in labels
    ),
    _last_over_least(labels),
  )


def rests(text: str, *labels: str) -> Claim:
  """Claims that every curve ends within `NEAR` of its least loss."""
  return Claim(
    text,
    labels,
    lambda seed: all(
      seed.last(label) <= (1 + NEAR) * seed.least(label) for label in labels
    ),
    _last_over_least(labels),
  )


def rises(text: str, column: str, *labels: str, at: str = 'last') -> Claim:
  """Claims that a column at the `first` or `last` x rises over labels."""

  def values(seed: Seed) -> dict[str, float]:
    return {label: getattr(seed, at)(label, column) for label in labels}

  return Claim(
    text, labels, lambda seed: _rises(list(values(seed).values())), values
  )


def between(
  text: str, column: str, least: float, most: float, *labels: str
) -> Claim:
  """Claims that the last value of a column is within bounds on every curve."""

  def values(seed: Seed) -> dict[str, float]:
    return {label: seed.last(label, column) for label in labels}

  return Claim(
    text,
    labels,
    lambda seed: all(least <= v <= most for v in values(seed).values()),
    values,
  )


def steps_down(text: str, column: str, *labels: str) -> Claim:
  """Claims that a column never rises on any curve, and falls on each."""

  def holds(seed: Seed, label: str) -> bool:
    values = list(seed.column(label, column).values())
    return values == sorted(values, reverse=True) and values[-1] < values[0]

  return Claim(
    text,
    labels,
    lambda seed: all(holds(seed, label) for label in labels),
    lambda seed: {label: seed.last(label, column) for label in labels},
  )
