r"""Measures the largest possible noise, and the delta that is spent beyond it.

Noise computed from a finite number of random bits is bounded: no draw exceeds R
standard deviations. If one example moves a value of a release by mu standard
deviations, then with a probability of about Phi(mu - R) the release has a value
that is impossible without the move, and the two data sets are distinguished
with certainty. So much of delta is spent whatever the epsilon. No number of
runs shows an event so rare, but the extremes of the generator can be computed:
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

# Words of a column of bits: their extremes, and what is next to them.
_EXTREMES = (0, 1, 2**11, 2**63, 2**64 - 2**11, 2**64 - 1)


@dataclasses.dataclass(frozen=True)
class Reach:
  """What the bounds of the noise give away.

  Attributes:
    largest: R, in standard deviations; inf if it could not be found out.
    delta: At least so much is spent by the releases of one client.
    claimed_delta: What is claimed.
  """

  largest: float
  delta: float
  claimed_delta: float

  @property
  def refuted(self) -> bool:
    """Whether more delta is spent than is claimed."""
    return self.delta > self.claimed_delta

  def to_json_dict(self) -> dict[str, Any]:
    """All of it, ready for `json.dumps`."""
    return {
      'largest_noise_in_stddevs': (_json.number(self.largest)),
      'delta_beyond_it': self.delta,
      'refuted': self.refuted,
    }


@contextlib.contextmanager
def _extreme_bits() -> Iterator[list[int]]:
  """Lets the generator draw extremes only; yields a list of its calls."""
  original = tf.raw_ops.StatelessRandomUniformFullIntV2
  calls: list[int] = []

  def extremes(shape, key, counter, alg, dtype, name=None):
    del key, counter, alg, name
    words, pairs = (int(size) for size in shape)
    calls.append(words)
    table = np.array(
      list(itertools.product(_EXTREMES, repeat=words)), np.uint64
    )
    # All combinations, as often as there is room.
    return tf.constant(np.resize(table, [pairs, words]).T, dtype)

  tf.raw_ops.StatelessRandomUniformFullIntV2 = extremes
  try:
    yield calls
  finally:
    tf.raw_ops.StatelessRandomUniformFullIntV2 = original


def largest_normal(
  standard_normal: Callable[..., tf.Tensor] = noise.standard_normal,
) -> float:
  """The largest absolute value that is drawn; inf if bits are not looked at.

  Args:
    standard_normal: As `noise.standard_normal`.
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
  """What the bounds of the noise give away of one client.

  Args:
    noise_multipliers: Of all of its releases, [t].
    delta: What is claimed of them together.
    standard_normal: As `noise.standard_normal`.
  """
  largest = largest_normal(standard_normal)
  beyond = special.ndtr(1 / np.asarray(noise_multipliers) - largest)
  return Reach(largest, float(np.sum(beyond)), delta)
