"""Simulates a run without training: the mechanism's releases of all rounds."""

import dataclasses

import numpy as np

from tvdp_tf import mechanisms
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.training import population as population_lib


@dataclasses.dataclass(frozen=True)
class Simulation:
  """A mechanism that has been through all its rounds.

  Attributes:
    mechanism: The mechanism; every round is in its history.
    mean_noise_stddevs: Standard deviation of the noise in each parameter of the
      mean of every round, float64 [rounds].
  """

  mechanism: mechanisms.Mechanism
  mean_noise_stddevs: np.ndarray

  @property
  def noise_stddevs(self) -> np.ndarray:
    """The smallest noise that a client adds in each round, float64 [rounds]."""
    return np.array([r.noise_stddev for r in self.mechanism.history])

  @property
  def noise_multipliers(self) -> np.ndarray:
    """The smallest noise multiplier of a client, float64 [rounds]."""
    return np.array(
      [
        np.min(r.noise_multipliers, initial=np.inf)
        for r in self.mechanism.history
      ]
    )


def run(
  settings: planning_settings.PlanSettings,
  population: population_lib.Population,
) -> Simulation:
  """Calibrates the mechanism, as training would, and goes through its rounds.

  Args:
    settings: The settings of the run.
    population: The users of the run.

  Returns:
    The simulation.

  Raises:
    ValueError: If no noise meets the target, or the noise of a round is not
      representable. The message names a setting.
  """
  with mechanisms.named_after_a_setting(settings):
    return _run(settings, population)


def _run(settings, population) -> Simulation:
  mechanism = mechanisms.build(settings, population)
  schedule = mechanism.schedule
  means = np.zeros(settings.rounds)
  for m in range(1, settings.rounds + 1):
    releases = mechanism.round(
      m,
      population.participation.cohort(m),
      0.0 if schedule is None else schedule.stddev(m),
    )
    mechanism.take(releases)
    means[m - 1] = mechanism.mean_noise_stddev(releases)
  return Simulation(mechanism, means)
