"""`--mechanism=central`: user-level DP-FedAvg with a trusted server."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.mechanisms import contract, interfaces
from tvdp_tf.privacy import accounting, ledger, noise_distance, sensitivity

_POISSON = 'poisson'
_EVENTS = "the query's events, by dp_accounting, a user in every round or draw"


@dataclasses.dataclass(frozen=True)
class CentralMechanism(contract.GraphMechanism):
  """Gaussian noise on the sum of the clients' clipped updates (DP-FedAvg).

  Attributes:
    schedule: The noise multiplier of every round: noise standard deviation over
      `l2_norm_clip`.
    l2_norm_clip: C_u, the norm that the update of a client is clipped to.
    denominator: The fixed, public number that the noisy sum is divided by: the
      expected size of a cohort.
    seed: Makes the noise reproducible; None for noise that nobody can predict.
    noise: One of `noise_distance.NOISES`.
  """

  schedule: privacy.NoiseSchedule
  l2_norm_clip: float
  denominator: float
  seed: int | None = None
  noise: str = noise_distance.CONTINUOUS

  def __post_init__(self):
    _validate.one_of('noise', self.noise, noise_distance.NOISES)
    interfaces.check_schedule(self.schedule)
    sensitivity.check_clip('l2_norm_clip', self.l2_norm_clip)
    _validate.positive('denominator', self.denominator)

  def sensitivity(self) -> sensitivity.SensitivityRule:
    """The rule C_u: adding or removing a user moves the sum by no more."""
    return sensitivity.update_rule(
      self.l2_norm_clip, sensitivity.ADD_OR_REMOVE_ONE
    )

  def parts(self, build: Any) -> Any:
    import tensorflow_federated as tff  # noqa: PLC0415
    import tensorflow_privacy as tfp  # noqa: PLC0415

    from tvdp_tf.federated import (  # noqa: PLC0415
      checked_mean,
      client_work,
      learning_process,
      sum_query,
    )
    from tvdp_tf.learning import noise  # noqa: PLC0415

    query = sum_query.GeometricGaussianSumQuery(
      self.l2_norm_clip,
      self.schedule,
      self.seed,
      noise_distribution=noise.GAUSSIANS[self.noise],
    )
    # Integers are within their bound by construction.
    longest = (
      self.l2_norm_clip if self.noise == noise_distance.CONTINUOUS else None
    )
    return learning_process.Parts(
      client_work.build_difference(build.model, **build.local_steps),
      tff.aggregators.as_weighted_aggregator(
        tff.aggregators.DifferentiallyPrivateFactory(
          tfp.NormalizedQuery(query, self.denominator),
          None
          if build.unchecked_mean
          else checked_mean.CheckedSumFactory(longest),
        )
      ),
      brings_update=True,
    )


class Central(contract.Mechanism):
  """Clips the updates, and adds a single noise to their sum.

  With Poisson participation, the secret of who was drawn amplifies privacy.
  Otherwise the user with the most planned rounds counts, as if everyone knew
  the cohorts.
  """

  name = 'central'
  summary = 'noise on the sum of the updates, a trusted server'
  noise_on = 'the mean of the updates'
  graph = CentralMechanism
  unit = 'user'
  adjacencies = (sensitivity.ADD_OR_REMOVE_ONE,)
  participations = (_POISSON, 'uniform', 'balanced')
  noises = noise_distance.NOISES

  @classmethod
  def calibrations(cls, participation_name: str) -> tuple[str, ...]:
    """Only 'rdp' for secret samples, because the ledger composes them by it."""
    if participation_name == _POISSON:
      return ('rdp',)
    return super().calibrations(participation_name)

  @classmethod
  def refinements(cls, participation_name: str) -> tuple[str, ...]:
    """No refinement with secret samples, whose noise is set in advance."""
    return ('none',) if participation_name == _POISSON else ('none', 'budget')

  @classmethod
  def check(cls, settings: Any) -> None:
    sensitivity.check_clip('l2_norm_clip', settings.l2_norm_clip)

  mechanism: CentralMechanism
  shares_noise = True

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._amplified = settings.participation == _POISSON
    # The accounting of secret samples needs the schedule in advance.
    self.replans = not self._amplified
    # Noise multipliers of the query's own events.
    self._events: list[float] = []
    self.mechanism = CentralMechanism(
      self._schedule(),
      settings.l2_norm_clip,
      settings.users_per_round,
      settings.seed,
      noise=self.noise,
    )

  def _schedule(self) -> privacy.NoiseSchedule:
    settings = self.settings
    if self._amplified:
      return privacy.calibrate(
        settings.epsilon,
        self.delta,
        settings.noise_shape,
        settings.rounds,
        accountant=settings.calibration,
        sampling=_POISSON,
        sampling_rate=settings.sampling_rate,
      )
    return self._for_worst_user(settings.rounds)

  @property
  def header(self) -> ledger.LedgerHeader:
    return dataclasses.replace(
      super().header, sampling=_POISSON if self._amplified else 'none'
    )

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    return f'C_u = {self.settings.l2_norm_clip!r}', True

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> contract.Round:
    """The releases of a round; `noise_stddev` is of the noise on the mean."""
    scale = self.mechanism.l2_norm_clip / self.mechanism.denominator
    return contract.Round(
      number,
      clients,
      # An empty cohort also releases noise.
      np.full(max(1, len(clients)), schedule_stddev),
      schedule_stddev * scale,
      np.ones(len(clients)),
    )

  def entry(self, releases: contract.Round) -> dict[str, Any]:
    """A round's releases, without the clients if they are secret."""
    entry = super().entry(releases)
    if self._amplified:
      entry['clients'] = []
      entry['noise_multipliers'] = entry['noise_multipliers'][:1]
    return entry

  def mean_noise_stddev(self, releases: contract.Round) -> float:
    """The round's standard deviation: the noise is on the mean itself."""
    return releases.noise_stddev

  def observe(self, state: Any) -> None:
    """Keeps the round's DpEvent, which the query has left in the state."""
    import dp_accounting  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    fields = tf.nest.map_structure(
      lambda leaf: leaf.numpy() if hasattr(leaf, 'numpy') else leaf,
      state.aggregator.dp_event,
    )
    self._add_unobserved(len(self.history) - 1)
    event = dp_accounting.DpEvent.from_named_tuple(fields)
    self._events.append(float(event.noise_multiplier))

  def _add_unobserved(self, count: int) -> None:
    """Adds events of releases whose rounds were not completed."""
    for past in self.history[len(self._events) : count]:
      self._events.append(float(past.noise_multipliers[0]))

  def snapshot(self) -> Mapping[str, np.ndarray]:
    """The noise multipliers of the query's events."""
    return {'events': np.array(self._events, np.float64)}

  def restore(self, snapshot: Mapping[str, np.ndarray], rounds: int) -> None:
    del rounds
    events = snapshot.get('events', np.zeros(1))
    if events.ndim != 1 or not (events > 0).all():
      raise ValueError('snapshot must hold the noise of every event')
    self._events = events.astype(np.float64).tolist()

  def _composed(self) -> float:
    """Epsilon of the query's own events, composed by dp_accounting."""
    self._add_unobserved(len(self.history))
    rate = self.settings.sampling_rate
    if not self._amplified or rate == 1:
      return self._composed_at(None)
    orders = accounting.renyi_orders(self._events, self.delta, rate)
    try:
      return self._composed_at(orders)
    except ValueError:
      # dp_accounting's series for a fractional order may not converge.
      return self._composed_at(
        [order for order in orders if order.is_integer()]
      )

  def _composed_at(self, orders: Sequence[float] | None) -> float:
    import dp_accounting  # noqa: PLC0415
    from dp_accounting import rdp  # noqa: PLC0415

    rate = self.settings.sampling_rate
    accountant = rdp.RdpAccountant(orders)
    for multiplier, count in collections.Counter(self._events).items():
      event = dp_accounting.GaussianDpEvent(multiplier)
      accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, event)
        if self._amplified
        else event,
        count,
      )
    epsilon = float(accountant.get_epsilon(self.delta))
    return math.nextafter(epsilon, math.inf)

  def refine(self, completed: int, new_rounds: int) -> privacy.NoiseSchedule:
    """Spreads what the worst user has left over its future rounds."""
    return self._for_worst_user(new_rounds, completed)

  def statement(self) -> privacy.PrivacyStatement:
    settings = self.settings
    if self._amplified:
      view = _POISSON
      pld = privacy.delivered_epsilon(
        self.spending.noise_multipliers(0),
        self.delta,
        'pld',
        sampling=_POISSON,
        sampling_rate=settings.sampling_rate,
      )
      views: dict[str, Mapping[str, float]] = {
        view: self._proven({'pld': pld, 'rdp': self.worst_epsilon()})
      }
      who = (
        'users are drawn independently with probability'
        f' {settings.sampling_rate:g}; the server keeps secret who was drawn'
        " in which round, and also this run's folder and the output of this"
        ' command, whose times show how many were drawn'
      )
    else:
      view = 'outsider who knows the cohorts, worst user'
      views = self.delivered_views(
        view, 'outsider who knows the cohorts, median user'
      )
      who = (
        'the cohorts may be known: the guarantee does not need them to be'
        ' secret; a user who is removed counts as an update of zero in the'
        ' same cohorts'
      )
    if self.history:
      views[_EVENTS] = self._proven({'rdp': self._composed()})
    return self.sound_statement(
      views,
      view,
      why='every release is on record, and one user moves the sum of the '
      'clipped updates by no more than the clip',
      assumptions=(
        'the server is TRUSTED: it sees the updates of single users, adds the'
        ' noise and publishes only the models; nothing is promised against the'
        ' server',
        who,
        'each person is one user',
      ),
      rule=self.mechanism.sensitivity(),
    )
