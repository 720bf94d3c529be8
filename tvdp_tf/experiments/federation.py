"""From settings to the parts of a run: users with data, and their mechanism."""

import dataclasses
import secrets
from collections.abc import Sequence

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.learning import datasets, models, participation, partitions
from tvdp_tf.privacy import mechanisms

Mechanism = mechanisms.PaperMechanism | mechanisms.NoMechanism


@dataclasses.dataclass(frozen=True)
class Federation:
  """Users, their examples, and who takes part when.

  Attributes:
    dataset: The data set; its test part is public.
    spec: The model.
    examples: For each user, the indices of its training examples.
    participation: The rule that draws the cohorts.
    public_seed: Seed of the split, of the cohorts and of the initial weights.
      None of these is secret; the noise is never drawn from it unless the run
      is seeded.
  """

  dataset: datasets.Dataset
  spec: models.ModelSpec
  examples: Sequence[np.ndarray]
  participation: participation.Participation
  public_seed: int

  @property
  def examples_per_user(self) -> np.ndarray:
    """|D_k| for each user, int64 [users]."""
    return np.array([len(part) for part in self.examples])

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Shape of one example."""
    return self.dataset.train_features.shape[1:]

  def user_data(self, user: int) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, ...] and labels [n] of a user."""
    part = self.examples[user]
    return self.dataset.train_features[part], self.dataset.train_labels[part]

  def initial_model(self):
    """The Keras model that training starts from."""
    return self.spec.build(
      self.input_shape, self.dataset.num_classes, self.public_seed % 2**31
    )


def assemble(
  settings: settings_lib.TrainingSettings, public_seed: int | None = None
) -> Federation:
  """Loads the data and deals it out.

  Args:
    settings: The run's settings.
    public_seed: That of an earlier run, to get its very federation again.

  Returns:
    The federation.

  Raises:
    ValueError: If a setting does not fit the data set.
    DatasetUnavailableError: If the data set cannot be loaded.
  """
  spec = models.MODELS[settings.model]
  dataset = datasets.load(settings.dataset, settings.data_dir)
  if settings.seed is not None:
    public_seed = settings.seed
  elif public_seed is None:
    public_seed = secrets.randbits(63)
  if settings.split == 'iid':
    examples = partitions.iid(
      len(dataset.train_labels), settings.users, public_seed
    )
  else:
    examples = partitions.dirichlet(
      dataset.train_labels,
      settings.users,
      settings.dirichlet_concentration,
      public_seed,
    )
  return Federation(
    dataset=dataset,
    spec=spec,
    examples=examples,
    participation=participation.PARTICIPATIONS[settings.participation](
      settings.users, settings.users_per_round, public_seed
    ),
    public_seed=public_seed,
  )


def build_mechanism(
  settings: settings_lib.TrainingSettings, smallest_user: int
) -> Mechanism:
  """Calibrates the mechanism to the settings' target.

  Args:
    settings: The run's settings.
    smallest_user: The least number of examples that a user has: it has the
      largest sensitivity, and everyone adds the same noise.

  Returns:
    The mechanism.

  Raises:
    ValueError: If no schedule meets the target.
  """
  if settings.mechanism == 'none':
    return mechanisms.NoMechanism(settings.l2_norm_clip)
  sensitivity = privacy.paper_rule(settings.l2_norm_clip, smallest_user).value
  if settings.calibration in ('printed', 'tight'):
    rule = (
      privacy.theorem1_stddev
      if settings.calibration == 'printed'
      else privacy.tight_moment_stddev
    )
    initial_stddev = rule(
      settings.theta,
      settings.rounds,
      settings.epsilon,
      settings.delta,
      settings.sampling_rate,
      sensitivity,
    )
    schedule = privacy.GeometricSchedule(
      settings.theta, settings.rounds, initial_stddev
    )
  else:
    # For a user that is drawn in every round: being left out is luck.
    schedule = privacy.calibrate(
      settings.epsilon,
      settings.delta,
      settings.theta,
      settings.rounds,
      sensitivity,
      accountant=settings.calibration,
    )
  return mechanisms.PaperMechanism(schedule, settings.l2_norm_clip)
