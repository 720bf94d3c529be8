"""`--mechanism=gradient`: noise in every local step, and a guarantee."""

from collections.abc import Sequence

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.experiments.plans import base
from tvdp_tf.privacy import ledger, mechanisms, participation_budget


class GradientPlan(base.Plan):
  """Every client spends exactly its own budget over its own rounds."""

  mechanism: mechanisms.GradientMechanism

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.releases_per_client = settings.local_steps
    z_eff = participation_budget.equivalent_noise_multiplier(
      settings.epsilon, settings.delta, settings.calibration
    )
    self._budget = z_eff**-2.0
    self._initial = participation_budget.initial_noise_multipliers(
      self.planned(),
      settings.theta,
      settings.local_steps,
      self._budget,
    )
    self.mechanism = mechanisms.GradientMechanism(
      self._schedule(settings.rounds), settings.example_l2_norm_clip
    )

  def _schedule(self, rounds: int) -> privacy.GeometricSchedule:
    """That of the client with the most noise; the others' are parallel."""
    finite = self._initial[np.isfinite(self._initial)]
    return privacy.GeometricSchedule(
      self.settings.theta, rounds, float(finite.max())
    )

  @property
  def header(self) -> ledger.LedgerHeader:
    """As in the base class."""
    return ledger.LedgerHeader(
      mechanism='gradient',
      unit='example',
      adjacency=self.mechanism.adjacency,
      target_epsilon=self.settings.epsilon,
      delta=self.settings.delta,
      clients=self.settings.users,
      sensitivity=(
        f'2 C_g / n_k, C_g = {self.settings.example_l2_norm_clip!r}, n_k the '
        "client's number of examples"
      ),
      sensitivity_proven=True,
    )

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> base.Round:
    """As in the base class."""
    relative = self._initial[clients] / self.mechanism.schedule.initial_stddev
    scales = np.array(
      [
        self.mechanism.noise_scale(int(n), float(z))
        for n, z in zip(
          self.fed.examples_per_user[clients],
          self._initial[clients],
          strict=True,
        )
      ]
    )
    return base.Round(
      number,
      clients,
      relative * schedule_stddev,
      float(np.min(scales, initial=np.inf)) * schedule_stddev,
      scales,
    )

  def refine(
    self, history: Sequence[base.Round], new_rounds: int
  ) -> privacy.GeometricSchedule:
    """Spreads what each client has left over its rounds up to `new_rounds`."""
    self._initial = participation_budget.initial_noise_multipliers(
      self.planned(new_rounds),
      self.settings.theta,
      self.settings.local_steps,
      self._budget,
      self._spent(history),
      completed=len(history),
    )
    schedule = self._schedule(new_rounds)
    self.mechanism = mechanisms.GradientMechanism(
      schedule, self.settings.example_l2_norm_clip
    )
    return schedule

  def statement(
    self, history: Sequence[base.Round]
  ) -> privacy.PrivacyStatement:
    """As in the base class."""
    settings = self.settings
    multipliers = self._multipliers(history)
    order = base.by_spending(multipliers)
    worst, median = order[-1], order[len(order) // 2]
    views = {
      base.SERVER_WORST: base.delivered(multipliers[worst], settings.delta),
      base.SERVER_MEDIAN: base.delivered(multipliers[median], settings.delta),
    }
    # Post-processing of what the server sees.
    views[base.OUTSIDER_WORST] = views[base.SERVER_WORST]
    best = min(views[base.SERVER_WORST].values())
    holds, reason = self._verdict(
      best,
      'every local step of every client is on record, with noise on gradients '
      'whose sensitivity is proven for any model and any data',
    )
    return privacy.PrivacyStatement(
      target_epsilon=settings.epsilon,
      delta=settings.delta,
      claimed_epsilon=settings.epsilon,
      delivered=views,
      unit='example',
      adjacency=self.mechanism.adjacency,
      assumptions=(
        'the server is honest but curious: it sees who uploads what and when; '
        'an outsider, who sees less, learns at most as much',
        'clients run this code and keep their noise secret',
        'the number of examples of each client, the cohorts and all settings '
        'are public and were not chosen by looking at the data',
        'the test set is public',
        'noise is drawn and gradients are summed in floating point',
        *self._warnings(),
      ),
      holds=holds,
      reason=reason,
      view=base.SERVER_WORST,
      sensitivity=self.mechanism.sensitivity(
        int(self.fed.examples_per_user.min())
      ),
    )
