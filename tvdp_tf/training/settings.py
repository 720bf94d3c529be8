"""The settings of one training run, checked and complete.

Field names are the names of the flags, so that an error about a field is an
error about its flag.
"""

import dataclasses
import os
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np

from tvdp_tf import _validate, mechanisms, privacy
from tvdp_tf.learning import (
  datasets,
  features,
  participation,
  server_optimizer,
  views,
)
from tvdp_tf.privacy import calibration as calibration_lib
from tvdp_tf.privacy import noise_distance, sensitivity

# Same as in `tvdp_tf.learning.models`, without importing it to check flags.
MODELS = ('mlp', 'svm', 'cnn', 'linear')
SPLITS = ('iid', 'dirichlet', 'natural')
# Replaces the name of what the caller passes to `fit`.
OWN = datasets.OWN
PARTICIPATIONS = tuple(participation.PARTICIPATIONS)
CALIBRATIONS = calibration_lib.CALIBRATIONS
REFINEMENTS = ('none', 'theorem2', 'budget')
ADJACENCIES = sensitivity.ADJACENCIES
RUNTIMES = ('compiled', 'tff', 'remote')
NOISES = noise_distance.NOISES
DEVICES = ('auto', 'cpu', 'gpu')
# Fields that may be a function, a class or a list, and belong to a plan.
_OF_ANY_TYPE = ('features', 'mechanism', 'schedule', 'given')
_PLAIN = (int, float, str, type(None))
# As many lines are in the ledger and in the metrics.
_MOST_ROUNDS = 10**6

# In place of a default that the mechanism chooses (`Mechanism.defaults`).
_BY_MECHANISM: Any = None


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
  """The settings of a run; the defaults train the digits with a guarantee.

  Attributes:
    dataset: Name of the data set (`tvdp_tf.learning.datasets`).
    data_dir: TFDS's folder; None for TFDS's default.
    model: Name of the model (`tvdp_tf.learning.models`).
    features: Features computed once from each example before training
      (`tvdp_tf.learning.features`): a name, or a function of one example.
    views: Views of each image whose gradients are averaged before clipping
      (`tvdp_tf.learning.views`): `mirror` or `none`. This costs no privacy.
    users: U, the number of users.
    users_per_round: K, the number of users in a round.
    split: How the training examples are distributed to the users.
    dirichlet_concentration: Label skew of the `dirichlet` split.
    mechanism: Name of a mechanism (`tvdp_tf.mechanisms`), or its class.
    participation: How the users of a round are chosen; by default `balanced`
      for `gradient`, `poisson` for `central` and `uniform` otherwise.
    epsilon: Target epsilon.
    delta: Target delta.
    adjacency: The neighboring relation of data sets: by default `replace-one`
      for examples, and `add-or-remove-one` for the users of `central`.
    theta: Ratio of the noise variances of successive rounds.
    schedule: A custom noise schedule, used instead of theta: a standard
      deviation for each round, in any unit, or a function (round from 1,
      rounds) that returns it. Empty for the geometric schedule.
    rounds: M, the number of rounds.
    local_steps: tau, the local steps of a client in a round; by default 10, and
      1 with `distributed`.
    l2_norm_clip: C, the clip of the parameters; with `central`, of the update.
    example_l2_norm_clip: C_g, the clip of per-example gradients.
    learning_rate: eta, the learning rate of the local steps; by default 1, and
      0.5 with `none`.
    dropouts: How many clients of a round may drop out, for mechanisms whose
      clients share the noise.
    colluders: How many clients of a round may reveal their data and noise to
      the server.
    server_momentum: The server's Nesterov momentum, in [0, 1).
    server_average: The weight of earlier models in the average that is
      evaluated and exported, in [0, 1); 0 for the last model.
    server_final_step: The ratio of the server's last step to its first, in
      (0, 1]; steps decay linearly. None of these three costs privacy.
    calibration: The rule that sets the noise; by default `printed` for `paper`,
      `rdp` for `central` with `poisson`, and otherwise `exact`. Empty for
      `laplace` and `none`, which have no choice.
    noise: `continuous`, in floating point, or `discrete`, exact on a grid of
      integers; only for `gradient` and `central`. By default `discrete` on the
      compiled runtime without a seed, unless its tail is too short for the
      target epsilon; otherwise `continuous`.
    refinement: Whether and how the number of rounds changes when the test loss
      stops falling.
    alpha_d: The factor by which a refinement shortens the rounds, in (0, 1].
    runtime: The runtime that executes the TFF computation.
    device: The device that executes it; `auto` is a GPU if there is one and no
      client draws discrete noise.
    seed: Makes the whole run reproducible, including its noise; None for
      unpredictable noise.
  """

  dataset: str = 'digits'
  data_dir: str | None = None
  features: Any = 'none'  # A function is replaced by its name.
  views: str = 'none'
  model: str = 'mlp'
  users: int = 10
  users_per_round: int = 5
  split: str = 'iid'
  dirichlet_concentration: float = 0.5
  mechanism: Any = 'gradient'  # A class is replaced by its name.
  participation: str = ''
  epsilon: float = 10.0
  delta: float = 1e-4
  adjacency: str = ''
  theta: float = 0.95
  schedule: Any = ()  # A function is replaced by its list.
  rounds: int = 10
  local_steps: int = _BY_MECHANISM
  l2_norm_clip: float = 5.0
  example_l2_norm_clip: float = 1.0
  learning_rate: float = _BY_MECHANISM
  dropouts: int = 0
  colluders: int = 0
  server_momentum: float = 0.0
  server_average: float = 0.0
  server_final_step: float = 1.0
  calibration: str = ''
  noise: str = ''
  refinement: str = 'none'
  alpha_d: float = 0.9
  runtime: str = 'compiled'
  device: str = 'auto'
  seed: int | None = None

  def __post_init__(self):
    self._resolve_numbers()
    if self.dataset != OWN:
      datasets.check_name(self.dataset)
    if callable(self.features):
      object.__setattr__(self, 'features', features.register(self.features))
    features.check_name(self.features)
    if not str(self.model).startswith('keras:') and self.model != OWN:
      _validate.one_of('model', self.model, (*MODELS, 'keras:PATH'))
    if self.split != OWN:
      _validate.one_of('split', self.split, SPLITS)
    if self.split == 'natural':
      datasets.check_natural(self.dataset)
    if OWN in (self.dataset, self.model, self.split) and (
      self.dataset != self.model
    ):
      raise ValueError('dataset and model must both be own, or neither')
    _validate.positive('dirichlet_concentration', self.dirichlet_concentration)
    self._resolve_mechanism()
    self._resolve_participation()
    self._check_views()
    participation.PARTICIPATIONS[self.participation](
      self.users, self.users_per_round, 0
    )
    _validate.positive('epsilon', self.epsilon)
    _validate.open_unit('delta', self.delta)
    _validate.positive('theta', self.theta)
    _validate.integer('rounds', self.rounds, 1, _MOST_ROUNDS)
    self._resolve_schedule()
    _validate.integer('local_steps', self.local_steps)
    self._check_shares()
    _validate.positive('l2_norm_clip', self.l2_norm_clip)
    self._mechanism.check(self)
    sensitivity.check_clip('example_l2_norm_clip', self.example_l2_norm_clip)
    _validate.positive('learning_rate', self.learning_rate)
    self._check_server()
    self._resolve_adjacency()
    self._resolve_calibration()
    self._check_noise()
    self._check_refinement()
    _validate.one_of('runtime', self.runtime, RUNTIMES)
    _validate.one_of('device', self.device, DEVICES)
    if self.runtime != 'compiled' and self.device == 'gpu':
      raise ValueError(
        f"device must be auto or cpu with runtime {self.runtime}, got 'gpu': "
        "TFF's worker is built without GPU support"
      )
    if self.device == 'gpu' and self.may_draw_discretely:
      continuous = 'noise=continuous'
      if noise_distance.CONTINUOUS not in self._mechanism.noises:
        continuous += ' with mechanism gradient or central'
      raise ValueError(
        "device must be auto or cpu with discrete noise, got 'gpu': discrete"
        f' noise is not proven on a GPU; use {continuous}'
      )
    if self.seed is not None:
      _validate.integer('seed', self.seed, 0, 2**63 - 1)

  @property
  def _mechanism(self) -> type[mechanisms.Mechanism]:
    return mechanisms.MECHANISMS[self.mechanism]

  def _resolve_mechanism(self) -> None:
    if isinstance(self.mechanism, type):
      object.__setattr__(self, 'mechanism', mechanisms.register(self.mechanism))
    mechanisms.check_name(self.mechanism)
    defaults = {**mechanisms.Mechanism.defaults, **self._mechanism.defaults}
    for name, default in defaults.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, default)

  @property
  def _of_mechanism(self) -> str:
    return f' with mechanism {self.mechanism}'

  @property
  def deals_out(self) -> bool:
    """Whether the run decides which examples are whose."""
    return self.split not in (OWN, 'natural')

  @property
  def number_decides(self) -> bool:
    """Whether it does so by a number of examples that may have changed."""
    return self.deals_out and not datasets.is_fixed(self.dataset)

  @property
  def noise_shape(self) -> privacy.NoiseShape:
    """How the noise changes over the rounds."""
    if self.schedule:
      return privacy.ListedShape(self.schedule)
    return privacy.GeometricShape(self.theta)

  def _resolve_numbers(self) -> None:
    """Converts NumPy numbers to Python's, and paths to strings, as in JSON."""
    for name, given in [*vars(self).items()]:
      plain = given
      if isinstance(given, (np.generic, np.ndarray)) and np.ndim(given) == 0:
        plain = given.item()
      elif isinstance(given, os.PathLike):
        plain = os.fspath(given)
      if name not in _OF_ANY_TYPE and not isinstance(plain, _PLAIN):
        raise ValueError(
          f'{name} must be a plain value of Python or NumPy, got'
          f' {_validate.quoted(given)} of the type {type(given).__name__}'
        )
      object.__setattr__(self, name, plain)

  def _check_shares(self) -> None:
    for name in ('dropouts', 'colluders'):
      if getattr(self, name) and not self._mechanism.sums_securely:
        raise ValueError(
          f'{name} must be 0 with mechanism {self.mechanism}, whose clients do'
          f' not share the noise, got {getattr(self, name)}'
        )

  def _check_views(self) -> None:
    _validate.one_of('views', self.views, views.VIEWS)
    if self.views not in self._mechanism.example_views:
      raise ValueError(
        f'views must be none with mechanism {self.mechanism}, which does not'
        f' clip the gradients of examples, got {self.views!r}'
      )
    if self.views != views.NONE and self.features != features.NONE:
      raise ValueError(
        f'views must be none with features {self.features}, got'
        f' {self.views!r}: features are computed once, from the image itself;'
        ' scattering of color images already averages with the mirror image'
      )

  def _check_server(self) -> None:
    try:
      _ = self.server_optimizer
    except ValueError as error:
      raise ValueError(f'server_{error}') from error

  @property
  def server_optimizer(self) -> server_optimizer.ServerOptimizer:
    """The optimizer that the server applies to the mean update."""
    return server_optimizer.ServerOptimizer(
      self.server_momentum,
      self.server_average,
      self.server_final_step,
      # Only used by the decay.
      self.rounds if self.server_final_step != 1 else 1,
    )

  @property
  def used_device(self) -> str:
    """The device for `runtimes`; discrete noise is not proven on a GPU."""
    return 'cpu' if self.may_draw_discretely else self.device

  @property
  def may_draw_discretely(self) -> bool:
    """Whether noise may be discrete; clients then wait for XLA."""
    return self._mechanism.may_draw_discretely(self)

  @property
  def noise_words(self) -> str:
    """How the noise changes over the rounds, as a title."""
    return 'own schedule' if self.schedule else f'theta = {self.theta:g}'

  def _resolve_schedule(self) -> None:
    given = self.schedule
    if isinstance(given, Sized) and not len(given):
      object.__setattr__(self, 'schedule', ())
      return
    if not self._mechanism.takes_schedule:
      raise ValueError(
        f'schedule must not be given with mechanism {self.mechanism}'
      )
    shape = privacy.listed_shape(given, self.rounds)
    object.__setattr__(self, 'schedule', shape.relative_stddevs)

  def _resolve_participation(self) -> None:
    options = self._mechanism.participations
    name = _validate.one_of(
      'participation',
      self.participation or options[0],
      [word for word in PARTICIPATIONS if word in options],
      self._of_mechanism,
    )
    object.__setattr__(self, 'participation', name)

  def _resolve_adjacency(self) -> None:
    allowed = self._mechanism.adjacencies
    name = self.adjacency or allowed[0]
    if name not in allowed:
      raise ValueError(
        f'adjacency must be {" or ".join(allowed)} with mechanism'
        f' {self.mechanism}, got {name!r}'
      )
    object.__setattr__(self, 'adjacency', name)

  def _resolve_calibration(self) -> None:
    allowed = self._mechanism.calibrations(self.participation)
    if not allowed:
      if self.calibration:
        raise ValueError(
          f'calibration must not be given with mechanism {self.mechanism}, got '
          f'{self.calibration!r}'
        )
      return
    name = _validate.one_of(
      'calibration',
      self.calibration or allowed[0],
      allowed,
      f'{self._of_mechanism} and participation {self.participation}',
    )
    object.__setattr__(self, 'calibration', name)

  def _check_noise(self) -> None:
    allowed = self._mechanism.noises
    if not self.noise or self.noise in allowed:
      return
    if not allowed:
      raise ValueError(
        f'noise must not be given with mechanism {self.mechanism}, got '
        f'{self.noise!r}'
      )
    _validate.one_of('noise', self.noise, allowed, self._of_mechanism)

  def _check_refinement(self) -> None:
    allowed = self._mechanism.refinements(self.participation)
    _validate.one_of('refinement', self.refinement, {*REFINEMENTS, *allowed})
    _validate.one_of(
      'refinement',
      self.refinement,
      allowed,
      f'{self._of_mechanism} and participation {self.participation}',
    )
    privacy.new_maximum_rounds(self.alpha_d, 1)

  @property
  def sampling_rate(self) -> float:
    """The fraction of users in a round, q = K / U."""
    return self.users_per_round / self.users

  @classmethod
  def of_mechanism(
    cls, mechanism: str, values: Mapping[str, Any]
  ) -> 'TrainingSettings':
    """Returns the settings of one of several mechanisms in a comparison.

    Args:
      mechanism: Name of the mechanism.
      values: The other settings; a schedule and views are dropped if the
        mechanism does not support them.

    Raises:
      ValueError: If a setting is out of its range.
    """
    values = {**values, 'mechanism': mechanism}
    known = mechanisms.MECHANISMS.get(mechanism)
    if known is not None and not known.takes_schedule:
      values.pop('schedule', None)
    if known is not None and (
      values.get('views') in set(views.VIEWS) - set(known.example_views)
    ):
      del values['views']
    return cls(**values)
