"""Values that noise of known size can hide: finite, and of bounded norm."""

from collections.abc import Sequence

import tensorflow as tf

from tvdp_tf.learning import clipping

# Rounding products in float32 must not carry a value beyond its bound. A single
# rounding in less than float32 exceeds this margin.
_ROUNDING = 1 - 1e-6
_LEAST_SCALE = 2.0**-126
_DTYPES = (tf.float32, tf.float64)


def check_dtype(dtype: tf.DType, got: object) -> None:
  """Checks that values of a dtype can be bounded.

  Args:
    dtype: The dtype.
    got: What the error shows as the value.

  Raises:
    TypeError: If it is neither float32 nor float64.
  """
  if dtype not in _DTYPES:
    raise TypeError(
      'values must be float32 or float64 tensors, for which clipping is '
      f'proven, got {got}'
    )


def l2_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """The norm of all values together, float64; NaN or inf if one of them is."""
  halves = [tf.nn.l2_loss(tf.cast(tensor, tf.float64)) for tensor in tensors]
  return tf.sqrt(2.0 * tf.add_n(halves))


def chosen(
  condition: tf.Tensor, if_true: tf.Tensor, if_false: tf.Tensor
) -> tf.Tensor:
  """Selects one of two tensors of the same shape by a scalar condition.

  `tf.where` is slower, because it broadcasts the condition.
  """
  return tf.raw_ops.Select(condition=condition, x=if_true, y=if_false)


def zero_unless(
  condition: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Returns the tensors if a scalar condition holds, otherwise zeros."""
  return [
    chosen(condition, tensor, tf.zeros_like(tensor)) for tensor in tensors
  ]


def bounded(
  tensors: Sequence[tf.Tensor], l2_norm_clip: float | tf.Tensor | None
) -> list[tf.Tensor]:
  """Makes a value finite and, with a clip, scales it down to that norm.

  A value that is not finite becomes zero, because no noise hides a NaN. Zero is
  in the ball like any other value, so noise that covers the ball hides the
  replacement.

  Args:
    tensors: Tensors, float32 or float64.
    l2_norm_clip: The largest norm of all tensors together; None for no clip.

  Returns:
    Tensors of the same shapes and dtypes.

  Raises:
    TypeError: If a tensor has another dtype.
    ValueError: As `clipping.require_full_precision`.
  """
  clipping.require_full_precision()
  for tensor in tensors:
    check_dtype(tensor.dtype, f'{tensor.dtype.name}{tensor.shape}')
  norm = l2_norm(tensors)
  if l2_norm_clip is not None:
    limit = tf.cast(l2_norm_clip, tf.float64) * _ROUNDING
    scale = limit / tf.maximum(norm, limit)
    # A subnormal float32 has a larger rounding error, or is flushed to zero.
    scale = chosen(scale >= _LEAST_SCALE, scale, tf.zeros_like(scale))
    tensors = [tensor * tf.cast(scale, tensor.dtype) for tensor in tensors]
  return zero_unless(tf.math.is_finite(norm), tensors)
