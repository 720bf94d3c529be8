"""What a client does to hide its examples: one frozen object a mechanism.

A mechanism holds everything that its guarantee rests on, so that the training,
the accounting and the statement cannot disagree.
"""

import dataclasses

from tvdp_tf import _validate
from tvdp_tf.privacy import schedule as schedule_lib


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
    if not isinstance(self.schedule, schedule_lib.GeometricSchedule):
      raise ValueError(
        'schedule must be a GeometricSchedule, got '
        f'{type(self.schedule).__name__}'
      )
    _validate.positive('l2_norm_clip', self.l2_norm_clip)


@dataclasses.dataclass(frozen=True)
class NoMechanism:
  """No noise: the paper's epsilon = infinity. It protects nothing.

  Attributes:
    l2_norm_clip: C; the parameters are projected all the same.
  """

  l2_norm_clip: float

  def __post_init__(self):
    _validate.positive('l2_norm_clip', self.l2_norm_clip)
