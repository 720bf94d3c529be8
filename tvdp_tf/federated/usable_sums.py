"""Sums of usable uploads, in plain TensorFlow (`checked_mean`)."""

import collections
from typing import Any

import tensorflow as tf

from tvdp_tf.federated import bounded_value


def of_nobody(zero: Any) -> collections.OrderedDict:
  """The sums before the first upload.

  Args:
    zero: A structure of zeros with the shapes and dtypes of an upload.
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
  """The sums with one more upload, if it is usable."""
  flat = tf.nest.flatten(value)
  weight = tf.cast(weight, tf.float64)
  norm = bounded_value.l2_norm(flat)
  # These comparisons are all false for a NaN.
  usable = tf.logical_and(
    norm < float('inf') if max_l2_norm is None else norm <= max_l2_norm,
    tf.logical_and(weight > 0, weight < float('inf')),
  )
  weight = tf.where(usable, weight, 0.0)
  kept = bounded_value.zero_unless(usable, flat)
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
  """Number of clients that a round has left out, from anywhere in its metrics.

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
