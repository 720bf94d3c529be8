"""Builds a run's federation from its settings: users, their data, a model."""

import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import (
  datasets,
  features,
  functional,
  model_files,
  models,
  participation,
  views,
)
from tvdp_tf.training import population
from tvdp_tf.training import settings as settings_lib

OWN = datasets.OWN


@dataclasses.dataclass(frozen=True)
class Own:
  """The caller's own data and model, which have no names.

  Attributes:
    dataset: The data set; its name is `OWN`.
    spec: The model.
    clients: For each user, the indices of its training examples; None to deal
      them out.
  """

  dataset: datasets.Dataset
  spec: models.ModelSpec
  clients: Sequence[np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Federation:
  """Users, their examples, and who takes part when.

  Attributes:
    dataset: The data set; its test part is public.
    spec: The model.
    examples: For each user, the indices of its training examples. With a
      `range`, the user's data are a view, not a copy.
    participation: The rule that draws the cohorts.
    public_seed: Seed of the initial weights and, except with `poisson`, of the
      cohorts. None of these is secret; the noise is never drawn from it unless
      the run is seeded.
    partition_seed: Public seed of the split; None if there was no split.
    features_sha256: Digest of the features of public examples, if a user's own
      function computes them; otherwise empty.
  """

  dataset: datasets.Dataset
  spec: models.ModelSpec
  examples: Sequence[np.ndarray | range]
  participation: participation.Participation
  public_seed: int
  partition_seed: int | None = None
  features_sha256: str = ''
  _user_data: dict[int, tuple[np.ndarray, np.ndarray]] = dataclasses.field(
    default_factory=dict, init=False, repr=False, compare=False
  )

  @property
  def examples_per_user(self) -> np.ndarray:
    """|D_k| for each user, int64 [users]."""
    return np.array([len(part) for part in self.examples])

  @property
  def majority(self) -> float:
    """Fraction of the most frequent class in the test data."""
    labels = self.dataset.test_labels
    return float(np.bincount(labels).max() / len(labels))

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Shape of one example."""
    return self.dataset.train_features.shape[1:]

  def user_data(self, user: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features [n, ...] and labels [n] of a user."""
    if user not in self._user_data:
      part: np.ndarray | slice | range = self.examples[user]
      if isinstance(part, range):
        part = slice(part.start, part.stop)
      arrays = (
        self.dataset.train_features[part],
        self.dataset.train_labels[part],
      )
      if self.dataset.is_on_disk:
        return arrays  # Nobody caches these.
      for array in arrays:
        # The compiled runtime caches read-only arrays on its device.
        part_of: np.ndarray | None = array
        while isinstance(part_of, np.ndarray):
          part_of.flags.writeable = False
          part_of = part_of.base
      self._user_data[user] = arrays
    return self._user_data[user]

  @functools.cached_property
  def num_parameters(self) -> int:
    """The model's number of weights."""
    return int(self._keras_model.count_params())

  @functools.cached_property
  def _keras_model(self) -> tf.keras.Model:
    # Not shared with anybody, who might train it.
    return self.initial_model()

  def initial_model(self) -> tf.keras.Model:
    """Builds a new Keras model with the weights that training starts from."""
    return self.spec.build(
      self.input_shape, self.dataset.num_classes, self.public_seed % 2**31
    )

  @property
  def initial_weights(self) -> list[np.ndarray]:
    """The weights that training starts from."""
    return self._keras_model.get_weights()

  @functools.cached_property
  def functional_model(self) -> functional.FunctionalModel:
    """The model as a function of its weights, traced once.

    Raises:
      ValueError: If the model does not support it
        (`functional.FunctionalModel`).
    """
    return functional.FunctionalModel(self._keras_model)


def local_steps(
  settings: settings_lib.TrainingSettings, spec: models.ModelSpec
) -> dict[str, Any]:
  """The options of local steps, as arguments of `federated.client_work`."""
  return {
    'local_steps': settings.local_steps,
    'learning_rate': settings.learning_rate,
    'l2_regularization': spec.l2_regularization,
  }


def data_on_record(
  settings: settings_lib.TrainingSettings,
  partition_seed: int,
  public_sizes: Sequence[int] = (),
) -> str:
  """Describes whose data a user's number refers to, for a public ledger.

  Two runs with the same description and the same `partition_seed` have dealt
  out the same data in the same way. Besides the settings, it contains a digest
  of how made-up examples are dealt out, because another version of this code or
  of NumPy may do so differently. Nothing in it is computed from the data,
  except the sizes. It assumes that the content of a folder has not changed.

  Args:
    settings: The run's settings.
    partition_seed: Seed of the split.
    public_sizes: Each user's number of examples, if that is public; or the
      number that is dealt out.
  """
  digest = hashlib.sha256(repr(list(public_sizes)).encode())
  if settings.deals_out:
    made_up = np.arange(max(1000, settings.users)) % 10
    for part in population.deal(settings, made_up, partition_seed):
      digest.update(np.asarray(part, '<i8').tobytes() + b';')
  split = settings.split
  if split == 'dirichlet':
    split += f' {settings.dirichlet_concentration!r}'
  return (
    f'{datasets.place(settings.dataset, settings.data_dir)}, {settings.users}'
    f' users, {split}, dealt out as {digest.hexdigest()[:16]}'
  )


def assemble(
  settings: settings_lib.TrainingSettings,
  public_seed: int | None = None,
  test_part: str = 'all',
  partition_seed: int | None = None,
  progress: bool = False,
  own: Own | None = None,
) -> Federation:
  """Loads the data and deals it out.

  Args:
    settings: The run's settings.
    public_seed: The seed of an earlier run, to rebuild the same federation.
    test_part: As for `datasets.with_test_part`.
    partition_seed: Seed of the split, to deal out the data as in another run;
      by default `public_seed`.
    progress: Whether to draw a progress bar while features are computed.
    own: The data and model that `OWN` in the settings refers to.

  Returns:
    The federation.

  Raises:
    ValueError: If a setting does not fit the data set.
    DatasetUnavailableError: If the data set cannot be loaded.
  """
  if own is None:
    spec = model_files.find(settings.model)
    dataset = datasets.load(settings.dataset, settings.data_dir, in_bytes=True)
  else:
    spec, dataset = own.spec, own.dataset
  dataset = datasets.with_test_part(dataset, test_part)
  if settings.seed is not None:
    public_seed = settings.seed
  elif public_seed is None:
    public_seed = secrets.randbits(63)
  if partition_seed is None:
    partition_seed = public_seed
  if own is None or own.clients is None:
    parts = population.deal(settings, dataset.train_labels, partition_seed)
  else:
    parts = list(own.clients)
  dataset, examples = datasets.dealt(dataset, parts)
  features_sha256 = features.digest(settings.features, dataset)
  dataset = features.applied(settings.features, dataset, examples, progress)
  views.check(settings.views, dataset.train_features.shape[1:])
  cohort_seed = public_seed
  if settings.participation == 'poisson' and settings.seed is None:
    # Amplification requires that it is secret: it is never written.
    cohort_seed = secrets.randbits(63)
  federation = Federation(
    dataset=dataset,
    spec=spec,
    examples=examples,
    participation=population.draw(settings, cohort_seed),
    public_seed=public_seed,
    partition_seed=partition_seed,
    features_sha256=features_sha256,
  )
  _ = federation.num_parameters  # Raises now if the model does not fit.
  return federation
