"""The mean of clipped gradients as used in training, and pairs of data sets.

Replacing one of n examples moves the mean by at most 2 C_g / n, for any model,
weights and data. A pair of data sets is measured by the ratio

  n |g(D) - g(D')| / (2 C_g),

which is at most 1 if the guarantee holds, rounding included.

If users are protected, the negated clipped update replaces the mean: it moves
by at most 2 C_u from one data set of a user to any other. Both data sets of a
pair then have one example (n = 1), which is all that the user has.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.federated import client_work
from tvdp_tf.learning import clipping


@dataclasses.dataclass(frozen=True)
class Subject:
  """The subject of a search.

  Attributes:
    name: A description.
    model: The model.
    example_l2_norm_clip: C_g.
    mean: Computes the mean of the clipped gradients as training does.
    means: The same for several data sets of one size, one after the other:
      (weights, features [k, n, ...], labels [k, n]) -> tensors [k, ...].
    single: (weights, features [1, ...], labels [1]) -> the outputs, and the
      unclipped gradient of this one example.
    slopes: (weights, features, labels, index, feature, label) of a `Pair` ->
      the gradient of the logarithm of the movement, with respect to all
      features of D, and to those of the replaced example in D'.
    unit: What is protected: 'example' or 'user'.
    steps: How a client trains: `local_steps`, `learning_rate` and
      `l2_regularization`. For a mean gradient, values that make it the update.
  """

  name: str
  model: tff.learning.models.FunctionalModel
  example_l2_norm_clip: float
  mean: Callable[..., list[tf.Tensor]]
  means: Callable[..., list[tf.Tensor]]
  single: Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]
  slopes: Callable[..., list[tf.Tensor]]
  unit: str = 'example'
  steps: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'local_steps': 1, 'learning_rate': 1.0}
  )

  @property
  def weights(self) -> list[np.ndarray]:
    """The model's initial weights."""
    return list(self.model.initial_weights[0])


def subject(
  name: str,
  model: tff.learning.models.FunctionalModel,
  example_l2_norm_clip: float,
  clipped_sum: clipping.ClippedSum | None = None,
  mean: Callable[..., list[tf.Tensor]] = clipping.clipped_mean_gradient,
) -> Subject:
  """Returns the subject for a model's mean of clipped gradients in training.

  Args:
    name: A description.
    model: As for `federated.build_learning_process`.
    example_l2_norm_clip: C_g.
    clipped_sum: How to sum over a microbatch; by default, as in training.
    mean: How to sum over microbatches; by default, as in training.

  Raises:
    ValueError: If training would refuse the model.
  """
  if clipped_sum is None:
    clipped_sum = client_work.clipped_sum(model, example_l2_norm_clip)
  features_spec, labels_spec = model.input_spec
  summed = clipped_sum

  weights_spec = [
    tf.TensorSpec(np.shape(w), w.dtype) for w in model.initial_weights[0]
  ]

  def mean_gradient(weights, features, labels):
    return mean(
      summed,
      list(weights),
      features,
      labels,
      example_l2_norm_clip=example_l2_norm_clip,
    )

  def mean_gradients(weights, features, labels):
    results = tf.nest.map_structure(
      lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
      mean_gradient(weights, features[0], labels[0]),
    )
    return tf.map_fn(
      lambda data: mean_gradient(weights, *data),
      (features, labels),
      fn_output_signature=results,
    )

  def single(weights, features, labels):
    weights = list(weights)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs = model.predict_on_batch((tuple(weights), ()), features, True)
      loss = model.loss(outputs, labels)
    return outputs, tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )

  def slopes(weights, features, labels, index, feature, label):
    with tf.GradientTape() as tape:
      tape.watch([features, feature])
      other = tf.tensor_scatter_nd_update(
        features, [[index]], feature[tf.newaxis]
      )
      other_labels = tf.tensor_scatter_nd_update(labels, [[index]], [label])
      movement = tf.add_n(
        [
          tf.reduce_sum(tf.square(tf.cast(a - b, tf.float64)))
          for a, b in zip(
            mean_gradient(weights, features, labels),
            mean_gradient(weights, other, other_labels),
            strict=True,
          )
        ]
      )
      objective = tf.math.log(movement + 1e-300)
    return tape.gradient(
      objective,
      [features, feature],
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )

  def graph(function, *more, lead=()):
    specs = (
      tf.TensorSpec([*lead, *spec.shape], spec.dtype)
      for spec in (features_spec, labels_spec)
    )
    return tf.function(
      function, autograph=False, input_signature=[weights_spec, *specs, *more]
    )

  one = tf.TensorSpec(features_spec.shape[1:], features_spec.dtype)
  scalar = tf.TensorSpec([], tf.int32)
  return Subject(
    *(name, model, example_l2_norm_clip),
    mean=graph(mean_gradient),
    means=graph(mean_gradients, lead=[None]),
    single=graph(single),
    slopes=graph(slopes, scalar, one, scalar),
  )


def update_subject(
  name: str,
  model: tff.learning.models.FunctionalModel,
  l2_norm_clip: float,
  steps: Mapping[str, Any],
) -> Subject:
  """Returns the subject for a user's clipped update as it is sent, negated.

  Args:
    name: A description.
    model: As for `federated.build_learning_process`.
    l2_norm_clip: C_u, in place of C_g.
    steps: As for `Subject`.
  """
  update = client_work.clipped_update(model, l2_norm_clip=l2_norm_clip, **steps)

  def mean(summed, weights, features, labels, *, example_l2_norm_clip):
    del summed, example_l2_norm_clip
    found = update(weights, {'x': features, 'y': labels})
    return [-part for part in found]

  found = subject(name, model, l2_norm_clip, lambda *_: [], mean)
  return dataclasses.replace(found, unit='user', steps=dict(steps))


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two data sets that differ in one example.

  Attributes:
    family: How the pair was found.
    weights: Weights of the model.
    features: Features of D, [n, ...].
    labels: Labels of D, [n].
    index: Index of the example that differs.
    feature: Features of that example in D'.
    label: Label of that example in D'.
    ratio: n |g(D) - g(D')| / (2 C_g); inf where a mean is not finite.
  """

  family: str
  weights: list[np.ndarray]
  features: np.ndarray
  labels: np.ndarray
  index: int
  feature: np.ndarray
  label: np.ndarray
  ratio: float = 0.0

  @property
  def examples(self) -> int:
    """n, the size of either data set."""
    return len(self.labels)

  @property
  def data(self) -> tuple[np.ndarray, np.ndarray]:
    """D."""
    return self.features, self.labels

  @property
  def alternative(self) -> tuple[np.ndarray, np.ndarray]:
    """D'."""
    features, labels = self.features.copy(), self.labels.copy()
    features[self.index], labels[self.index] = self.feature, self.label
    return features, labels


def flat(tensors: Sequence) -> np.ndarray:
  """Concatenates all values of tensors, float64 [d]."""
  return np.concatenate(
    [np.ravel(np.asarray(t)).astype(np.float64) for t in tensors]
  )


def tensors(weights, data) -> list:
  """Converts weights and data to arguments of a `Subject`'s functions."""
  features, labels = data
  return [
    [tf.constant(w) for w in weights],
    tf.constant(features),
    tf.constant(labels, tf.int32),
  ]


def mean_of(target: Subject, weights, data) -> np.ndarray:
  """Computes the mean of the clipped gradients, float64 [d]."""
  return flat(target.mean(*tensors(weights, data)))


def distance_ratio(target: Subject, one: np.ndarray, other: np.ndarray, n: int):
  """Computes the ratio of two means; inf if one is not finite."""
  with np.errstate(over='ignore', invalid='ignore'):
    distance = float(np.linalg.norm(one - other))
  if not math.isfinite(distance):
    return math.inf
  return distance * n / (2 * target.example_l2_norm_clip)


def measured(target: Subject, pair: Pair) -> Pair:
  """Returns the pair with its measured ratio."""
  one = mean_of(target, pair.weights, pair.data)
  other = mean_of(target, pair.weights, pair.alternative)
  return dataclasses.replace(
    pair, ratio=distance_ratio(target, one, other, pair.examples)
  )


def _example_gradient(
  target: Subject, weights: Sequence[np.ndarray], feature, label
) -> np.ndarray:
  """Computes the unclipped gradient of a single example, float64 [d]."""
  _, gradient = target.single(*tensors(weights, (feature[np.newaxis], [label])))
  return flat(gradient)


def gradient_error(
  target: Subject, weights: Sequence[np.ndarray], data
) -> float:
  """Distance of the mean from that of single clipped gradients, over C_g.

  Args:
    target: The subject.
    weights: Weights of the model.
    data: Features [n, ...] and labels [n].
  """
  clip = target.example_l2_norm_clip
  total: np.ndarray | float = 0.0
  for feature, label in zip(*data, strict=True):
    gradient = _example_gradient(target, weights, feature, label)
    norm = float(np.linalg.norm(gradient))
    if math.isfinite(norm):
      total = total + gradient / max(1.0, norm / clip)
  mean = mean_of(target, weights, data)
  error = float(np.linalg.norm(mean - total / len(data[1])) / clip)
  return error if math.isfinite(error) else math.inf


def measured_together(target: Subject, pairs: Sequence[Pair]) -> list[Pair]:
  """Measures pairs that share D."""
  data = [pairs[0].data, *(pair.alternative for pair in pairs)]
  stacked = [np.stack(parts) for parts in zip(*data, strict=True)]
  means = target.means(*tensors(pairs[0].weights, stacked))
  rows = np.concatenate(
    [np.reshape(part, [len(data), -1]).astype(np.float64) for part in means],
    axis=1,
  )
  return [
    dataclasses.replace(
      pair, ratio=distance_ratio(target, rows[0], row, pair.examples)
    )
    for pair, row in zip(pairs, rows[1:], strict=True)
  ]
