"""What is claimed of an audited mechanism: its noise and its epsilons."""

import dataclasses
from typing import Any

import numpy as np

from tvdp_tf import mechanisms, privacy
from tvdp_tf.attacks import audit_settings
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import population
from tvdp_tf.training import settings as settings_lib


@dataclasses.dataclass(frozen=True)
class Delivered:
  """An epsilon that is stated of the calibrated noise.

  Attributes:
    epsilon: By the exact accountant.
    sensitivity: What it stands on.
  """

  epsilon: float
  sensitivity: privacy.SensitivityRule


def build_mechanism(
  settings: audit_settings.AuditSettings,
) -> Any:
  """The mechanism, calibrated for a client that takes part in every round.

  Returns:
    A `GraphMechanism`.

  Raises:
    ValueError: If no noise meets the target.
  """
  training = settings_lib.TrainingSettings(
    users=1,
    users_per_round=1,
    noise=noise_distance.CONTINUOUS,
    **{name: getattr(settings, name) for name in audit_settings.OF_TRAINING},
  )
  with mechanisms.named_after_a_setting(settings):
    # One client; with no value to draw, so that the noise is taken for exact.
    alone = population.Population(
      population.draw(training, 0), np.array([settings.num_examples]), 0
    )
    return mechanisms.build(training, alone).mechanism


def delivered_epsilons(
  settings: audit_settings.AuditSettings, mechanism: mechanisms.GraphMechanism
) -> tuple[Delivered, ...]:
  """What the calibrated noise delivers, by every rule of sensitivity.

  Args:
    settings: What is audited.
    mechanism: Its mechanism.

  Returns:
    By the rules of `GraphMechanism.client_multipliers`.

  Raises:
    ValueError: If a noise multiplier is not representable.
  """
  kind = mechanisms.MECHANISMS[settings.mechanism]
  releases = kind.releases_in_a_round(settings)
  with mechanisms.named_after_a_setting(settings):
    noise = mechanism.client_multipliers(settings.num_examples)
  return tuple(
    Delivered(
      privacy.delivered_epsilon(
        np.repeat(z, releases), settings.delta, 'exact'
      ),
      rule,
    )
    for rule, z in noise
  )
