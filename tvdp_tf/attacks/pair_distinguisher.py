r"""Distinguishes two data sets by their uploads: the epsilon of a hostile pair.

One client takes one noisy step, many times, on D and on D', in the learning
process that trains (`federated.build_learning_process`), with noise calibrated
for a single release at the claimed epsilon and delta. If the server sees only
sums, the result is the sum of this client and of the other clients whose shares
must hide it, each with one known example. If users are protected, the two data
sets are all that a user has, and the client takes the steps of training. The
attacker knows both results without noise, a and b (from
`clipped_mean.Subject.mean`), and scores a result u by

  <u - (a + b) / 2, a - b> / variance of the noise,

the logarithm of the likelihood ratio. `lower_bound` turns the scores into an
epsilon that is shown with confidence.
"""

import dataclasses
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
from tvdp_tf.federated import client_data, secure_sums
from tvdp_tf.learning import noise
from tvdp_tf.privacy import gaussian

# Trials with each data set: enough to refute a claim, if that takes no more.
_LEAST_TRIALS = 400
_MOST_TRIALS = 2000
# Of a secure sum: no hostile pair's wraps around.
_MODULUS = 2**60


def trials(epsilon: float, delta: float, confidence: float) -> int:
  """Three times as many as can refute the claim, within limits."""
  try:
    needed = 3 * lower_bound.trials_to_show(epsilon, delta, confidence)
  except ValueError:
    needed = _MOST_TRIALS
  return min(max(needed, _LEAST_TRIALS), _MOST_TRIALS)


class _Client:
  """One client's uploads in the learning process, alone or in a sum.

  Attributes:
    stddev: Of the noise on each value of a result, as calibrated.
  """

  def __init__(
    self,
    target: clipped_mean.Subject,
    pair: clipped_mean.Pair,
    mechanism: mechanisms.GraphMechanism,
    *,
    z: float,
    others: int,
    noise_scale: float,
  ):
    """Creates it.

    Args:
      target: Whose pair.
      pair: The data sets.
      mechanism: The one that is audited; its noise is replaced.
      z: The noise multiplier of the one release.
      others: As of `distinguish`.
      noise_scale: The same.
    """
    schedule = privacy.GeometricSchedule(1.0, 1, z * noise_scale)
    changes: dict[str, Any] = {'schedule': schedule}
    if isinstance(mechanism, mechanisms.DistributedMechanism):
      # Of one release: its noise is less than where many add up.
      changes['modulus'] = _MODULUS
    process = federated.build_learning_process(
      target.model,
      dataclasses.replace(mechanism, **changes),
      **target.steps,
    )
    scale = 1.0
    self._divisor = float(pair.examples)
    if isinstance(mechanism, mechanisms.GradientMechanism):
      self._process = process
      scale = mechanism.sensitivity(pair.examples).value
      self.stddev = z * scale
    else:
      assert isinstance(mechanism, mechanisms.DistributedMechanism)
      self._process = secure_sums.simulated(process)
      self._divisor = float(pair.examples + others)
      if target.unit == 'user':
        self._divisor = float(mechanism.clients)
      self.stddev = z * mechanism.sensitivity().value / self._divisor
    self._scale = scale
    self._others, self._target, self._pair = others, target, pair
    # An example of each of the others.
    self._other = pair.features[:1], pair.labels[:1]
    self._state: Any = self._process.initialize()._replace(
      global_model_weights=tff.learning.models.ModelWeights(
        trainable=tuple(map(tf.constant, pair.weights)), non_trainable=()
      )
    )

  def noiseless(self, data) -> np.ndarray:
    """What `result` would be without noise."""
    weights = list(self._pair.weights)
    total = self._pair.examples * clipped_mean.flat(
      self._target.mean(weights, *data)
    )
    if self._others:
      other = clipped_mean.flat(self._target.mean(weights, *self._other))
      total = total + self._others * other
    return clipped_mean.flat(weights) - total / self._divisor

  def result(self, data, keys: Sequence[np.ndarray]) -> np.ndarray:
    """The model after a round as a row, float64 [d]; a key for each client."""
    held = [data, *[self._other] * self._others]
    sequences = [
      client_data.client_sequence(features, labels, key, self._scale)
      for (features, labels), key in zip(held, keys, strict=True)
    ]
    state = self._process.next(self._state, sequences).state
    return clipped_mean.flat(state.global_model_weights.trainable)


def distinguish(
  target: clipped_mean.Subject,
  pair: clipped_mean.Pair,
  mechanism: mechanisms.GraphMechanism,
  *,
  epsilon: float,
  delta: float,
  confidence: float,
  others: int = 0,
  noise_scale: float = 1.0,
  seed: int | None = None,
  seconds: float = 30.0,
  progress: bool = False,
) -> lower_bound.LowerBound | None:
  """What the uploads of a pair show; in the runtime that is installed.

  Args:
    target: Whose pair.
    pair: The data sets.
    mechanism: The one that is audited, of the target's clip.
    epsilon: What is claimed of one release.
    delta: As above.
    confidence: Of the bound.
    others: How many other clients are in the sum, if one is seen.
    noise_scale: Multiplies the noise.
    seed: Of the noise; None for the system's entropy.
    seconds: Of a large pair there are as few trials as this takes.
    progress: Whether to show a bar.

  Returns:
    The bound; None if an upload is not finite without noise.
  """
  z = gaussian.gaussian_noise_multiplier(epsilon, delta)
  worlds = (pair.data, pair.alternative)
  client = _Client(
    *(target, pair, mechanism),
    z=z,
    others=others,
    noise_scale=noise_scale,
  )
  one, other = map(client.noiseless, worlds)
  if not np.isfinite(one - other).all():
    return None
  no_keys = [np.zeros([2], np.int64)] * (1 + others)
  client.result(worlds[0], no_keys)
  began = time.monotonic()
  client.result(worlds[0], no_keys)
  each = time.monotonic() - began
  count = trials(epsilon, delta, confidence)
  # The results have no say in it.
  count = max(
    lower_bound.MINIMUM_TRIALS, min(count, math.ceil(seconds / (2 * each)))
  )
  direction = (one - other) / (client.stddev * noise_scale) ** 2
  scores = np.empty([2, count])
  with tqdm.tqdm(total=2 * count, unit='trial', disable=not progress) as bar:
    for world, data in enumerate(worlds):
      for trial in range(count):
        keys = [
          noise.fresh_noise_key()
          if seed is None
          else noise.seeded_noise_key(seed, trial + 1, 2 * k + world)
          for k in range(1 + others)
        ]
        result = client.result(data, keys)
        scores[world, trial] = (result - (one + other) / 2) @ direction
        bar.update()
  return lower_bound.empirical_lower_bound(
    scores[0], scores[1], delta, confidence
  )
