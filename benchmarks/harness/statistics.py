"""Statistics of measured seconds: medians, quartiles, ratios to ours."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from benchmarks.harness import comparison
from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import work as work_lib


@dataclasses.dataclass(frozen=True)
class Quartiles:
  """The middle half of some numbers."""

  first: float
  median: float
  third: float

  @classmethod
  def of(cls, values: Sequence[float]) -> 'Quartiles':
    """Computes the quartiles by linear interpolation."""
    return cls(*np.percentile(values, [25, 50, 75]).tolist())


@dataclasses.dataclass(frozen=True)
class Summary:
  """The results of a program on a work.

  Attributes:
    contender: Name of the contender.
    seconds: Quartiles of the seconds of a round.
    times_ours: Quartiles over the turns of its median round divided by our
      median round: 2 is twice as long as ours.
    flops_per_second: Speed of the median round.
    share_of_peak: Fraction of the speed of the fastest product of two large
      matrices in the run.
    peak_bytes: Peak memory of its processes.
  """

  contender: str
  seconds: Quartiles
  times_ours: Quartiles
  flops_per_second: float
  share_of_peak: float
  peak_bytes: int


def _seconds(
  blocks: Sequence[comparison.Block], contender: contenders_lib.Contender
) -> list[float]:
  name = contender.name
  return [s for b in blocks if b.contender == name for s in b.seconds]


def peak_flops_per_second(blocks: Sequence[comparison.Block]) -> float:
  """Returns the speed of the fastest matrix product."""
  seconds = _seconds(blocks, contenders_lib.MATRIX_PRODUCT)
  return work_lib.MATRIX_FLOPS / min(seconds)


def products_seconds(
  blocks: Sequence[comparison.Block],
) -> Quartiles | None:
  """Quartiles of a round's products alone; None if they were not measured."""
  seconds = _seconds(blocks, contenders_lib.ROUND_PRODUCTS)
  return Quartiles.of(seconds) if seconds else None


def summarize(
  work: work_lib.Work,
  blocks: Sequence[comparison.Block],
  programs: Sequence[comparison.Program],
) -> list[Summary]:
  """Summarizes all programs except products alone, the fastest first."""
  medians = {
    (block.contender, block.number): float(np.median(block.seconds))
    for block in blocks
  }
  numbers = sorted({block.number for block in blocks})
  peak = peak_flops_per_second(blocks)
  found = []
  for program in programs:
    name = program.contender.name
    if program.contender in contenders_lib.references(work):
      continue
    seconds = Quartiles.of(_seconds(blocks, program.contender))
    ratios = [
      medians[name, n] / medians[contenders_lib.OURS.name, n] for n in numbers
    ]
    speed = work.flops_per_round / seconds.median
    found.append(
      Summary(
        name,
        seconds,
        Quartiles.of(ratios),
        speed,
        speed / peak,
        program.peak_bytes,
      )
    )
  return sorted(found, key=lambda summary: summary.seconds.median)
