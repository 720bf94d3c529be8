"""The settings of an audit of a model, checked.

Field names are the names of the flags of `binaries/attack.py --audit`, so that
an error about a field is an error about its flag.
"""

import dataclasses

from tvdp_tf import _validate, mechanisms
from tvdp_tf.training import settings as settings_lib

# Whose releases are means or sums of clipped gradients, or secure sums of
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
  """One audit of a training run.

  Attributes:
    training: The run: what is audited is its process, model, data and noise.
      Its seed is that of the canaries, of the coins and of the noise; None for
      coins and noise that nobody can predict.
    canaries: How many examples of each user are canaries; None for half of
      them, as far as their gradients fit in memory. Where users are protected
      each of them is a canary.
    confidence: Of the lower bounds of epsilon, in (0, 1).
    noise_scale: What the calibrated noise is multiplied by; below 1 the
      mechanism is broken on purpose.
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
        f'mechanism must be one of {", ".join(audited)} to audit a model, '
        f'got {training.mechanism!r}: only for these are there canaries'
      )
    # The pairs that are told apart are of examples that were exchanged.
    _validate.one_of('adjacency', training.adjacency, ['replace-one'])
    # Whose gradients are those of the examples as they are.
    _validate.one_of('views', training.views, ['none'])
    _validate.one_of('refinement', training.refinement, ['none'])
    _validate.one_of('runtime', training.runtime, ['compiled'])
    if self.canaries is not None:
      if self.unit == 'user':
        raise ValueError(
          f'canaries must not be given with mechanism {training.mechanism}, '
          f'every user is one, got {self.canaries!r}'
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
    """What the pairs move, and by how much they may, in words."""
    if self.unit == 'user':
      return 'update', '2 C_u'
    return 'mean', '2 C_g / n'
