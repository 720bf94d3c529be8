"""Passes the audit of a tool's own code from its environment to ours.

A program in `benchmarks/peers/<tool>/claim.py` runs with only the tool. It
attacks the tool's code on two neighboring data sets, many times over, and
writes the scores by this module; `tools.check_claims` reads and judges them.
"""

import dataclasses
import json
import pathlib
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

_CASES, _SCORES = 'cases.json', 'scores.npz'


@dataclasses.dataclass(frozen=True)
class Case:
  """A setting of a tool, and the scores of an attack on it.

  Attributes:
    name: A short description.
    delta: The delta of all epsilons.
    epsilon_set: The epsilon that a user sets; None if there is none.
    epsilon_told: The final epsilon of the tool's own accountant; None if it has
      none.
    formula: The formula for `tvdp_tf.check_claim`.
    arguments: Arguments of `tvdp_tf.check_claim`, besides delta and epsilon.
    is_gaussian: Whether all releases together are one Gaussian release.
    scores: Scores of independent runs on one data set, [trials].
    alternative_scores: Scores of as many runs on the neighboring data set.
  """

  name: str
  delta: float
  epsilon_set: float | None
  epsilon_told: float | None
  formula: str
  arguments: dict[str, Any]
  is_gaussian: bool
  scores: np.ndarray
  alternative_scores: np.ndarray

  @property
  def claim(self) -> float | None:
    """The epsilon told to the tool's user: its accountant's, or the setting."""
    return self.epsilon_set if self.epsilon_told is None else self.epsilon_told


@dataclasses.dataclass(frozen=True)
class Audited:
  """All cases of a tool.

  Attributes:
    tool: Name of the tool's distribution.
    version: Version of the tool.
    python: Version of Python that ran it.
    seconds: Duration of the audit.
    cases: The cases, in order.
  """

  tool: str
  version: str
  python: str
  seconds: float
  cases: tuple[Case, ...]


def write(
  folder: pathlib.Path, tool: str, seconds: float, cases: Sequence[Case]
) -> None:
  """Writes the cases; called where the tool is installed."""
  described = {
    'tool': tool,
    'version': metadata.version(tool),
    'python': platform.python_version(),
    'seconds': seconds,
    'cases': [
      {
        field.name: getattr(case, field.name)
        for field in dataclasses.fields(case)
        if not field.name.endswith('scores')
      }
      for case in cases
    ],
  }
  (folder / _CASES).write_text(json.dumps(described), encoding='utf-8')
  np.savez(
    folder / _SCORES,
    **{
      str(i): np.array([case.scores, case.alternative_scores])
      for i, case in enumerate(cases)
    },
  )


def read(folder: pathlib.Path) -> Audited:
  """Reads what `write` has written."""
  described = json.loads((folder / _CASES).read_text(encoding='utf-8'))
  with np.load(folder / _SCORES) as scores:
    cases = tuple(
      Case(
        **case,
        scores=scores[str(i)][0],
        alternative_scores=scores[str(i)][1],
      )
      for i, case in enumerate(described.pop('cases'))
    )
  return Audited(**described, cases=cases)
