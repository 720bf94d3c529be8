"""Interfaces of mechanisms: users, rounds of releases, and the graph."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.learning import participation
from tvdp_tf.privacy import sensitivity

# What a client releases with its own noise.
MODEL = 'model'
GRADIENTS = 'gradients'


def check_schedule(schedule: privacy.NoiseSchedule) -> None:
  """Checks the type of a schedule.

  Raises:
    ValueError: If it is not a schedule.
  """
  if not isinstance(schedule, privacy.NoiseSchedule):
    raise ValueError(
      f'schedule must be a NoiseSchedule, got {type(schedule).__name__}'
    )


class Population(Protocol):
  """The users of a run, as far as a mechanism needs them."""

  @property
  def participation(self) -> participation.Participation:
    """The rule that draws the cohorts."""

  @property
  def examples_per_user(self) -> np.ndarray:
    """|D_k| for each user, int64 [users]."""

  @property
  def num_parameters(self) -> int:
    """The number of weights of the model; 0 to treat the noise as exact."""


@dataclasses.dataclass(frozen=True)
class GraphMechanism:
  """The part of a mechanism that enters the graph: its noise and its clip.

  A subclass is a frozen dataclass with everything that the guarantee depends
  on, so that training, accounting and statement always agree. The values of its
  field `schedule`, if it has one, are in the state of the process; all other
  fields are constants of the graph.

  Attributes:
    IN_STATE: Names of the fields that are in the state.
    CLIENT_RELEASES: What a client releases with its own Gaussian noise, so that
      it can be simulated alone: `MODEL`, its projected parameters at the end of
      a round; `GRADIENTS`, the mean of clipped gradients in every local step.
      Empty if neither applies.
  """

  IN_STATE: ClassVar[tuple[str, ...]] = ('schedule',)
  CLIENT_RELEASES: ClassVar[str] = ''

  @classmethod
  def simulated_releases(cls) -> str:
    """`CLIENT_RELEASES` if the audit of one client shows what a client sends.

    Empty for a class with its own graph, which the audit would not run, or with
    other noise for the audit than for the graph.
    """
    used = (
      *(cls.parts, cls.plain_work),
      *(cls.client_stddev, cls.client_multipliers),
    )
    ours = (method.__module__.startswith('tvdp_tf.') for method in used)
    return cls.CLIENT_RELEASES if all(ours) else ''

  def parts(self, build: Any) -> Any:
    """The mechanism's parts of the learning process.

    Args:
      build: A `federated.learning_process.Build`.

    Returns:
      The `federated.learning_process.Parts`.
    """
    raise NotImplementedError

  def plain_work(self, build: Any) -> Any:
    """The work of a client in a round, without TFF.

    Args:
      build: A `training.plain_process.PlainBuild`.

    Returns:
      A function (weights, `client_data.element`, the state's noise) -> local
      model. Everything in the model that depends on examples has noise.
    """
    raise NotImplementedError

  def client_stddev(self, round_number: int, examples: int) -> float:
    """Standard deviation of each value of the noise that a client adds.

    Args:
      round_number: Number of the round, from 1.
      examples: n, the client's number of examples.
    """
    raise NotImplementedError

  def client_multipliers(
    self, examples: int
  ) -> Sequence[tuple[sensitivity.SensitivityRule, np.ndarray]]:
    """A client's noise in every round, relative to its sensitivity.

    Args:
      examples: n, the client's number of examples.

    Returns:
      For each sensitivity rule, the one of the calibration first: the rule and
      the noise multipliers, float64 [rounds].

    Raises:
      ValueError: If a noise multiplier is not representable.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Round:
  """The releases of one round; recorded before they happen.

  Attributes:
    number: Number of the round, from 1.
    clients: Numbers of the clients that take part, int64 [k].
    noise_multipliers: Noise multiplier of each client's releases, float64 [k].
    noise_stddev: The smallest standard deviation of the added noise.
    noise_scales: As for `client_data.client_sequence`, float64 [k].
  """

  number: int
  clients: np.ndarray
  noise_multipliers: np.ndarray
  noise_stddev: float
  noise_scales: np.ndarray
