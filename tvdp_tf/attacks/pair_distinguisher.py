r"""Two data sets told apart by their uploads: what a hostile pair is worth.

One client takes one noisy step, many times over, on D and on D', in the
learning process that trains (`federated.build_learning_process`), its noise
calibrated for one release of the epsilon and delta that are claimed. The
attacker knows where both uploads would be without noise, a and b (from
`clipped_mean.Subject.mean`), and scores an upload u by

  <u - (a + b) / 2, a - b> / variance of the noise,

the logarithm of the likelihood ratio. `lower_bound` turns the scores into an
epsilon that is shown with confidence.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tvdp_tf import federated, mechanisms, privacy
from tvdp_tf.attacks import clipped_mean, lower_bound
from tvdp_tf.federated import client_data
from tvdp_tf.learning import noise
from tvdp_tf.privacy import gaussian, noise_distance

# Trials with each data set: enough to refute a claim, if that takes no more.
_LEAST_TRIALS = 400
_MOST_TRIALS = 2000


def _row(weights: Sequence) -> np.ndarray:
  """Weights as a row, float64 [d]."""
  return np.concatenate([np.ravel(np.asarray(w)) for w in weights]).astype(
    np.float64
  )


def trials(epsilon: float, delta: float, confidence: float) -> int:
  """Three times as many as can refute the claim, within limits."""
  try:
    needed = 3 * lower_bound.trials_to_show(epsilon, delta, confidence)
  except ValueError:
    needed = _MOST_TRIALS
  return min(max(needed, _LEAST_TRIALS), _MOST_TRIALS)


class _Client:
  """One client's uploads in the learning process."""

  def __init__(
    self,
    target: clipped_mean.Subject,
    pair: clipped_mean.Pair,
    z: float,
    noise_kind: str,
  ):
    mechanism = mechanisms.GradientMechanism(
      privacy.GeometricSchedule(1.0, 1, z),
      target.example_l2_norm_clip,
      noise=noise_kind,
    )
    self._process = federated.build_learning_process(
      target.model, mechanism, local_steps=1, learning_rate=1.0
    )
    self._state: Any = self._process.initialize()._replace(
      global_model_weights=tff.learning.models.ModelWeights(
        trainable=tuple(map(tf.constant, pair.weights)), non_trainable=()
      )
    )
    self.scale = mechanism.noise_scale(pair.examples, z)

  def upload(self, data, key: np.ndarray, scale: float) -> np.ndarray:
    """The local model as a row, float64 [d]."""
    sequence = client_data.client_sequence(data[0], data[1], key, scale)
    state = self._process.next(self._state, [sequence]).state
    return _row(state.global_model_weights.trainable)


def distinguish(
  target: clipped_mean.Subject,
  pair: clipped_mean.Pair,
  *,
  epsilon: float,
  delta: float,
  confidence: float,
  noise_kind: str = noise_distance.CONTINUOUS,
  noise_scale: float = 1.0,
  seed: int | None = None,
  seconds: float = 30.0,
  progress: bool = False,
) -> lower_bound.LowerBound | None:
  """What the uploads of a pair show; in the runtime that is installed.

  Args:
    target: Whose pair.
    pair: The data sets.
    epsilon: What is claimed of one release.
    delta: As above.
    confidence: Of the bound.
    noise_kind: One of `noise_distance.NOISES`.
    noise_scale: Multiplies the noise.
    seed: Of the noise; None for the system's entropy.
    seconds: Of a large pair there are as few trials as this takes.
    progress: Whether to show a bar.

  Returns:
    The bound; None if an upload is not finite without noise.
  """
  z = gaussian.gaussian_noise_multiplier(epsilon, delta)
  worlds = (pair.data, pair.alternative)
  # A step of learning rate 1.
  one, other = (
    _row(pair.weights) - _row(target.mean(list(pair.weights), *data))
    for data in worlds
  )
  if not np.isfinite(one - other).all():
    return None
  client = _Client(target, pair, z, noise_kind)
  client.upload(worlds[0], np.zeros([2], np.int64), client.scale)
  began = time.monotonic()
  client.upload(worlds[0], np.zeros([2], np.int64), client.scale)
  each = time.monotonic() - began
  count = trials(epsilon, delta, confidence)
  # The results have no say in it.
  count = max(
    lower_bound.MINIMUM_TRIALS, min(count, math.ceil(seconds / (2 * each)))
  )
  stddev = z * client.scale * noise_scale
  direction = (one - other) / stddev**2
  scores = np.empty([2, count])
  with tqdm.tqdm(total=2 * count, unit='trial', disable=not progress) as bar:
    for world, data in enumerate(worlds):
      for trial in range(count):
        key = (
          noise.fresh_noise_key()
          if seed is None
          else noise.seeded_noise_key(seed, trial + 1, world)
        )
        upload = client.upload(data, key, client.scale * noise_scale)
        scores[world, trial] = (upload - (one + other) / 2) @ direction
        bar.update()
  return lower_bound.empirical_lower_bound(
    scores[0], scores[1], delta, confidence
  )
