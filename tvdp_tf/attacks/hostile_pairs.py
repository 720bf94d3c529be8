r"""A search for two data sets that move the clipped mean gradient too far.

The guarantee of `mechanism=gradient` rests on one inequality: whatever the
model, its weights and the data, replacing one of n examples moves the mean of
the clipped gradients by at most 2 C_g / n. This module searches for a pair of
data sets that violates it, on the function that trains (`clipped_mean`), in
floating point. The measure is the ratio

  n |g(D) - g(D')| / (2 C_g),

which is at most 1 if the guarantee holds, rounding included. The search tries

* data sets that are hostile to arithmetic and to layers that mix the examples
  of a batch: norms from 1e-4 to 1e30; repeated, equal and single-valued
  examples; values that are NaN or infinite; weights from 1e-19 to large; sizes
  at the edge of a microbatch;
* an ascent from the best of them: along the gradient of the movement with
  respect to all examples if available, otherwise by random steps;
* sums close to a power of two, for a model with one weight. There the spacing
  of floating-point numbers doubles, and later addends are rounded differently
  in D and in D' (Casacuberta, Shoemate, Vadhan and Wagaman, "Widespread
  Underestimation of Sensitivity in Differentially Private Libraries and How to
  Fix It", 2022). The code of the sums is the same for every model.

It also compares the mean with that of the single examples' clipped gradients:
training on something else is a bug, even if it leaks nothing. If users are
protected, the search is for data sets of one example that move a user's clipped
update by more than 2 C_u.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tvdp_tf import _json
from tvdp_tf.attacks import clipped_mean
from tvdp_tf.federated import models
from tvdp_tf.learning import clipping
from tvdp_tf.learning import models as models_lib

SIZES = (1, 2, 7, 64, 65, 600)
# Larger sizes use fewer contents and weights, because they take longer.
_LARGE = 64
# Steps of a bisection.
_DRAWN_STEPS = 40

# What an example's features can be multiplied by or replaced with.
_CONTENTS = (
  *('uniform', 'data', 'repeated', 'scaled', 'normal', 'one value', 'equal'),
  *('zero', 'huge', 'tiny', 'broken', 'edge', 'graded'),
)
_CONTENTS_OF_LARGE = ('uniform', 'repeated', 'scaled')
_WEIGHTS = ('initial', 'random', 'large', 'tiny', 'edge')
_WEIGHTS_OF_LARGE = ('initial', 'random')
REPLACEMENTS = (
  *('label', 'negative', 'zero', 'one value', '1e4', '2e18', '1e30'),
  *('infinite', 'NaN'),
)
# In float32, squares of smaller numbers are zero, and of larger ones infinite.
_LEAST_SQUARED, _MOST_SQUARED = 1e-19, 1.8e19
# Norm of the gradients of `graded` examples, in clips.
_GRADE = 100.0
_SCALES = (1e-3, 1e5)


class HostileData:
  """Draws data sets for a subject."""

  def __init__(
    self,
    target: clipped_mean.Subject,
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
    """Makes an example that the model is so sure of that it is hardly clipped.

    For a small C_g, its gradient is so small that squares underflow.
    """
    pattern = self._rng.standard_normal(self._shape)
    wanted = _GRADE * self._target.example_l2_norm_clip
    label: Any = np.int32(0)
    low, high = _SCALES
    for step in range(_DRAWN_STEPS):
      # A bisection: the larger the scale, the surer the model.
      scale = math.sqrt(low * high)
      feature = self._cast(scale * pattern)
      for _ in range(2 if step == 0 else 1):
        outputs, gradient = self._target.single(
          *clipped_mean.tensors(weights, (feature[np.newaxis], [label]))
        )
        if step == 0 and self._labels > 2:
          label = np.argmax(np.ravel(outputs)).astype(np.int32)
      norm = float(np.linalg.norm(clipped_mean.flat(gradient)))
      if norm > wanted:
        low = scale
      else:
        high = scale
    return self._cast(low * pattern), label

  def contents(
    self, kind: str, n: int, weights: Sequence[np.ndarray]
  ) -> tuple[np.ndarray, np.ndarray]:
    """Makes features [n, ...] and labels [n] of a kind, for given weights."""
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
    """Makes weights, however unusual: the guarantee covers all weights."""
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
    """Makes the replacement of one example."""
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


def families(
  sizes: Sequence[int], rng: np.random.Generator
) -> list[tuple[int, str, str]]:
  """Returns (n, weights, contents) in random order: all kinds come early."""
  found = [
    (n, weights, contents)
    for n in sizes
    for weights in (_WEIGHTS_OF_LARGE if n >= _LARGE else _WEIGHTS)
    for contents in (_CONTENTS_OF_LARGE if n >= _LARGE else _CONTENTS)
  ]
  return [found[place] for place in rng.permutation(len(found))]


def family_pairs(
  maker: HostileData, n: int, weights: str, contents: str
) -> list[clipped_mean.Pair]:
  """Makes pairs that share D."""
  drawn = maker.weights(weights)
  features, labels = maker.contents(contents, n, drawn)
  found = []
  for place, kind in enumerate(REPLACEMENTS):
    index = 0 if place % 2 else n - 1
    feature, label = maker.replacement(kind, features[index], labels[index])
    family = f'{contents}, weights {weights}, replaced: {kind}'
    found.append(
      clipped_mean.Pair(family, drawn, features, labels, index, feature, label)
    )
  return found


# A sum of this many clips is a power of two.
_BINADE = 2.0**16


def linear_probe() -> models.KerasFunctionalModel:
  """Returns a model whose gradient on an example x (a number, label 0) is x.

  It has one weight, 0, and the hinge loss.
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


def binade_pair(
  target: clipped_mean.Subject, later: int = 33_024
) -> clipped_mean.Pair:
  """Makes a pair whose sums straddle a power of two, for the `linear_probe`.

  Clipped examples bring the sum to 2^16 C_g; the example that differs moves it
  above or below. Then come `later` examples. Each of their microbatches
  subtracts slightly less than half of the float32 spacing above 2^16. Summed in
  float32, this changes nothing above, and more than it should below.

  Args:
    target: The subject of a `linear_probe`.
    later: The number of later examples, a multiple of 64.

  Returns:
    The pair, measured. In exact arithmetic, its ratio is that of one example.
  """
  clip, size = target.example_l2_norm_clip, clipping.MICROBATCH_SIZE
  # The sum must be at a power of two, whatever the clip.
  power = 2.0 ** round(math.log2(_BINADE * clip))
  one = clipped_mean.mean_of(target, target.weights, _probe_data([2 * clip]))[0]
  before = int(power / one) // size * size + size
  fraction = 0.0
  small = 0.999 * power * 2.0**-24 / size
  for _ in range(4):  # Addends are rounded: measure, then correct.
    first = [0.0, fraction, *([2 * clip] * before)]
    first += [0.0] * (-len(first) % size)
    total = clipped_mean.mean_of(target, target.weights, _probe_data(first))[
      0
    ] * len(first)
    fraction = float(np.clip(fraction + power - total, -1e3, 1e3))
    while fraction < -clip:
      before, fraction = before - 1, fraction + one
    while fraction > clip:
      before, fraction = before + 1, fraction - one
  first = [2 * clip, fraction, *([2 * clip] * before)]
  first += [0.0] * (-len(first) % size)
  values = np.array([*first, *([-small] * later)], np.float32)
  features, labels = _probe_data(values)
  return clipped_mean.measured(
    target,
    clipped_mean.Pair(
      *('binade', target.weights, features, labels, 0),
      *(-features[0], labels[0]),
    ),
  )


def _probe_data(values) -> tuple[np.ndarray, np.ndarray]:
  features = np.asarray(values, np.float32)[:, np.newaxis]
  return features, np.zeros(len(features), np.int32)


# Tolerance of the measurement itself, in float64.
TOLERANCE = 1e-9
# Tolerance for the same float32 mean summed in another order.
GRADIENT_TOLERANCE = 1e-2

SECONDS = 60.0
_ASCENTS = 4
_STEPS = 40


@dataclasses.dataclass(frozen=True)
class Finding:
  """The worst pair of a family."""

  subject: str
  family: str
  examples: int
  ratio: float


@dataclasses.dataclass(frozen=True)
class SearchResult:
  """The result of a search.

  Attributes:
    subject: The subject of the worst pair.
    worst: The worst pair.
    findings: Findings for every family and size, in the order of the search.
    pairs: How many pairs were measured.
    gradient_error: Largest distance of the mean from that of the examples' own
      clipped gradients, relative to C_g. None if users are protected.
    repeatable: Whether the same data give the same mean. If not, as with
      dropout, distances mean nothing, and no pair was measured.
  """

  subject: clipped_mean.Subject
  worst: clipped_mean.Pair | None
  findings: tuple[Finding, ...]
  pairs: int
  gradient_error: float | None
  repeatable: bool = True

  @property
  def ratio(self) -> float:
    """The ratio of the worst pair; 0 if none was measured."""
    return 0.0 if self.worst is None else self.worst.ratio

  @property
  def refuted(self) -> bool:
    """Whether a pair moves the mean further than allowed."""
    return self.ratio > 1 + TOLERANCE

  @property
  def wrong_gradient(self) -> bool:
    """Whether training uses something other than the model's gradient."""
    error = self.gradient_error
    return error is not None and error > GRADIENT_TOLERANCE

  def to_json_dict(self) -> dict[str, Any]:
    """Returns all but the examples, ready for `json.dumps`."""
    worst = self.worst
    return {
      'pairs': self.pairs,
      'repeatable': self.repeatable,
      'largest_ratio': _json.number(self.ratio),
      'subject': self.subject.name,
      'family': None if worst is None else worst.family,
      'examples': None if worst is None else worst.examples,
      'gradient_error': (
        None
        if self.gradient_error is None
        else _json.number(self.gradient_error)
      ),
      'refuted': self.refuted,
      'wrong_gradient': self.wrong_gradient,
    }


def _stepped(values: np.ndarray, slope: np.ndarray, share: float) -> np.ndarray:
  """Moves values along the slope by a fraction of their own norm."""
  norm = float(np.linalg.norm(slope.astype(np.float64)))
  length = share * max(float(np.linalg.norm(values.astype(np.float64))), 1e-3)
  return (values + slope * (length / norm)).astype(values.dtype)


def ascend(
  target: clipped_mean.Subject,
  start: clipped_mean.Pair,
  rng: np.random.Generator,
  steps: int = _STEPS,
) -> clipped_mean.Pair:
  """Returns the best pair of an ascent, by gradient or by random steps.

  Args:
    target: The subject.
    start: A measured pair with finite floating-point features.
    rng: Draws the random steps.
    steps: Number of steps.
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
      # A plateau, for example where all gradients are clipped.
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
    current = clipped_mean.measured(
      target,
      dataclasses.replace(current, features=values[0], feature=values[1]),
    )
    if current.ratio > best.ratio:
      best = current
    else:
      share *= 0.9
  return dataclasses.replace(best, family=f'{best.family}, then ascent')


def search(
  target: clipped_mean.Subject,
  *,
  data: tuple[np.ndarray, np.ndarray] | None = None,
  seed: int = 0,
  sizes: Sequence[int] = SIZES,
  ascents: int = _ASCENTS,
  probe: clipped_mean.Subject | None = None,
  seconds: float = SECONDS,
  progress: bool = False,
) -> SearchResult:
  """Searches for the pair that moves the mean furthest.

  Args:
    target: The model under attack.
    data: Features and labels to draw examples from, besides made-up ones.
    seed: The same seed searches the same pairs.
    sizes: n of the pairs; only 1 if users are protected.
    ascents: From how many of the pairs to start an ascent.
    probe: The `subject` of a `linear_probe` for `binade_pair`, or None.
    seconds: About how long to search. For a large model, not all pairs are
      measured.
    progress: Whether to show a progress bar.

  Returns:
    The result.
  """
  rng = np.random.default_rng(seed)
  maker = HostileData(target, data, rng)
  plain = maker.contents('uniform', 5, target.weights)
  if not _repeats(target, plain):
    return SearchResult(target, None, (), 0, 0.0, repeatable=False)
  error: float | None = None
  if target.unit == 'example':
    error = max(
      clipped_mean.gradient_error(target, maker.weights(kind), plain)
      for kind in ('initial', 'random')
    )
  else:
    sizes = [1]
  found: list[clipped_mean.Pair] = []
  began = time.monotonic()
  with tqdm.tqdm(unit='pair', disable=not progress) as bar:
    for family in families(sizes, rng):
      if found and time.monotonic() - began > seconds / 2:
        break
      pairs = family_pairs(maker, *family)
      found.append(
        max(clipped_mean.measured_together(target, pairs), key=_ratio)
      )
      bar.update(len(pairs))
    count = len(found) * len(REPLACEMENTS)
    findings = [_finding(target, pair) for pair in found]
    worst, worst_subject = max(found, key=_ratio), target
    for start in _starts(found, ascents) if maker.differentiable else ():
      if time.monotonic() - began > seconds:
        break
      best = ascend(target, start, rng)
      bar.update(_STEPS)
      count += _STEPS
      findings.append(_finding(target, best))
      worst = max(worst, best, key=_ratio)
    if probe is not None:
      pair = binade_pair(probe)
      bar.update()
      count += 1
      findings.append(_finding(probe, pair))
      # If both are within the bound, keep the model's own.
      if pair.ratio > max(worst.ratio, 1 + TOLERANCE):
        worst, worst_subject = pair, probe
  return SearchResult(worst_subject, worst, tuple(findings), count, error)


def _finding(target: clipped_mean.Subject, pair: clipped_mean.Pair) -> Finding:
  return Finding(target.name, pair.family, pair.examples, pair.ratio)


def _ratio(pair: clipped_mean.Pair) -> float:
  return pair.ratio


def _repeats(target: clipped_mean.Subject, data) -> bool:
  first, second = (
    clipped_mean.mean_of(target, target.weights, data) for _ in range(2)
  )
  return np.array_equal(first, second, equal_nan=True)


def _starts(
  found: Sequence[clipped_mean.Pair], count: int
) -> list[clipped_mean.Pair]:
  """Returns the best pair of each content, to start ascents from."""
  best: dict[str, clipped_mean.Pair] = {}
  for pair in sorted(found, key=_ratio, reverse=True):
    finite = (
      np.isfinite(pair.features).all() and np.isfinite(pair.feature).all()
    )
    if finite and 2 <= pair.examples <= 65 and math.isfinite(pair.ratio):
      best.setdefault(pair.family.partition(',')[0], pair)
  return list(best.values())[:count]
