"""Features: a fixed function of one example, computed once a client.

A linear model of good features learns in a few steps what a network from random
weights needs hundreds for; at a small epsilon that decides (Tramer and Boneh,
2021). They cost no privacy: a function of one example that knows nothing of the
others turns two data sets that differ in one example into two that differ in
one example. That, and nothing else, is asked of the function.

`scattering` is kymatio's scattering transform (Mallat) of images, normalized in
groups of channels, an example at a time, and scaled to norm 1.

Features of your own are a function of one example, an array, that returns an
array of a fixed shape:

  settings = TrainingSettings(features=my_function, model='linear')
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tqdm

from tvdp_tf import _validate
from tvdp_tf.learning import aligned, datasets

NONE = 'none'
_CHUNK = 256
# Of the public test examples, to see what a function does.
_PROBES = 8
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Features:
  """A map from examples to features.

  Attributes:
    name: The word of `--features`.
    compute: Of examples [n, ...] to features [n, ...], float32; each row of the
      result depends on the same row of the examples alone.
    shape: Of the shape of one example to that of its features; None to find out
      by computing one.
    author: The module that claims so; empty for this library's.
  """

  name: str
  compute: Callable[[np.ndarray], np.ndarray]
  shape: Callable[[Sequence[int]], tuple[int, ...]] | None = None
  author: str = ''

  @property
  def privacy_words(self) -> str:
    """Why they cost nothing, for a statement."""
    claim = f', as {self.author} claims' if self.author else ''
    return (
      f'features ({self.name}) are a fixed, public function of one example'
      f' alone{claim}: exchanging an example exchanges its features and no'
      " other's, so that they cost no privacy"
    )


def _orders(side: int) -> int:
  """J: scales of two pixels and more; small images have room for one."""
  return 2 if side >= 16 else 1


_ANGLES = 8


def scattering_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
  """Of the scattering coefficients of an image, flat.

  Raises:
    ValueError: If it is not the shape of an image of at least 8 x 8.
  """
  if len(input_shape) != 3 or min(input_shape[:2]) < 8:
    raise ValueError(
      'features must be none for examples that are not images of at least'
      f' 8 x 8, got scattering for {tuple(input_shape)}'
    )
  height, width, colors = input_shape
  orders = _orders(min(height, width))
  channels = 1 + _ANGLES * orders + _ANGLES**2 * (orders - 1)
  return (colors * channels * (height >> orders) * (width >> orders),)


@functools.lru_cache(maxsize=4)
def _transform(height: int, width: int) -> Any:
  from kymatio.numpy import Scattering2D  # noqa: PLC0415

  orders = _orders(min(height, width))
  return Scattering2D(J=orders, shape=(height, width), L=_ANGLES)


def group_normalized(maps: np.ndarray, groups: int) -> np.ndarray:
  """Each example's maps with mean 0 and variance 1 in each group of channels.

  Args:
    maps: float32 [n, channels, ...].
    groups: Of consecutive channels; it divides their number.

  Returns:
    float32, of the same shape.
  """
  grouped = maps.reshape(len(maps), groups, -1)
  grouped = grouped - grouped.mean(axis=2, keepdims=True)
  variance = np.mean(grouped * grouped, axis=2, keepdims=True)
  return (grouped / np.sqrt(variance + _EPSILON)).reshape(maps.shape)


def scattering(images: np.ndarray) -> np.ndarray:
  """Normalized scattering coefficients, of norm 1 for each image.

  Args:
    images: float32 [n, height, width, colors].

  Returns:
    float32 [n, values], see `scattering_shape`.

  Raises:
    ValueError: If they are no images, or too small.
  """
  size = scattering_shape(images.shape[1:])
  height, width = images.shape[1:3]
  planes = np.ascontiguousarray(np.moveaxis(images, 3, 1), np.float32)
  maps = np.asarray(_transform(height, width)(planes), np.float32)
  # [n, colors, channels, ...], one color after the other.
  maps = maps.reshape(len(images), -1, *maps.shape[-2:])
  flat = group_normalized(maps, maps.shape[1] // 3).reshape(-1, *size)
  norms = np.linalg.norm(flat, axis=1, keepdims=True)
  return flat / np.maximum(norms, 1e-9)


FEATURES = {'scattering': Features('scattering', scattering, scattering_shape)}


def register(function: Callable[[np.ndarray], np.ndarray]) -> str:
  """Makes a function of one example known by its name; returns the name.

  It is called for one example at a time, so that it cannot mix them, but by a
  state that it keeps (see `check`).

  Raises:
    ValueError: If another function has the name.
  """
  name = function.__name__

  def compute(examples):
    return np.stack([np.asarray(function(x), np.float32) for x in examples])

  known = FEATURES.get(name)
  if not name.isidentifier() or (
    known is not None and _source(known.compute) is not function
  ):
    raise ValueError(f'features must have a name of their own, got {name!r}')
  if known is None:
    FEATURES[name] = Features(name, compute, author=function.__module__)
  return name


def _source(compute: Any) -> Any:
  """The function that `register` has wrapped; None of any other."""
  cells = getattr(compute, '__closure__', None) or ()
  return cells[0].cell_contents if cells else None


def check_name(name: str) -> str:
  """The name, if there are such features.

  Raises:
    ValueError: If there are none.
  """
  return _validate.one_of('features', name, (NONE, *FEATURES))


def check(features: Features, examples: np.ndarray) -> None:
  """Checks that a row of the features depends on the same example alone.

  The values of the other examples are exchanged, and the order of the calls:
  the row must stay as it is, to the bit.

  Args:
    features: What to check.
    examples: Public examples, [n, ...].

  Raises:
    ValueError: If it does not, or is not a finite array of one shape.
  """
  probes = np.array(examples[:_PROBES])

  def computed(values):
    found = features.compute(values)
    if found.shape[:1] != values.shape[:1] or not np.isfinite(found).all():
      raise ValueError(
        'features must be a finite array of one shape for each example, got'
        f' {features.name} of shape {found.shape}, finite:'
        f' {bool(np.isfinite(found).all())}'
      )
    return found

  expected = computed(probes)
  for kept in range(len(probes)):
    others = np.where(probes[::-1] > 0, 0, 1 - probes).astype(probes.dtype)
    others[kept] = probes[kept]
    if not np.array_equal(computed(others)[kept], expected[kept]):
      raise ValueError(
        'features must be a function of one example, got'
        f' {features.name}, which gives other features for the same example'
        ' among others'
      )


def output_shape(name: str, input_shape: Sequence[int]) -> tuple[int, ...]:
  """Shape of the features of an example of `input_shape`.

  Raises:
    ValueError: If there are no such features, or they do not fit.
  """
  if check_name(name) == NONE:
    return tuple(input_shape)
  features = FEATURES[name]
  if features.shape is not None:
    return features.shape(input_shape)
  return features.compute(np.zeros([1, *input_shape], np.float32)).shape[1:]


def digest(name: str, dataset: datasets.Dataset) -> str:
  """Of what a function of the user's own makes of public test examples.

  Empty for this library's features: their names say what they are.
  """
  if check_name(name) == NONE or not FEATURES[name].author:
    return ''
  found = FEATURES[name].compute(dataset.test_features[:_PROBES])
  return hashlib.sha256(np.round(found, 3).tobytes()).hexdigest()


def applied(
  name: str,
  dataset: datasets.Dataset,
  clients: Sequence[range],
  progress: bool = False,
) -> datasets.Dataset:
  """The data set of the features, each client's computed once.

  Args:
    name: A key of `FEATURES`, or 'none'.
    dataset: The examples, in the order of the clients (`datasets.dealt`).
    clients: The ranges of their training examples.
    progress: Whether to draw a progress bar where it takes long.

  Returns:
    The data set, with features in the place of examples.

  Raises:
    ValueError: If there are no such features, or they do not fit.
  """
  if check_name(name) == NONE:
    return dataset
  features = FEATURES[name]
  shape = output_shape(name, dataset.train_features.shape[1:])
  check(features, dataset.test_features)
  total = len(dataset.train_features) + len(dataset.test_features)
  with tqdm.tqdm(
    total=total, unit='example', desc=name, delay=2, disable=not progress
  ) as bar:

    def compute(examples, parts):
      result = aligned.empty([len(examples), *shape], np.float32)

      def fill(part):
        for start in range(part.start, part.stop, _CHUNK):
          end = min(start + _CHUNK, part.stop)
          result[start:end] = features.compute(examples[start:end])
          bar.update(end - start)

      with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, parts))
      return result

    return dataclasses.replace(
      dataset,
      train_features=compute(dataset.train_features, clients),
      test_features=compute(
        dataset.test_features, [range(len(dataset.test_features))]
      ),
    )
