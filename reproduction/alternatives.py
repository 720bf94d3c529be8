"""Other noise for a trusted server: TFF's mechanisms, and a factorization.

These mechanisms are for the comparison with `central`, not for use: they
compute the epsilon of a user who takes part in the planned rounds, and have no
statement. A user is in many rounds, so the sensitivity of all of its columns
together counts (`planner.best_schedule`); TFF's accountants of trees assume
only one.
"""

import abc
import dataclasses
from typing import Any

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tvdp_tf import mechanisms, privacy
from tvdp_tf.federated import client_work, learning_process
from tvdp_tf.learning import noise
from tvdp_tf.mechanisms import interfaces
from tvdp_tf.planner import best_schedule, correlated
from tvdp_tf.privacy import calibration, noise_distance


class FactorizedSumQuery(tfp.SumAggregationDPQuery):
  """Clips records, sums them, and adds L z: the noise of a factorization.

  `tfp` only has the query for trees. This one is for simulations: the values z
  of all rounds are a function of the seed.
  """

  def __init__(
    self, l2_norm_clip: float, stddev: float, matrix: np.ndarray, seed: int
  ):
    """Creates the query.

    Args:
      l2_norm_clip: The norm that a record is clipped to.
      stddev: Standard deviation of the values z.
      matrix: L, [rounds, n].
      seed: Seed of the values.
    """
    self._l2_norm_clip = l2_norm_clip
    self._matrix = (stddev * matrix).astype(np.float32)
    self._seed = seed

  def initial_global_state(self):
    return tf.constant(0, tf.int32)

  def derive_sample_params(self, global_state):
    del global_state
    return tf.constant(self._l2_norm_clip, tf.float32)

  def preprocess_record(self, params, record):
    clipped, _ = tf.clip_by_global_norm(tf.nest.flatten(record), params)
    return tf.nest.pack_sequence_as(record, clipped)

  def get_noised_result(self, sample_state, global_state):
    flat = tf.nest.flatten(sample_state)
    sizes = [part.shape.num_elements() for part in flat]
    count = self._matrix.shape[1]
    drawn = noise.standard_normal(
      tf.constant(noise.seeded_noise_key(self._seed, 1, noise.SERVER)),
      count * sum(sizes),
    )
    values = tf.reshape(tf.cast(drawn, tf.float32), [count, sum(sizes)])
    row = tf.constant(self._matrix)[global_state]
    added = tf.split(tf.linalg.matvec(values, row, transpose_a=True), sizes)
    noised = [
      part + tf.reshape(more, part.shape)
      for part, more in zip(flat, added, strict=True)
    ]
    return (
      tf.nest.pack_sequence_as(sample_state, noised),
      global_state + 1,
      dp_accounting.UnsupportedDpEvent(),
    )


@dataclasses.dataclass(frozen=True)
class Aggregated(mechanisms.GraphMechanism):
  """Aggregates clients' differences by a TFF aggregator.

  Attributes:
    kind: 'tree', 'factorized' or 'adaptive'.
    noise_multiplier: Noise multiplier of a value z, or of a round with
      'adaptive'.
    l2_norm_clip: C_u; the initial clip with 'adaptive'.
    clients: K.
    seed: Seed of the noise; `tfp` draws the noise of 'adaptive' itself.
    matrix: L, as tuples; empty except for 'factorized'.
  """

  kind: str
  noise_multiplier: float
  l2_norm_clip: float
  clients: int
  seed: int
  matrix: tuple[tuple[float, ...], ...] = ()

  def _factory(self, model: tff.learning.models.FunctionalModel) -> Any:
    factory = tff.aggregators.DifferentiallyPrivateFactory
    z, clip, clients = self.noise_multiplier, self.l2_norm_clip, self.clients
    if self.kind == 'tree':
      specs = tuple(
        tf.TensorSpec(np.shape(w), tf.float32) for w in model.initial_weights[0]
      )
      return factory.tree_aggregation(z, clients, clip, specs, self.seed)
    if self.kind == 'adaptive':
      return factory.gaussian_adaptive(
        z,
        clients,
        initial_l2_norm_clip=clip,
        # At most a quarter of the budget, if cohorts are small.
        clipped_count_stddev=max(0.05 * clients, z),
      )
    query = FactorizedSumQuery(clip, clip * z, np.array(self.matrix), self.seed)
    return factory(tfp.NormalizedQuery(query, float(clients)))

  def parts(self, build: Any) -> Any:
    return learning_process.Parts(
      client_work.build_difference(build.model, **build.local_steps),
      tff.aggregators.as_weighted_aggregator(self._factory(build.model)),
      brings_update=True,
    )


class _Alternative(mechanisms.Central):
  """Base class: spreads a run's budget over a user's rounds."""

  participations = ('balanced', 'uniform')  # type: ignore[assignment]
  noises = (noise_distance.CONTINUOUS,)  # type: ignore[assignment]
  takes_schedule = False

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.replans = False
    # The standard deviation of constant noise that would spend as much.
    self._constant = self.mechanism.schedule.initial_stddev
    self.mechanism = self._calibrated()  # type: ignore[assignment]

  @abc.abstractmethod
  def _calibrated(self) -> Aggregated:
    """Returns the mechanism with the noise that meets the target."""

  def _for_worst_user(self, rounds, completed=0):
    del completed
    multipliers = calibration.initial_noise_multipliers(
      self.planned(rounds), 1.0, 1, self._calibrated_budget
    )
    return privacy.GeometricSchedule(
      1.0, rounds, float(multipliers[np.isfinite(multipliers)].max())
    )

  def _aggregated(self, kind, noise_multiplier, **more) -> Aggregated:
    settings = self.settings
    return Aggregated(
      kind,
      noise_multiplier,
      settings.l2_norm_clip,
      settings.users_per_round,
      0 if settings.seed is None else settings.seed,
      **more,
    )

  def graph_key(self):
    return (type(self.mechanism), self.mechanism)

  def round(self, number, clients, schedule_stddev):
    """The user who is in most rounds spends the budget, in equal parts."""
    del schedule_stddev
    scale = self.settings.l2_norm_clip / self.settings.users_per_round
    return interfaces.Round(
      number,
      clients,
      np.full(max(1, len(clients)), self._constant),
      self._constant * scale,
      np.ones(len(clients)),
    )

  def observe(self, state: Any) -> None:
    """Does nothing: `dp_accounting` does not know its events."""

  def statement(self):
    raise NotImplementedError(f'{self.name} is for comparisons alone')


class Adaptive(_Alternative):
  """TFF's adaptive clip; a part of the budget is spent on finding it."""

  name = 'adaptive_clipping'
  summary = "constant noise, TFF's adaptive clip"

  def _calibrated(self):
    return self._aggregated('adaptive', self._constant)


class Tree(_Alternative):
  """TFF's tree aggregation, as in DP-FTRL."""

  name = 'tree_aggregation'
  summary = "TFF's tree aggregation"

  def _factorization(self) -> correlated.Factorization:
    return correlated.tree(self.settings.rounds)

  def _noise_multiplier(self, found: correlated.Factorization) -> float:
    squared = found.squared_sensitivity(self.planned().toarray())
    return float(np.sqrt(squared / self._calibrated_budget))

  def _calibrated(self):
    return self._aggregated(
      'tree', self._noise_multiplier(self._factorization())
    )


class BandedRoot(Tree):
  """The banded square root with the number of bands that is best for a sum."""

  name = 'banded_root'
  summary = 'a banded square root factorization'

  def _factorization(self):
    settings = self.settings
    response = best_schedule.impulse_response(
      # A sum of the rounds, because nothing is known about the data.
      settings.server_optimizer,
      1 - 1e-12,
      settings.rounds,
    )
    return correlated.best_banded_root(response, self.planned().toarray())

  def _calibrated(self):
    found = self._factorization()
    return self._aggregated(
      'factorized',
      self._noise_multiplier(found),
      matrix=tuple(map(tuple, found.noise.tolist())),
    )
