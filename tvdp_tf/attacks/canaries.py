r"""Canaries: pairs of examples that uploads distinguish as well as possible.

The clip bounds the influence of one example on an upload: at most, it changes
its clipped gradient from d to -d with |d| = C_g. All canaries of a client come
close to this at the same time: the two examples of a pair have nearly opposite
clipped gradients, and different pairs have nearly orthogonal ones. Examples are
a single bright pixel, different for each pair, positive in one example and
negative in the other; random patterns; or real examples with another label. The
best `Family` and scale for a model are determined on its initial weights.

To first order, an upload is linear in the coins b (+1 or -1). For tau steps
with learning rate eta from w to u, n examples and noise of standard deviation
sigma on each step's mean gradient,

  n (w - u) / (eta tau) = sum of all other examples' clipped gradients
      + sum_i c_i + sum_i b_i d_i + N(0, n^2 sigma^2 / tau),

where c_i and d_i are half the sum and half the difference of the clipped
gradients of the two examples of pair i. This is exact for tau = 1; otherwise
they are computed at the mean position of the steps. The attacker knows all but
the coins and the noise. It collects the evidence of the uploads (`Evidence`)
and estimates all coins of a client at once, as if they were N(0, 1) (linear
least squares), so that pairs that are not quite orthogonal do not disturb each
other. The score of a coin is the resulting log-likelihood ratio. A lower bound
is valid for any score, even if these approximations are wrong.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.attacks import clipped_mean

# Number of examples whose gradients are held temporarily.
_CHUNK = 64
# Most numbers in the gradients of a client's canaries: one gigabyte.
_MOST_NUMBERS = 2**27
# Number of pairs to try a family on.
_TRIED = 96

# (features [c, ...], labels [c]) of the first and second example of each pair.
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Family:
  """A kind of canary.

  Attributes:
    kind: The kind of features: 'pixel', 'pattern' or 'example'.
    scale: Factor by which the features are multiplied.
    opposite: Whether the two examples of a pair differ in the sign of their
      features; otherwise they differ in the label.
  """

  kind: str
  scale: float
  opposite: bool = True

  def __str__(self) -> str:
    words = {
      'pixel': 'one value of {:g}, all others 0',
      'pattern': 'a random pattern of +-{:g}',
      'example': 'an example of the data set times {:g}',
    }
    other = 'its negative' if self.opposite else 'the same with another label'
    return f'{words[self.kind].format(self.scale)}, or {other}'


FAMILIES = (
  *(
    Family(kind, scale, opposite)
    for kind in ('pixel', 'pattern')
    for scale in (0.1, 1.0, 10.0, 100.0)
    for opposite in (True, False)
  ),
  *(Family('example', scale, False) for scale in (1.0, 10.0)),
)


def make_pairs(
  family: Family,
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  rng: np.random.Generator,
) -> Pairs:
  """Makes pairs of canaries.

  Args:
    family: The kind of canaries.
    features: Features of the examples that they replace, [c, ...].
    labels: Labels of these examples, int [c].
    num_classes: Number of classes of the data set.
    rng: Draws pixels, patterns and labels, which are public, unlike the coins.

  Returns:
    The pairs.
  """
  count = len(labels)
  size = math.prod(features.shape[1:])
  turn = np.arange(count) // size
  if family.kind == 'example':
    first = features * family.scale
  elif family.kind == 'pixel':
    first = np.zeros([count, size], features.dtype)
    # All pixels in turn, so that as few pairs as possible share one; those that
    # do have different labels.
    pixels = np.resize(rng.permutation(size), count)
    first[np.arange(count), pixels] = family.scale
  else:
    first = (rng.integers(0, 2, [count, size]) * 2 - 1) * family.scale
  first = first.reshape(features.shape).astype(features.dtype)
  if family.kind != 'example':
    labels = (np.resize(rng.integers(num_classes, size=size), count) + turn) % (
      num_classes
    )
    labels = labels.astype(np.int32)
  if family.opposite:
    return first, labels, -first, labels
  shift = rng.integers(1, num_classes, count)
  others = ((labels + shift) % num_classes).astype(labels.dtype)
  return first, labels, first, others


def chosen(pairs: Pairs, coins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Selects what the client trains on: the first example if its coin is True.

  Args:
    pairs: The canaries.
    coins: bool [c].

  Returns:
    Features [c, ...] and labels [c].
  """
  first, first_labels, second, second_labels = pairs
  shape = [-1] + [1] * (first.ndim - 1)
  return (
    np.where(coins.reshape(shape), first, second),
    np.where(coins, first_labels, second_labels),
  )


def most_canaries(parameters: int) -> int:
  """Returns how many pairs' gradients of this size fit in memory."""
  return max(1, _MOST_NUMBERS // (2 * parameters))


class ClippedGradients:
  """Clipped gradients of single examples, as the attacker knows them.

  Attributes:
    example_l2_norm_clip: C_g.
    parameters: d, the number of parameters.
  """

  def __init__(
    self,
    model: tff.learning.models.FunctionalModel,
    example_l2_norm_clip: float,
  ):
    """Traces the gradients.

    Args:
      model: As for `federated.build_learning_process`.
      example_l2_norm_clip: C_g.
    """
    self.example_l2_norm_clip = example_l2_norm_clip
    trainable, _ = model.initial_weights
    self._shapes = [np.shape(weight) for weight in trainable]
    self.parameters = sum(math.prod(shape) for shape in self._shapes)
    features_spec, labels_spec = model.input_spec

    def gradient(weights, example):
      features, label = example
      with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = model.predict_on_batch(
          (tuple(weights), ()), features[tf.newaxis], True
        )
        loss = model.loss(outputs, label[tf.newaxis])
      parts = tape.gradient(
        loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )
      parts = [tf.cast(tf.reshape(part, [-1]), tf.float32) for part in parts]
      return tf.concat(parts, axis=0)

    def gradients(map_fn, weights, features, labels):
      found = map_fn(
        lambda example: gradient(list(weights), example), (features, labels)
      )
      # Scaled by the largest value first, so that squares do not overflow.
      largest = tf.reduce_max(tf.abs(found), axis=1, keepdims=True)
      largest = tf.maximum(largest, tf.constant(1e-30))
      norms = largest * tf.norm(found / largest, axis=1, keepdims=True)
      used = tf.math.is_finite(norms)
      clip = tf.constant(example_l2_norm_clip, tf.float32)
      clipped = found * (clip / tf.maximum(norms, clip))
      return tf.where(used, clipped, tf.zeros_like(clipped))

    def traced(map_fn):
      function = tf.function(
        functools.partial(gradients, map_fn),
        autograph=False,
        input_signature=[
          [tf.TensorSpec(np.shape(w), w.dtype) for w in trainable],
          features_spec,
          labels_spec,
        ],
      )
      function.get_concrete_function()
      return function

    try:
      self._gradients = traced(functools.partial(tf.vectorized_map, warn=False))
    except Exception:  # Any error: not every op can be vectorized.
      row = tf.TensorSpec([self.parameters], tf.float32)
      self._gradients = traced(
        functools.partial(tf.map_fn, fn_output_signature=row)
      )

  def split(self, row: np.ndarray) -> list[np.ndarray]:
    """Splits a row into weights."""
    ends = np.cumsum([math.prod(shape) for shape in self._shapes])[:-1]
    return [
      part.reshape(shape).astype(np.float32)
      for part, shape in zip(np.split(row, ends), self._shapes, strict=True)
    ]

  def __call__(
    self, weights: Sequence, features: np.ndarray, labels: np.ndarray
  ) -> np.ndarray:
    """Computes the gradients of a batch, float32 [n, d]."""
    result = np.empty([len(labels), self.parameters], np.float32)
    for start in range(0, len(labels), _CHUNK):
      part = slice(start, start + _CHUNK)
      result[part] = self._gradients(
        list(weights), features[part], labels[part]
      ).numpy()
    return result

  def sum(
    self, weights: Sequence, features: np.ndarray, labels: np.ndarray
  ) -> np.ndarray:
    """Sums the gradients, float64 [d]."""
    total = np.zeros([self.parameters])
    for start in range(0, len(labels), _CHUNK):
      part = slice(start, start + _CHUNK)
      total += self(weights, features[part], labels[part]).sum(
        axis=0, dtype=np.float64
      )
    return total

  def differences(
    self, weights: Sequence, pairs: Pairs
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns d_i of all pairs, float32 [c, d], and the sum of all c_i, [d]."""
    first, first_labels, second, second_labels = pairs
    halves = self(weights, first, first_labels)
    others = self(weights, second, second_labels)
    middles = (
      halves.sum(axis=0, dtype=np.float64)
      + others.sum(axis=0, dtype=np.float64)
    ) / 2
    halves -= others
    halves *= np.float32(0.5)
    return halves, middles


class ClippedUpdates(ClippedGradients):
  """Negated clipped updates of users, used in place of gradients.

  A user holds copies of one example, so full-batch steps are those of this
  example. The user is to a sum of updates what a canary is to a mean gradient:
  d_i is half the difference of the updates of its two data sets, for any number
  of steps.
  """

  def __init__(self, target: clipped_mean.Subject):
    """See `ClippedGradients`; `target` is an `update_subject`."""
    super().__init__(target.model, target.example_l2_norm_clip)
    self._target = target

  def __call__(self, weights, features, labels):
    found = [
      self._target.means(
        list(weights),
        features[start : start + _CHUNK, np.newaxis],
        labels[start : start + _CHUNK, np.newaxis],
      )
      for start in range(0, len(labels), _CHUNK)
    ]
    rows = [
      np.concatenate([np.reshape(p, [len(p), -1]) for p in parts], axis=1)
      for parts in found
    ]
    return np.concatenate(rows).astype(np.float32)


def _solved(gram: np.ndarray) -> np.ndarray:
  """Returns the inverse of I + gram: the remaining uncertainty of the coins."""
  return np.linalg.inv(np.eye(len(gram)) + gram)


def _signal_to_noise(unknown: np.ndarray) -> np.ndarray:
  left = np.clip(np.diag(unknown), 1e-12, 1.0)
  return (1 - left) / left


class Evidence:
  """The evidence about a client's coins in its uploads.

  Attributes:
    gram: float64 [c, c], Gram matrix of the d_i over the noise, summed over
      uploads.
    projections: float64 [c], projections of what was seen on the d_i, likewise.
  """

  def __init__(self, canaries: int):
    self.gram = np.zeros([canaries, canaries])
    self.projections = np.zeros([canaries])

  def add(
    self, differences: np.ndarray, residual: np.ndarray, noise_stddev: float
  ) -> None:
    """Adds the evidence of an upload.

    Args:
      differences: d_i, float32 [c, d].
      residual: sum_i b_i d_i + noise, float64 [d].
      noise_stddev: Standard deviation of the noise in each value.
    """
    precision = noise_stddev**-2.0
    self.gram += precision * (differences @ differences.T).astype(np.float64)
    self.projections += precision * (differences @ residual.astype(np.float32))

  def scores(self) -> np.ndarray:
    """Returns log-likelihood ratios of the coins, float64 [c]; > 0 for True."""
    unknown = _solved(self.gram)
    left = np.clip(np.diag(unknown), 1e-12, 1.0)
    return 2 * (unknown @ self.projections) / left

  def separations(self) -> np.ndarray:
    """Returns how many standard deviations a score's two values are apart."""
    return 2 * np.sqrt(_signal_to_noise(_solved(self.gram)))


def planned_separations(
  differences: np.ndarray, mu: float, example_l2_norm_clip: float
) -> np.ndarray:
  """Predicts `Evidence.separations`, assuming that gradients do not change.

  Args:
    differences: d_i, [c, d].
    mu: 1 / noise multiplier of all of the client's releases together.
    example_l2_norm_clip: C_g.

  Returns:
    float64 [c], at most `mu`.
  """
  evidence = Evidence(len(differences))
  evidence.add(
    differences,
    np.zeros(differences.shape[1]),
    2 * example_l2_norm_clip / mu,
  )
  return evidence.separations()


def best_family(
  gradients: ClippedGradients,
  weights: Sequence,
  features: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  mu: float,
  rng: np.random.Generator,
  families: Sequence[Family] = FAMILIES,
) -> tuple[Family, np.ndarray]:
  """Finds the family whose pairs are best distinguished, from public facts.

  Args:
    gradients: Clipped gradients of the model.
    weights: The model's initial weights.
    features: Features of the examples that canaries replace, [c, ...].
    labels: Labels of these examples.
    num_classes: Number of classes of the data set.
    mu: As for `planned_separations`.
    rng: As for `make_pairs`.
    families: The families to choose from.

  Returns:
    The family, and the planned separations of c pairs of it.

  Raises:
    ValueError: If the model has no gradient on any of the families.
  """
  best: tuple[float, Family] | None = None
  for family in families:
    few = slice(_TRIED)
    pairs = make_pairs(family, features[few], labels[few], num_classes, rng)
    try:
      differences, _ = gradients.differences(weights, pairs)
    except tf.errors.InvalidArgumentError:
      continue  # Such as an index out of an embedding's range.
    planned = planned_separations(
      differences, mu, gradients.example_l2_norm_clip
    )
    value = float(np.mean(planned**2))
    if best is None or value > best[0]:
      best = value, family
  if best is None or best[0] == 0:
    raise ValueError('model must have a gradient on some example, got none')
  pairs = make_pairs(best[1], features, labels, num_classes, rng)
  differences, _ = gradients.differences(weights, pairs)
  return best[1], planned_separations(
    differences, mu, gradients.example_l2_norm_clip
  )
