r"""Measures the largest possible noise, and the delta that its bound costs.

Noise computed from a finite number of random bits is bounded: no draw exceeds R
standard deviations. If one example moves a value of a release by mu standard
deviations, then with a probability of about Phi(mu - R) the release has a value
that is impossible without the move, and the two data sets are distinguished
with certainty. This part of delta is spent whatever the epsilon. No number of
runs shows such a rare event, but the extremes of the generator can be computed:
it is run on bits that are all zeros and all ones, in all combinations.

This is about continuous noise. For discrete noise, `privacy.noise_distance`
bounds the distance from the Gaussian.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from tvdp_tf import _json
from tvdp_tf.learning import noise

# Words of random bits: the extremes, and values next to them.
_EXTREMES = (0, 1, 2**11, 2**63, 2**64 - 2**11, 2**64 - 1)


@dataclasses.dataclass(frozen=True)
class Reach:
  """The delta that bounded noise costs.

  Attributes:
    largest: R, in standard deviations; inf if it could not be determined.
    delta: The releases of one client spend at least this delta.
    claimed_delta: The claimed delta.
  """

  largest: float
  delta: float
  claimed_delta: float

  @property
  def refuted(self) -> bool:
    """Whether more delta is spent than is claimed."""
    return self.delta > self.claimed_delta

  def to_json_dict(self) -> dict[str, Any]:
    """Returns all fields, ready for `json.dumps`."""
    return {
      'largest_noise_in_stddevs': (_json.number(self.largest)),
      'delta_beyond_it': self.delta,
      'refuted': self.refuted,
    }


@contextlib.contextmanager
def _extreme_bits() -> Iterator[list[int]]:
  """Makes the generator draw only extremes; yields a list of its calls."""
  original = tf.raw_ops.StatelessRandomUniformFullIntV2
  calls: list[int] = []

  def extremes(shape, key, counter, alg, dtype, name=None):
    del key, counter, alg, name
    words, pairs = (int(size) for size in shape)
    calls.append(words)
    table = np.array(
      list(itertools.product(_EXTREMES, repeat=words)), np.uint64
    )
    # All combinations, repeated to fill the shape.
    return tf.constant(np.resize(table, [pairs, words]).T, dtype)

  tf.raw_ops.StatelessRandomUniformFullIntV2 = extremes
  try:
    yield calls
  finally:
    tf.raw_ops.StatelessRandomUniformFullIntV2 = original


def largest_normal(
  standard_normal: Callable[..., tf.Tensor] = noise.standard_normal,
) -> float:
  """Returns the largest absolute value drawn; inf if no bits are used.

  Args:
    standard_normal: Like `noise.standard_normal`.
  """
  columns = len(_EXTREMES) ** 3
  with _extreme_bits() as calls:
    drawn = standard_normal(tf.constant([1, 2], tf.int64), 2 * columns).numpy()
  if not calls:
    return math.inf
  return float(np.max(np.abs(drawn)))


def reach(
  noise_multipliers: Sequence[float] | np.ndarray,
  delta: float,
  standard_normal: Callable[..., tf.Tensor] = noise.standard_normal,
) -> Reach:
  """Computes the delta that bounded noise costs one client.

  Args:
    noise_multipliers: Noise multipliers of all of its releases, [t].
    delta: The delta claimed for all of them together.
    standard_normal: Like `noise.standard_normal`.
  """
  largest = largest_normal(standard_normal)
  beyond = special.ndtr(1 / np.asarray(noise_multipliers) - largest)
  # Of independent releases, the probability that one is beyond.
  with np.errstate(divide='ignore'):
    spent = float(-np.expm1(np.sum(np.log1p(-beyond))))
  return Reach(largest, spent, delta)
