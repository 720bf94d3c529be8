"""`--mechanism=central`: user-level DP-FedAvg with a trusted server."""

from collections.abc import Mapping, Sequence
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf
from dp_accounting import rdp

from tvdp_tf import privacy
from tvdp_tf.experiments.plans import base
from tvdp_tf.privacy import ledger, mechanisms, participation_budget

_POISSON = 'poisson'
_EVENTS = "the query's events, by dp_accounting, a user in every round or draw"


class CentralPlan(base.Plan):
  """Clipped updates, one noise on their sum.

  With Poisson participation the secret of who was drawn amplifies; with any
  other the user that is planned most counts, as if all knew the cohorts.
  """

  mechanism: mechanisms.CentralMechanism
  shares_noise = True

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._amplified = settings.participation == _POISSON
    self._events: list[dp_accounting.DpEvent] = []
    self.mechanism = mechanisms.CentralMechanism(
      self._schedule(),
      settings.l2_norm_clip,
      settings.users_per_round,
      settings.seed,
    )

  def _schedule(self) -> privacy.GeometricSchedule:
    settings = self.settings
    if self._amplified:
      return privacy.calibrate(
        settings.epsilon,
        settings.delta,
        settings.theta,
        settings.rounds,
        accountant=settings.calibration,
        sampling=_POISSON,
        sampling_rate=settings.sampling_rate,
      )
    z_eff = participation_budget.equivalent_noise_multiplier(
      settings.epsilon, settings.delta, settings.calibration
    )
    self._budget = z_eff**-2.0
    return self._for_worst_user(settings.rounds)

  def _for_worst_user(
    self, rounds: int, spent: float | np.ndarray = 0.0, completed: int = 0
  ) -> privacy.GeometricSchedule:
    settings = self.settings
    initial = participation_budget.initial_noise_multipliers(
      self.planned(rounds), settings.theta, 1, self._budget, spent, completed
    )
    return privacy.GeometricSchedule(
      settings.theta, rounds, float(initial[np.isfinite(initial)].max())
    )

  @property
  def header(self) -> ledger.LedgerHeader:
    """As in the base class."""
    settings = self.settings
    return ledger.LedgerHeader(
      mechanism='central',
      unit='user',
      adjacency='add-or-remove-one',
      target_epsilon=settings.epsilon,
      delta=settings.delta,
      clients=settings.users,
      sensitivity=f'C_u = {settings.l2_norm_clip!r}',
      sensitivity_proven=True,
      sampling=_POISSON if self._amplified else 'none',
      sampling_rate=settings.sampling_rate if self._amplified else 1.0,
    )

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> base.Round:
    """As in the base class; the noise is that on the mean."""
    scale = self.mechanism.l2_norm_clip / self.mechanism.denominator
    return base.Round(
      number,
      clients,
      # An empty cohort is a release of noise like any other.
      np.full(max(1, len(clients)), schedule_stddev),
      schedule_stddev * scale,
      np.ones(len(clients)),
    )

  def entry(self, releases: base.Round) -> dict[str, Any]:
    """As in the base class; who was drawn in secret is not written down."""
    entry = super().entry(releases)
    if self._amplified:
      entry['clients'] = []
      entry['noise_multipliers'] = entry['noise_multipliers'][:1]
    return entry

  def observe(self, state: Any) -> None:
    """Keeps the round's DpEvent, as the query has left it in the state."""
    fields = tf.nest.map_structure(
      lambda leaf: leaf.numpy() if hasattr(leaf, 'numpy') else leaf,
      state.aggregator.dp_event,
    )
    self._events.append(dp_accounting.DpEvent.from_named_tuple(fields))

  def _composed(self) -> float:
    """Epsilon of the query's own events, composed by dp_accounting."""
    accountant = rdp.RdpAccountant()
    rate = self.settings.sampling_rate
    for event in self._events:
      accountant.compose(
        dp_accounting.PoissonSampledDpEvent(rate, event)
        if self._amplified
        else event
      )
    return float(accountant.get_epsilon(self.settings.delta))

  def worst_epsilon(self, history: Sequence[base.Round]) -> float:
    """As in the base class; with Poisson participation, of every user."""
    if not self._amplified:
      return super().worst_epsilon(history)
    return self._poisson(history)['rdp']

  def _poisson(
    self, history: Sequence[base.Round], accountants: Sequence[str] = ('rdp',)
  ) -> Mapping[str, float]:
    multipliers = [past.noise_multipliers[0] for past in history]
    return {
      accountant: privacy.delivered_epsilon(
        multipliers,
        self.settings.delta,
        accountant,
        sampling=_POISSON,
        sampling_rate=self.settings.sampling_rate,
      )
      for accountant in accountants
    }

  def refine(
    self, history: Sequence[base.Round], new_rounds: int
  ) -> privacy.GeometricSchedule:
    """Spreads what the user with least left has over its rounds to come."""
    return self._for_worst_user(new_rounds, self._spent(history), len(history))

  def statement(
    self, history: Sequence[base.Round]
  ) -> privacy.PrivacyStatement:
    """As in the base class."""
    settings = self.settings
    if self._amplified:
      view = _POISSON
      views = {view: self._poisson(history, ('pld', 'rdp'))}
      who = (
        'who was drawn in which round stays a secret of the server, and so '
        "does this run's folder, whose times tell how many were drawn: users "
        f'are drawn independently with probability {settings.sampling_rate:g}'
      )
    else:
      view = 'outsider who knows the cohorts, worst user'
      multipliers = self._multipliers(history)
      order = base.by_spending(multipliers)
      views = {
        view: base.delivered(multipliers[order[-1]], settings.delta),
        'outsider who knows the cohorts, median user': base.delivered(
          multipliers[order[len(order) // 2]], settings.delta
        ),
      }
      who = (
        'no secret is made of who took part when, and nothing gained by it; a '
        'user who is removed counts as an update of zero in the same cohorts'
      )
    best = min(views[view].values())
    if self._events:
      views[_EVENTS] = {'rdp': self._composed()}
    holds, reason = self._verdict(
      best,
      'every release is on record, and one user moves the sum of the clipped '
      'updates by no more than the clip',
    )
    return privacy.PrivacyStatement(
      target_epsilon=settings.epsilon,
      delta=settings.delta,
      claimed_epsilon=settings.epsilon,
      delivered=views,
      unit='user',
      adjacency='add-or-remove-one',
      assumptions=(
        'the server is TRUSTED: it sees the updates of single users, adds the '
        'noise and publishes models alone; against the server nothing is '
        'promised',
        who,
        'a person is one user',
        'all settings are public and were not chosen by looking at the data',
        'the test set is public',
        'noise is drawn and updates are summed in floating point',
        *self._warnings(),
      ),
      holds=holds,
      reason=reason,
      view=view,
      sensitivity=self.mechanism.sensitivity(),
    )
