"""What an experiment is: what is swept, what is drawn."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.catalogue import claims as claims_lib

ROUND = 'round'  # One run a curve, against its rounds.
POINT = 'point'  # One run a curve, its last round alone.
ROUNDS = 'rounds'  # A run a point, against its number of rounds M.

_ROUND_NUMBERS = (1, 2, 4, 6, 8, 10, 13, 17, 20, 25, 30, 35, 40)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One figure or table.

  Attributes:
    name: Of the program's flag.
    title: What it shows.
    claims: What the paper says of it, or what we ask.
    base: Settings of all its runs.
    curves: Label -> the settings in which the curve differs.
    against: `ROUND`, `ROUNDS` or `POINT`.
    round_numbers: The values of M, for `ROUNDS`.
    columns: What is drawn: fields of `sweep.Measurement`.
    game: If given, a point is a membership game: `GameSettings` but for
      `training`. Otherwise it is a training run.
    test_part: Which test examples measure, as of `datasets.with_test_part`;
      those that chose the learning rates are not among them.
    seeds: How many seeds its results rest on.
    smoke: What else is changed for a smoke test.
    generated: Whether its data are generated, as a smoke test's.
  """

  name: str
  title: str
  claims: Sequence[claims_lib.Claim]
  base: Mapping[str, Any]
  curves: Mapping[str, Mapping[str, Any]]
  against: str
  round_numbers: Sequence[int] = _ROUND_NUMBERS
  columns: Sequence[str] = ('test_loss', 'test_accuracy')
  game: Mapping[str, int] | None = None
  test_part: str = 'reported'
  seeds: int = 3
  smoke: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  generated: bool = False

  def on_generated_data(self) -> 'Experiment':
    """The same as a smoke test, whose results say what they are of."""
    return dataclasses.replace(
      self, title=f'{self.title} (generated data)', generated=True
    )
