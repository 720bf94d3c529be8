"""Uploads that can be used, and their sums, in plain TensorFlow.

What a noise of known size can hide is finite and of bounded norm (`bounded`).
`checked_mean` has the same for TFF.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Products rounded in float32 must not carry a value past its bound.
_ROUNDING = 1 - 1e-6


def l2_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """The norm of all values together, float64; NaN or inf if one of them is."""
  halves = [tf.nn.l2_loss(tf.cast(tensor, tf.float64)) for tensor in tensors]
  return tf.sqrt(2.0 * tf.add_n(halves))


def chosen(
  condition: tf.Tensor, if_true: tf.Tensor, if_false: tf.Tensor
) -> tf.Tensor:
  """One of two tensors of a shape, by a scalar condition.

  As `tf.where`, which is slower, for it broadcasts the condition.
  """
  return tf.raw_ops.Select(condition=condition, x=if_true, y=if_false)


def zero_unless(
  condition: tf.Tensor, tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """The tensors if a scalar condition holds, else zeros."""
  return [
    chosen(condition, tensor, tf.zeros_like(tensor)) for tensor in tensors
  ]


def bounded(
  tensors: Sequence[tf.Tensor], l2_norm_clip: float | tf.Tensor | None
) -> list[tf.Tensor]:
  """A value that is finite and, with a clip, of at most that norm.

  A value that is not finite becomes zero, as a NaN would be seen through any
  noise. Zero is in the ball like any other value: that it was taken is hidden
  by noise that covers the ball.

  Args:
    tensors: Float tensors.
    l2_norm_clip: The norm to scale them down to, all together; None for none.

  Returns:
    Tensors of the same shapes and dtypes.
  """
  norm = l2_norm(tensors)
  if l2_norm_clip is not None:
    limit = tf.cast(l2_norm_clip, tf.float64) * _ROUNDING
    scale = limit / tf.maximum(norm, limit)
    tensors = [tensor * tf.cast(scale, tensor.dtype) for tensor in tensors]
  return zero_unless(tf.math.is_finite(norm), tensors)


def of_nobody(zero: Any) -> collections.OrderedDict:
  """The sums before the first upload.

  Args:
    zero: A structure of zeros, of the shapes and dtypes of an upload.
  """
  return collections.OrderedDict(
    total=zero,
    weight=tf.constant(0.0, tf.float64),
    used_clients=tf.constant(0, tf.int32),
    excluded_clients=tf.constant(0, tf.int32),
  )


def accumulated(
  sums: Any, value: Any, weight: tf.Tensor, max_l2_norm: float | None
) -> collections.OrderedDict:
  """The sums with one more upload, if it can be used."""
  flat = tf.nest.flatten(value)
  weight = tf.cast(weight, tf.float64)
  norm = l2_norm(flat)
  # A NaN is not less than anything.
  usable = tf.logical_and(
    norm < float('inf') if max_l2_norm is None else norm <= max_l2_norm,
    tf.logical_and(weight > 0, weight < float('inf')),
  )
  weight = tf.where(usable, weight, 0.0)
  kept = zero_unless(usable, flat)
  total = [
    addend + part * tf.cast(weight, part.dtype)
    for addend, part in zip(tf.nest.flatten(sums['total']), kept, strict=True)
  ]
  used = tf.cast(usable, tf.int32)
  return collections.OrderedDict(
    total=tf.nest.pack_sequence_as(sums['total'], total),
    weight=sums['weight'] + weight,
    used_clients=sums['used_clients'] + used,
    excluded_clients=sums['excluded_clients'] + 1 - used,
  )


def mean(sums: Any) -> Any:
  """The weighted mean of the uploads used; NaN if there are none."""
  return tf.nest.map_structure(
    lambda total: total / tf.cast(sums['weight'], total.dtype), sums['total']
  )


def excluded_clients(measurements: Any) -> int | None:
  """How many clients a round has left out, wherever its metrics say so.

  Args:
    measurements: `LearningProcessOutput.metrics`, or a part of it.

  Returns:
    The number; None if no aggregator counts it.
  """
  if not isinstance(measurements, collections.abc.Mapping):
    return None
  counts = [
    int(value) if name == 'excluded_clients' else excluded_clients(value)
    for name, value in measurements.items()
  ]
  found = [count for count in counts if count is not None]
  return sum(found) if found else None
