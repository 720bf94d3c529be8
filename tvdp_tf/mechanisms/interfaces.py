"""What a mechanism deals in: users, rounds of releases, and the graph."""

import dataclasses
from typing import Any, ClassVar, Protocol

import numpy as np

from tvdp_tf.learning import participation


class Population(Protocol):
  """Who takes part in a run, as far as a mechanism asks."""

  @property
  def participation(self) -> participation.Participation:
    """The rule that draws the cohorts."""

  @property
  def examples_per_user(self) -> np.ndarray:
    """|D_k| for each user, int64 [users]."""

  @property
  def num_parameters(self) -> int:
    """How many weights the model has."""


@dataclasses.dataclass(frozen=True)
class GraphMechanism:
  """What of a mechanism enters the graph: its noise, its clip.

  A subclass is a frozen dataclass that holds everything that the guarantee
  rests on, so that training, accounting and statement cannot disagree. What its
  field `schedule` holds, if it has one, is in the process's state; all other
  fields are constants of the graph.

  Attributes:
    IN_STATE: Names of the fields that are in the state.
  """

  IN_STATE: ClassVar[tuple[str, ...]] = ('schedule',)

  def parts(self, build: Any) -> Any:
    """What it puts into the learning process.

    Args:
      build: A `federated.learning_process.Build`.

    Returns:
      The `federated.learning_process.Parts`.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Round:
  """The releases of one round; recorded before they happen.

  Attributes:
    number: From 1.
    clients: int64 [k], who takes part.
    noise_multipliers: float64 [k], of each client's releases.
    noise_stddev: The smallest standard deviation of noise that is added.
    noise_scales: float64 [k], as of `client_data.client_sequence`.
  """

  number: int
  clients: np.ndarray
  noise_multipliers: np.ndarray
  noise_stddev: float
  noise_scales: np.ndarray
