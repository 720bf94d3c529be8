r"""A search for two data sets that move the clipped mean gradient too far.

The guarantee of `mechanism=gradient` rests on one inequality: whatever the
model, its weights and the data, replacing one of n examples moves the mean of
the clipped gradients by at most 2 C_g / n. Here a pair of data sets is looked
for that breaks it, on the very function that trains (`subject`), which computes
it in floating point. The measure is the ratio

  n |g(D) - g(D')| / (2 C_g),

at most 1 where the guarantee holds, rounding included. The search goes through

* data sets that are hostile to arithmetic and to layers that mix the examples
  of a batch: norms from 1e-4 to 1e30, repeated, equal and single-valued
  examples, others that are not numbers; weights from 1e-19 to large; sizes at
  the edges of a microbatch;
* an ascent from the best of them: the gradient of the movement with respect to
  all examples where it can be had, else random steps;
* sums that sit at a power of two, where the spacing of floating-point numbers
  doubles and later addends round one way in D and another in D' (Casacuberta,
  Shoemate, Vadhan and Wagaman, "Widespread Underestimation of Sensitivity in
  Differentially Private Libraries and How to Fix It", 2022), on a model of one
  weight: the sums are the same code for every model.

It also compares the mean with that of the examples' own gradients, each clipped
by itself: training on something else is a bug, if not a leak.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tvdp_tf.federated import client_work, models
from tvdp_tf.learning import clipping
from tvdp_tf.learning import models as models_lib

# Of the measurement itself, in float64.
TOLERANCE = 1e-9
# What a mean in float32 may differ by from that of another order of sums.
GRADIENT_TOLERANCE = 1e-2

SIZES = (1, 2, 7, 64, 65, 600)
SECONDS = 60.0
# From here on fewer contents and weights: they take longer.
_LARGE = 64
_ASCENTS = 4
_STEPS = 40
# A sum of so many clips sits at a power of two.
_BINADE = 2.0**16

# (weights, features [n, ...], labels [n]) -> the mean, as the weights.
MeanGradient = Callable[
  [Sequence[np.ndarray], np.ndarray, np.ndarray], list[tf.Tensor]
]


@dataclasses.dataclass(frozen=True)
class Subject:
  """What is searched.

  Attributes:
    name: In words.
    model: Of the mean.
    example_l2_norm_clip: C_g.
    mean: How training computes the mean of the clipped gradients.
    means: The same of several data sets of one size, one after the other:
      (weights, features [k, n, ...], labels [k, n]) -> tensors [k, ...].
    single: (weights, features [1, ...], labels [1]) -> the outputs, and the
      gradient of this one example, not clipped.
    slopes: (weights, features, labels, index, feature, label) of a `Pair` ->
      the gradient of the logarithm of the movement, with respect to all
      features of D, and to those of the example that is another in D'.
  """

  name: str
  model: tff.learning.models.FunctionalModel
  example_l2_norm_clip: float
  mean: Callable[..., list[tf.Tensor]]
  means: Callable[..., list[tf.Tensor]]
  single: Callable[..., tuple[tf.Tensor, list[tf.Tensor]]]
  slopes: Callable[..., list[tf.Tensor]]

  @property
  def weights(self) -> list[np.ndarray]:
    """The initial ones."""
    return list(self.model.initial_weights[0])


def subject(
  name: str,
  model: tff.learning.models.FunctionalModel,
  example_l2_norm_clip: float,
  clipped_sum: clipping.ClippedSum | None = None,
  mean: Callable[..., list[tf.Tensor]] = clipping.clipped_mean_gradient,
) -> Subject:
  """A model's mean of clipped gradients, as it is trained on.

  Args:
    name: In words.
    model: As for `federated.build_learning_process`.
    example_l2_norm_clip: C_g.
    clipped_sum: How a microbatch is summed; by default as training does it.
    mean: How microbatches are summed; by default as training does it.

  Raises:
    ValueError: If training would refuse the model.
  """
  if clipped_sum is None:
    clipped_sum = client_work._clipped_sum(model, example_l2_norm_clip)
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


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two data sets that differ in one example.

  Attributes:
    family: How they were found.
    weights: Of the model.
    features: Of D, [n, ...].
    labels: Of D, [n].
    index: Of the example that differs.
    feature: In D', that example's features.
    label: In D', its label.
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
    """n, of either."""
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


@dataclasses.dataclass(frozen=True)
class Finding:
  """The worst pair of a family."""

  subject: str
  family: str
  examples: int
  ratio: float


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """What was found.

  Attributes:
    subject: Of the worst pair.
    worst: The worst pair.
    findings: Of every family and size, as they were searched.
    pairs: How many pairs were measured.
    gradient_error: Distance of the mean from that of the examples' own clipped
      gradients, relative to C_g: the largest.
    repeatable: Whether the same data give the same mean. If not, as with
      dropout, distances say nothing, and no pair was measured.
  """

  subject: Subject
  worst: Pair | None
  findings: tuple[Finding, ...]
  pairs: int
  gradient_error: float
  repeatable: bool = True

  @property
  def ratio(self) -> float:
    """Of the worst pair; 0 if none was measured."""
    return 0.0 if self.worst is None else self.worst.ratio

  @property
  def refuted(self) -> bool:
    """Whether a pair moves the mean further than is allowed."""
    return self.ratio > 1 + TOLERANCE

  @property
  def wrong_gradient(self) -> bool:
    """Whether what is trained on is not the model's gradient."""
    return self.gradient_error > GRADIENT_TOLERANCE

  def to_json_dict(self) -> dict[str, Any]:
    """All but the examples, ready for `json.dumps`."""
    worst = self.worst
    return {
      'pairs': self.pairs,
      'repeatable': self.repeatable,
      'largest_ratio': self.ratio if math.isfinite(self.ratio) else 'inf',
      'subject': self.subject.name,
      'family': None if worst is None else worst.family,
      'examples': None if worst is None else worst.examples,
      'gradient_error': (
        self.gradient_error if math.isfinite(self.gradient_error) else 'inf'
      ),
      'refuted': self.refuted,
      'wrong_gradient': self.wrong_gradient,
    }


def _flat(tensors: Sequence) -> np.ndarray:
  return np.concatenate(
    [np.ravel(np.asarray(t)).astype(np.float64) for t in tensors]
  )


def _tensors(weights, data) -> list:
  features, labels = data
  return [
    [tf.constant(w) for w in weights],
    tf.constant(features),
    tf.constant(labels, tf.int32),
  ]


def _mean(target: Subject, weights, data) -> np.ndarray:
  return _flat(target.mean(*_tensors(weights, data)))


def _distance(target: Subject, one: np.ndarray, other: np.ndarray, n: int):
  """The ratio of two means; inf where one is not finite."""
  with np.errstate(over='ignore', invalid='ignore'):
    distance = float(np.linalg.norm(one - other))
  if not math.isfinite(distance):
    return math.inf
  return distance * n / (2 * target.example_l2_norm_clip)


def measured(target: Subject, pair: Pair) -> Pair:
  """The pair with its ratio."""
  one = _mean(target, pair.weights, pair.data)
  other = _mean(target, pair.weights, pair.alternative)
  return dataclasses.replace(
    pair, ratio=_distance(target, one, other, pair.examples)
  )


# What an example's features can be multiplied by or replaced with.
_CONTENTS = (
  *('uniform', 'data', 'repeated', 'scaled', 'normal', 'one value', 'equal'),
  *('zero', 'huge', 'tiny', 'broken', 'edge', 'graded'),
)
_CONTENTS_OF_LARGE = ('uniform', 'repeated', 'scaled')
_WEIGHTS = ('initial', 'random', 'large', 'tiny', 'edge')
_WEIGHTS_OF_LARGE = ('initial', 'random')
_REPLACEMENTS = (
  *('label', 'negative', 'zero', 'one value', '1e4', '2e18', '1e30'),
  *('infinite', 'NaN'),
)
# A square of less is zero in float32, and one of more is infinite.
_LEAST_SQUARED, _MOST_SQUARED = 1e-19, 1.8e19
# How long the gradients of `graded` examples are, in clips.
_GRADE = 100.0
_SCALES = (1e-3, 1e5)


class _Maker:
  """Draws data sets for a subject."""

  def __init__(
    self,
    target: Subject,
    data: tuple[np.ndarray, np.ndarray] | None,
    rng: np.random.Generator,
  ):
    spec, _ = target.model.input_spec
    self._shape = [size or 3 for size in spec.shape[1:]]
    self._dtype = spec.dtype.as_numpy_dtype
    self.differentiable = spec.dtype.is_floating
    self._target = target
    self._data = data
    self._rng = rng
    self._initial = target.weights
    outputs = target.model.predict_on_batch(
      (tuple(self._initial), ()), np.zeros([1, *self._shape], self._dtype), True
    )
    classes = outputs.shape[-1]
    self._labels = 2 if classes in (None, 1) else int(classes)

  def _cast(self, features: np.ndarray) -> np.ndarray:
    with np.errstate(over='ignore', invalid='ignore'):
      if self.differentiable:
        return features.astype(self._dtype)
      return np.nan_to_num(np.clip(features, -9, 9)).astype(self._dtype)

  def _one_value(self, n: int) -> np.ndarray:
    size = math.prod(self._shape)
    features = np.zeros([n, size])
    features[np.arange(n), self._rng.integers(size, size=n)] = 10.0
    return features.reshape([n, *self._shape])

  def _signs(self, shape: Sequence[int]) -> np.ndarray:
    return self._rng.integers(0, 2, shape) * 2 - 1

  def _graded(
    self, weights: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, np.ndarray]:
    """An example the model is so sure of that its gradient is hardly clipped.

    For a small C_g its gradient is small enough for squares to be lost.
    """
    pattern = self._rng.standard_normal(self._shape)
    wanted = _GRADE * self._target.example_l2_norm_clip
    label: Any = np.int32(0)
    low, high = _SCALES
    for step in range(_STEPS):
      # The larger the scale, the surer the model: bisection.
      scale = math.sqrt(low * high)
      feature = self._cast(scale * pattern)
      for _ in range(2 if step == 0 else 1):
        outputs, gradient = self._target.single(
          *_tensors(weights, (feature[np.newaxis], [label]))
        )
        if step == 0 and self._labels > 2:
          label = np.argmax(np.ravel(outputs)).astype(np.int32)
      norm = float(np.linalg.norm(_flat(gradient)))
      if norm > wanted:
        low = scale
      else:
        high = scale
    return self._cast(low * pattern), label

  def contents(
    self, kind: str, n: int, weights: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, ...] and labels [n] of a kind, for a model's weights."""
    rng, shape = self._rng, [n, *self._shape]
    labels = rng.integers(self._labels, size=n).astype(np.int32)
    if kind == 'data' and self._data is not None:
      chosen = rng.integers(len(self._data[1]), size=n)
      return self._data[0][chosen], self._data[1][chosen]
    if kind == 'graded':
      feature, label = self._graded(weights)
      features = np.broadcast_to(feature, shape)
      labels[:] = label
    elif kind == 'edge':
      value = 0.9 * _MOST_SQUARED / math.sqrt(math.prod(self._shape))
      features = value * self._signs(shape)
    elif kind == 'repeated':
      features = np.broadcast_to(rng.random(shape[1:]), shape)
      labels[:] = labels[0]
    elif kind == 'scaled':
      features = rng.standard_normal(shape)
      norms = rng.permutation(np.geomspace(1e-4, 1e30, n))
      features = features * norms.reshape([-1] + [1] * len(self._shape))
    elif kind == 'normal':
      features = 3 * rng.standard_normal(shape)
    elif kind == 'one value':
      features = self._one_value(n)
    elif kind in ('equal', 'zero', 'huge', 'tiny'):
      value = {'equal': 1.0, 'zero': 0.0, 'huge': 2e18, 'tiny': 1e-19}[kind]
      features = np.full(shape, value)
    else:
      features = rng.random(shape)
      if kind == 'broken':
        features[n // 2] = math.nan
        features[n // 3] = math.inf
    return self._cast(features), labels

  def weights(self, kind: str) -> list[np.ndarray]:
    """Of the model: any, for a guarantee is about all of them."""
    if kind == 'initial':
      return self._initial
    if kind == 'edge':
      return [
        (0.7 * _LEAST_SQUARED * self._signs(w.shape)).astype(w.dtype)
        for w in self._initial
      ]
    scale = {'random': 0.3, 'large': 30.0, 'tiny': 1e-19}[kind]
    return [
      (
        (w if kind == 'random' else np.zeros_like(w))
        + scale * self._rng.standard_normal(w.shape)
      ).astype(w.dtype)
      for w in self._initial
    ]

  def replacement(
    self, kind: str, feature: np.ndarray, label: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """What one example is replaced with."""
    changed = ((label + 1) % self._labels).astype(np.int32)
    if kind == 'label':
      return feature, changed
    if kind == 'negative':
      return self._cast(-feature.astype(np.float64)), label
    if kind == 'one value':
      return self._cast(self._one_value(1)[0]), changed
    value = {'zero': 0.0, 'infinite': math.inf, 'NaN': math.nan}.get(kind)
    if value is None:
      return self._cast(self._signs(feature.shape) * float(kind)), changed
    return self._cast(np.full(feature.shape, value)), changed


def _families(
  sizes: Sequence[int], rng: np.random.Generator
) -> list[tuple[int, str, str]]:
  """(n, weights, contents) in random order, of all kinds soon."""
  found = [
    (n, weights, contents)
    for n in sizes
    for weights in (_WEIGHTS_OF_LARGE if n >= _LARGE else _WEIGHTS)
    for contents in (_CONTENTS_OF_LARGE if n >= _LARGE else _CONTENTS)
  ]
  return [found[place] for place in rng.permutation(len(found))]


def _pairs(maker: _Maker, n: int, weights: str, contents: str) -> list[Pair]:
  """Pairs that share D."""
  drawn = maker.weights(weights)
  features, labels = maker.contents(contents, n, drawn)
  pairs = []
  for place, kind in enumerate(_REPLACEMENTS):
    index = 0 if place % 2 else n - 1
    feature, label = maker.replacement(kind, features[index], labels[index])
    family = f'{contents}, weights {weights}, replaced: {kind}'
    pairs.append(Pair(family, drawn, features, labels, index, feature, label))
  return pairs


def _stepped(values: np.ndarray, slope: np.ndarray, share: float) -> np.ndarray:
  """Values moved along the slope by a share of their own norm."""
  norm = float(np.linalg.norm(slope.astype(np.float64)))
  length = share * max(float(np.linalg.norm(values.astype(np.float64))), 1e-3)
  return (values + slope * (length / norm)).astype(values.dtype)


def ascend(
  target: Subject, start: Pair, rng: np.random.Generator, steps: int = _STEPS
) -> Pair:
  """The best pair on a way up from one, by gradient or at random.

  Args:
    target: What is searched.
    start: Of finite floating-point features, measured.
    rng: Of the random steps.
    steps: How many.
  """
  best = current = start
  share = 0.3
  for _ in range(steps):
    found: Sequence[np.ndarray] | None = None
    try:
      found = [
        np.asarray(slope)
        for slope in target.slopes(
          [tf.constant(w) for w in current.weights],
          *map(tf.constant, (current.features, current.labels)),
          tf.constant(current.index),
          *map(tf.constant, (current.feature, current.label)),
        )
      ]
    except Exception:  # Not every op can be differentiated twice.
      found = None
    if (
      found is None
      or not all(np.isfinite(f).all() for f in found)
      or not any(np.linalg.norm(f.astype(np.float64)) > 0 for f in found)
    ):
      # A plateau, as where all gradients are clipped.
      current = best
      found = [
        rng.standard_normal(values.shape)
        for values in (current.features, current.feature)
      ]
    values = [
      _stepped(value, slope, share) if np.any(slope) else value
      for value, slope in zip(
        (current.features, current.feature), found, strict=True
      )
    ]
    current = measured(
      target,
      dataclasses.replace(current, features=values[0], feature=values[1]),
    )
    if current.ratio > best.ratio:
      best = current
    else:
      share *= 0.9
  return dataclasses.replace(best, family=f'{best.family}, then ascent')


def linear_probe() -> models.KerasFunctionalModel:
  """A model whose gradient on an example x, a number of label 0, is x.

  One weight, 0, and the hinge loss.
  """
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=(1,)),
      tf.keras.layers.Dense(1, use_bias=False, kernel_initializer='zeros'),
    ]
  )
  loss = models_lib.MODELS['svm'].loss
  spec = models_lib.ModelSpec('probe', lambda *_: keras_model, loss)
  return models.KerasFunctionalModel(spec, keras_model)


def binade_pair(target: Subject, later: int = 33_024) -> Pair:
  """A pair whose sums straddle a power of two, for the `linear_probe`.

  Clipped examples bring the sum to 2^16 C_g; the example that differs puts it
  above or below. Then come `later` examples, each microbatch of which takes
  away a little less than half of what float32 tells apart above 2^16: added up
  in float32 it is nothing above, and more than it should be below.

  Args:
    target: Of a `linear_probe`.
    later: How many such examples, a multiple of 64.

  Returns:
    The pair, measured. In exact arithmetic its ratio is that of one example.
  """
  clip, size = target.example_l2_norm_clip, clipping.MICROBATCH_SIZE
  # Powers of two are those of the sum, whatever the clip.
  power = 2.0 ** round(math.log2(_BINADE * clip))
  one = _mean(target, target.weights, _probe_data([2 * clip]))[0]
  before = int(power / one) // size * size + size
  fraction = 0.0
  small = 0.999 * power * 2.0**-24 / size
  for _ in range(4):  # What is added up is rounded: measured, then corrected.
    first = [0.0, fraction, *([2 * clip] * before)]
    first += [0.0] * (-len(first) % size)
    total = _mean(target, target.weights, _probe_data(first))[0] * len(first)
    fraction = float(np.clip(fraction + power - total, -1e3, 1e3))
    while fraction < -clip:
      before, fraction = before - 1, fraction + one
    while fraction > clip:
      before, fraction = before + 1, fraction - one
  first = [2 * clip, fraction, *([2 * clip] * before)]
  first += [0.0] * (-len(first) % size)
  values = np.array([*first, *([-small] * later)], np.float32)
  features, labels = _probe_data(values)
  return measured(
    target,
    Pair(
      *('binade', target.weights, features, labels, 0),
      *(-features[0], labels[0]),
    ),
  )


def _probe_data(values) -> tuple[np.ndarray, np.ndarray]:
  features = np.asarray(values, np.float32)[:, np.newaxis]
  return features, np.zeros(len(features), np.int32)


def _example_gradient(
  target: Subject, weights: Sequence[np.ndarray], feature, label
) -> np.ndarray:
  """Of a single example, not clipped, float64 [d]."""
  _, gradient = target.single(
    *_tensors(weights, (feature[np.newaxis], [label]))
  )
  return _flat(gradient)


def gradient_error(
  target: Subject, weights: Sequence[np.ndarray], data
) -> float:
  """Distance of the mean from that of single clipped gradients, over C_g.

  Args:
    target: What is searched.
    weights: Of the model.
    data: Features [n, ...] and labels [n].
  """
  clip = target.example_l2_norm_clip
  total: np.ndarray | float = 0.0
  for feature, label in zip(*data, strict=True):
    gradient = _example_gradient(target, weights, feature, label)
    norm = float(np.linalg.norm(gradient))
    if math.isfinite(norm):
      total = total + gradient / max(1.0, norm / clip)
  mean = _mean(target, weights, data)
  error = float(np.linalg.norm(mean - total / len(data[1])) / clip)
  return error if math.isfinite(error) else math.inf


def search(
  target: Subject,
  *,
  data: tuple[np.ndarray, np.ndarray] | None = None,
  seed: int = 0,
  sizes: Sequence[int] = SIZES,
  ascents: int = _ASCENTS,
  probe: Subject | None = None,
  seconds: float = SECONDS,
  progress: bool = False,
) -> SearchResult:
  """Looks for the pair that moves the mean furthest.

  Args:
    target: The model under attack.
    data: Features and labels to draw examples from, beside those made up.
    seed: The same seed searches the same pairs.
    sizes: n of the pairs.
    ascents: From how many of the pairs to go on upwards.
    probe: A `subject` of the `linear_probe` for `binade_pair`; None for none.
    seconds: About how long to search: of a large model not all pairs are
      looked at.
    progress: Whether to show a bar.

  Returns:
    The result.
  """
  rng = np.random.default_rng(seed)
  maker = _Maker(target, data, rng)
  plain = maker.contents('uniform', 5, target.weights)
  if not _repeats(target, plain):
    return SearchResult(target, None, (), 0, 0.0, repeatable=False)
  error = max(
    gradient_error(target, maker.weights(kind), plain)
    for kind in ('initial', 'random')
  )
  found: list[Pair] = []
  began = time.monotonic()
  with tqdm.tqdm(unit='pair', disable=not progress) as bar:
    for family in _families(sizes, rng):
      if found and time.monotonic() - began > seconds / 2:
        break
      pairs = _pairs(maker, *family)
      found.append(max(_measured_together(target, pairs), key=_ratio))
      bar.update(len(pairs))
    count = len(found) * len(_REPLACEMENTS)
    findings = [
      Finding(target.name, p.family, p.examples, p.ratio) for p in found
    ]
    worst, worst_subject = max(found, key=_ratio), target
    for start in _starts(found, ascents) if maker.differentiable else ():
      if time.monotonic() - began > seconds:
        break
      best = ascend(target, start, rng)
      bar.update(_STEPS)
      count += _STEPS
      findings.append(
        Finding(target.name, best.family, best.examples, best.ratio)
      )
      worst = max(worst, best, key=_ratio)
    if probe is not None:
      pair = binade_pair(probe)
      bar.update()
      count += 1
      findings.append(
        Finding(probe.name, pair.family, pair.examples, pair.ratio)
      )
      # Of two that are as they should be, the model's own.
      if pair.ratio > max(worst.ratio, 1 + TOLERANCE):
        worst, worst_subject = pair, probe
  return SearchResult(worst_subject, worst, tuple(findings), count, error)


def _ratio(pair: Pair) -> float:
  return pair.ratio


def _repeats(target: Subject, data) -> bool:
  first, second = (_mean(target, target.weights, data) for _ in range(2))
  return np.array_equal(first, second, equal_nan=True)


def _measured_together(target: Subject, pairs: Sequence[Pair]) -> list[Pair]:
  """Pairs of one D."""
  data = [pairs[0].data, *(pair.alternative for pair in pairs)]
  stacked = [np.stack(parts) for parts in zip(*data, strict=True)]
  means = target.means(*_tensors(pairs[0].weights, stacked))
  rows = np.concatenate(
    [np.reshape(part, [len(data), -1]).astype(np.float64) for part in means],
    axis=1,
  )
  return [
    dataclasses.replace(
      pair, ratio=_distance(target, rows[0], row, pair.examples)
    )
    for pair, row in zip(pairs, rows[1:], strict=True)
  ]


def _starts(found: Sequence[Pair], count: int) -> list[Pair]:
  """The best pair of each content: where to go on from."""
  best: dict[str, Pair] = {}
  for pair in sorted(found, key=_ratio, reverse=True):
    finite = (
      np.isfinite(pair.features).all() and np.isfinite(pair.feature).all()
    )
    if finite and 2 <= pair.examples <= 65 and math.isfinite(pair.ratio):
      best.setdefault(pair.family.partition(',')[0], pair)
  return list(best.values())[:count]
