"""Gaussian noise from Philox bits, added to a structure of tensors.

The noise of one release is a pure function of its 128-bit key, so that plain
TensorFlow, XLA and TFF's worker draw the same numbers. (`tf.random.normal`
cannot be reproduced inside TFF, and `tf.random.stateless_normal` gives
unrelated numbers under XLA.) One draw covers all tensors of a release: its
values are independent across tensors by construction, and across releases
because the whole key enters the generator: nothing is hashed, so two different
keys never share a counter block.

Philox is a statistical generator, not a cryptographic one, and binary
floating-point noise has known side channels: README, "What is not protected".
"""

import math
import secrets
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate

NOISE_KEY_SPEC = tf.TensorSpec([2], tf.int64)

_PHILOX = 1  # `alg` of the stateless random ops.

# In a seeded key, in the place of a client.
SERVER = 2**32 - 1


def seeded_noise_key(seed: int, round_number: int, client: int) -> np.ndarray:
  """The key of one client's release in one round of a seeded simulation.

  A seed that the server knows lets it subtract the noise: seeds are for tests
  and simulation, not for a deployment.

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
  """An unpredictable key, int64 [2]: 128 bits of the system's entropy."""
  return np.frombuffer(secrets.token_bytes(16), np.int64)


def system_noise_key() -> tf.Tensor:
  """As `fresh_noise_key`, but drawn inside a graph, by whoever executes it.

  It reads the Linux kernel's generator. TensorFlow's own stateful random ops
  would not do: a process seeds them all with a single 32-bit number
  (tsl/platform/random.cc), which can be searched exhaustively.

  Returns:
    int64 tensor [2] of 122 bits of entropy, another in every execution.
  """
  # A data set, for `tf.io.read_file` of a constant name may be folded to a
  # constant: to the same key for everybody.
  lines = tf.data.TextLineDataset('/proc/sys/kernel/random/uuid')
  uuid = lines.take(1).get_single_element()
  return tf.stack(
    [
      tf.strings.to_hash_bucket_strong(uuid, 2**63 - 1, key=[word, 1])
      for word in (0, 1)
    ]
  )


def _bits(
  noise_key: tf.Tensor, pairs: int | tf.Tensor, release: int | tf.Tensor
) -> tf.Tensor:
  """Philox's stream of a key, uint64 [2, pairs]."""
  key = tf.bitcast(noise_key, tf.uint64)
  # The second word goes into the high half of Philox's counter, the release
  # into the top of the low half, whose rest counts the blocks of one draw.
  start = tf.bitwise.left_shift(
    tf.cast(release, tf.uint64), tf.constant(40, tf.uint64)
  )
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=[2, pairs],
    key=key[:1],
    counter=tf.stack([start, key[1]]),
    alg=_PHILOX,
    dtype=tf.uint64,
  )


def _uniforms(bits: tf.Tensor) -> tf.Tensor:
  """Multiples of 2**-53 in [0, 1), float64, from the upper 53 bits of each."""
  shifted = tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64))
  return tf.cast(tf.bitcast(shifted, tf.int64), tf.float64) * 2.0**-53


def _signed(values: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
  """Values >= 0, float64, with a sign from the lowest bit of each."""
  signs = tf.bitwise.left_shift(bits, tf.constant(63, tf.uint64))
  return tf.bitcast(
    tf.bitwise.bitwise_or(tf.bitcast(values, tf.uint64), signs), tf.float64
  )


def _cosine(quadrants: tf.Tensor) -> tf.Tensor:
  """cos(pi/2 x) for float64 x in [0, 1), to 4e-16.

  Taylor's series, of which what is left out is below 2e-17: TensorFlow's own
  cosine of float64 is not vectorized, and takes about twice as long.
  """
  coefficients = [
    (-1) ** k * (math.pi / 2) ** (2 * k) / math.factorial(2 * k)
    for k in reversed(range(11))
  ]
  sums = tf.math.polyval(
    [tf.constant(c, tf.float64) for c in coefficients], tf.square(quadrants)
  )
  # Rounded, it may leave the range.
  return tf.clip_by_value(sums, 0.0, 1.0)


def standard_normal(
  noise_key: tf.Tensor, size: int | tf.Tensor, release: int | tf.Tensor = 0
) -> tf.Tensor:
  """Draws `size` independent N(0, 1) values by Box and Muller's transform.

  The transform works in float64 on 53-bit uniforms, so values reach 8.5
  standard deviations before the tail is cut. The angle is drawn in the first
  quadrant, and each coordinate gets a sign of its own. The sine comes from the
  cosine: its error is below 2e-8, and below 2e-15 but for one angle in ten.

  Args:
    noise_key: int64 tensor [2]; the stream is a pure function of it.
    size: Number of values, below 2**40.
    release: Which of several independent draws with this key, below 2**24.

  Returns:
    float64 tensor [size].
  """
  bits = _bits(noise_key, (size + 1) // 2, release)
  uniforms = _uniforms(bits)
  radius = tf.sqrt(-2.0 * tf.math.log(1.0 - uniforms[0]))
  cosine = _cosine(uniforms[1])
  sine = tf.sqrt((1.0 - cosine) * (1.0 + cosine))
  normal = _signed(radius * tf.stack([cosine, sine]), bits)
  return tf.reshape(normal, [-1])[:size]


def standard_laplace(
  noise_key: tf.Tensor, size: int | tf.Tensor, release: int | tf.Tensor = 0
) -> tf.Tensor:
  """Draws `size` independent Laplace values of standard deviation 1.

  The difference of two exponentials, of scale 1/sqrt(2).

  Args:
    noise_key: As for `standard_normal`, as the others.
    size: Number of values.
    release: Which of several independent draws with this key.

  Returns:
    float64 tensor [size].
  """
  logs = tf.math.log(1.0 - _uniforms(_bits(noise_key, size, release)))
  return (logs[0] - logs[1]) / np.sqrt(2.0)


DISTRIBUTIONS = {'gaussian': standard_normal, 'laplace': standard_laplace}


def perturb(
  tensors: Sequence[tf.Tensor],
  noise_stddev: tf.Tensor,
  noise_key: tf.Tensor,
  release: int | tf.Tensor = 0,
  distribution: str = 'gaussian',
) -> list[tf.Tensor]:
  """Adds N(0, noise_stddev**2 I), as in the paper's eq-noised-parameter.

  Args:
    tensors: Float tensors of static shapes: one release.
    noise_stddev: Scalar, standard deviation of every added value.
    noise_key: int64 tensor [2].
    release: As in `standard_normal`; a pair of key and release is used once.
    distribution: A key of `DISTRIBUTIONS`.

  Returns:
    The perturbed tensors, of the same shapes and dtypes.
  """
  sizes = [int(np.prod(tensor.shape.as_list())) for tensor in tensors]
  stddev = tf.convert_to_tensor(noise_stddev, dtype_hint=tf.float64)
  standard = DISTRIBUTIONS[distribution](noise_key, sum(sizes), release)
  noise = tf.cast(stddev, tf.float64) * standard
  return [
    tensor + tf.cast(tf.reshape(part, tensor.shape), tensor.dtype)
    for tensor, part in zip(tensors, tf.split(noise, sizes), strict=True)
  ]
