"""The settings of a plan: those of training, and inputs of the prediction.

Field names are the names of the flags, so an error about a field is an error
about its flag.
"""

import dataclasses

from tvdp_tf import _validate
from tvdp_tf.training import settings as training_settings

# Fields that a plan can measure from a pilot.
MEASURED = ('contraction', 'initial_gap')
# Fields that training does not need.
OWN = (*MEASURED, 'smoothness', 'examples_per_user', 'dimension')

# A plan goes through all rounds and stores who takes part in each.
_MOST_ROUNDS = 100_000
_MOST_CELLS = 10**8
# Exact in binary64.
_LARGEST_COUNT = 10**15


@dataclasses.dataclass(frozen=True)
class PlanSettings(training_settings.TrainingSettings):
  """The settings of a planned run, and the inputs of its prediction.

  Attributes:
    contraction: A, the factor by which a round without noise shrinks the gap,
      in (0, 1).
    initial_gap: Theta = F(w(0)) - F*, the initial suboptimality; None for
      ln(classes), the loss of a random guess.
    smoothness: L.
    examples_per_user: n, the same for every user; None to use the sizes of the
      data set.
    dimension: d, the number of parameters; None to use that of the model.
    measured_from: The file of the pilot that `contraction` and `initial_gap`
      were measured from; empty if they were not measured.
    given: The names of the fields that the user has set. Other values are
      reported as assumed.

  Raises:
    ValueError: If a field is out of range.
  """

  contraction: float = 0.85
  initial_gap: float | None = None
  smoothness: float = 1.0
  examples_per_user: int | None = None
  dimension: int | None = None
  measured_from: str = ''
  given: frozenset[str] = frozenset()

  def __post_init__(self):
    super().__post_init__()
    _validate.integer('rounds', self.rounds, 1, _MOST_ROUNDS)
    if self.users * self.rounds > _MOST_CELLS:
      raise ValueError(
        f'users must be at most {_MOST_CELLS // self.rounds} to plan'
        f' {self.rounds} rounds, got {self.users}'
      )
    _validate.open_unit('contraction', self.contraction)
    _validate.positive('smoothness', self.smoothness)
    if self.initial_gap is not None:
      _validate.positive('initial_gap', self.initial_gap)
    for name in ('examples_per_user', 'dimension'):
      if getattr(self, name) is not None:
        _validate.integer(name, getattr(self, name), 1, _LARGEST_COUNT)

  @classmethod
  def of(cls, settings: training_settings.TrainingSettings) -> 'PlanSettings':
    """The settings of a training run, with the defaults of a plan.

    Raises:
      ValueError: If the argument is not such settings.
    """
    if isinstance(settings, cls):
      return settings
    if not isinstance(settings, training_settings.TrainingSettings):
      raise ValueError(
        'settings must be PlanSettings or TrainingSettings, got'
        f' {_validate.quoted(settings)}'
      )
    return cls(**vars(settings))

  @property
  def block_rounds(self) -> int:
    """Rounds in which all users take part once; 1 without such a rule."""
    if self.participation == 'balanced':
      return self.users // self.users_per_round
    return 1

  def origin(self, name: str) -> str:
    """The source of an input of the prediction, in one word."""
    if self.measured_from and name in MEASURED:
      return 'measured'
    return 'given' if name in self.given else 'assumed'

  @property
  def assumed(self) -> tuple[str, ...]:
    """The inputs of the prediction that are neither given nor measured."""
    return tuple(
      name
      for name in (*MEASURED, 'smoothness')
      if self.origin(name) == 'assumed'
    )

  def to_json_dict(self) -> dict[str, object]:
    """All settings, resolved, ready for `json.dumps`."""
    values = dataclasses.asdict(self)
    del values['given']
    return values
