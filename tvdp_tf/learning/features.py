"""Features: a fixed function of one example, computed once for each client.

A linear model on good features learns in a few steps what a network with random
weights learns in hundreds. At a small epsilon this is decisive (Tramer and
Boneh, 2021). Features cost no privacy: a function of one example, independent
of the others, maps two data sets that differ in one example to two that differ
in one example. The function has to meet no other requirement.

`scattering` is kymatio's scattering transform (Mallat) of images:

  opponent colors, if there are three color channels
  first- and second-order wavelet moduli, averaged: J scales, 8 angles
  mean 0 and variance 1 in each group of channels of an example
  the mean with the mirrored image, if there are colors
  norm 1, minus the mean of synthetic images, their channels' covariance to the
  power -1/4, and norm 1 again

All of it is a function of one image: parameters are fitted to synthetic images
only. Statistics of private images would cost privacy; those of randomly
generated images cost nothing. There are two kinds: strokes, as in drawings, and
dead leaves, opaque random shapes that cover one another, whose statistics are
known to be close to those of photographs (Lee, Mumford and Huang, 2001).

`unit_norm` is the example itself, flattened and divided by its norm.

To use your own features, pass a function of one example, an array, that returns
an array of a fixed shape:

  settings = TrainingSettings(features=my_function, model='linear')

Or pass a Keras model with public weights, such as one that was trained on
public data; it is called for one example at a time, too.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tqdm

from tvdp_tf import _validate
from tvdp_tf.learning import aligned, datasets, synthetic_images

NONE = 'none'
_CHUNK = 256
# Number of public test examples to check a function with.
_PROBES = 8
_EPSILON = 1e-5
_KERAS = ('keras', 'tf_keras')


@dataclasses.dataclass(frozen=True)
class Features:
  """A map from examples to features.

  Attributes:
    name: The value of `--features`.
    compute: Maps examples [n, ...] to features [n, ...], float32. Each row of
      the result depends only on the same row of the examples.
    shape: Maps the shape of one example to that of its features; None to find
      out by computing one.
    function: The function of one example, if `compute` calls one; or None.
  """

  name: str
  compute: Callable[[np.ndarray], np.ndarray]
  shape: Callable[[Sequence[int]], tuple[int, ...]] | None = None
  function: Callable[[np.ndarray], np.ndarray] | None = None

  @property
  def author(self) -> str:
    """The module that makes this claim; empty for this library's features."""
    module = (self.function or self.compute).__module__
    return '' if module.startswith('tvdp_tf.') else module

  @property
  def privacy_words(self) -> str:
    """The reason why they cost no privacy, for a privacy statement."""
    claim = f', as {self.author} claims' if self.author else ''
    return (
      f'features ({self.name}) are a fixed, public function of one example'
      f' alone{claim}: exchanging an example exchanges its features and no'
      " other's, so they cost no privacy"
    )


def _orders(side: int) -> int:
  """J: scales of two pixels and more; small images only have room for one."""
  return 2 if side >= 16 else 1


_ANGLES = 8
# Added to the covariance, for directions that synthetic images lack.
_RIDGE = 0.1
_POWER = -0.25
_SYNTHETIC_IMAGES = 2000


def _sides(input_shape: Sequence[int]) -> tuple[int, int, int]:
  """Returns (scales J, rows, columns) of the coefficients.

  Raises:
    ValueError: If the shape is not that of an image of at least 8 x 8.
  """
  if len(input_shape) != 3 or min(input_shape[:2]) < 8:
    raise ValueError(
      'features must be none for examples that are not images of at least'
      f' 8 x 8, got scattering for {tuple(input_shape)}'
    )
  scales = _orders(min(input_shape[:2]))
  return scales, input_shape[0] >> scales, input_shape[1] >> scales


def _channels(scales: int) -> tuple[int, ...]:
  """The number of channels of each order."""
  pairs = scales * (scales - 1) // 2
  orders = (1, _ANGLES * scales, _ANGLES**2 * pairs)
  return tuple(count for count in orders if count)


def scattering_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
  """Shape of the scattering features of an image, flattened.

  Raises:
    ValueError: If the shape is not that of an image of at least 8 x 8.
  """
  scales, rows, columns = _sides(input_shape)
  colors = input_shape[2]
  if colors > 1:
    columns -= columns // 2  # The mean is symmetric: half is enough.
  return (colors * sum(_channels(scales)) * rows * columns,)


@functools.lru_cache(maxsize=4)
def _transform(height: int, width: int) -> Any:
  from kymatio.numpy import Scattering2D  # noqa: PLC0415

  scales = _orders(min(height, width))
  return Scattering2D(J=scales, shape=(height, width), L=_ANGLES)


def _opponent(images: np.ndarray) -> np.ndarray:
  """Converts RGB to intensity, red-green, blue-yellow; keeps other channels."""
  if images.shape[3] != 3:
    return images
  red, green, blue = np.moveaxis(images, 3, 0)
  return np.stack(
    [
      (red + green + blue) / 3,
      (red - green) / 2,
      (red + green - 2 * blue) / 4,
    ],
    axis=3,
  )


def group_normalized(maps: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
  """Normalizes each group of channels of an example to mean 0 and variance 1.

  Args:
    maps: float32 [n, channels, ...].
    sizes: Sizes of the groups of consecutive channels.

  Returns:
    float32, of the same shape.
  """
  result = np.empty_like(maps)
  start = 0
  for size in sizes:
    group = maps[:, start : start + size].reshape(len(maps), -1)
    group = group - group.mean(axis=1, keepdims=True)
    variance = np.mean(group * group, axis=1, keepdims=True)
    group = group / np.sqrt(variance + _EPSILON)
    result[:, start : start + size] = group.reshape(
      len(maps), size, *maps.shape[2:]
    )
    start += size
  return result


def mirrored(maps: np.ndarray, scales: int) -> np.ndarray:
  """Approximates the coefficients of the mirrored image by those of the image.

  A sample of the mirrored image lies 2^-J of a step before one of the image;
  values between samples are interpolated.

  Args:
    maps: float32 [n, channels, rows, columns], of whole transforms.
    scales: J.
  """
  angles = np.arange(_ANGLES)
  turned = (_ANGLES - 2 - angles) % _ANGLES
  first = [1 + j * _ANGLES + turned for j in range(scales)]
  pairs = (turned[:, np.newaxis] * _ANGLES + turned).ravel()
  second = [
    1 + _ANGLES * scales + k * _ANGLES**2 + pairs
    for k in range(scales * (scales - 1) // 2)
  ]
  order = np.concatenate([[0], *first, *second])
  planes = maps.shape[1] // len(order)
  order = np.concatenate([k * len(order) + order for k in range(planes)])
  at = maps[:, order, :, ::-1]
  after = np.concatenate([at[..., :1], at[..., :-1]], axis=3)
  share = np.float32(2.0**-scales)
  return share * at + (1 - share) * after


def _unit(rows: np.ndarray) -> np.ndarray:
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  return rows / np.maximum(norms, 1e-9)


def _normalized_maps(images: np.ndarray) -> np.ndarray:
  """Returns float32 [n, channels, rows, columns], before any fitted step."""
  height, width, colors = images.shape[1:]
  scales = _sides(images.shape[1:])[0]
  planes = np.moveaxis(_opponent(images), 3, 1)
  planes = np.ascontiguousarray(planes, np.float32)
  maps = np.asarray(_transform(height, width)(planes), np.float32)
  # [n, colors, channels, ...] -> [n, colors * channels, ...].
  maps = maps.reshape(len(images), -1, *maps.shape[-2:])
  if colors == 1:
    return group_normalized(maps, [3] * (maps.shape[1] // 3))
  maps = group_normalized(maps, _channels(scales) * colors)
  both = (maps + mirrored(maps, scales)) / 2
  return both[..., both.shape[3] // 2 :]


@functools.lru_cache(maxsize=4)
def _fitted(input_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """Fits (mean [values], matrix [channels, channels]) to synthetic images."""
  height, width, colors = input_shape
  images = synthetic_images.dead_leaves(_SYNTHETIC_IMAGES, *input_shape)
  if colors == 1:
    half = _SYNTHETIC_IMAGES // 2
    drawn = synthetic_images.strokes(half, height, width)
    images = np.concatenate([images[:half], drawn[..., np.newaxis]])
  maps = np.concatenate(
    [
      _normalized_maps(images[start : start + _CHUNK])
      for start in range(0, len(images), _CHUNK)
    ]
  )
  rows = _unit(maps.reshape(len(maps), -1))
  mean = rows.mean(axis=0)
  centred = _unit(rows - mean).reshape(*maps.shape[:2], -1).astype(np.float64)
  covariance = np.tensordot(centred, centred, ((0, 2), (0, 2))) / len(maps)
  values, vectors = np.linalg.eigh(covariance)
  values = np.maximum(values, 0)
  powers = (values + _RIDGE * values.mean()) ** _POWER
  return mean, ((vectors * powers) @ vectors.T).astype(np.float32)


def scattering(images: np.ndarray) -> np.ndarray:
  """Scattering features, of norm 1 for each image; see above.

  Args:
    images: float32 [n, height, width, colors].

  Returns:
    float32 [n, values], see `scattering_shape`.

  Raises:
    ValueError: If they are not images, or are too small.
  """
  size = scattering_shape(images.shape[1:])
  mean, whitening = _fitted(images.shape[1:])
  maps = _normalized_maps(images)
  centred = _unit(maps.reshape(-1, *size)) - mean
  channels = centred.reshape(*maps.shape[:2], -1)
  # One image at a time: the bits do not depend on the other images.
  whitened = np.stack([whitening @ image for image in channels])
  return _unit(whitened.reshape(-1, *size))


def unit_norm(examples: np.ndarray) -> np.ndarray:
  """Flattens each example and divides it by its norm; zero stays zero.

  Args:
    examples: float32 [n, ...].

  Returns:
    float32 [n, values].
  """
  return _unit(examples.reshape(len(examples), -1))


FEATURES = {
  'scattering': Features('scattering', scattering, scattering_shape),
  'unit_norm': Features(
    'unit_norm', unit_norm, lambda shape: (math.prod(shape),)
  ),
}


# What a model of features may read: its weights and its tables.
_READING_OPS = frozenset(
  (
    *('VarHandleOp', 'ReadVariableOp', 'ResourceGather', 'ResourceGatherNd'),
    *('LookupTableFindV2', 'LookupTableSizeV2'),
  )
)


class _OfModel:
  """A Keras model as a function of one example."""

  def __init__(self, model: Any):
    if len(getattr(model, 'outputs', None) or [None]) != 1:
      raise ValueError(
        f'features must be a model with one output, got {len(model.outputs)}'
      )
    if not model.built:
      raise ValueError(
        'features must be a model with weights, got one that has not been'
        f' built: {model.name}. Call it once'
      )
    self.model = model
    digest = hashlib.sha256()
    for weight in model.get_weights():
      digest.update(np.ascontiguousarray(weight).tobytes())
    # Models of one name may have other weights.
    name = re.sub(r'\W', '_', model.name)
    self.__name__ = f'{name}_{digest.hexdigest()[:8]}'
    self.__module__ = 'the caller'  # Who makes the claim: `Features.author`.

  @functools.cached_property
  def _compiled(self) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    return tf.function(lambda batch: self.model(batch, training=False))

  def __call__(self, example: np.ndarray) -> np.ndarray:
    return np.asarray(self._compiled(example[np.newaxis]))[0]

  def check(self, example: np.ndarray) -> None:
    """Refuses a model that could keep what it has seen of an example."""
    from tvdp_tf.learning import functional  # noqa: PLC0415

    graph = self._compiled.get_concrete_function(example[np.newaxis]).graph
    for node in functional.keeping_state(graph.as_graph_def()):
      if node.op not in _READING_OPS:
        raise ValueError(
          'features must be a function of one example, got the model'
          f' {self.model.name} with the op {node.op} ({node.name}), which'
          ' stores, prints or reads something else'
        )


def _is_keras_model(function: Any) -> bool:
  """Whether it is a Keras model, without loading Keras."""
  return any(
    kind.__name__ == 'Model' and kind.__module__.partition('.')[0] in _KERAS
    for kind in type(function).__mro__
  )


def register(function: Callable[[np.ndarray], np.ndarray]) -> str:
  """Registers a function of one example under its name; returns the name.

  It is called for one example at a time, so it can mix them only through a
  state that it keeps (see `check`). If it fails on an example, the features are
  NaN and the gradient counts as zero: an error would show the example to
  everybody.

  Args:
    function: The function; or a Keras model, which is called with one example
      and training=False.

  Raises:
    ValueError: If another function has the name.
  """
  if _is_keras_model(function):
    function = _OfModel(function)
  name = getattr(function, '__name__', '')  # Not every callable has one.

  def compute(examples):
    # A copy: the function may return the same array each time.
    return np.stack([np.array(function(x), np.float32) for x in examples])

  known = FEATURES.get(name)
  if (
    not name.isidentifier()
    or name == NONE
    or (known is not None and not _is_the_same(known.function, function))
  ):
    raise ValueError(
      'features must have a name that is an identifier and not that of other'
      f' features, got {name!r}'
    )
  FEATURES[name] = Features(name, compute, function=function)
  return name


def _is_the_same(known: Any, function: Any) -> bool:
  """Whether `function` is the known one, or a later definition of it."""
  if isinstance(known, _OfModel) and isinstance(function, _OfModel):
    return True
  return known is function or (
    isinstance(known, types.FunctionType)
    and isinstance(function, types.FunctionType)
    and (known.__module__, known.__qualname__)
    == (function.__module__, function.__qualname__)
  )


def check_name(name: str) -> str:
  """Checks and returns the name of features.

  Raises:
    ValueError: If there are no such features.
  """
  if isinstance(name, str) and name in FEATURES:
    return name
  ours = [known for known, found in FEATURES.items() if not found.author]
  more = '; or, in Python, a function of one example or a Keras model'
  return _validate.one_of('features', name, (NONE, *ours), more)


def check(features: Features, examples: np.ndarray) -> None:
  """Checks that a row of the features depends only on the same example.

  It changes the values of the other examples and the order of the calls. The
  row must stay the same, bit for bit.

  Args:
    features: What to check.
    examples: Public examples, [n, ...].

  Raises:
    ValueError: If it does not, or is not a finite array of a fixed shape.
  """
  probes = np.array(examples[:_PROBES])
  if isinstance(features.function, _OfModel):
    features.function.check(probes[0])

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
        f'features must be a function of one example, got {features.name},'
        ' whose features of an example depend on the other examples'
      )


def _of_any(
  features: Features, examples: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
  """Computes features [n, *shape] of private examples, without errors."""
  if features.function is None:
    return features.compute(examples)
  rows = np.full([len(examples), *shape], np.nan, np.float32)
  for row, example in zip(rows, examples, strict=True):
    with contextlib.suppress(Exception):  # Any error: user code.
      found = np.asarray(features.function(example), np.float32)
      if found.shape == tuple(shape):
        row[...] = found
  return rows


def output_shape(name: str, input_shape: Sequence[int]) -> tuple[int, ...]:
  """Shape of the features of an example of shape `input_shape`.

  Raises:
    ValueError: If there are no such features, or they do not fit the shape.
  """
  if check_name(name) == NONE:
    return tuple(input_shape)
  features = FEATURES[name]
  if features.shape is not None:
    return features.shape(input_shape)
  try:
    return features.compute(np.zeros([1, *input_shape], np.float32)).shape[1:]
  except Exception as error:  # Any error: user code.
    raise ValueError(
      f'features must accept any example of the shape {tuple(input_shape)},'
      f' such as zeros, got {_validate.failure(error)}'
    ) from error


def digest(name: str, dataset: datasets.Dataset) -> str:
  """Digest of a user's own function: of its features of public test examples.

  Empty for this library's features, which are identified by their names.
  """
  if check_name(name) == NONE or not FEATURES[name].author:
    return ''
  found = FEATURES[name].compute(dataset.test_features[:_PROBES])
  return hashlib.sha256(np.round(found, 3).tobytes()).hexdigest()


def applied(
  name: str,
  dataset: datasets.Dataset,
  clients: Sequence[np.ndarray | range],
  progress: bool = False,
) -> datasets.Dataset:
  """Replaces the examples of a data set by features, computed once per client.

  Args:
    name: A key of `FEATURES`, or 'none'.
    dataset: The examples, in the order of the clients (`datasets.dealt`).
    clients: The ranges of the clients' training examples.
    progress: Whether to draw a progress bar if it takes long.

  Returns:
    The data set, with features in place of examples.

  Raises:
    ValueError: If there are no such features, or they do not fit the data.
  """
  if check_name(name) == NONE:
    return dataset
  if dataset.is_on_disk:
    raise ValueError(
      f'features must be none for data on the disk, which are read in every '
      f'round, got {name!r}: save the features, and train on these files'
    )
  features = FEATURES[name]
  shape = output_shape(name, dataset.train_features.shape[1:])
  check(features, dataset.test_features)
  total = len(dataset.train_features) + len(dataset.test_features)
  with tqdm.tqdm(
    total=total,
    unit='example',
    desc=name,
    delay=2,
    disable=not (progress and sys.stderr),
  ) as bar:

    def compute(examples, parts, of=features.compute):
      result = aligned.empty([len(examples), *shape], np.float32)

      def fill(part: Any) -> None:
        for start in range(part.start, part.stop, _CHUNK):
          end = min(start + _CHUNK, part.stop)
          result[start:end] = of(examples[start:end])
          bar.update(end - start)

      # A user's function may reuse a buffer, so it is not thread-safe.
      threads = 1 if features.function else os.cpu_count()
      with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, parts))
      return result

    # A warning could reveal a private example. Filters apply to the whole
    # process, so this is around all threads.
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      train_features = compute(
        dataset.train_features,
        clients,
        lambda examples: _of_any(features, examples, shape),
      )
    return dataclasses.replace(
      dataset,
      train_features=train_features,
      test_features=compute(
        dataset.test_features, [range(len(dataset.test_features))]
      ),
    )
