"""The settings of one training run, checked and complete.

Field names are the names of the flags, so that an error about a field is an
error about its flag.
"""

import dataclasses
from typing import Any

from tvdp_tf import _validate
from tvdp_tf.learning import datasets, participation

# As in `tvdp_tf.learning.models`, which a check of flags need not wait for.
MODELS = ('mlp',)
MECHANISMS = ('paper', 'none')
SPLITS = ('iid', 'dirichlet')
PARTICIPATIONS = tuple(participation.PARTICIPATIONS)
CALIBRATIONS = ('printed', 'tight', 'exact', 'rdp', 'pld')
RUNTIMES = ('tff',)
DEVICES = ('auto', 'cpu', 'gpu')


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
  """One run of Algorithm 1; the defaults train the embedded digits.

  Attributes:
    dataset: Name of the data set (`tvdp_tf.learning.datasets`).
    data_dir: TFDS's folder; None for TFDS's default.
    model: Name of the model (`tvdp_tf.learning.models`).
    users: U.
    users_per_round: K.
    split: How the training examples are dealt out to the users.
    dirichlet_concentration: Label skew of the `dirichlet` split.
    mechanism: `paper` or `none`.
    participation: Who takes part in a round.
    epsilon: The target.
    delta: The target.
    theta: Ratio of the noise variances of successive rounds.
    rounds: M.
    local_steps: tau.
    l2_norm_clip: C.
    learning_rate: eta.
    calibration: The rule that sets the first round's noise.
    runtime: What executes the TFF computation.
    device: Where.
    seed: Makes the whole run reproducible, its noise too; None for noise that
      nobody can predict.
  """

  dataset: str = 'digits'
  data_dir: str | None = None
  model: str = 'mlp'
  users: int = 10
  users_per_round: int = 5
  split: str = 'iid'
  dirichlet_concentration: float = 0.5
  mechanism: str = 'paper'
  participation: str = 'uniform'
  epsilon: float = 10.0
  delta: float = 1e-3
  theta: float = 0.95
  rounds: int = 10
  local_steps: int = 10
  l2_norm_clip: float = 5.0
  learning_rate: float = 1.0
  calibration: str = 'printed'
  runtime: str = 'tff'
  device: str = 'auto'
  seed: int | None = None

  def __post_init__(self):
    _validate.one_of('dataset', self.dataset, datasets.DATASETS)
    _validate.one_of('model', self.model, MODELS)
    _validate.one_of('split', self.split, SPLITS)
    _validate.positive('dirichlet_concentration', self.dirichlet_concentration)
    _validate.one_of('mechanism', self.mechanism, MECHANISMS)
    _validate.one_of('participation', self.participation, PARTICIPATIONS)
    participation.PARTICIPATIONS[self.participation](
      self.users, self.users_per_round, 0
    )
    _validate.positive('epsilon', self.epsilon)
    _validate.open_unit('delta', self.delta)
    _validate.positive('theta', self.theta)
    _validate.integer('rounds', self.rounds)
    _validate.integer('local_steps', self.local_steps)
    _validate.positive('l2_norm_clip', self.l2_norm_clip)
    _validate.positive('learning_rate', self.learning_rate)
    _validate.one_of('calibration', self.calibration, CALIBRATIONS)
    _validate.one_of('runtime', self.runtime, RUNTIMES)
    _validate.one_of('device', self.device, DEVICES)
    if self.runtime == 'tff' and self.device == 'gpu':
      raise ValueError(
        "device must be auto or cpu with runtime tff, got 'gpu': TFF's worker "
        'is built without GPU support'
      )
    if self.seed is not None:
      _validate.integer('seed', self.seed, 0, 2**63 - 1)

  @property
  def sampling_rate(self) -> float:
    """The share of users in a round, q = K / U."""
    return self.users_per_round / self.users

  @classmethod
  def from_dict(cls, values: dict[str, Any]) -> 'TrainingSettings':
    """Settings from a mapping of exactly their fields.

    Raises:
      ValueError: If a field is missing, unknown or out of its range.
    """
    fields = {field.name for field in dataclasses.fields(cls)}
    for name in sorted(fields ^ set(values)):
      problem = 'missing' if name in fields else 'unknown'
      raise ValueError(f'{name} is {problem}')
    return cls(**values)
