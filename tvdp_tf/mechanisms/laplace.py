"""`--mechanism=laplace`: the paper's baseline, with an explicit calibration.

The paper does not say how it calibrates Laplace noise. This module uses the L1
sensitivity sqrt(d) 2C/|D_k|, which is the L2 sensitivity times the square root
of the number d of parameters, and basic composition over the planned rounds of
the client that takes part most often, each with the same share of epsilon.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.mechanisms import contract, statements
from tvdp_tf.privacy import ledger


@dataclasses.dataclass(frozen=True)
class LaplaceMechanism(contract.GraphMechanism):
  """Like `PaperMechanism`, with Laplace noise, the same in every round.

  Attributes:
    noise_stddev: Standard deviation of the noise: sqrt(2) times its scale.
    rounds: M, the number of rounds that it may be used for.
    l2_norm_clip: C.
  """

  IN_STATE = ('noise_stddev', 'rounds')

  noise_stddev: float
  rounds: int
  l2_norm_clip: float

  def __post_init__(self):
    _validate.positive('noise_stddev', self.noise_stddev)
    _validate.integer('rounds', self.rounds)
    _validate.positive('l2_norm_clip', self.l2_norm_clip)

  @property
  def schedule(self) -> privacy.GeometricSchedule:
    """The same noise in every round, as a schedule."""
    return privacy.GeometricSchedule(1.0, self.rounds, self.noise_stddev)

  def parts(self, build: Any) -> Any:
    from tvdp_tf.federated import (  # noqa: PLC0415
      aggregator,
      client_work,
      learning_process,
    )

    return learning_process.Parts(
      client_work.build_projected(
        build.model,
        l2_norm_clip=self.l2_norm_clip,
        keyed=True,
        **build.local_steps,
      ),
      aggregator.TimeVaryingGaussianFactory(
        self.schedule,
        build.unchecked_mean,
        distribution='laplace',
        l2_norm_clip=self.l2_norm_clip,
      ),
    )


class Laplace(contract.Mechanism):
  """The same Laplace noise in every round; pure epsilon."""

  name = 'laplace'
  summary = 'Laplace noise on the parameters before upload'
  noise_on = 'the parameters'
  graph = LaplaceMechanism
  is_sound = False
  takes_schedule = False

  @classmethod
  def calibrations(cls, participation_name: str) -> tuple[str, ...]:
    """Returns an empty tuple: there is no choice."""
    del participation_name
    return ()

  mechanism: LaplaceMechanism

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._participations = int(self.planned().sum(axis=1).max())
    self._epsilon_per_release = ledger.laplace_epsilon_of_release(
      settings.epsilon, self._participations
    )
    self._dimension = fed.num_parameters
    smallest = int(min(fed.examples_per_user))
    l1_sensitivity = math.sqrt(self._dimension) * (
      privacy.paper_rule(settings.l2_norm_clip, smallest).value
    )
    scale = l1_sensitivity / self._epsilon_per_release
    self.mechanism = LaplaceMechanism(
      math.sqrt(2) * scale, settings.rounds, settings.l2_norm_clip
    )

  @property
  def header(self) -> ledger.LedgerHeader:
    """The header of a ledger for pure epsilon."""
    return dataclasses.replace(super().header, delta=0.0, accounting='laplace')

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    formula = (
      f'L1: sqrt(d) 2 C / n, d = {self._dimension}, C = '
      f'{self.settings.l2_norm_clip!r}, n = '
      f'{int(self.fed.examples_per_user.min())}'
    )
    return formula, False

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> contract.Round:
    ones = np.ones(len(clients))
    return contract.Round(
      number,
      clients,
      ones / self._epsilon_per_release,
      schedule_stddev,
      ones,
    )

  def amounts(self, noise_multiplier: float) -> dict[str, Any]:
    del noise_multiplier
    return {'laplace_epsilon': self._epsilon_per_release}

  def entry(self, releases: contract.Round) -> dict[str, Any]:
    return {
      'clients': releases.clients.tolist(),
      'laplace_epsilon': self._epsilon_per_release,
    }

  def _recorded_multipliers(
    self, record: ledger.LedgerRecord, count: int
  ) -> np.ndarray:
    del record
    return np.full(count, 1 / self._epsilon_per_release)

  def worst_epsilon(self) -> float:
    """Epsilon by basic composition, if the sensitivity held."""
    return max(self._epsilons())

  def _epsilons(self) -> list[float]:
    return [
      len(self.spending.noise_multipliers(user)) * self._epsilon_per_release
      for user in range(self.settings.users)
    ]

  def statement(self) -> privacy.PrivacyStatement:
    """The statement, which never holds."""
    epsilons = self._epsilons()
    return privacy.PrivacyStatement(
      target_epsilon=self.settings.epsilon,
      delta=self.settings.delta,
      claimed_epsilon=self.settings.epsilon,
      delivered={
        contract.SERVER_WORST: {'basic': max(epsilons)},
        contract.SERVER_MEDIAN: {'basic': float(np.median(epsilons))},
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
        *statements.warnings(self),
      ),
      holds=False,
      reason='the sensitivity 2C/|D_k| that it is derived from is not a bound',
      view=contract.SERVER_WORST,
    )
