"""`--mechanism=distributed`: shares of noise; the server sees only sums.

Each client adds a share of discrete noise, and the sum is computed by a secure
aggregation protocol. There are enough shares for the guarantee to hold even if
some are missing (clients that drop out) or known to the server (clients that
collude with it). `distributed` protects an example, `distributed_users` a user.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.learning import views
from tvdp_tf.mechanisms import contract, interfaces
from tvdp_tf.privacy import noise_distance, sensitivity

_VIEW = 'server that sees sums alone, worst client'
_MEDIAN = 'server that sees sums alone, median client'
# The share of a sensitivity that rounding to the grid may take up.
_GRID_ROUNDING = 2.0**-12
_ADJACENCIES = (sensitivity.REPLACE_ONE, sensitivity.ZERO_OUT)


def _rule(
  unit: str, l2_norm_clip: float, adjacency: str
) -> sensitivity.SensitivityRule:
  """The sensitivity of the sum of a round."""
  if unit == 'user':
    return sensitivity.update_rule(l2_norm_clip, adjacency)
  return sensitivity.gradient_sum_rule(l2_norm_clip, adjacency)


@dataclasses.dataclass(frozen=True)
class DistributedMechanism(contract.GraphMechanism):
  """Shares of discrete Gaussian noise on a secure sum.

  Attributes:
    schedule: The noise multiplier of the sum in every round, from the shares of
      `honest_clients` alone.
    l2_norm_clip: C_g of an example's gradient, or C_u of a user's update.
    unit: 'example' or 'user'.
    adjacency: 'replace-one' or 'zero-out'.
    honest_clients: H, as for `DistributedGaussianFactory`.
    clients: K, the number of clients in a round.
    modulus: Modulus of the secure sum.
    noise: `noise_distance.DISCRETE`.
    example_views: A key of `views.VIEWS`, the views averaged before clipping.
  """

  schedule: privacy.NoiseSchedule
  l2_norm_clip: float
  unit: str
  adjacency: str
  honest_clients: int
  clients: int
  modulus: int
  noise: str = noise_distance.DISCRETE
  example_views: str = views.NONE

  def __post_init__(self):
    _validate.one_of('example_views', self.example_views, views.VIEWS)
    interfaces.check_schedule(self.schedule)
    sensitivity.check_clip('l2_norm_clip', self.l2_norm_clip)
    _validate.one_of('noise', self.noise, [noise_distance.DISCRETE])
    _validate.one_of('unit', self.unit, sensitivity.UNITS)
    _validate.one_of('adjacency', self.adjacency, _ADJACENCIES)
    _validate.integer('honest_clients', self.honest_clients, 1, self.clients)

  def sensitivity(self) -> sensitivity.SensitivityRule:
    """The sensitivity of the sum of a round."""
    return _rule(self.unit, self.l2_norm_clip, self.adjacency)

  def parts(self, build: Any) -> Any:
    """Leaves secure sums to the platform (`federated.distributed_noise`)."""
    from tvdp_tf.federated import (  # noqa: PLC0415
      client_work,
      distributed_noise,
      learning_process,
    )

    steps = build.local_steps
    common: dict[str, Any] = {
      'schedule': self.schedule,
      'sensitivity': self.sensitivity().value,
      'honest_clients': self.honest_clients,
      'modulus': self.modulus,
    }
    if self.unit == 'user':
      return learning_process.Parts(
        client_work.build_bounded_difference(
          build.model, l2_norm_clip=self.l2_norm_clip, **steps
        ),
        distributed_noise.DistributedGaussianFactory(
          **common, divisor=self.clients, truncates=True
        ),
        brings_update=True,
      )
    if steps['local_steps'] != 1:
      raise ValueError(
        'local_steps must be 1 with mechanism distributed, whose server adds up'
        f' gradients, got {steps["local_steps"]}'
      )
    if steps['l2_regularization']:
      raise ValueError(
        'model must have no l2 regularization with mechanism distributed, got'
        f' {steps["l2_regularization"]}'
      )
    return learning_process.Parts(
      client_work.build_gradient_sum(
        build.model,
        example_l2_norm_clip=self.l2_norm_clip * (1 - _GRID_ROUNDING),
        adjacency=self.adjacency,
        views_name=self.example_views,
      ),
      distributed_noise.DistributedGaussianFactory(
        **common, scale=-steps['learning_rate']
      ),
      brings_update=True,
    )


class _Distributed(contract.Mechanism):
  """The common part of the two mechanisms.

  A single noise protects all clients of a round, as with `central`; the user
  with the most planned rounds determines it.
  """

  graph = DistributedMechanism
  participations = ('balanced', 'uniform')
  noises = (noise_distance.DISCRETE,)
  adjacencies = _ADJACENCIES
  shares_noise = True
  sums_securely = True
  replans = True

  mechanism: DistributedMechanism

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._missing = settings.dropouts + settings.colluders
    schedule = self._for_worst_user(settings.rounds)
    clients = settings.users_per_round
    self.mechanism = DistributedMechanism(
      schedule,
      self._clip,
      self.unit,
      self.adjacency,
      self._honest,
      clients,
      self._modulus(schedule.stddevs()),
      example_views=settings.views,
    )
    self._check_grid(schedule.stddevs())

  @classmethod
  def check(cls, settings: Any) -> None:
    """Checks that some shares remain to hide the sum."""
    for name in ('dropouts', 'colluders'):
      _validate.integer(name, getattr(settings, name), 0)
    left = settings.users_per_round - settings.dropouts - settings.colluders
    if left < 1:
      raise ValueError(
        'dropouts and colluders must leave at least one of the'
        f' {settings.users_per_round} clients of a round, got'
        f' {settings.dropouts} and {settings.colluders}'
      )

  @property
  @abc.abstractmethod
  def _clip(self) -> float:
    """The clip, C_g or C_u."""

  @property
  @abc.abstractmethod
  def _longest_value(self) -> float:
    """The largest norm of a client's vector, before its noise."""

  @property
  def _honest(self) -> int:
    """H, the number of clients whose shares must be enough."""
    return self.settings.users_per_round - self._missing

  @property
  def _sensitivity(self) -> float:
    return _rule(self.unit, self._clip, self.adjacency).value

  def _share_stddev(self, noise_multiplier: Any) -> Any:
    """Noise standard deviation of a client's share, in the unit of the clip."""
    return noise_distance.share_stddev(
      noise_multiplier, self._sensitivity, self._honest
    )

  def _modulus(self, noise_multipliers: np.ndarray) -> int:
    """A power of two that is large enough for any sum not to wrap around."""
    clients = self.settings.users_per_round
    longest = clients * self._longest_value
    steps = longest / self._share_stddev(noise_multipliers).min()
    steps += noise_distance.LARGEST_DISCRETE * clients
    bits = math.ceil(math.log2(steps * noise_distance.GRID_STDDEV)) + 1
    if bits > 60:
      raise ValueError(
        'epsilon must keep the sum of all clients within 2^60 steps of the'
        f' grid of the noise, got {self.settings.epsilon!r}, which takes'
        f' 2^{bits}'
      )
    return 2**bits

  def _check_grid(self, noise_multipliers: np.ndarray) -> None:
    """Checks that rounding to the grid takes up little of the sensitivity."""
    shares = self._share_stddev(noise_multipliers)
    grids = shares / noise_distance.GRID_STDDEV
    # Half a step for each of two neighbors, and the rounding of binary64.
    rounding = 1 + 2.0**-51 * self._longest_value / grids
    share = math.sqrt(self.fed.num_parameters) * rounding * grids
    if (share > _GRID_ROUNDING * self._sensitivity).any():
      raise ValueError(
        'epsilon must keep the rounding of the grid below 2^-12 of the'
        f' sensitivity, got {self.settings.epsilon!r}'
      )

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> contract.Round:
    # Fewer clients have fewer shares.
    left = max(0, len(clients) - self._missing)
    share = self._share_stddev(schedule_stddev)
    return contract.Round(
      number,
      clients,
      np.full(len(clients), schedule_stddev * math.sqrt(left / self._honest)),
      share * math.sqrt(len(clients)) / self._divisor(clients),
      np.ones(len(clients)),
    )

  def refine(self, completed: int, new_rounds: int) -> privacy.NoiseSchedule:
    """Spreads what the worst user has left over its future rounds."""
    schedule = self._for_worst_user(new_rounds, completed)
    to_come = schedule.stddevs()[completed:]
    try:
      self._check_grid(to_come)
      fits = self._modulus(to_come) <= self.mechanism.modulus
    except ValueError:
      fits = False
    if not fits:
      raise contract.BudgetSpentError(
        f'the noise of {new_rounds} rounds does not fit into the grid of the'
        f' secure sum: the run stops after {completed} rounds'
      )
    return schedule

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    return f'{self.mechanism.sensitivity().formula} of the sum', True

  @abc.abstractmethod
  def _divisor(self, clients: np.ndarray) -> float:
    """What the sum of these clients is divided by."""

  def statement(self) -> privacy.PrivacyStatement:
    """The statement, which says that the sums were simulated."""
    settings, mechanism = self.settings, self.mechanism
    bits = mechanism.modulus.bit_length() - 1
    return self.sound_statement(
      self.delivered_views(_VIEW, _MEDIAN),
      _VIEW,
      why='every sum is on record, and the discrete noise of the clients that'
      ' keep their shares secret is on a sum whose sensitivity is proven',
      assumptions=(
        'in each round, the server sees only the sum of the uploads, modulo'
        f' 2^{bits} - 1, and who took part: it follows a secure aggregation'
        ' protocol, but is curious. In this run the sums were SIMULATED: the'
        ' process that trains added the uploads up in the clear',
        f'of the {settings.users_per_round} clients of a round, at most'
        f' {settings.dropouts} drop out, and the protocol gives no sum of'
        f' fewer than {settings.users_per_round - settings.dropouts}; at most'
        f' {settings.colluders} tell the server their data and noise; the'
        f' noise of {mechanism.honest_clients} clients is enough',
        'clients run this code and keep their noise secret',
        *self._public(),
      ),
      rule=mechanism.sensitivity(),
    )

  def _public(self) -> list[str]:
    return [
      'the cohorts are public; the guarantee does not need them to be secret'
    ]


class Distributed(_Distributed):
  """Noise on the sum of all clients' clipped gradients, one step per round."""

  name = 'distributed'
  summary = (
    'shares of noise on the sum of all gradients, a guarantee against a server'
    ' that sees only sums'
  )
  noise_on = 'the sum of the clipped gradients of a round, by all clients'
  clips_examples = True
  example_views = tuple(views.VIEWS)
  defaults: ClassVar[Mapping[str, Any]] = {'local_steps': 1}

  @classmethod
  def check(cls, settings: Any) -> None:
    """Checks that a round is one step, and that some shares remain."""
    super().check(settings)
    if settings.local_steps != 1:
      raise ValueError(
        'local_steps must be 1 with mechanism distributed, whose server adds up'
        f' gradients, got {settings.local_steps}'
      )

  @property
  def _clip(self):
    return self.settings.example_l2_norm_clip

  @property
  def _longest_value(self):
    return float(self.fed.examples_per_user.max()) * self._clip

  def _divisor(self, clients):
    return float(max(1, self.fed.examples_per_user[clients].sum()))

  def mean_noise_stddev(self, releases: contract.Round) -> float:
    """The standard deviation for a step along the noisy mean gradient."""
    return self.settings.learning_rate * releases.noise_stddev

  def _public(self):
    return [
      *super()._public(),
      'the number of examples of each client is public',
    ]


class DistributedUsers(_Distributed):
  """Noise on the sum of all clients' clipped updates."""

  name = 'distributed_users'
  summary = (
    'shares of noise on the sum of all updates, a guarantee for users against'
    ' a server that sees only sums'
  )
  noise_on = 'the sum of the clipped updates of a round, by all clients'
  unit = 'user'

  @classmethod
  def check(cls, settings: Any) -> None:
    """Checks the clip of an update, and that some shares remain."""
    super().check(settings)
    sensitivity.check_clip('l2_norm_clip', settings.l2_norm_clip)

  @property
  def _clip(self):
    return self.settings.l2_norm_clip

  @property
  def _longest_value(self):
    return self._clip

  def _divisor(self, clients):
    del clients
    return float(self.mechanism.clients)

  def mean_noise_stddev(self, releases: contract.Round) -> float:
    """The round's standard deviation: the noise is on the mean itself."""
    return releases.noise_stddev

  def _public(self):
    return [*super()._public(), 'each person is one user']
