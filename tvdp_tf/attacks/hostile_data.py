"""Data sets that are hostile to arithmetic, and to layers that mix examples.

Norms from 1e-4 to 1e30, repeated, equal and single-valued examples, others that
are not numbers; weights from 1e-19 to large; sizes at the edge of a microbatch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvdp_tf.attacks import clipped_mean

SIZES = (1, 2, 7, 64, 65, 600)
# From here on fewer contents and weights: they take longer.
_LARGE = 64
# Of a bisection.
_STEPS = 40

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
# A square of less is zero in float32, and one of more is infinite.
_LEAST_SQUARED, _MOST_SQUARED = 1e-19, 1.8e19
# How long the gradients of `graded` examples are, in clips.
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
    """Weights of the model, however odd: a guarantee covers them all."""
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


def families(
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


def pairs(
  maker: HostileData, n: int, weights: str, contents: str
) -> list[clipped_mean.Pair]:
  """Pairs that share D."""
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
