"""No noise and no guarantee: plain training, or Algorithm 1 without noise."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.mechanisms import contract
from tvdp_tf.privacy import ledger


@dataclasses.dataclass(frozen=True)
class NoMechanism(contract.GraphMechanism):
  """No noise: the paper's epsilon = infinity. It protects nothing.

  Attributes:
    l2_norm_clip: C, the norm that the parameters are still projected to; None
      for no projection.
  """

  l2_norm_clip: float | None = None

  def __post_init__(self):
    if self.l2_norm_clip is not None:
      _validate.positive('l2_norm_clip', self.l2_norm_clip)

  def parts(self, build: Any) -> Any:
    from tvdp_tf.federated import (  # noqa: PLC0415
      checked_mean,
      client_work,
      learning_process,
    )

    return learning_process.Parts(
      client_work.build_projected(
        build.model,
        l2_norm_clip=self.l2_norm_clip,
        keyed=False,
        **build.local_steps,
      ),
      # The uploads are projected, and may exceed the clip by rounding.
      build.unchecked_mean
      or checked_mean.CheckedMeanFactory(
        self.l2_norm_clip and self.l2_norm_clip * (1 + 1e-5)
      ),
    )


class Noiseless(contract.Mechanism):
  """Plain federated averaging; everything is released without noise."""

  name = 'none'
  summary = 'no noise, no privacy'
  noise_on = 'nothing'
  graph = NoMechanism
  is_sound = False
  takes_schedule = False
  noises = ()
  # No projection or clip limits its steps.
  defaults: ClassVar[Mapping[str, Any]] = {'learning_rate': 0.5}

  @classmethod
  def calibrations(cls, participation_name: str) -> tuple[str, ...]:
    """Returns an empty tuple: there is no choice."""
    del participation_name
    return ()

  noise = 'no'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.mechanism = NoMechanism(self._l2_norm_clip)

  @property
  def _l2_norm_clip(self) -> float | None:
    return None

  @property
  def header(self) -> ledger.LedgerHeader:
    """The header of a ledger without a target."""
    return dataclasses.replace(
      super().header, target_epsilon=math.inf, enforced=False
    )

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    return 'none: there is no noise', False

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> contract.Round:
    del schedule_stddev
    zeros = np.zeros(len(clients))
    return contract.Round(number, clients, zeros, 0.0, zeros)

  def mean_noise_stddev(self, releases: contract.Round) -> float:
    """Returns 0: there is no noise."""
    del releases
    return 0.0

  def statement(self) -> privacy.PrivacyStatement:
    return privacy.PrivacyStatement(
      target_epsilon=math.inf,
      delta=self.settings.delta,
      claimed_epsilon=math.inf,
      delivered={contract.SERVER_WORST: {'exact': self.worst_epsilon()}},
      unit='example',
      adjacency='replace-one',
      assumptions=(),
      holds=False,
      reason='no noise is added',
      view=contract.SERVER_WORST,
    )


class Algorithm1(Noiseless):
  """The paper's algorithm, projection included, without its noise."""

  name = 'algorithm1'
  summary = "the paper's algorithm without its noise, no privacy"
  defaults = contract.Mechanism.defaults

  @property
  def _l2_norm_clip(self):
    return self.settings.l2_norm_clip
