"""Gaussian noise from Philox bits, added to a structure of tensors.

The noise of one release is a pure function of its 128-bit key, so that plain
TensorFlow, XLA and TFF's worker draw the same numbers. (`tf.random.normal`
cannot be reproduced inside TFF, and `tf.random.stateless_normal` gives
unrelated numbers under XLA.) One draw covers all tensors of a release, so its
values are independent across tensors by construction. They are independent
across releases because the whole key enters the generator: nothing is hashed,
so two different keys never share a counter block.

Philox is a statistical generator, not a cryptographic one, and binary
floating-point noise has known side channels: README, "What is not protected".
Neither applies to the discrete noise that `perturb` can add instead.
"""

import itertools
import math
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import discrete_gaussian, flat
from tvdp_tf.privacy import noise_distance

NOISE_KEY_SPEC = tf.TensorSpec([2], tf.int64)

_PHILOX = 1  # `alg` of the stateless random ops.

# sqrt(-2 ln 2^-106): the largest absolute value of a drawn normal.
LARGEST_NORMAL = math.sqrt(2 * 106 * math.log(2))

# More draws with the same key would repeat the first ones.
MOST_RELEASES = 2**24

# Replaces the client in a seeded key.
SERVER = 2**32 - 1


def seeded_noise_key(seed: int, round_number: int, client: int) -> np.ndarray:
  """The key of one client's release in one round of a seeded simulation.

  A server that knows the seed can subtract the noise: use seeds for tests and
  simulation, not in a deployment.

  Args:
    seed: Seed of the run, in [0, 2**63).
    round_number: Round, counted from 1, below 2**31.
    client: Index of the client, below 2**32 - 1, or `SERVER`.

  Returns:
    int64 array [2], distinct for distinct arguments.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _validate.integer('seed', seed, 0, 2**63 - 1)
  _validate.integer('round_number', round_number, 1, 2**31 - 1)
  _validate.integer('client', client, 0, 2**32 - 1)
  return np.array([seed, (round_number << 32) | client], np.int64)


def fresh_noise_key() -> np.ndarray:
  """Returns an unpredictable key, int64 [2]: 128 bits of system entropy."""
  return np.frombuffer(secrets.token_bytes(16), np.int64)


def system_noise_key() -> tf.Tensor:
  """Like `fresh_noise_key`, but drawn inside a graph, where it is executed.

  It reads the Linux kernel's generator. TensorFlow's own stateful random ops
  are not suitable: a process seeds them all with a single 32-bit number
  (tsl/platform/random.cc), which can be searched exhaustively.

  Returns:
    int64 tensor [2] with 122 bits of entropy, a new one in every execution.
  """
  # A data set, because `tf.io.read_file` of a constant name may be folded to a
  # constant: the same key for everybody.
  lines = tf.data.TextLineDataset('/proc/sys/kernel/random/uuid')
  uuid = lines.take(1).get_single_element()
  return tf.stack(
    [
      tf.strings.to_hash_bucket_strong(uuid, 2**63 - 1, key=[word, 1])
      for word in (0, 1)
    ]
  )


def _bits(
  noise_key: tf.Tensor,
  pairs: int | tf.Tensor,
  release: int | tf.Tensor,
  words: int = 2,
) -> tf.Tensor:
  """Returns the start of a key's Philox stream, uint64 [words, pairs]."""
  key = tf.bitcast(noise_key, tf.uint64)
  # The second word goes into the high half of Philox's counter, the release
  # into the top of the low half, whose rest counts the blocks of one draw.
  start = tf.bitwise.left_shift(
    tf.cast(release, tf.uint64), tf.constant(40, tf.uint64)
  )
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=[words, pairs],
    key=key[:1],
    counter=tf.stack([start, key[1]]),
    alg=_PHILOX,
    dtype=tf.uint64,
  )


def _uniforms(bits: tf.Tensor) -> tf.Tensor:
  """Maps the upper 53 bits of each word to multiples of 2**-53 in [0, 1)."""
  shifted = tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64))
  return tf.cast(tf.bitcast(shifted, tf.int64), tf.float64) * 2.0**-53


def _signed(values: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Gives float64 values >= 0 a sign, from the lowest bit of each word."""
  signs = tf.bitwise.left_shift(bits, tf.constant(63, tf.uint64))
  return tf.bitcast(
    tf.bitwise.bitwise_or(tf.bitcast(values, tf.uint64), signs), tf.float64
  )


def _cosine(quadrants: tf.Tensor) -> tf.Tensor:
  """cos(pi/2 x) for float64 x in [0, 1), to 4e-16.

  A Taylor series, with a remainder below 2e-17. TensorFlow's own cosine of
  float64 is not vectorized and takes about twice as long.
  """
  coefficients = [
    (-1) ** k * (math.pi / 2) ** (2 * k) / math.factorial(2 * k)
    for k in reversed(range(11))
  ]
  sums = tf.math.polyval(
    [tf.constant(c, tf.float64) for c in coefficients], tf.square(quadrants)
  )
  # Rounding errors may leave the range.
  return tf.clip_by_value(sums, 0.0, 1.0)


def _radius(
  uniforms: tf.Tensor,
  finer: Callable[[], tf.Tensor],
  least: float = 2.0**-53,
) -> tf.Tensor:
  """sqrt(-2 ln u) for uniforms in (0, 1], multiples of `least`.

  Args:
    uniforms: float64 [pairs].
    finer: Draws float64 [pairs], uniforms in (0, 1] for the place within the
      last interval, from 0 to `least`. Only called if a uniform is in it.
    least: The step of the uniforms.
  """
  is_last = tf.equal(uniforms, tf.constant(least, tf.float64))
  uniforms = tf.cond(
    tf.reduce_any(is_last),
    lambda: tf.where(is_last, uniforms * finer(), uniforms),
    lambda: tf.identity(uniforms),
  )
  return tf.sqrt(-2.0 * tf.math.log(uniforms))


def standard_normal(
  noise_key: tf.Tensor, size: int | tf.Tensor, release: int | tf.Tensor = 0
) -> tf.Tensor:
  """Draws `size` independent N(0, 1) values by the Box-Muller transform.

  The transform works in float64. The radius comes from 53 bits, and from 53
  more if the first are all ones, so that values reach `LARGEST_NORMAL`, 12.1
  standard deviations, before the tail is cut; the cut tail counts as part of
  delta (`privacy.noise_distance`). The angle is drawn in the first quadrant,
  and each coordinate gets its own random sign. The sine is computed from the
  cosine: its error is below 2e-8, and below 2e-15 except for one angle in ten.

  It does not work within `tf.vectorized_map`, because it draws further words
  only where they are needed.

  Args:
    noise_key: int64 tensor [2]; the stream is a pure function of it.
    size: Number of values, below 2**40.
    release: Which of several independent draws with this key, below 2**24.

  Returns:
    float64 tensor [size].
  """
  pairs = (size + 1) // 2
  bits = _bits(noise_key, pairs, release)
  uniforms = _uniforms(bits)

  def finer():
    # The words after those; they are hardly ever needed.
    return 1.0 - _uniforms(_bits(noise_key, pairs, release, words=3)[2])

  radius = _radius(1.0 - uniforms[0], finer)
  cosine = _cosine(uniforms[1])
  sine = tf.sqrt((1.0 - cosine) * (1.0 + cosine))
  # Not `radius * tf.stack(...)`: a broadcasting product takes far longer.
  normal = _signed(tf.stack([radius * cosine, radius * sine]), bits)
  return tf.reshape(normal, [-1])[:size]


def standard_laplace(
  noise_key: tf.Tensor, size: int | tf.Tensor, release: int | tf.Tensor = 0
) -> tf.Tensor:
  """Draws `size` independent Laplace values of standard deviation 1.

  Each is the difference of two exponentials of scale 1/sqrt(2).

  Args:
    noise_key: As for `standard_normal`, like the other arguments.
    size: Number of values.
    release: Which of several independent draws with this key.

  Returns:
    float64 tensor [size].
  """
  logs = tf.math.log(1.0 - _uniforms(_bits(noise_key, size, release)))
  return (logs[0] - logs[1]) / np.sqrt(2.0)


GAUSSIAN = 'gaussian'
LAPLACE = 'laplace'
DISCRETE_GAUSSIAN = 'discrete_gaussian'
CONTINUOUS = {GAUSSIAN: standard_normal, LAPLACE: standard_laplace}
# The distributions of a mechanism with Gaussian noise.
GAUSSIANS = {
  noise_distance.CONTINUOUS: GAUSSIAN,
  noise_distance.DISCRETE: DISCRETE_GAUSSIAN,
}

# Values are below it when discrete noise is added, so that no sum overflows.
_MOST_STEPS = 2.0**61


def _grid(noise_stddev: tf.Tensor) -> tf.Tensor:
  """The grid step; the noise's standard deviation is a fixed multiple of it."""
  stddev = tf.convert_to_tensor(noise_stddev, dtype_hint=tf.float64)
  return tf.cast(stddev, tf.float64) / discrete_gaussian.GRID_STDDEV


def _steps(value: tf.Tensor, noise_stddev: tf.Tensor) -> tf.Tensor:
  steps = tf.cast(value, tf.float64) / _grid(noise_stddev)
  return tf.clip_by_value(steps, -_MOST_STEPS, _MOST_STEPS)


def truncated(value: tf.Tensor, noise_stddev: tf.Tensor) -> tf.Tensor:
  """Converts a value to steps of the noise grid, truncated towards zero.

  The result is no longer than the value, in any norm. Sums of such integers are
  exact, so the clip of the summed values is the sensitivity of the sum.

  Args:
    value: Float tensor, finite.
    noise_stddev: Scalar, standard deviation of the noise that the sum will get.

  Returns:
    int64 tensor.
  """
  # The quotient is rounded, so it may slightly exceed the true one.
  steps = _steps(value, noise_stddev) * (1 - 2.0**-51)
  return tf.cast(steps, tf.int64)  # Towards zero.


def nearest(value: tf.Tensor, noise_stddev: tf.Tensor) -> tf.Tensor:
  """Converts a value to steps of the noise grid, rounded to the nearest.

  Args:
    value: Float tensor, finite.
    noise_stddev: Scalar, standard deviation of the noise that it will get.

  Returns:
    int64 tensor.
  """
  return tf.cast(tf.round(_steps(value, noise_stddev)), tf.int64)


def discrete_steps(
  steps: Sequence[tf.Tensor],
  noise_key: tf.Tensor,
  release: int | tf.Tensor = 0,
  drawn: tf.Tensor | None = None,
) -> list[tf.Tensor]:
  """Adds discrete Gaussian noise of standard deviation 2^31.

  Args:
    steps: int64 tensors of static shapes, as one release.
    noise_key: int64 tensor [2].
    release: As for `perturb`.
    drawn: As for `perturb`: noise to add instead of drawing by key and release.

  Returns:
    int64 tensors of the same shapes.
  """
  if drawn is None:
    drawn = discrete_gaussian.discrete_gaussian(
      noise_key, flat.size(steps), release
    )
  return flat.split(flat.concatenated(steps) + drawn, steps)


def _perturb_discretely(
  tensors: Sequence[tf.Tensor],
  noise_stddev: tf.Tensor,
  noise_key: tf.Tensor,
  release: int | tf.Tensor,
  drawn: tf.Tensor | None,
) -> list[tf.Tensor]:
  # Consecutive tensors of one kind go through each op together.
  steps = flat.concatenated(
    [
      flat.concatenated(list(kind))
      if are_steps
      else nearest(flat.in_float64(list(kind)), noise_stddev)
      for are_steps, kind in itertools.groupby(
        tensors, lambda tensor: tensor.dtype == tf.int64
      )
    ]
  )
  (noised,) = discrete_steps([steps], noise_key, release, drawn)
  # Everything after the sum of integers is post-processing.
  values = tf.cast(noised, tf.float64) * _grid(noise_stddev)
  return [
    part if tensor.dtype == tf.int64 else tf.cast(part, tensor.dtype)
    for part, tensor in zip(flat.split(values, tensors), tensors, strict=True)
  ]


def perturb(
  tensors: Sequence[tf.Tensor],
  noise_stddev: tf.Tensor,
  noise_key: tf.Tensor,
  release: int | tf.Tensor = 0,
  distribution: str = GAUSSIAN,
  drawn: tf.Tensor | None = None,
) -> list[tf.Tensor]:
  """Adds N(0, noise_stddev**2 I), as in the paper's eq-noised-parameter.

  With distribution 'discrete_gaussian', the values are rounded to a grid of
  2^-31 standard deviations, and the noise is a discrete Gaussian on this grid:
  exact, from ChaCha20, and without a trace of the value in its low bits. The
  rounding adds to the sensitivity (`noise_distance.rounding_of_grid`), except
  for integers.

  Args:
    tensors: Float tensors of static shapes, as one release. With discrete
      noise, int64 tensors are taken as steps of the grid (`truncated`).
    noise_stddev: Scalar, standard deviation of every added value.
    noise_key: int64 tensor [2].
    release: As in `standard_normal`. Use each pair of key and release once.
    distribution: A key of `CONTINUOUS`, or `DISCRETE_GAUSSIAN`.
    drawn: With discrete noise: int64 [values] from `discrete_gaussian`, to use
      instead of drawing by this key and release. It must not perturb anything
      else.

  Returns:
    The perturbed tensors, of the same shapes and dtypes; float64 for integers.
  """
  stddev = tf.convert_to_tensor(noise_stddev, dtype_hint=tf.float64)
  if distribution == DISCRETE_GAUSSIAN:
    return _perturb_discretely(tensors, stddev, noise_key, release, drawn)
  standard = CONTINUOUS[distribution](noise_key, flat.size(tensors), release)
  noise = tf.cast(stddev, tf.float64) * standard
  return [
    tensor + part
    for tensor, part in zip(tensors, flat.like(noise, tensors), strict=True)
  ]
