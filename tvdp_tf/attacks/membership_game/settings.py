"""The settings of a membership game, checked.

Field names are the names of the flags of `binaries/attack.py --membership`, so
that an error about a field is an error about its flag.
"""

import dataclasses

from tvdp_tf import _validate, mechanisms
from tvdp_tf.attacks import lower_bound
from tvdp_tf.training import settings as settings_lib


def _played() -> list[str]:
  """The mechanisms whose epsilon is about an example, as the game is."""
  return [
    name
    for name, kind in mechanisms.MECHANISMS.items()
    if kind.unit == 'example'
  ]


@dataclasses.dataclass(frozen=True)
class GameSettings:
  """The settings of a game.

  Attributes:
    training: How every model is trained. Its seed is also that of the pairs,
      the coins and all noise.
    examples: n, the number of examples that a model is trained on, over all
      users; as many others are attacked, too.
    shadow_models: How many shadow models the attacker trains.
    trials: How many models are attacked; each is trained separately.
    confidence: Joint confidence of all attacks' lower bounds of epsilon, in
      (0, 1).

  Raises:
    ValueError: If a field is out of range.
  """

  training: settings_lib.TrainingSettings
  examples: int = 40
  shadow_models: int = 25
  trials: int = 50
  confidence: float = 0.95

  def __post_init__(self):
    if self.training.seed is None:
      raise ValueError('seed must be given, got None')
    _validate.one_of('mechanism', self.training.mechanism, _played())
    _validate.one_of('split', self.training.split, ['iid'])
    # The two examples of a pair replace each other.
    _validate.one_of('adjacency', self.training.adjacency, ['replace-one'])
    _validate.one_of('refinement', self.training.refinement, ['none'])
    _validate.integer('examples', self.examples, self.training.users)
    # Each example needs several models with it and without it.
    _validate.integer('shadow_models', self.shadow_models, 4)
    _validate.integer('trials', self.trials, lower_bound.MINIMUM_TRIALS)
    _validate.open_unit('confidence', self.confidence)
