"""Loss and accuracy of a model on a test set."""

import concurrent.futures
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import functional

_BATCH_SIZE = 2500


def predicted_classes(outputs: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """The classes that a model's outputs predict.

  Args:
    outputs: [n, classes], or [n, 1] for the score of the second of two classes.
    dtype: An integer type.

  Returns:
    Tensor [n].
  """
  if outputs.shape[-1] == 1:
    return tf.cast(outputs[:, 0] > 0, dtype)
  return tf.argmax(outputs, axis=-1, output_type=dtype)


class Evaluator:
  """Evaluates weights on a fixed test set, held as tensors.

  Args:
    model: The model.
    loss: Keras loss of (labels [n], outputs [n, classes]), averaged over n.
    features: Array [n, ...].
    labels: Integer array [n].
  """

  def __init__(
    self,
    model: functional.FunctionalModel,
    loss: tf.keras.losses.Loss,
    features: np.ndarray,
    labels: np.ndarray,
  ):
    self._num_examples = len(labels)
    self._batches = [
      (
        tf.constant(features[start : start + _BATCH_SIZE]),
        tf.constant(labels[start : start + _BATCH_SIZE]),
      )
      for start in range(0, len(labels), _BATCH_SIZE)
    ]

    @tf.function(autograph=False)
    def totals(weights, batch_features, batch_labels):
      outputs = model(weights, batch_features)
      size = tf.cast(tf.shape(batch_labels)[0], tf.float32)
      predicted = predicted_classes(outputs, batch_labels.dtype)
      correct = tf.reduce_sum(
        tf.cast(tf.equal(predicted, batch_labels), tf.float32)
      )
      return loss(batch_labels, outputs) * size, correct

    def spec(array):
      return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

    # Traced once. Keep a reference: TensorFlow's context only knows its name.
    self._totals = totals.get_concrete_function(
      [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights],
      *map(spec, self._batches[0]),
    )
    # One batch per core, because ops may be limited to one core.
    self._threads = concurrent.futures.ThreadPoolExecutor(
      len(os.sched_getaffinity(0))
    )

  def evaluate(self, weights: Sequence) -> tuple[float, float]:
    """Mean loss and accuracy of `weights`, tensors or arrays."""
    weights = [
      tf.convert_to_tensor(w, spec.dtype)
      for w, spec in zip(weights, self._totals.inputs, strict=False)
    ]

    def totals(batch):
      # Runs all ops in this thread. Calling the function itself would hand them
      # to TensorFlow's threads, and take half as long again.
      return tf.raw_ops.StatefulPartitionedCall(
        args=[*weights, *batch],
        Tout=[output.dtype for output in self._totals.outputs],
        f=self._totals.name.decode(),
      )

    total_loss, total_correct = 0.0, 0.0
    for loss, correct in self._threads.map(totals, self._batches):
      total_loss += float(loss)
      total_correct += float(correct)
    return total_loss / self._num_examples, total_correct / self._num_examples
