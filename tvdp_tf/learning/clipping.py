r"""Per-example gradients, clipped and summed.

`clipped_mean_gradient` processes the examples in microbatches, so its memory
does not grow with their number. A `ClippedSum` computes a microbatch's sum. The
ones here work one example at a time, vectorized or in a loop, for any model;
`ghost_clipping` is several times faster, for some models.

Replacing one example moves the mean by at most 2 C_g / n, rounding included.
With u = 2^-24 (float32) and v = 2^-53 (float64), B the size of a microbatch:

* A bound of the error is added to each norm, so it is at least the true norm.
* A clipped gradient is a float32 tensor times a float32 factor. A microbatch
  adds up B of them (the last one fewer) in float32, in any order. Each value of
  the sum is off by at most (B + 3) u times the sum of the absolute values, so
  the sum is off by at most (B + 3) u B C_g in norm. The same microbatch gives
  the same bits, and one example is in one microbatch, so two data sets differ
  by twice that. The boundaries of microbatches depend on n only.
* The sums of G microbatches are added in float32, in any order: G values, each
  off by at most G u of a sum of norm G B C_g. One example is in one such group.
* The groups' sums are added in float64, in any order: n / B additions to a sum
  of norm at most n C_g, each off by v n C_g.

Together this is less than `relative_rounding` of the 2 C_g / n. The clip is
reduced by the same share. Views of an example do not change that: its gradient
is one tensor, of any loss, or two rows that count as one example each
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
# the clipped gradients of the present examples, shaped like the weights.
# A `PreparedSum` takes a sixth argument.
ClippedSum = Callable[..., list[tf.Tensor]]
# (features [...], label) -> the gradient of that example, each part flat.
ExampleGradient = Callable[[tuple[tf.Tensor, tf.Tensor]], list[tf.Tensor]]


class PreparedSum(abc.ABC):
  """A `ClippedSum` that precomputes something from the features.

  Attributes:
    microbatches: How many microbatches it takes at a time, at most
      `sensitivity.MOST_MICROBATCHES`. It computes their sums in float32 and
      returns the total, added in float32.
  """

  microbatches: int = 1

  @abc.abstractmethod
  def prepare(self, features: tf.Tensor) -> tf.Tensor:
    """Computes a tensor [n, ...] from features [n, ...], without weights."""

  @abc.abstractmethod
  def __call__(
    self, weights, features, labels, present, clip, prepared=None
  ) -> list[tf.Tensor]:
    """See `ClippedSum`; `prepared` holds the examples' rows of `prepare`."""


MICROBATCH_SIZE = sensitivity.MICROBATCH_SIZE

# A loop's iterations share op kernels, whose data oneDNN may mix (`onednn`).
_ITERATIONS_AT_ONCE = 1

# A factor rounded to float32 must not grow.
_ROUNDED_DOWN = 1 - 2.0**-22
_LEAST_FACTOR = 2.0**-126


# Variables that can make TensorFlow or its libraries compute float32 with fewer
# bits, and the values that do not.
_REDUCING = {
  'NVIDIA_TF32_OVERRIDE': ('', '0'),
  'ONEDNN_DEFAULT_FPMATH_MODE': ('', 'STRICT'),
  'DNNL_DEFAULT_FPMATH_MODE': ('', 'STRICT'),
  'TF_SET_ONEDNN_FPMATH_MODE': ('', 'STRICT'),
  'TF_ENABLE_AUTO_MIXED_PRECISION': ('', '0'),
  'TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE': ('', '0'),
}


def _clusters_by_xla(flags: str) -> bool:
  """Whether a value of TF_XLA_FLAGS may turn on XLA's auto-clustering."""
  return any(
    not flag.startswith('-')  # A file of flags.
    or (name.startswith('tf_xla_auto_jit') and value != '0')
    for flag in flags.split()
    for name, _, value in (flag.lstrip('-').partition('='),)
  )


def require_full_precision() -> None:
  """Ensures that this process computes float32 with full precision.

  TensorFlow uses TensorFloat-32 on newer GPUs by default. It has 11 bits, so a
  clipped gradient could be 1e-3 longer than the clip. XLA may recompute a value
  for each use, with different bits, so the tensors that are added up could
  differ from those whose norm was computed.

  Raises:
    ValueError: If the environment or TensorFlow's options ask for less
      precision, or for XLA wherever it is possible.
  """
  tf.config.experimental.enable_tensor_float_32_execution(False)
  for name, allowed in _REDUCING.items():
    if (value := os.environ.get(name, '')).upper() not in allowed:
      raise ValueError(
        f'{name} must be unset, because clipping is proven only for full'
        f' float32, got {value!r}'
      )
  for name, value in tf.config.optimizer.get_experimental_options().items():
    if name.startswith('auto_mixed_precision') and value:
      raise ValueError(
        f"TensorFlow's option {name} must be off, because clipping is proven"
        f' only for full float32, got {value!r}'
      )
  flags, jit = os.environ.get('TF_XLA_FLAGS', ''), tf.config.optimizer.get_jit()
  if _clusters_by_xla(flags) or jit:
    raise ValueError(
      "XLA's auto-clustering must be off, because with it a value may differ"
      f' from the one that was clipped, got TF_XLA_FLAGS={flags!r} and'
      f' tf.config.optimizer.get_jit() {jit!r}'
    )


# Squares of longer tensors are added in float64: the bound would cost 1e-4.
_MOST_IN_FLOAT32 = 4096


def _quick_squared_norms(tensor: tf.Tensor) -> tuple[tf.Tensor, float, float]:
  """Sums of squares in the tensor's dtype, and numbers to bound them.

  Returns:
    float64 [n]; and the factor and addend that make each sum an upper bound.
  """
  terms = tensor.shape[1:].num_elements()
  if tensor.dtype != tf.float32 or terms > _MOST_IN_FLOAT32:
    return _sums_of_squares(tf.cast(tensor, tf.float64)), *_of_float64(terms)
  # Each square and each of the `terms` - 1 additions of a value is off by
  # 2^-24, in any order, and numbers below the least normal number may be
  # flushed to zero. 1 / (1 - x) is below 1 + x (1 + 2^-10) for x < 2^-11.
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
  """Bounds the squared norm of each example's part tightly from above.

  Args:
    tensor: [n, ...]; all dimensions but the first are static.

  Returns:
    float64 [n]. Not finite where a value is not finite.
  """
  return stacked_squared_norms([tensor])[0]


def stacked_squared_norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Like `squared_norms`, for several tensors: float64 [tensors, n].

  The bits of an example's norms depend only on its own values.
  """
  sums, factors, addends = zip(*map(_quick_squared_norms, tensors), strict=True)
  quick = tf.stack(sums) * _column(factors) + _column(addends)
  finite = tf.math.is_finite(quick)

  def exact():
    # The square of any float32 fits into a float64 without overflow.
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
  """Returns which examples count, and the factors that clip them.

  An example whose gradient is not finite does not count: a NaN would be visible
  through any noise.

  Args:
    squares: float64 [b], upper bounds on the squared norms of the gradients.
    present: bool [b].
    clip: float64, the norm to clip to.

  Returns:
    bool [b] and float32 [b].
  """
  used = tf.logical_and(present, tf.math.is_finite(squares))
  factors = clip / tf.maximum(tf.sqrt(squares), clip) * _ROUNDED_DOWN
  factors = tf.where(used, factors, tf.zeros_like(factors))
  # Subnormal float32 numbers have larger rounding errors, or become zero.
  normal = factors >= _LEAST_FACTOR
  factors = tf.where(normal, factors, tf.zeros_like(factors))
  return used, tf.cast(factors, tf.float32)


class RowSums:
  """Sums over rows, in microbatches as assumed in the proof above.

  Nothing is padded or copied: the rows left over after whole microbatches form
  a smaller one.
  """

  def __init__(self, count: tf.Tensor):
    """Takes the number of rows, a scalar int32."""
    self._whole = count - count % MICROBATCH_SIZE

  def _divided(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits rows [rows, k] into [rows / B, B, k] and the remaining rows."""
    shape = [-1, MICROBATCH_SIZE, tensor.shape[-1]]
    return tf.reshape(tensor[: self._whole], shape), tensor[self._whole :]

  def sum(self, tensor: tf.Tensor) -> tf.Tensor:
    """Sums rows [rows, k] to [k]."""
    whole, rest = self._divided(tensor)
    within = tf.reduce_sum(whole, axis=1)
    return tf.reduce_sum(within, axis=0) + tf.reduce_sum(rest, axis=0)

  def product(self, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Sums the outer products of rows [rows, k] and [rows, m] to [k, m]."""
    left, left_rest = self._divided(left)
    right, right_rest = self._divided(right)
    whole = tf.reduce_sum(tf.matmul(left, right, transpose_a=True), axis=0)
    return whole + tf.matmul(left_rest, right_rest, transpose_a=True)


def _dense(
  gradient: tf.Tensor | tf.IndexedSlices, weight: tf.Tensor
) -> tf.Tensor:
  """Converts a gradient to a dense tensor; an embedding's is sparse."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  return tf.math.unsorted_segment_sum(
    gradient.values, gradient.indices, weight.shape[0]
  )


def example_gradient(
  loss_fn: local_training.LossFn, weights: Sequence[tf.Tensor]
) -> ExampleGradient:
  """Returns (features [...], label) -> the gradient, each part flat."""

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
  """Returns a sum for any model; it holds all gradients of a batch in memory.

  Args:
    loss_fn: Mean loss of a model on a batch; it is called on single examples.
  """

  def clipped_sum(weights, features, labels, present, clip):
    # AutoGraph has nothing to convert; its search takes longer than tracing.
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
  """Like `vectorized_clipped_sum`, in a loop: slow, but supports every op.

  For models with an op that TensorFlow cannot vectorize.
  """
  return summed_one_by_one(lambda weights: example_gradient(loss_fn, weights))


def summed_one_by_one(
  gradient_of: Callable[[Sequence[tf.Tensor]], ExampleGradient],
) -> ClippedSum:
  """Like `looped_clipped_sum`, for a function from weights to a gradient."""

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
  """A client's examples, prepared to be used many times.

  Attributes:
    features: [n, ...].
    labels: [n].
    prepared: The result of `PreparedSum.prepare`; None for any other sum.
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
  """Like `mean_gradient`, for features [n, ...] and labels [n]."""
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
  """Sums the gradients of all examples, each clipped to norm C_g.

  Args:
    clipped_sum: How to sum over a microbatch.
    weights: Float tensors of static shapes.
    prepared: The result of `examples` for the same `clipped_sum`.
    example_l2_norm_clip: C_g > 0. The norm is over all weights together.
    microbatch_size: How many examples to process at a time. A `PreparedSum`
      accepts only `MICROBATCH_SIZE`.
    adjacency: 'replace-one' or 'zero-out'. The bound for 'zero-out' is half as
      large, so rounding takes up twice the share of it.

  Returns:
    float64 [values], the values for all weights concatenated. An example whose
    gradient is not finite counts as zero. Replacing one example moves the sum
    by at most 2 C_g, see above; with adjacency 'zero-out', replacing its
    gradient by zero moves the sum by at most C_g.

  Raises:
    ValueError: If `microbatch_size` is not the one that a `PreparedSum` takes.
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
      # Its size is fixed, and the bound on rounding would not match.
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
    return all_microbatches()  # Its graph is large, so build it only once.
  # Small inputs skip the loop's ops.
  return tf.cond(
    num_examples <= at_once, lambda: summed(*taken), all_microbatches
  )


def gradient_sum(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  **options: Any,
) -> list[tf.Tensor]:
  """Like `flat_gradient_sum`, but shaped like the weights.

  Args:
    clipped_sum: As for `flat_gradient_sum`.
    weights: Float tensors of static shapes.
    prepared: The result of `examples`.
    **options: Further arguments of `flat_gradient_sum`.

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
  """`flat_gradient_sum` / n; one example moves it by 2 C_g / n, or C_g / n."""
  total = flat_gradient_sum(clipped_sum, weights, prepared, **options)
  divisor = tf.cast(tf.shape(prepared.labels)[0], tf.float64)
  return total / divisor


def mean_gradient(
  clipped_sum: ClippedSum,
  weights: local_training.Weights,
  prepared: Examples,
  **options: Any,
) -> list[tf.Tensor]:
  """`gradient_sum` / n; one example moves it by 2 C_g / n, or C_g / n."""
  return flat.split(
    flat_mean_gradient(clipped_sum, weights, prepared, **options), weights
  )
