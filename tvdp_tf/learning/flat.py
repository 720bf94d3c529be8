"""Packs several tensors into one vector: one op for all instead of one each.

For small tensors, starting an op takes longer than its arithmetic.
"""

from collections.abc import Sequence

import tensorflow as tf


def concatenated(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Concatenates the values of tensors of one dtype, in order, to [values]."""
  parts = [tf.reshape(tensor, [-1]) for tensor in tensors]
  return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def in_float64(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """Like `concatenated`, for float tensors of any dtypes: float64 [values]."""
  if len({tensor.dtype for tensor in tensors}) > 1:
    tensors = [tf.cast(tensor, tf.float64) for tensor in tensors]
  return tf.cast(concatenated(tensors), tf.float64)


def size(tensors: Sequence[tf.Tensor]) -> int:
  """The number of values of tensors of static shapes."""
  return sum(tensor.shape.num_elements() for tensor in tensors)


def split(vector: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The inverse of `concatenated`: parts of a vector, shaped like tensors.

  Args:
    vector: [values], of any dtype.
    tensors: Tensors of static shapes; their values do not matter.
  """
  sizes = [tensor.shape.num_elements() for tensor in tensors]
  parts = [vector] if len(sizes) == 1 else tf.split(vector, sizes)
  return [
    tf.reshape(part, tensor.shape)
    for part, tensor in zip(parts, tensors, strict=True)
  ]


def like(vector: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Like `split`, but the parts also get the tensors' dtypes."""
  if len({tensor.dtype for tensor in tensors}) == 1:
    vector = tf.cast(vector, tensors[0].dtype)
  return [
    tf.cast(part, tensor.dtype)
    for part, tensor in zip(split(vector, tensors), tensors, strict=True)
  ]
