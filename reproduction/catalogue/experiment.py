"""The definition of an experiment: what is swept, and what is drawn."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.catalogue import claims as claims_lib

ROUND = 'round'  # One run per curve, against its rounds.
POINT = 'point'  # One run per curve, only its last round.
ROUNDS = 'rounds'  # One run per point, against its number of rounds M.

_ROUND_NUMBERS = (1, 2, 4, 6, 8, 10, 13, 17, 20, 25, 30, 35, 40)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One figure or table.

  Attributes:
    name: The value of the program's flag.
    title: What it shows.
    claims: What the paper says about it, or what we ask.
    base: Settings of all its runs.
    curves: Label -> the settings in which the curve differs.
    against: `ROUND`, `ROUNDS` or `POINT`.
    round_numbers: The values of M, for `ROUNDS`.
    columns: What to draw: fields of `sweep.Measurement`.
    game: If given, a point is a membership game: `GameSettings` except for
      `training`. Otherwise it is a training run.
    test_part: Which test examples to measure on, as for
      `datasets.with_test_part`; those that chose the learning rates are not
      among them.
    seeds: The number of seeds for its results.
    smoke: Additional changes for a smoke test.
    generated: Whether its data are generated, as in a smoke test.
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
    """Returns it as a smoke test, whose results say so."""
    return dataclasses.replace(
      self, title=f'{self.title} (generated data)', generated=True
    )
