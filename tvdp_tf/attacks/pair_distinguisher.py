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

which is the log-likelihood ratio. `lower_bound` converts the scores to an
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

# Limits of the trials with each data set, of as many as can refute a claim.
_LEAST_TRIALS = 400
_MOST_TRIALS = 2000
# Modulus of secure sums, so large that no hostile pair's sum wraps around.
_MODULUS = 2**60


def trials(epsilon: float, delta: float, confidence: float) -> int:
  """Returns 3 times as many trials as can refute the claim, within limits."""
  try:
    needed = 3 * lower_bound.trials_to_show(epsilon, delta, confidence)
  except ValueError:
    needed = _MOST_TRIALS
  return min(max(needed, _LEAST_TRIALS), _MOST_TRIALS)


class _Client:
  """One client's uploads in the learning process, alone or in a sum.

  Attributes:
    stddev: Calibrated standard deviation of the noise on a result's values.
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
    """Creates the client.

    Args:
      target: The subject of the pair.
      pair: The data sets.
      mechanism: The audited mechanism; its noise is replaced.
      z: The noise multiplier of the one release.
      others: As for `distinguish`.
      noise_scale: As for `distinguish`.
    """
    schedule = privacy.GeometricSchedule(1.0, 1, z * noise_scale)
    changes: dict[str, Any] = {'schedule': schedule}
    if isinstance(mechanism, mechanisms.DistributedMechanism):
      # For one release, whose noise is less than that of many.
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
    # The one example of each of the other clients.
    self._other = pair.features[:1], pair.labels[:1]
    self._state: Any = self._process.initialize()._replace(
      global_model_weights=tff.learning.models.ModelWeights(
        trainable=tuple(map(tf.constant, pair.weights)), non_trainable=()
      )
    )

  def noiseless(self, data) -> np.ndarray:
    """Computes what `result` would be without noise."""
    weights = list(self._pair.weights)
    total = self._pair.examples * clipped_mean.flat(
      self._target.mean(weights, *data)
    )
    if self._others:
      other = clipped_mean.flat(self._target.mean(weights, *self._other))
      total = total + self._others * other
    return clipped_mean.flat(weights) - total / self._divisor

  def result(self, data, keys: Sequence[np.ndarray]) -> np.ndarray:
    """Runs a round, with a key for each client; returns the model, [d]."""
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
  """Computes what a pair's uploads show, in the installed runtime.

  Args:
    target: The subject of the pair.
    pair: The data sets.
    mechanism: The audited mechanism, with the target's clip.
    epsilon: The claimed epsilon of one release.
    delta: The claimed delta of one release.
    confidence: Confidence of the bound.
    others: How many other clients are in the sum, if only a sum is seen.
    noise_scale: Factor by which the noise is multiplied.
    seed: Seed of the noise; None for system entropy.
    seconds: About how long to run trials; this reduces them for large pairs.
    progress: Whether to show a progress bar.

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
  # The number of trials must not depend on the results.
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
