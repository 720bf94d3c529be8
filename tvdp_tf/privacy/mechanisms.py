"""What hides the examples: one frozen object a mechanism.

A mechanism holds everything that its guarantee rests on, its noise, its clip
and its sensitivity rule, so that the training, the accounting and the statement
cannot disagree.

  PaperMechanism     Algorithm 1: Gaussian noise on the parameters of a client
  LaplaceMechanism   the paper's baseline: Laplace noise in its place
  GradientMechanism  Gaussian noise on every local step's mean gradient
  CentralMechanism   Gaussian noise on the sum of the clients' updates
  NoMechanism        nothing
"""

import dataclasses
import math

from tvdp_tf import _validate
from tvdp_tf.privacy import schedule as schedule_lib
from tvdp_tf.privacy import sensitivity

# Gaussian noise in floating point, or on a grid of integers.
CONTINUOUS = 'continuous'
DISCRETE = 'discrete'
NOISES = (CONTINUOUS, DISCRETE)


def _check_schedule(schedule: schedule_lib.GeometricSchedule) -> None:
  if not isinstance(schedule, schedule_lib.GeometricSchedule):
    raise ValueError(
      f'schedule must be a GeometricSchedule, got {type(schedule).__name__}'
    )


@dataclasses.dataclass(frozen=True)
class PaperMechanism:
  """Output perturbation as in the paper's Algorithm 1.

  The parameters are projected to norm C after every local step, and Gaussian
  noise is added to them before the upload.

  Attributes:
    schedule: The noise of every round, added to every parameter.
    l2_norm_clip: C.
  """

  schedule: schedule_lib.GeometricSchedule
  l2_norm_clip: float

  def __post_init__(self):
    _check_schedule(self.schedule)
    _validate.positive('l2_norm_clip', self.l2_norm_clip)

  def sensitivity(self, examples: int) -> sensitivity.SensitivityRule:
    """The paper's rule, for a client of so many examples."""
    return sensitivity.paper_rule(self.l2_norm_clip, examples)


@dataclasses.dataclass(frozen=True)
class LaplaceMechanism:
  """As `PaperMechanism`, with Laplace noise, the same in every round.

  Attributes:
    noise_stddev: Standard deviation of the noise: sqrt(2) times its scale.
    rounds: M, for how many rounds it may be used.
    l2_norm_clip: C.
  """

  noise_stddev: float
  rounds: int
  l2_norm_clip: float

  def __post_init__(self):
    _validate.positive('noise_stddev', self.noise_stddev)
    _validate.integer('rounds', self.rounds)
    _validate.positive('l2_norm_clip', self.l2_norm_clip)

  @property
  def schedule(self) -> schedule_lib.GeometricSchedule:
    """The same noise in every round, as a schedule."""
    return schedule_lib.GeometricSchedule(1.0, self.rounds, self.noise_stddev)

  def l1_sensitivity(self, examples: int, dimension: int) -> float:
    """sqrt(d) 2 C / n: the paper's L2 sensitivity, as an L1 norm; unproven."""
    rule = sensitivity.paper_rule(self.l2_norm_clip, examples)
    return math.sqrt(_validate.integer('dimension', dimension)) * rule.value


@dataclasses.dataclass(frozen=True)
class GradientMechanism:
  """Gaussian noise on the mean of clipped per-example gradients.

  Every local step is a release. The noise of a client in round m has the
  standard deviation z_m * sensitivity(n).value, with n its number of examples.

  Attributes:
    schedule: The noise multipliers of every round: z_m in place of standard
      deviations. A client may have z_1 of its own and the same theta.
    example_l2_norm_clip: C_g.
    adjacency: Of examples: 'replace-one' or 'add-or-remove-one'.
    noise: One of `NOISES`.
  """

  schedule: schedule_lib.GeometricSchedule
  example_l2_norm_clip: float
  adjacency: str = sensitivity.REPLACE_ONE
  noise: str = CONTINUOUS

  def __post_init__(self):
    _validate.one_of('noise', self.noise, NOISES)
    _check_schedule(self.schedule)
    sensitivity.check_clip('example_l2_norm_clip', self.example_l2_norm_clip)
    _validate.one_of('adjacency', self.adjacency, sensitivity.ADJACENCIES)

  def sensitivity(self, examples: int) -> sensitivity.SensitivityRule:
    """2 C_g / n, for a client of so many examples; a fixed, public number."""
    return sensitivity.gradient_rule(
      self.example_l2_norm_clip, examples, self.adjacency
    )

  def noise_scale(
    self, examples: int, initial_noise_multiplier: float
  ) -> float:
    """A client's noise standard deviation over the schedule's z_m.

    Args:
      examples: n, of the client.
      initial_noise_multiplier: z_1, of the client.
    """
    relative = initial_noise_multiplier / self.schedule.initial_stddev
    return self.sensitivity(examples).value * relative


@dataclasses.dataclass(frozen=True)
class CentralMechanism:
  """Gaussian noise on the sum of the clients' clipped updates (DP-FedAvg).

  Attributes:
    schedule: The noise multipliers of every round: noise standard deviation
      over `l2_norm_clip`.
    l2_norm_clip: C_u, the norm that the update of a client is clipped to.
    denominator: The fixed, public number that the noisy sum is divided by: the
      expected size of a cohort.
    seed: Makes the noise reproducible; None for noise nobody can predict.
    noise: One of `NOISES`.
  """

  schedule: schedule_lib.GeometricSchedule
  l2_norm_clip: float
  denominator: float
  seed: int | None = None
  noise: str = CONTINUOUS

  def __post_init__(self):
    _validate.one_of('noise', self.noise, NOISES)
    _check_schedule(self.schedule)
    sensitivity.check_clip('l2_norm_clip', self.l2_norm_clip)
    _validate.positive('denominator', self.denominator)

  def sensitivity(self) -> sensitivity.SensitivityRule:
    """C_u: adding or removing a user moves the sum by no more."""
    return sensitivity.update_rule(
      self.l2_norm_clip, sensitivity.ADD_OR_REMOVE_ONE
    )


@dataclasses.dataclass(frozen=True)
class NoMechanism:
  """No noise: the paper's epsilon = infinity. It protects nothing.

  Attributes:
    l2_norm_clip: C; the parameters are projected all the same.
  """

  l2_norm_clip: float

  def __post_init__(self):
    _validate.positive('l2_norm_clip', self.l2_norm_clip)


Mechanism = (
  PaperMechanism
  | LaplaceMechanism
  | GradientMechanism
  | CentralMechanism
  | NoMechanism
)
