"""The users of a run and their numbers of examples, without TensorFlow.

`federation.assemble` uses these functions to distribute the data and to draw
the cohorts, and so does the planner.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tvdp_tf.learning import (
  datasets,
  features,
  model_sizes,
  participation,
  partitions,
  views,
)
from tvdp_tf.training import settings as settings_lib


@dataclasses.dataclass(frozen=True)
class Population:
  """All that a mechanism needs to know about users: a `mechanisms.Population`.

  Attributes:
    participation: The rule that draws the cohorts.
    examples_per_user: |D_k| for each user, int64 [users].
    num_parameters: The model's number of weights.
  """

  participation: participation.Participation
  examples_per_user: np.ndarray
  num_parameters: int


def deal(
  settings: settings_lib.TrainingSettings,
  labels: np.ndarray,
  partition_seed: int,
) -> Sequence[np.ndarray | range]:
  """Deals out the training examples.

  Args:
    settings: The run's settings.
    labels: Labels of the examples, [n]; an `iid` split only uses n.
    partition_seed: Seed of the split.

  Returns:
    For each user, the indices of its examples.

  Raises:
    ValueError: If there are more users than examples, or a natural split has
      another number of users.
    DatasetUnavailableError: If the data set has no natural split.
  """
  if settings.split == 'natural':
    parts = datasets.natural(settings.dataset)
    if len(parts) != settings.users:
      raise ValueError(
        f'users must be the {len(parts)} of {settings.dataset} with a natural '
        f'split, got {settings.users}'
      )
    return parts
  if settings.split == 'iid':
    return partitions.iid(len(labels), settings.users, partition_seed)
  return partitions.dirichlet(
    labels, settings.users, settings.dirichlet_concentration, partition_seed
  )


def draw(
  settings: settings_lib.TrainingSettings, cohort_seed: int
) -> participation.Participation:
  """Returns the rule that draws the cohorts.

  Args:
    settings: The run's settings.
    cohort_seed: Seed of the draws; it is secret with `poisson`.
  """
  return participation.PARTICIPATIONS[settings.participation](
    settings.users, settings.users_per_round, cohort_seed
  )


def expected(
  settings: settings_lib.TrainingSettings,
  examples_per_user: int | None = None,
  dimension: int | None = None,
) -> Population:
  """The users of a future run, from public facts about its data set.

  With a seed, they are the users of that run. Without one, a run draws its own
  seeds, and here both seeds are 0.

  Args:
    settings: The run's settings.
    examples_per_user: n for every user; by default, as given by the split.
    dimension: Number of parameters; by default, that of the model.

  Raises:
    ValueError: If a setting does not fit the data set.
    DatasetUnavailableError: If the data set has to be loaded and cannot be.
  """
  seed = settings.seed or 0
  if dimension is None:
    dimension = _num_parameters(settings)
  if examples_per_user is not None:
    sizes = np.full(settings.users, examples_per_user, np.int64)
  else:
    parts = deal(settings, _labels(settings), seed)
    sizes = np.array([len(part) for part in parts], np.int64)
  return Population(draw(settings, seed), sizes, dimension)


def _num_parameters(settings: settings_lib.TrainingSettings) -> int:
  """The model's number of parameters; loads a model file with TensorFlow."""
  facts = datasets.facts(settings.dataset, settings.data_dir)
  views.check(settings.views, facts.input_shape)
  if settings.model in model_sizes.FORMULAS:
    formula = model_sizes.FORMULAS[settings.model]
    shape = features.output_shape(settings.features, facts.input_shape)
    return formula(shape, facts.num_classes)
  from tvdp_tf.learning import model_files  # noqa: PLC0415

  spec = model_files.find(settings.model)
  shape = features.output_shape(settings.features, facts.input_shape)
  model = spec.build(shape, facts.num_classes, 0)
  return int(model.count_params())


def _labels(settings: settings_lib.TrainingSettings) -> np.ndarray:
  """The labels that a split needs; only Dirichlet splits use their values."""
  name, data_dir = settings.dataset, settings.data_dir
  if settings.split in ('iid', 'natural'):
    return np.zeros(datasets.facts(name, data_dir).examples, np.int32)
  return datasets.load(name, data_dir, in_bytes=True).train_labels
