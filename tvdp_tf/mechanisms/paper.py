"""`--mechanism=paper`: Algorithm 1 as printed, and what it really delivers."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.mechanisms import contract, interfaces, statements
from tvdp_tf.privacy import calibration, ledger, sensitivity, spending

_ALWAYS = 'server, a client that takes part in every round'
_BEFORE = 'server, a client before the cohorts are drawn'


@dataclasses.dataclass(frozen=True)
class PaperMechanism(contract.GraphMechanism):
  """Output perturbation as in the paper's Algorithm 1.

  The parameters are projected to norm C after every local step, and Gaussian
  noise is added to them before the upload.

  Attributes:
    schedule: The noise of every round, added to every parameter.
    l2_norm_clip: C.
  """

  CLIENT_RELEASES = interfaces.MODEL

  schedule: privacy.NoiseSchedule
  l2_norm_clip: float

  def __post_init__(self):
    interfaces.check_schedule(self.schedule)
    _validate.positive('l2_norm_clip', self.l2_norm_clip)

  def sensitivity(self, examples: int) -> sensitivity.SensitivityRule:
    """The paper's rule, for a client with that many examples."""
    return sensitivity.paper_rule(self.l2_norm_clip, examples)

  def client_stddev(self, round_number: int, examples: int) -> float:
    del examples
    return self.schedule.stddev(round_number)

  def client_multipliers(
    self, examples: int
  ) -> Sequence[tuple[privacy.SensitivityRule, np.ndarray]]:
    """Noise multipliers by the paper's rule, and by the one that is proven."""
    rules = (
      self.sensitivity(examples),
      sensitivity.projection_rule(self.l2_norm_clip),
    )
    return [
      (rule, self.schedule.noise_multipliers(rule.value)) for rule in rules
    ]

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
        self.schedule, build.unchecked_mean, l2_norm_clip=self.l2_norm_clip
      ),
    )


class Paper(contract.Mechanism):
  """The noise of Theorem 1, or noise that an accountant has set."""

  name = 'paper'
  summary = 'noise on the parameters before upload'
  noise_on = 'the parameters'
  graph = PaperMechanism
  is_sound = False

  @classmethod
  def calibrations(cls, participation_name: str) -> tuple[str, ...]:
    """All rules: those of the accountants, and the paper's own two."""
    del participation_name
    return calibration.CALIBRATIONS

  @classmethod
  def refinements(cls, participation_name: str) -> tuple[str, ...]:
    del participation_name
    return ('none', 'budget', 'theorem2')

  @classmethod
  def check(cls, settings: Any) -> None:
    """Checks the schedule: the paper's formulas need a geometric one."""
    if settings.schedule:
      _validate.one_of(
        'calibration',
        settings.calibration or cls.calibrations(settings.participation)[0],
        calibration.ACCOUNTED,
        ' with a schedule',
      )
    if settings.schedule and settings.refinement != 'none':
      raise ValueError(
        'refinement must be none with mechanism paper and a schedule, got'
        f' {settings.refinement!r}'
      )

  mechanism: PaperMechanism

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    # The smallest user has the largest sensitivity; all add the same noise.
    smallest = int(min(fed.examples_per_user))
    rule = privacy.paper_rule(settings.l2_norm_clip, smallest)
    schedule = privacy.schedule_for_every_round(
      settings.calibration,
      epsilon=settings.epsilon,
      delta=settings.delta,
      theta=settings.noise_shape,
      rounds=settings.rounds,
      sampling_rate=settings.sampling_rate,
      sensitivity=rule.value,
    )
    self.mechanism = PaperMechanism(schedule, settings.l2_norm_clip)
    self._budget = self.mechanism.schedule.precision()

  @property
  def header(self) -> ledger.LedgerHeader:
    """The header of a ledger that refuses nothing.

    The paper's noise overspends: refusing it would be a different algorithm.
    """
    return dataclasses.replace(super().header, enforced=False)

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    clip = self.settings.l2_norm_clip
    return (
      f"2 C / n_k, C = {clip!r}, n_k the client's number of examples",
      False,
    )

  @property
  def proven_rule(self) -> sensitivity.SensitivityRule:
    """The rule 2 C, for any two points of the ball."""
    return sensitivity.projection_rule(self.settings.l2_norm_clip)

  def sensitivities(self) -> np.ndarray:
    """The sensitivities by the paper's rule, float64 [users]."""
    return 2 * self.settings.l2_norm_clip / self.fed.examples_per_user

  def _stddevs(self) -> np.ndarray:
    """Noise stddev of every round taken, from the numbers in the ledger."""
    sensitivities = self.sensitivities()
    return np.array(
      [
        np.min(past.noise_multipliers * sensitivities[past.clients])
        for past in self.history
      ]
    )

  def refine(self, completed: int, new_rounds: int) -> privacy.NoiseSchedule:
    """The schedule for a new number of rounds, by Theorem 2 or exact."""
    settings = self.settings
    if settings.refinement == 'theorem2':
      stddev = privacy.theorem2_stddev(
        settings.theta,
        completed,
        new_rounds,
        settings.epsilon,
        settings.delta,
        settings.sampling_rate,
        float(self.sensitivities().max()),
      )
    else:
      # A round that was released twice counts as one with less noise.
      precisions = np.zeros(completed)
      for past, stddev in zip(self.history, self._stddevs(), strict=True):
        precisions[min(past.number, completed) - 1] += stddev**-2.0
      if precisions.sum() * spending.ROUNDED_UP >= self._budget:
        raise contract.BudgetSpentError(
          f'the budget is spent: the run stops after {completed} rounds'
        )
      stddev = privacy.refine_stddev(
        settings.theta, precisions**-0.5, new_rounds, self._budget
      )
    return privacy.GeometricSchedule(settings.theta, new_rounds, stddev)

  def statement(self) -> privacy.PrivacyStatement:
    """The statement, which never holds."""
    settings = self.settings
    order = self.spending.by_spending()
    worst, median = order[-1], order[len(order) // 2]
    always = self._stddevs() / self.sensitivities().max()
    views = {
      contract.SERVER_WORST: statements.delivered(
        self.spending.noise_multipliers(worst), settings.delta
      ),
      contract.SERVER_MEDIAN: statements.delivered(
        self.spending.noise_multipliers(median), settings.delta
      ),
      _ALWAYS: statements.delivered(always, settings.delta),
      contract.OUTSIDER_WORST: self._outsider(),
    }
    if settings.participation == 'uniform' and settings.sampling_rate < 1:
      views[_BEFORE] = {
        accountant: privacy.delivered_epsilon(
          always,
          settings.delta,
          accountant,
          sampling='visible',
          sampling_rate=settings.sampling_rate,
        )
        for accountant in ('pld', 'rdp')
      }
    assumptions = [
      "CONDITIONAL on the paper's sensitivity 2C/|D_k|, which does not hold: "
      'several gradient steps on all examples can move the parameters by up to '
      '2C, whatever |D_k|',
      'the server is honest but curious and sees who uploads what; clients '
      'keep their noise secret',
      (
        'an outsider sees only the global models, and no client discloses its'
        ' noise'
      ),
      'the size |D_k| of each data set is public',
      'noise is drawn in floating point',
      *statements.warnings(self),
    ]
    reasons = [
      'the sensitivity 2C/|D_k| that the noise is scaled to is not a bound'
    ]
    if settings.calibration in ('printed', 'tight'):
      reasons.append(
        "and the paper's moment bound understates epsilon whenever a user's "
        'participation is visible to the server'
      )
    assumptions += self._overspending(always)
    return privacy.PrivacyStatement(
      target_epsilon=settings.epsilon,
      delta=settings.delta,
      claimed_epsilon=settings.epsilon,
      delivered=views,
      unit='example',
      adjacency='replace-one',
      assumptions=tuple(assumptions),
      holds=False,
      reason=', '.join(reasons),
      view=contract.SERVER_WORST,
      sensitivity=self.mechanism.sensitivity(
        int(self.fed.examples_per_user.min())
      ),
    )

  def _overspending(self, always: np.ndarray) -> list[str]:
    """What a refinement has spent of the budget of the original plan."""
    if self.settings.refinement == 'none':
      return []
    spent = float(np.sum((always * self.sensitivities().max()) ** -2.0))
    share = spent / self._budget
    text = (
      f'refinement {self.settings.refinement} has spent {share:.4g} times the '
      'sum of 1/variance of the original plan'
    )
    return [f'WARNING: {text}' if share > 1 + 1e-9 else text]

  def _outsider(self) -> Mapping[str, float]:
    """Epsilon of the client that has spent the most, if only the mean is seen.

    The mean's noise has the standard deviation sigma_m sqrt(sum p_j^2), and
    one example of client k moves the mean by p_k Ds_k.
    """
    lists: list[list[float]] = [[] for _ in self.fed.examples_per_user]
    for past in self.history:
      weights = self._weights(past.clients)
      gains = np.linalg.norm(weights) / weights
      for client, multiplier in zip(
        past.clients.tolist(), past.noise_multipliers * gains, strict=True
      ):
        lists[client].append(float(multiplier))
    multipliers = [np.array(values) for values in lists]
    worst = max(multipliers, key=lambda z: float(np.sum(z**-2.0)))
    return statements.delivered(worst, self.settings.delta)
