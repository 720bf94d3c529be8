"""What is claimed of an audited mechanism: its noise and its epsilons."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from tvdp_tf import mechanisms, privacy
from tvdp_tf.attacks import audit_settings
from tvdp_tf.privacy import participation_budget

AuditedMechanism = mechanisms.PaperMechanism | mechanisms.GradientMechanism


@dataclasses.dataclass(frozen=True)
class Delivered:
  """An epsilon that is stated of the calibrated noise.

  Attributes:
    epsilon: By the exact accountant.
    sensitivity: What it stands on.
  """

  epsilon: float
  sensitivity: privacy.SensitivityRule


@contextlib.contextmanager
def _named_after_a_flag(
  settings: audit_settings.AuditSettings,
) -> Iterator[None]:
  """Makes an error about the noise an error about what made it so."""
  try:
    with np.errstate(over='ignore'):
      yield
  except ValueError as error:
    name = str(error).partition(' ')[0]
    if name in ('epsilon', 'delta', 'theta'):
      raise
    name = 'epsilon' if settings.theta == 1 else 'theta'
    raise ValueError(
      f'{name} must leave the noise of all {settings.rounds} rounds'
      f' representable, got {getattr(settings, name)!r} ({error})'
    ) from error


def _paper_mechanism(
  settings: audit_settings.AuditSettings,
) -> mechanisms.PaperMechanism:
  rule = privacy.paper_rule(settings.l2_norm_clip, settings.num_examples)
  schedule = privacy.schedule_for_every_round(
    settings.calibration,
    epsilon=settings.epsilon,
    delta=settings.delta,
    theta=settings.theta,
    rounds=settings.rounds,
    sampling_rate=1.0,
    sensitivity=rule.value,
  )
  return mechanisms.PaperMechanism(schedule, settings.l2_norm_clip)


def _gradient_mechanism(
  settings: audit_settings.AuditSettings,
) -> mechanisms.GradientMechanism:
  z_eff = participation_budget.equivalent_noise_multiplier(
    settings.epsilon, settings.delta, settings.calibration
  )
  initial = participation_budget.initial_noise_multipliers(
    np.ones([1, settings.rounds], bool),
    settings.theta,
    settings.local_steps,
    z_eff**-2.0,
  )
  schedule = privacy.GeometricSchedule(
    settings.theta, settings.rounds, float(initial[0])
  )
  return mechanisms.GradientMechanism(schedule, settings.example_l2_norm_clip)


def build_mechanism(settings: audit_settings.AuditSettings) -> AuditedMechanism:
  """The mechanism, calibrated for a client that takes part in every round.

  Raises:
    ValueError: If no noise meets the target.
  """
  with _named_after_a_flag(settings):
    if settings.mechanism == 'paper':
      return _paper_mechanism(settings)
    return _gradient_mechanism(settings)


def delivered_epsilons(
  settings: audit_settings.AuditSettings, mechanism: AuditedMechanism
) -> tuple[Delivered, ...]:
  """What the calibrated noise delivers, by every rule of sensitivity.

  Args:
    settings: What is audited.
    mechanism: Its mechanism.

  Returns:
    By the paper's rule, then by the proven one; with `gradient` only the
    latter.

  Raises:
    ValueError: If a noise multiplier is not representable.
  """
  if isinstance(mechanism, mechanisms.GradientMechanism):
    rules = [mechanism.sensitivity(settings.num_examples)]
    multipliers = [
      np.repeat(mechanism.schedule.stddevs(), settings.local_steps)
    ]
  else:
    rules = [
      mechanism.sensitivity(settings.num_examples),
      privacy.projection_rule(mechanism.l2_norm_clip),
    ]
    with _named_after_a_flag(settings):
      multipliers = [
        mechanism.schedule.noise_multipliers(rule.value) for rule in rules
      ]
  return tuple(
    Delivered(privacy.delivered_epsilon(z, settings.delta, 'exact'), rule)
    for z, rule in zip(multipliers, rules, strict=True)
  )
