"""`--mechanism=gradient`: noise in every local step, and a guarantee."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.learning import views
from tvdp_tf.mechanisms import contract, interfaces
from tvdp_tf.privacy import noise_distance, sensitivity

_ADJACENCIES = (sensitivity.REPLACE_ONE, sensitivity.ZERO_OUT)

# Cached: needed for every client in every round of every compared plan.
_rule = functools.lru_cache(maxsize=4096, typed=True)(sensitivity.gradient_rule)


@dataclasses.dataclass(frozen=True)
class GradientMechanism(contract.GraphMechanism):
  """Gaussian noise on the mean of clipped per-example gradients.

  Every local step is a release. The noise of a client in round m has the
  standard deviation z_m * sensitivity(n).value, where n is its number of
  examples.

  Attributes:
    schedule: The noise multiplier of every round, z_m, in place of standard
      deviations. A client may have its own z_1, with the same shape.
    example_l2_norm_clip: C_g.
    adjacency: The adjacency of examples: 'replace-one' or 'zero-out'.
    noise: One of `noise_distance.NOISES`.
    example_views: A key of `views.VIEWS`, the views averaged before clipping.
  """

  CLIENT_RELEASES = interfaces.GRADIENTS

  schedule: privacy.NoiseSchedule
  example_l2_norm_clip: float
  adjacency: str = sensitivity.REPLACE_ONE
  noise: str = noise_distance.CONTINUOUS
  example_views: str = views.NONE

  def __post_init__(self):
    _validate.one_of('example_views', self.example_views, views.VIEWS)
    _validate.one_of('noise', self.noise, noise_distance.NOISES)
    interfaces.check_schedule(self.schedule)
    sensitivity.check_clip('example_l2_norm_clip', self.example_l2_norm_clip)
    _validate.one_of('adjacency', self.adjacency, _ADJACENCIES)

  def sensitivity(self, examples: int) -> sensitivity.SensitivityRule:
    """The rule 2 C_g / n for a client with n examples, fixed and public."""
    return _rule(self.example_l2_norm_clip, examples, self.adjacency)

  def client_stddev(self, round_number: int, examples: int) -> float:
    return self.schedule.stddev(round_number) * self.sensitivity(examples).value

  def client_multipliers(
    self, examples: int
  ) -> Sequence[tuple[privacy.SensitivityRule, np.ndarray]]:
    return [(self.sensitivity(examples), self.schedule.stddevs())]

  def noise_scale(
    self, examples: int, initial_noise_multiplier: float
  ) -> float:
    """A client's noise standard deviation divided by the schedule's z_m.

    Args:
      examples: n, the client's number of examples.
      initial_noise_multiplier: z_1 of the client.
    """
    relative = initial_noise_multiplier / self.schedule.initial_stddev
    return self.sensitivity(examples).value * relative

  def parts(self, build: Any) -> Any:
    from tvdp_tf.federated import (  # noqa: PLC0415
      checked_mean,
      client_work,
      learning_process,
    )
    from tvdp_tf.learning import noise  # noqa: PLC0415

    return learning_process.Parts(
      client_work.build_private(
        build.model,
        schedule=self.schedule,
        example_l2_norm_clip=self.example_l2_norm_clip,
        noise_distribution=noise.GAUSSIANS[self.noise],
        adjacency=self.adjacency,
        views_name=self.example_views,
        **build.local_steps,
      ),
      build.unchecked_mean
      or checked_mean.CheckedMeanFactory(build.max_upload_l2_norm),
    )

  def plain_work(self, build: Any) -> Any:
    from tvdp_tf.learning import (  # noqa: PLC0415
      clipping,
      example_independence,
      noise,
      private_training,
    )

    clipping.require_full_precision()
    return private_training.batch_trainer(
      example_independence.clipped_sum(
        build.model, build.loss, self.example_l2_norm_clip, self.example_views
      ),
      example_l2_norm_clip=self.example_l2_norm_clip,
      noise_distribution=noise.GAUSSIANS[self.noise],
      adjacency=self.adjacency,
      **build.local_steps,
    )


class Gradient(contract.Mechanism):
  """Every client spends exactly its own budget over its own rounds."""

  name = 'gradient'
  summary = 'noise in every local step, a guarantee'
  noise_on = 'the mean gradient'
  graph = GradientMechanism
  clips_examples = True
  adjacencies = _ADJACENCIES
  example_views = tuple(views.VIEWS)
  participations = ('balanced', 'uniform')
  noises = noise_distance.NOISES

  @classmethod
  def releases_in_a_round(cls, settings: Any) -> int:
    """One release in every local step."""
    return settings.local_steps

  @classmethod
  def refinements(cls, participation_name: str) -> tuple[str, ...]:
    del participation_name
    return ('none', 'budget')

  mechanism: GradientMechanism
  replans = True

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._adopt(self._initial_multipliers(settings.rounds), settings.rounds)
    self._check_grid(self.mechanism.schedule)

  def _adopt(self, initial: np.ndarray, rounds: int) -> None:
    """Sets z_{k,1} of every client for `rounds` rounds.

    The schedule is that of the client with the most noise. The noise of the
    other clients is proportional to it.
    """
    self._initial = initial
    self.mechanism = GradientMechanism(
      self._schedule_of(initial, rounds),
      self.settings.example_l2_norm_clip,
      self.adjacency,
      noise=self.noise,
      example_views=self.settings.views,
    )

  def _check_grid(
    self, schedule: privacy.NoiseSchedule, completed: int = 0
  ) -> None:
    """Checks what `private_training` would refuse in a round to come."""
    most = float(schedule.stddevs()[completed:].max())
    share = noise_distance.rounding_of_grid(self.fed.num_parameters, most)
    if self.noise == noise_distance.DISCRETE and not (
      share <= noise_distance.LARGEST_ROUNDING
    ):
      raise ValueError(
        f'noise must be continuous for a noise multiplier of {most:.3g} and'
        f' {self.fed.num_parameters} parameters, got {self.noise!r}'
      )

  @property
  def sensitivity_on_record(self) -> tuple[str, bool]:
    clip = self.settings.example_l2_norm_clip
    return (
      f"2 C_g / n_k, C_g = {clip!r}, n_k the client's number of examples",
      True,
    )

  def round(
    self, number: int, clients: np.ndarray, schedule_stddev: float
  ) -> contract.Round:
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
    return contract.Round(
      number,
      clients,
      relative * schedule_stddev,
      float(np.min(scales, initial=np.inf)) * schedule_stddev,
      scales,
    )

  def mean_noise_stddev(self, releases: contract.Round) -> float:
    """Noise of the mean, to first order in the learning rate.

    A client's steps add eta times the noise of its gradients, tau times.
    """
    clients = releases.clients
    sensitivities = np.array(
      [
        self.mechanism.sensitivity(int(n)).value
        for n in self.fed.examples_per_user[clients]
      ]
    )
    stddevs = releases.noise_multipliers * sensitivities
    steps = self.settings.learning_rate * math.sqrt(self.settings.local_steps)
    return steps * float(np.linalg.norm(self._weights(clients) * stddevs))

  def snapshot(self) -> Mapping[str, np.ndarray]:
    """The initial noise multiplier of each client."""
    return {'initial': self._initial}

  def restore(self, snapshot: Mapping[str, np.ndarray], rounds: int) -> None:
    initial = snapshot.get('initial', np.zeros(0))
    if initial.shape != self._initial.shape or not (initial > 0).all():
      raise ValueError('snapshot must hold the noise of every client')
    self._adopt(initial.astype(np.float64), rounds)

  def refine(self, completed: int, new_rounds: int) -> privacy.NoiseSchedule:
    """Spreads what each client has left over its rounds up to `new_rounds`."""
    initial = self._initial_multipliers(new_rounds, completed)
    try:
      self._check_grid(self._schedule_of(initial, new_rounds), completed)
    except ValueError as error:
      raise contract.BudgetSpentError(
        f'{error}: the run stops after {completed} rounds'
      ) from error
    self._adopt(initial, new_rounds)
    return self.mechanism.schedule

  def statement(self) -> privacy.PrivacyStatement:
    views = self.delivered_views(contract.SERVER_WORST, contract.SERVER_MEDIAN)
    # An outsider sees post-processing of what the server sees.
    views[contract.OUTSIDER_WORST] = views[contract.SERVER_WORST]
    return self.sound_statement(
      views,
      contract.SERVER_WORST,
      why='every local step of every client is on record, and the noise is on'
      ' gradients whose sensitivity is proven for any model and any data',
      assumptions=(
        'the server is honest but curious: it sees who uploads what and when; '
        'an outsider, who sees less, learns at most as much',
        'clients run this code and keep their noise secret',
        'the number of examples of each client and the cohorts are public',
      ),
      rule=self.mechanism.sensitivity(int(self.fed.examples_per_user.min())),
    )
