r"""A search for two data sets that move the clipped mean gradient too far.

The guarantee of `mechanism=gradient` rests on one inequality: whatever the
model, its weights and the data, replacing one of n examples moves the mean of
the clipped gradients by at most 2 C_g / n. Here a pair of data sets is looked
for that breaks it, on the very function that trains (`clipped_mean`), which
computes it in floating point. The measure is the ratio

  n |g(D) - g(D')| / (2 C_g),

at most 1 where the guarantee holds, rounding included. The search goes through

* data sets that are hostile to arithmetic and to layers that mix the examples
  of a batch (`hostile_data`);
* an ascent from the best of them: the gradient of the movement with respect to
  all examples where it can be had, else random steps;
* sums that sit at a power of two (`binade_pair`).

It also compares the mean with that of the examples' own gradients, each clipped
by itself: training on something else is a bug, if not a leak. Where users are
protected, data sets of one example are looked for that move a user's clipped
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
from tvdp_tf.attacks import binade_pair, clipped_mean, hostile_data

# Of the measurement itself, in float64.
TOLERANCE = 1e-9
# What a mean in float32 may differ by from that of another order of sums.
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
  """What was found.

  Attributes:
    subject: Of the worst pair.
    worst: The worst pair.
    findings: Of every family and size, as they were searched.
    pairs: How many pairs were measured.
    gradient_error: Distance of the mean from that of the examples' own clipped
      gradients, relative to C_g: the largest. None where users are protected.
    repeatable: Whether the same data give the same mean. If not, as with
      dropout, distances say nothing, and no pair was measured.
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
    """Whether a pair moves the mean further than is allowed."""
    return self.ratio > 1 + TOLERANCE

  @property
  def wrong_gradient(self) -> bool:
    """Whether what is trained on is not the model's gradient."""
    error = self.gradient_error
    return error is not None and error > GRADIENT_TOLERANCE

  def to_json_dict(self) -> dict[str, Any]:
    """All but the examples, ready for `json.dumps`."""
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
  """Values moved along the slope by a share of their own norm."""
  norm = float(np.linalg.norm(slope.astype(np.float64)))
  length = share * max(float(np.linalg.norm(values.astype(np.float64))), 1e-3)
  return (values + slope * (length / norm)).astype(values.dtype)


def ascend(
  target: clipped_mean.Subject,
  start: clipped_mean.Pair,
  rng: np.random.Generator,
  steps: int = _STEPS,
) -> clipped_mean.Pair:
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
  sizes: Sequence[int] = hostile_data.SIZES,
  ascents: int = _ASCENTS,
  probe: clipped_mean.Subject | None = None,
  seconds: float = SECONDS,
  progress: bool = False,
) -> SearchResult:
  """Looks for the pair that moves the mean furthest.

  Args:
    target: The model under attack.
    data: Features and labels to draw examples from, beside those made up.
    seed: The same seed searches the same pairs.
    sizes: n of the pairs; 1 alone where users are protected.
    ascents: From how many of the pairs to go on upwards.
    probe: A `subject` of the `linear_probe` for `binade_pair`; None for none.
    seconds: About how long to search: of a large model not all pairs are
      looked at.
    progress: Whether to show a bar.

  Returns:
    The result.
  """
  rng = np.random.default_rng(seed)
  maker = hostile_data.HostileData(target, data, rng)
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
    for family in hostile_data.families(sizes, rng):
      if found and time.monotonic() - began > seconds / 2:
        break
      pairs = hostile_data.pairs(maker, *family)
      found.append(
        max(clipped_mean.measured_together(target, pairs), key=_ratio)
      )
      bar.update(len(pairs))
    count = len(found) * len(hostile_data.REPLACEMENTS)
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
      pair = binade_pair.binade_pair(probe)
      bar.update()
      count += 1
      findings.append(
        Finding(probe.name, pair.family, pair.examples, pair.ratio)
      )
      # Of two that are as they should be, the model's own.
      if pair.ratio > max(worst.ratio, 1 + TOLERANCE):
        worst, worst_subject = pair, probe
  return SearchResult(worst_subject, worst, tuple(findings), count, error)


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
  """The best pair of each content: where to go on from."""
  best: dict[str, clipped_mean.Pair] = {}
  for pair in sorted(found, key=_ratio, reverse=True):
    finite = (
      np.isfinite(pair.features).all() and np.isfinite(pair.feature).all()
    )
    if finite and 2 <= pair.examples <= 65 and math.isfinite(pair.ratio):
      best.setdefault(pair.family.partition(',')[0], pair)
  return list(best.values())[:count]
