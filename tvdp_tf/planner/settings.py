"""What a plan is made for: the flags of `binaries/plan.py`, checked.

Field names are the names of the flags, so that an error about a field is an
error about its flag. The defaults are the paper's settings; what the paper does
not state is ours, and is called assumed wherever a result depends on it.
"""

import dataclasses
import math
import sys

from tvdp_tf import _validate
from tvdp_tf.privacy import calibration_rules

MECHANISMS = ('paper', 'gradient')
PARTICIPATIONS = ('uniform', 'balanced', 'poisson')
# Those that a mechanism allows. Theorem 1 is about the paper's releases only.
CALIBRATIONS = {
  'paper': calibration_rules.CALIBRATIONS,
  'gradient': calibration_rules.ACCOUNTED,
}

# Every round of every block is looked at, so that users are limited as well.
MOST_ROUNDS = 1_000_000
# Below this the accountants run out of binary64.
_SMALLEST_DELTA = 1e-300
# Exact in binary64.
_LARGEST_COUNT = 10**15

# Inputs that the paper leaves open, by the mechanism whose plan they enter.
_OPEN_INPUTS = {
  'paper': (
    'examples_per_user',
    'contraction',
    'initial_gap',
    'smoothness',
    'dimension',
  ),
  'gradient': (
    'examples_per_user',
    'example_l2_norm_clip',
    'learning_rate',
    'contraction',
    'initial_gap',
    'smoothness',
    'dimension',
  ),
}
MEASURED = ('contraction', 'initial_gap')
_UNUSED = {
  'paper': ('example_l2_norm_clip', 'learning_rate'),
  'gradient': ('l2_norm_clip',),
}


@dataclasses.dataclass(frozen=True)
class PlanSettings:
  """The inputs of a plan.

  Attributes:
    users: U.
    users_per_round: K.
    epsilon: The target.
    delta: The target.
    theta: Ratio of the noise variances of successive rounds.
    rounds: M.
    local_steps: tau.
    l2_norm_clip: C, norm that the parameters are projected to.
    example_l2_norm_clip: C_g, norm that per-example gradients are clipped to.
    learning_rate: eta; the noise of `gradient` reaches the parameters times it.
    mechanism: One of `MECHANISMS`.
    participation: One of `PARTICIPATIONS`; empty for the mechanism's default,
      `uniform` for `paper` and `balanced` for `gradient`.
    calibration: One of `CALIBRATIONS` of the mechanism; empty for its default,
      `printed` for `paper` and `exact` for `gradient`.
    examples_per_user: n = |D_k|, of the smallest user.
    contraction: A, by which a round without noise shrinks the gap, in (0, 1).
    initial_gap: Theta = F(w(0)) - F*; 2.3 is ln 10, the loss of ten classes at
      random.
    smoothness: L.
    dimension: d, number of parameters; 25450 is the paper's 784-32-10.
    measured_from: The pilot's file that `contraction` and `initial_gap` were
      measured from; empty if they were not.
    given: Names of the fields that the user has set. A default of what the
      paper does not state is assumed.

  Raises:
    ValueError: If a field is out of range.
  """

  users: int = 100
  users_per_round: int = 10
  epsilon: float = 10.0
  delta: float = 1e-3
  theta: float = 1.0
  rounds: int = 30
  local_steps: int = 5
  l2_norm_clip: float = 5.0
  example_l2_norm_clip: float = 1.0
  learning_rate: float = 0.5
  mechanism: str = 'paper'
  participation: str = ''
  calibration: str = ''
  examples_per_user: int = 600
  contraction: float = 0.85
  initial_gap: float = 2.3
  smoothness: float = 1.0
  dimension: int = 25450
  measured_from: str = ''
  given: frozenset[str] = frozenset()

  def __post_init__(self):
    _validate.one_of('mechanism', self.mechanism, MECHANISMS)
    if not self.participation:
      default = 'uniform' if self.mechanism == 'paper' else 'balanced'
      object.__setattr__(self, 'participation', default)
    if not self.calibration:
      default = 'printed' if self.mechanism == 'paper' else 'exact'
      object.__setattr__(self, 'calibration', default)
    _validate.one_of('participation', self.participation, PARTICIPATIONS)
    self._check_calibration()
    _validate.integer('users', self.users, 1, MOST_ROUNDS)
    _validate.integer('users_per_round', self.users_per_round, 1, self.users)
    if self.participation == 'balanced' and not self.can_balance:
      raise ValueError(
        'users_per_round must divide users with balanced participation, got'
        f' {self.users_per_round} of {self.users}'
      )
    _validate.integer('rounds', self.rounds, 1, MOST_ROUNDS)
    for name in ('local_steps', 'examples_per_user', 'dimension'):
      _validate.integer(name, getattr(self, name), 1, _LARGEST_COUNT)
    for name in (
      *('epsilon', 'theta', 'l2_norm_clip', 'example_l2_norm_clip'),
      *('learning_rate', 'initial_gap', 'smoothness'),
    ):
      _validate.positive(name, getattr(self, name))
    for name in ('delta', 'contraction'):
      _validate.open_unit(name, getattr(self, name))
    if self.delta < _SMALLEST_DELTA:
      raise ValueError(
        f'delta must be a number >= {_SMALLEST_DELTA:g}, got {self.delta!r}'
      )
    for name in ('l2_norm_clip', 'example_l2_norm_clip'):
      clip = getattr(self, name)
      if not sys.float_info.min < 2 * clip / self.examples_per_user < math.inf:
        raise ValueError(
          f'{name} must leave the sensitivity representable, got {clip!r}'
        )

  def _check_calibration(self):
    _validate.one_of('calibration', self.calibration, CALIBRATIONS['paper'])
    allowed = CALIBRATIONS[self.mechanism]
    if self.calibration not in allowed:
      raise ValueError(
        f'calibration must be one of {", ".join(allowed)} with mechanism'
        f' {self.mechanism}, got {self.calibration!r}'
      )

  @property
  def sampling_rate(self) -> float:
    """The share of users in a round, q = K / U."""
    return self.users_per_round / self.users

  @property
  def can_balance(self) -> bool:
    """Whether blocks of rounds can partition the users."""
    return self.users % self.users_per_round == 0

  @property
  def block_rounds(self) -> int:
    """Rounds of which the noise is paid once: U/K, or 1 if every round is.

    The paper's mechanism is calibrated to a client in every round, whoever
    takes part; so is any mechanism where participation is luck.
    """
    if self.mechanism == 'gradient' and self.participation == 'balanced':
      return self.users // self.users_per_round
    return 1

  @property
  def open_inputs(self) -> tuple[str, ...]:
    """The inputs of this plan that the paper does not state."""
    return _OPEN_INPUTS[self.mechanism]

  def origin(self, name: str) -> str:
    """Where the value of an open input is from, in a word."""
    if self.measured_from and name in MEASURED:
      return 'measured'
    return 'given' if name in self.given else 'assumed'

  @property
  def assumed(self) -> tuple[str, ...]:
    """The inputs of this plan that nobody has stated."""
    return tuple(n for n in self.open_inputs if self.origin(n) == 'assumed')

  @property
  def unused(self) -> tuple[str, ...]:
    """What the user has set and this mechanism has no use for."""
    return tuple(n for n in _UNUSED[self.mechanism] if n in self.given)

  def states(self, name: str) -> bool:
    """Whether the plan says anything of a field: it has a use, or was set."""
    return name in self.given or name not in _UNUSED[self.mechanism]

  def to_json_dict(self) -> dict[str, object]:
    """Every setting, resolved."""
    values = dataclasses.asdict(self)
    del values['given']
    return values
