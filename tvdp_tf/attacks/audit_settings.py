"""The settings of an audit: the flags of `binaries/attack.py --audit`, checked.

Field names are the names of the flags, so that an error about a field is an
error about its flag.
"""

import dataclasses

from tvdp_tf import _validate, mechanisms
from tvdp_tf.attacks import lower_bound

# Fields that training has, too.
OF_TRAINING = (
  *('mechanism', 'epsilon', 'delta', 'theta', 'rounds', 'local_steps'),
  *('l2_norm_clip', 'example_l2_norm_clip', 'learning_rate', 'calibration'),
)

# Client -> (default number of examples, maximum): 1,437 training digits in all;
# the paper's 60,000 examples / 100 users by default.
_EXAMPLES = {'digits': (100, 1437), 'outlier': (600, 1_000_000)}
CLIENTS = tuple(_EXAMPLES)

# Scores are held in memory.
_MOST_TRIALS = 10_000_000


def _audited() -> list[str]:
  """The mechanisms for which one client's releases can be simulated."""
  return [
    name
    for name, kind in mechanisms.MECHANISMS.items()
    if kind.graph.simulated_releases()
  ]


@dataclasses.dataclass(frozen=True)
class AuditSettings:
  """An audit of one client that takes part in every round.

  Attributes:
    mechanism: Name of a mechanism whose clients add noise themselves
      (`GraphMechanism.simulated_releases`).
    client: The audited client, one of `CLIENTS`; see `releases`.
    examples: n = |D_k|, at least 2; None for the client's default.
    epsilon: The claim: the target epsilon that the noise is calibrated to.
    delta: The target delta.
    theta: Ratio of the noise variances of successive rounds.
    rounds: M; the client takes part in every round.
    local_steps: tau.
    l2_norm_clip: C, norm that the parameters are projected to.
    example_l2_norm_clip: C_g, norm that per-example gradients are clipped to.
    learning_rate: eta.
    calibration: One that the mechanism allows; empty for its default.
      `printed` and `tight` use q = 1, because the client takes part in every
      round: no amplification is claimed.
    trials: Number of runs with each of the two data sets.
    confidence: Confidence of the lower bound, in (0, 1).
    noise_scale: Factor by which the calibrated noise is multiplied; below 1,
      the mechanism is broken on purpose.
    seed: Makes the audit reproducible; None for a new seed each time.

  Raises:
    ValueError: If a field is out of range.
  """

  mechanism: str = 'paper'
  client: str = 'digits'
  examples: int | None = None
  epsilon: float = 1.0
  delta: float = 1e-3
  theta: float = 0.95
  rounds: int = 10
  local_steps: int = 10
  l2_norm_clip: float = 5.0
  example_l2_norm_clip: float = 1.0
  learning_rate: float = 1.0
  calibration: str = ''
  trials: int = 10_000
  confidence: float = 0.95
  noise_scale: float = 1.0
  seed: int | None = None

  def __post_init__(self):
    _validate.one_of('mechanism', self.mechanism, _audited())
    _validate.one_of('client', self.client, CLIENTS)
    if self.examples is None:
      object.__setattr__(self, 'examples', self.num_examples)
    _validate.integer('examples', self.examples, 2, _EXAMPLES[self.client][1])
    for name in (
      *('epsilon', 'theta', 'l2_norm_clip', 'example_l2_norm_clip'),
      *('learning_rate', 'noise_scale'),
    ):
      _validate.positive(name, getattr(self, name))
    _validate.open_unit('delta', self.delta)
    _validate.open_unit('confidence', self.confidence)
    # The largest values that a noise key allows.
    _validate.integer('rounds', self.rounds, 1, 2**31 - 1)
    _validate.integer('local_steps', self.local_steps, 1, 2**24 - 1)
    self._check_calibration()
    _validate.integer(
      'trials', self.trials, lower_bound.MINIMUM_TRIALS, _MOST_TRIALS
    )
    if self.seed is not None:
      _validate.integer('seed', self.seed, 0, 2**63 - 1)

  def _check_calibration(self):
    kind = mechanisms.MECHANISMS[self.mechanism]
    allowed = kind.calibrations(kind.participations[0])
    name = _validate.one_of(
      'calibration',
      self.calibration or allowed[0],
      allowed,
      f' with mechanism {self.mechanism}',
    )
    object.__setattr__(self, 'calibration', name)

  @property
  def num_examples(self) -> int:
    """n, with its default resolved."""
    default, _ = _EXAMPLES[self.client]
    return default if self.examples is None else self.examples
