"""`--mechanism=laplace`: the paper's baseline, its calibration spelled out.

The paper does not say how it calibrates Laplace noise. Here: L1 sensitivity
sqrt(d) 2C/|D_k|, its L2 sensitivity times the square root of the number d of
parameters; and basic composition over the planned rounds of the client that
takes part most often, each with the same share of epsilon.
"""

import math
from typing import Any

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.experiments.plans import base
from tvdp_tf.privacy import ledger, mechanisms


class LaplacePlan(base.Plan):
  """The same Laplace noise in every round; pure epsilon."""

  mechanism: mechanisms.LaplaceMechanism

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._participations = int(self.planned().sum(axis=1).max())
    self._epsilon_per_release = ledger.laplace_epsilon_of_release(
      settings.epsilon, self._participations
    )
    self._dimension = int(
      sum(w.size for w in fed.initial_model().get_weights())
    )
    smallest = int(min(fed.examples_per_user))
    l1_sensitivity = math.sqrt(self._dimension) * (
      privacy.paper_rule(settings.l2_norm_clip, smallest).value
    )
    scale = l1_sensitivity / self._epsilon_per_release
    self.mechanism = mechanisms.LaplaceMechanism(
      math.sqrt(2) * scale, settings.rounds, settings.l2_norm_clip
    )

  @property
  def header(self) -> ledger.LedgerHeader:
    """As in the base class."""
    return ledger.LedgerHeader(
      unit='example',
      adjacency='replace-one',
      target_epsilon=self.settings.epsilon,
      delta=0.0,
      clients=self.settings.users,
      accounting='laplace',
    )

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    """As in the base class."""
    formula = (
      f'L1: sqrt(d) 2 C / n, d = {self._dimension}, C = '
      f'{self.settings.l2_norm_clip!r}, n = '
      f'{int(self.fed.examples_per_user.min())}'
    )
    return formula, False

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> base.Round:
    """As in the base class."""
    ones = np.ones(len(clients))
    return base.Round(
      number,
      clients,
      ones / self._epsilon_per_release,
      schedule_stddev,
      ones,
    )

  def amounts(self, noise_multiplier: float) -> dict[str, Any]:
    """As in the base class."""
    del noise_multiplier
    return {'laplace_epsilon': self._epsilon_per_release}

  def entry(self, releases: base.Round) -> dict[str, Any]:
    """As in the base class."""
    return {
      'clients': releases.clients.tolist(),
      'laplace_epsilon': self._epsilon_per_release,
    }

  def _recorded_multipliers(
    self, record: ledger.LedgerRecord, count: int
  ) -> np.ndarray:
    del record
    return np.full(count, 1 / self._epsilon_per_release)

  def mean_noise_stddev(self, releases: base.Round) -> float:
    """As in the base class."""
    weights = self._weights(releases.clients)
    return releases.noise_stddev * float(np.linalg.norm(weights))

  def worst_epsilon(self) -> float:
    """As in the base class: basic composition, conditional."""
    return max(self._epsilons())

  def _epsilons(self) -> list[float]:
    counts = [len(releases) for releases in self._noise_multipliers]
    return [count * self._epsilon_per_release for count in counts]

  def statement(self) -> privacy.PrivacyStatement:
    """As in the base class; it never holds."""
    epsilons = self._epsilons()
    return privacy.PrivacyStatement(
      target_epsilon=self.settings.epsilon,
      delta=self.settings.delta,
      claimed_epsilon=self.settings.epsilon,
      delivered={
        base.SERVER_WORST: {'basic': max(epsilons)},
        base.SERVER_MEDIAN: {'basic': float(np.median(epsilons))},
      },
      unit='example',
      adjacency='replace-one',
      assumptions=(
        'CONDITIONAL on the L1 sensitivity sqrt(d) 2C/|D_k|, which does not '
        'hold: it rests on the L2 sensitivity 2C/|D_k| of the paper',
        'epsilon is pure: it holds for every delta; basic composition over '
        f'the {self._participations} planned rounds of the client that takes '
        'part most often',
        'the server is honest but curious and sees who uploads what; clients '
        'keep their noise secret',
        'noise is drawn in floating point',
        *self._warnings(),
      ),
      holds=False,
      reason='the sensitivity 2C/|D_k| that it is derived from is not a bound',
      view=base.SERVER_WORST,
    )
