"""The settings of an audit of a model, checked.

Field names are the names of the flags of `binaries/attack.py --audit`, so that
an error about a field is an error about its flag.
"""

import dataclasses

from tvdp_tf import _validate, mechanisms
from tvdp_tf.training import settings as settings_lib

# Mechanisms that release means or sums of clipped gradients, or secure sums of
# clipped updates: the pairs and the canaries are made for these.
_GRAPHS = (mechanisms.GradientMechanism, mechanisms.DistributedMechanism)


def _audited() -> list[str]:
  """The mechanisms that can be audited."""
  return [
    name
    for name, kind in mechanisms.MECHANISMS.items()
    if issubclass(kind.graph, _GRAPHS)
  ]


@dataclasses.dataclass(frozen=True)
class ModelAuditSettings:
  """An audit of a training run.

  Attributes:
    training: The run whose process, model, data and noise are audited. Its seed
      is that of the canaries, the coins and the noise; None for unpredictable
      coins and noise.
    canaries: How many examples of each user are canaries; None for half of
      them, as far as their gradients fit in memory. If users are protected,
      each of them is a canary.
    confidence: Confidence of the lower bounds of epsilon, in (0, 1).
    noise_scale: Factor by which the calibrated noise is multiplied; below 1,
      the mechanism is broken on purpose.
    search_seconds: About how long to search for hostile pairs.

  Raises:
    ValueError: If a field is out of range.
  """

  training: settings_lib.TrainingSettings
  canaries: int | None = None
  confidence: float = 0.95
  noise_scale: float = 1.0
  search_seconds: float = 60.0

  def __post_init__(self):
    training = self.training
    if training.mechanism not in (audited := _audited()):
      raise ValueError(
        f'mechanism must be one of {", ".join(audited)} to audit a model, got'
        f' {training.mechanism!r}: canaries exist only for these'
      )
    # The two examples of a pair replace each other.
    _validate.one_of('adjacency', training.adjacency, ['replace-one'])
    # Gradients must be those of the unchanged examples.
    _validate.one_of('views', training.views, ['none'])
    _validate.one_of('refinement', training.refinement, ['none'])
    _validate.one_of('runtime', training.runtime, ['compiled'])
    if self.canaries is not None:
      if self.unit == 'user':
        raise ValueError(
          f'canaries must not be given with mechanism {training.mechanism},'
          f' where every user is a canary, got {self.canaries!r}'
        )
      _validate.integer('canaries', self.canaries)
    _validate.open_unit('confidence', self.confidence)
    _validate.positive('noise_scale', self.noise_scale)
    _validate.positive('search_seconds', self.search_seconds)

  @property
  def unit(self) -> str:
    """What is protected: 'example' or 'user'."""
    return mechanisms.MECHANISMS[self.training.mechanism].unit

  @property
  def moved(self) -> tuple[str, str]:
    """Describes what the pairs move, and by how much they may move it."""
    if self.unit == 'user':
      return 'update', '2 C_u'
    return 'mean', '2 C_g / n'
