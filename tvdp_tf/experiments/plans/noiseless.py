"""`--mechanism=none`: no noise, no guarantee."""

import math

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.experiments.plans import base
from tvdp_tf.privacy import ledger, mechanisms


class NoiselessPlan(base.Plan):
  """Everything is released bare."""

  noise = 'no'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.mechanism = mechanisms.NoMechanism(settings.l2_norm_clip)

  @property
  def header(self) -> ledger.LedgerHeader:
    """As in the base class."""
    return ledger.LedgerHeader(
      unit='example',
      adjacency='replace-one',
      target_epsilon=math.inf,
      delta=self.settings.delta,
      clients=self.settings.users,
      enforced=False,
    )

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    """As in the base class."""
    return 'none: there is no noise', False

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> base.Round:
    """As in the base class."""
    del schedule_stddev
    zeros = np.zeros(len(clients))
    return base.Round(number, clients, zeros, 0.0, zeros)

  def mean_noise_stddev(self, releases: base.Round) -> float:
    """As in the base class: none."""
    del releases
    return 0.0

  def worst_epsilon(self) -> float:
    """As in the base class."""
    return math.inf if self.history else 0.0

  def statement(self) -> privacy.PrivacyStatement:
    """As in the base class."""
    return privacy.PrivacyStatement(
      target_epsilon=math.inf,
      delta=self.settings.delta,
      claimed_epsilon=math.inf,
      delivered={base.SERVER_WORST: {'exact': self.worst_epsilon()}},
      unit='example',
      adjacency='replace-one',
      assumptions=(),
      holds=False,
      reason='no noise is added',
      view=base.SERVER_WORST,
    )
