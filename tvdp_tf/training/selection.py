"""Publishing only the best of several runs.

`tvdp_tf.privacy.selection` computes the privacy cost. It needs a trusted server
and Renyi accounting: a mechanism with secret sampling.
"""

import dataclasses
import functools
import math

from tvdp_tf import errors, mechanisms, privacy
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import settings as settings_lib

_VIEW = 'poisson'
# Share of delta; the rest covers the noise's distance from the Gaussian.
_FOR_ACCOUNTANT = 0.99
# Shape of the distribution of the number of runs: geometric.
_SHAPE = 1.0
_LARGEST_MEAN = 1000


@dataclasses.dataclass(frozen=True)
class Selection:
  """How the published run is selected.

  Attributes:
    settings: The requested settings; epsilon is that of the published run.
    mean: Mean number of runs, above 1.
    partition_seed: Public seed of the split, the same for all runs: a user must
      hold the same examples in all of them.
  """

  settings: settings_lib.TrainingSettings
  mean: float
  partition_seed: int

  @functools.cached_property
  def run_settings(self) -> settings_lib.TrainingSettings:
    """The settings of each run, with a smaller epsilon.

    Raises:
      UsageError: If the target cannot be reached.
    """
    settings = self.settings
    try:
      schedule = privacy.calibrate_best_of_runs(
        settings.epsilon,
        settings.delta * _FOR_ACCOUNTANT,
        settings.noise_shape,
        settings.rounds,
        self.mean,
        _SHAPE,
        sampling=_VIEW,
        sampling_rate=settings.sampling_rate,
      )
    except ValueError as error:
      raise errors.UsageError(
        'epsilon must be within reach with --best_of, got'
        f' {settings.epsilon!r}: {error}'
      ) from error
    epsilon = privacy.delivered_epsilon(
      schedule.noise_multipliers(1.0),
      settings.delta,
      'rdp',
      _VIEW,
      settings.sampling_rate,
    )
    # Calibrated to at most this epsilon, each run has at least that noise.
    return dataclasses.replace(settings, epsilon=epsilon)

  @property
  def words(self) -> str:
    """A description for the ledger of a run."""
    return (
      'the best of a secret number of runs, geometrically distributed with mean'
      f' {self.mean:g}'
    )

  def draw(self) -> int:
    """Draws the number of runs, which is secret."""
    return privacy.draw_number_of_runs(self.mean, _SHAPE)

  def _epsilon(self, noise_multipliers: list[float], delta: float) -> float:
    """Returns the epsilon of what is published, with exact Gaussian noise."""
    return privacy.best_of_runs_epsilon(
      noise_multipliers,
      delta,
      self.mean,
      _SHAPE,
      _VIEW,
      self.settings.sampling_rate,
    )

  def statement(
    self,
    of_one: privacy.PrivacyStatement,
    noise_multipliers: list[float],
    distance: float,
  ) -> privacy.PrivacyStatement:
    """Returns the statement on what is published.

    Args:
      of_one: The statement on the run alone.
      noise_multipliers: Noise multipliers of its rounds.
      distance: Distance of its noise from Gaussian noise (`noise_distance`).
    """
    settings = self.settings
    share = noise_distance.share_of_distance(
      settings.epsilon, distance * self.mean
    )
    delta = settings.delta - share
    epsilon = math.inf
    if delta > 0:
      epsilon = self._epsilon(noise_multipliers, delta)
    holds = of_one.holds and epsilon <= settings.epsilon
    reason = of_one.reason
    if holds:
      reason = (
        f'{reason}; and neither the number of runs nor anything about the'
        ' other runs is published'
      )
    elif of_one.holds:
      reason = 'publishing the best of the runs costs more than the target'
    return dataclasses.replace(
      of_one,
      target_epsilon=settings.epsilon,
      claimed_epsilon=max(settings.epsilon, epsilon),
      delivered={
        _VIEW: {'rdp': epsilon},
        **{
          f'one run alone, had it been the only one: {view}': by_accountant
          for view, by_accountant in of_one.delivered.items()
        },
      },
      assumptions=(
        f'the published model is {self.words}, chosen by its accuracy on the'
        ' public test set',
        'the server keeps secret the number of runs, the results of all other'
        ' runs, whether they failed, and what reveals their number, such as'
        ' how long the command took: the folder "private" and this command\'s'
        ' messages',
        *of_one.assumptions,
      ),
      holds=holds,
      reason=reason,
    )


def check(settings: settings_lib.TrainingSettings, mean: float) -> None:
  """Checks that publishing the best of several such runs can be accounted for.

  Raises:
    UsageError: If it cannot.
  """
  if not 1 < mean <= _LARGEST_MEAN:
    raise errors.UsageError(
      f'best_of must be above 1 and at most {_LARGEST_MEAN}, got {mean!r}'
    )
  secret = [
    name
    for name, kind in mechanisms.MECHANISMS.items()
    if _VIEW in kind.participations
  ]
  choices: dict[str, list] = {
    'mechanism': secret,
    'participation': [_VIEW],
    'seed': [None],
  }
  for name, allowed in choices.items():
    value = getattr(settings, name)
    if value not in allowed:
      text = ' or '.join(str(one) for one in allowed)
      raise errors.UsageError(
        f'best_of must be given with {name} {text}, got {value!r}'
      )
