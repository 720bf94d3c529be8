"""When the loss stops falling."""

import math


class PlateauDetector:
  """Reports the rounds whose test loss is not below that of the round before.

  The paper's trigger of the online refinement. The test set must be public:
  looking at protected data would be a release of its own.

  Attributes:
    last: The loss of the round before; infinite before the first.
  """

  def __init__(self):
    self.last = math.inf

  def update(self, loss: float) -> bool:
    """Takes a round's loss; True if it did not fall."""
    stopped = loss >= self.last
    self.last = loss
    return stopped
