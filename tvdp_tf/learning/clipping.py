r"""Per-example gradients, clipped and summed.

`clipped_mean_gradient` goes through the examples in microbatches, so that its
memory does not grow with their number. How a microbatch's sum is had is a
`ClippedSum`: here one example at a time, for any model, vectorized or in a
loop; in `ghost_clipping` several times faster, for some.

Replacing one example moves the mean by at most 2 C_g / n, rounding included.
With u = 2^-24 (float32) and v = 2^-53 (float64), B the size of a microbatch:

* A norm comes with a bound of its error added: it is at least the true one.
* A clipped gradient is a float32 tensor times a float32 factor. A microbatch
  adds up B of them in float32, in any order, the last one fewer: each value of
  the sum is off by at most (B + 3) u times the sum of the absolute values, so
  the sum by at most (B + 3) u B C_g in norm. The same microbatch gives the same
  bits, and one example is in one microbatch, so that two data sets differ by
  twice that. Where microbatches end depends on n alone.
* The sums of G microbatches are added in float32, in any order: G values, each
  off by G u at most of a sum of norm G B C_g. One example is in one such group.
* The groups' sums are added in float64, in any order: n / B additions to a sum
  of norm n C_g at most, each off by v n C_g.

Together this is less than `relative_rounding` of the 2 C_g / n. Gradients are
clipped shorter by as much. Views of an example do not change that: its gradient
is one tensor, of any loss, or two rows that count as an example each
(`view_gradients`).
"""

import abc
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tvdp_tf.learning import flat, local_training
from tvdp_tf.privacy import sensitivity

# (weights, features [b, ...], labels [b], present bool [b], clip) -> the sum of
# the clipped gradients of the examples that are present, shaped as the weights.
# A `PreparedSum` takes a sixth argument.
ClippedSum = Callable[..., list[tf.Tensor]]
# (features [...], label) -> the gradient of that example, each part flat.
ExampleGradient = Callable[[tuple[tf.Tensor, tf.Tensor]], list[tf.Tensor]]


class PreparedSum(abc.ABC):
  """A `ClippedSum` that works something out of the features in advance.

  Attributes:
    microbatches: How many microbatches it takes at a time, at most
      `sensitivity.MOST_MICROBATCHES`: what it returns is their sums, each in
      float32, added in float32.
  """

  microbatches: int = 1

  @abc.abstractmethod
  def prepare(self, features: tf.Tensor) -> tf.Tensor:
    """A tensor [n, ...] of the features [n, ...], the same for any weights."""

  @abc.abstractmethod
  def __call__(
    self, weights, features, labels, present, clip, prepared=None
  ) -> list[tf.Tensor]:
    """See `ClippedSum`; `prepared` holds the examples' rows of `prepare`."""


MICROBATCH_SIZE = sensitivity.MICROBATCH_SIZE

# A loop's iterations share the kernels of their ops, which `onednn` mixes.
_ITERATIONS_AT_ONCE = 1

# A factor rounded to float32 must not grow.
_ROUNDED_DOWN = 1 - 2.0**-22
_LEAST_FACTOR = 2.0**-126


# What makes TensorFlow or its libraries compute float32 with fewer bits, and
# the values that do not.
_REDUCING = {
  'NVIDIA_TF32_OVERRIDE': ('', '0'),
  'ONEDNN_DEFAULT_FPMATH_MODE': ('', 'STRICT'),
  'DNNL_DEFAULT_FPMATH_MODE': ('', 'STRICT'),
  'TF_SET_ONEDNN_FPMATH_MODE': ('', 'STRICT'),
  'TF_ENABLE_AUTO_MIXED_PRECISION': ('', '0'),
  'TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE': ('', '0'),
}


def _clusters_by_xla(flags: str) -> bool:
  """Whether a value of TF_XLA_FLAGS may make XLA compile what nobody named."""
  return any(
    not flag.startswith('-')  # A file of flags.
    or (name.startswith('tf_xla_auto_jit') and value != '0')
    for flag in flags.split()
    for name, _, value in (flag.lstrip('-').partition('='),)
  )


def require_full_precision() -> None:
  """Sees to it that float32 is float32 in this process.

  TensorFloat-32, which TensorFlow uses on newer GPUs unless it is told not to,
  has 11 bits: a clipped gradient may come out 1e-3 longer than the clip. XLA
  computes a value anew for each use, and not to the same bits: what is added up
  may not be what the norm is of.

  Raises:
    ValueError: If the environment or TensorFlow's options ask for less, or for
      XLA wherever it is possible.
  """
  tf.config.experimental.enable_tensor_float_32_execution(False)
  for name, allowed in _REDUCING.items():
    if (value := os.environ.get(name, '')).upper() not in allowed:
      raise ValueError(
        f'{name} must be unset, for clipping is proven for full float32, got '
        f'{value!r}'
      )
  for name, value in tf.config.optimizer.get_experimental_options().items():
    if name.startswith('auto_mixed_precision') and value:
      raise ValueError(
        f"TensorFlow's option {name} must be off, for clipping is proven for "
        f'full float32, got {value!r}'
      )
  flags, jit = os.environ.get('TF_XLA_FLAGS', ''), tf.config.optimizer.get_jit()
  if _clusters_by_xla(flags) or jit:
    raise ValueError(
      "XLA's auto-clustering must be off, for under it a value may differ from "
      f'the one that was clipped, got TF_XLA_FLAGS={flags!r} and '
      f'tf.config.optimizer.get_jit() {jit!r}'
    )


# Longer tensors' squares are added in float64: the bound would be worth 1e-4.
_MOST_IN_FLOAT32 = 4096


def _quick_squared_norms(tensor: tf.Tensor) -> tuple[tf.Tensor, float, float]:
  """Sums of squares in the tensor's dtype, and what makes bounds of them.

  Returns:
    float64 [n]; the factor and the addend that make each at least the true one.
  """
  terms = tensor.shape[1:].num_elements()
  if tensor.dtype != tf.float32 or terms > _MOST_IN_FLOAT32:
    return _sums_of_squares(tf.cast(tensor, tf.float64)), *_of_float64(terms)
  # Each square and each of the `terms` - 1 additions of a value is off by
  # 2^-24, in any order, and what is below the least normal number may be taken
  # for zero. 1 / (1 - x) is below 1 + x (1 + 2^-10) for x < 2^-11.
  factor = 1 + (terms + 4) * 2.0**-24 * (1 + 2.0**-10)
  sums = tf.cast(_sums_of_squares(tensor), tf.float64)
  return sums, factor, terms * 2.0**-125


def _of_float64(terms: int) -> tuple[float, float]:
  return 1 + terms * 2.0**-52, terms * 2.0**-252


def _sums_of_squares(tensor: tf.Tensor) -> tf.Tensor:
  return tf.reduce_sum(
    tf.square(tensor), axis=list(range(1, tensor.shape.rank))
  )


def squared_norms(tensor: tf.Tensor) -> tf.Tensor:
  """The squared norm of each example's part, or a bit more; never less.

  Args:
    tensor: [n, ...], the rest of a static shape.

  Returns:
    float64 [n]. Not finite where a value is not.
  """
  return stacked_squared_norms([tensor])[0]


def stacked_squared_norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Like `squared_norms`, of each of several tensors: float64 [tensors, n].

  An example's numbers depend on its own values alone, to the bit.
  """
  sums, factors, addends = zip(*map(_quick_squared_norms, tensors), strict=True)
  quick = tf.stack(sums) * _column(factors) + _column(addends)
  finite = tf.math.is_finite(quick)

  def exact():
    # The square of any float32 is a float64: it does not overflow.
    sums = [_sums_of_squares(tf.cast(one, tf.float64)) for one in tensors]
    factors, addends = zip(
      *(_of_float64(one.shape[1:].num_elements()) for one in tensors),
      strict=True,
    )
    slow = tf.stack(sums) * _column(factors) + _column(addends)
    return tf.where(finite, quick, slow)

  return tf.cond(tf.reduce_all(finite), lambda: tf.identity(quick), exact)


def _column(numbers: Sequence[float]) -> tf.Tensor:
  return tf.constant([[number] for number in numbers], tf.float64)


def scales(
  squares: tf.Tensor, present: tf.Tensor, clip: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Which examples count, bool [b], and the factors that clip them.

  An example whose gradient is not finite does not count: as a NaN it would be
  seen through any noise.

  Args:
    squares: float64 [b], of the norms of the gradients, or more.
    present: bool [b].
    clip: float64, the norm that is clipped to.

  Returns:
    bool [b] and float32 [b].
  """
  used = tf.logical_and(present, tf.math.is_finite(squares))
  factors = clip / tf.maximum(tf.sqrt(squares), clip) * _ROUNDED_DOWN
  factors = tf.where(used, factors, tf.zeros_like(factors))
  # A subnormal float32 is rounded by more than that, where it is kept at all.
  normal = factors >= _LEAST_FACTOR
  factors = tf.where(normal, factors, tf.zeros_like(factors))
  return used, tf.cast(factors, tf.float32)


class RowSums:
  """Sums over rows, as many of them together as are proven above.

  Nothing is filled up or copied: what is left after whole microbatches is a
  smaller one.
  """

  def __init__(self, count: tf.Tensor):
    """Takes the number of rows, a scalar int32."""
    self._whole = count - count % MICROBATCH_SIZE

  def _divided(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whole microbatches [rows / B, B, k] of rows [rows, k], and the rest."""
    shape = [-1, MICROBATCH_SIZE, tensor.shape[-1]]
    return tf.reshape(tensor[: self._whole], shape), tensor[self._whole :]

  def sum(self, tensor: tf.Tensor) -> tf.Tensor:
    """[k] of [rows, k]."""
    whole, rest = self._divided(tensor)
    within = tf.reduce_sum(whole, axis=1)
    return tf.reduce_sum(within, axis=0) + tf.reduce_sum(rest, axis=0)

  def product(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """[k, m], the sum of the outer products of rows [rows, k] and [rows, m]."""
    left, left_rest = self._divided(left)
    right, right_rest = self._divided(right)
    whole = tf.reduce_sum(tf.matmul(left, right, transpose_a=True), axis=0)
    return whole + tf.matmul(left_rest, right_rest, transpose_a=True)


def _dense(
  gradient: tf.Tensor | tf.IndexedSlices, weight: tf.Tensor
) -> tf.Tensor:
  """A gradient as a tensor; that of an embedding comes as some of its rows."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  return tf.math.unsorted_segment_sum(
    gradient.values, gradient.indices, weight.shape[0]
  )


def example_gradient(
  loss_fn: local_training.LossFn, weights: Sequence[tf.Tensor]
) -> ExampleGradient:
  """(features [...], label) -> that example's gradient, each part flat."""

  def gradient(example):
    features, label = example
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = loss_fn(weights, features[tf.newaxis], label[tf.newaxis])
    parts = tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [
      tf.reshape(_dense(part, weight), [-1])
      for part, weight in zip(parts, weights, strict=True)
    ]

  return gradient


def vectorized_clipped_sum(loss_fn: local_training.LossFn) -> ClippedSum:
  """The sum for any model: holds the gradients of all examples of a batch.

  Args:
    loss_fn: Mean loss of a model on a batch; it is called on single examples.
  """

  def clipped_sum(weights, features, labels, present, clip):
    # It has no Python to convert, whose search takes longer than its tracing.
    gradient_fn = tf.autograph.experimental.do_not_convert(
      example_gradient(loss_fn, weights)
    )
    gradients = tf.vectorized_map(gradient_fn, (features, labels), warn=False)
    used, factors = scales(
      tf.add_n([squared_norms(gradient) for gradient in gradients]),
      present,
      clip,
    )
    return [
      tf.reshape(
        tf.linalg.matvec(
          tf.where(used[:, tf.newaxis], gradient, tf.zeros_like(gradient)),
          tf.cast(factors, gradient.dtype),
          transpose_a=True,
        ),
        weight.shape,
      )
      for gradient, weight in zip(gradients, weights, strict=True)
    ]

  return clipped_sum


def looped_clipped_sum(loss_fn: local_training.LossFn) -> ClippedSum:
  """Like `vectorized_clipped_sum`, in a loop: slow, and nothing is left out.

  For models with an op that TensorFlow cannot vectorize.
  """
  return summed_one_by_one(lambda weights: example_gradient(loss_fn, weights))


def summed_one_by_one(
  gradient_of: Callable[[Sequence[tf.Tensor]], ExampleGradient],
) -> ClippedSum:
  """`looped_clipped_sum` of any gradient: a function of weights gives it."""

  def clipped_sum(weights, features, labels, present, clip):
    gradient_fn = gradient_of(weights)

    def add_example(index, totals):
      gradient = gradient_fn((features[index], labels[index]))
      square = tf.add_n([squared_norms(part[tf.newaxis]) for part in gradient])
      used, factor = scales(square, present[index][tf.newaxis], clip)
      return index + 1, [
        total
        + tf.where(used, part, tf.zeros_like(part))
        * tf.cast(factor, part.dtype)
        for total, part in zip(totals, gradient, strict=True)
      ]

    totals = [
      tf.zeros([weight.shape.num_elements()], weight.dtype)
      for weight in weights
    ]
    _, totals = tf.while_loop(
      lambda index, _: index < tf.shape(labels)[0],
      add_example,
      (tf.constant(0), totals),
      parallel_iterations=_ITERATIONS_AT_ONCE,
    )
    return [
      tf.reshape(total, weight.shape)
      for total, weight in zip(list(totals), weights, strict=True)
    ]

  return clipped_sum


class Examples(NamedTuple):
  """A client's examples, ready to be gone through many times.

  Attributes:
    features: [n, ...].
    labels: [n].
    prepared: Of a `PreparedSum`; None for any other.
  """

  features: tf.Tensor
  labels: tf.Tensor
  prepared: tf.Tensor | None


def examples(
  clipped_sum: ClippedSum, features: tf.Tensor, labels: tf.Tensor
) -> Examples:
  """Prepares examples for `mean_gradient`.

  Args:
    clipped_sum: How to sum over a microbatch.
    features: Tensor [n, ...].
    labels: Tensor [n].
  """
  features, labels = (
    tf.convert_to_tensor(features),
    tf.convert_to_tensor(labels),
  )
  prepared = None
  if isinstance(clipped_sum, PreparedSum):
    prepared = clipped_sum.prepare(features)
  return Examples(features, labels, prepared)


def clipped_mean_gradient(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  features: tf.Tensor,
  labels: tf.Tensor,
  *,
  example_l2_norm_clip: float | tf.Tensor,
  microbatch_size: int = MICROBATCH_SIZE,
) -> list[tf.Tensor]:
  """Like `mean_gradient`, of features [n, ...] and labels [n]."""
  return mean_gradient(
    clipped_sum,
    weights,
    examples(clipped_sum, features, labels),
    example_l2_norm_clip=example_l2_norm_clip,
    microbatch_size=microbatch_size,
  )


def flat_gradient_sum(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  *,
  example_l2_norm_clip: float | tf.Tensor,
  microbatch_size: int = MICROBATCH_SIZE,
  adjacency: str = sensitivity.REPLACE_ONE,
) -> tf.Tensor:
  """Sum over the examples of their gradients, each clipped to norm C_g.

  Args:
    clipped_sum: How to sum over a microbatch.
    weights: Float tensors of static shapes.
    prepared: Of `examples`, by the same `clipped_sum`.
    example_l2_norm_clip: C_g > 0. The norm is over all weights together.
    microbatch_size: How many examples are worked on at a time; a `PreparedSum`
      takes no other than `MICROBATCH_SIZE`.
    adjacency: 'replace-one', or 'zero-out': of a bound half as large, rounding
      takes up twice the share.

  Returns:
    float64 [values], the weights' one after the other; an example whose
    gradient is not finite counts as zero. Replacing one example moves it by at
    most 2 C_g, see above; putting zero in the place of its gradient, by C_g
    with adjacency 'zero-out'.

  Raises:
    ValueError: If a `PreparedSum` is to take microbatches of another size.
  """
  weights = list(weights)
  features, labels, rows = prepared
  num_examples = tf.shape(labels)[0]
  roundings = 1 if adjacency == sensitivity.REPLACE_ONE else 2
  count = tf.cast(num_examples, tf.float64)
  clip = tf.cast(example_l2_norm_clip, tf.float64) / (
    1 + roundings * sensitivity.relative_rounding(count, microbatch_size)
  )
  at_once = microbatch_size
  if isinstance(clipped_sum, PreparedSum):
    if microbatch_size != MICROBATCH_SIZE:
      # It has its own, and the bound of the rounding would be another's.
      raise ValueError(
        f'microbatch_size must be {MICROBATCH_SIZE} with a sum that is'
        f' prepared, got {microbatch_size!r}'
      )
    at_once *= clipped_sum.microbatches

  def summed(features, labels, *rows):
    present = tf.ones_like(labels, tf.bool)
    sums = clipped_sum(weights, features, labels, present, clip, *rows)
    return flat.in_float64(sums)

  taken = (features, labels) if rows is None else (features, labels, rows)

  def add_microbatches(start, total):
    end = tf.minimum(start + at_once, num_examples)
    addend = summed(*(tensor[start:end] for tensor in taken))
    return end, total + addend

  def all_microbatches():
    _, total = tf.while_loop(
      lambda start, _: start < num_examples,
      add_microbatches,
      (tf.constant(0), tf.zeros([flat.size(weights)], tf.float64)),
      parallel_iterations=_ITERATIONS_AT_ONCE,
    )
    return total

  if not isinstance(clipped_sum, PreparedSum):
    return all_microbatches()  # Its graph is large: it is there once.
  # Without the loop's ops.
  return tf.cond(
    num_examples <= at_once, lambda: summed(*taken), all_microbatches
  )


def gradient_sum(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  **options: Any,
) -> list[tf.Tensor]:
  """Like `flat_gradient_sum`, shaped as the weights.

  Args:
    clipped_sum: As of `flat_gradient_sum`, as the others.
    weights: Float tensors of static shapes.
    prepared: Of `examples`.
    **options: The others.

  Returns:
    float64 tensors of the shapes of `weights`.
  """
  return flat.split(
    flat_gradient_sum(clipped_sum, weights, prepared, **options), weights
  )


def flat_mean_gradient(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  **options: Any,
) -> tf.Tensor:
  """Like `flat_gradient_sum`, divided by n: moved by 2 C_g / n, or C_g / n."""
  total = flat_gradient_sum(clipped_sum, weights, prepared, **options)
  divisor = tf.cast(tf.shape(prepared.labels)[0], tf.float64)
  return total / divisor


def mean_gradient(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  **options: Any,
) -> list[tf.Tensor]:
  """Like `gradient_sum`, divided by n: moved by 2 C_g / n, or C_g / n."""
  return flat.split(
    flat_mean_gradient(clipped_sum, weights, prepared, **options), weights
  )
