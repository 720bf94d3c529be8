"""The data sets: a private training part and a public test part.

`digits` is scikit-learn's bundled set of 1,797 real 8x8 digits, which needs no
download. Neither do the `generated` data sets, which have the shapes of the
others and are for quick experiments. The others are read with TensorFlow
Datasets (TFDS): `tfds:NAME` is any of its classification data sets of images of
one size. `files:FOLDER` is a data set in files that may be larger than memory
(`on_disk`).

To add your own data set, write a function of `data_dir` that returns a
`Dataset` (checked by `own_arrays`):

  datasets.LOADERS['mine'] = load_mine
  settings = TrainingSettings(dataset='mine')

Decoded data sets of TFDS are cached in its folder, in one file each, because
decoding takes seconds. A cached file is used only if nothing has changed: the
name of the data set, TFDS's version, the versions of the data set that are
present, and the names, sizes and times of the decoded files. A checksum covers
the whole file. Otherwise, TFDS reads the data set again.
"""

import dataclasses
import functools
import importlib.metadata
import os
import pathlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
from absl import logging

from tvdp_tf import _arrays, _validate, errors
from tvdp_tf.learning import aligned, on_disk, own_arrays

_FOLDER = 'decoded_by_tvdp_tf'
# Larger data sets would not fit into memory twice.
_MOST_BYTES = 2**30

# (train, test, number of classes).
Parts = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray], int]


def _root(data_dir: str | None) -> pathlib.Path:
  """TFDS's folder; by default, the one that TFDS uses."""
  default = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  return pathlib.Path(data_dir or default).expanduser()


def _path(name: str, data_dir: str | None) -> pathlib.Path:
  return _root(data_dir) / _FOLDER / re.sub(r'\W', '_', name)


def _facts(name: str, root: pathlib.Path, source: str) -> list[Any]:
  """Returns the facts that must be unchanged, as JSON data.

  Raises:
    OSError: If the folder does not exist.
  """
  folder = root / source
  files = [
    [path.name, status.st_size, status.st_mtime_ns]
    for path in sorted(folder.iterdir())
    for status in [path.stat()]
  ]
  return [
    name,
    importlib.metadata.version('tensorflow-datasets'),
    source,
    sorted(os.listdir(folder.parent)),
    files,
  ]


def read_decoded(name: str, data_dir: str | None) -> Parts | None:
  """Reads a cached, decoded data set; None if it is missing or out of date.

  Args:
    name: TFDS's name of the data set.
    data_dir: TFDS's folder; by default, the one that TFDS uses.
  """
  path = _path(name, data_dir)
  try:
    if not path.is_file():  # Reading a pipe waits for a writer.
      return None
    arrays, (facts, num_classes) = _arrays.decoded(path.read_bytes())
    if facts != _facts(name, _root(data_dir), facts[2]):
      return None
    train, test = (
      {
        key.removeprefix(part): array
        for key, array in arrays.items()
        if key.startswith(part)
      }
      for part in ('train_', 'test_')
    )
    return train, test, int(num_classes)
  except (OSError, ValueError, TypeError, LookupError):
    return None


def write_decoded(
  name: str, data_dir: str | None, builder: Any, parts: Parts
) -> None:
  """Caches a decoded data set, if possible.

  Args:
    name: As for `read_decoded`.
    data_dir: As for `read_decoded`.
    builder: The TFDS builder that read the data set.
    parts: What the builder returned.
  """
  train, test, num_classes = parts
  arrays = {
    **{f'train_{name}': column for name, column in train.items()},
    **{f'test_{name}': column for name, column in test.items()},
  }
  if (
    # Third-party code may change without a new version number.
    not type(builder).__module__.startswith('tensorflow_datasets.')
    or any(column.dtype.hasobject for column in arrays.values())
    or sum(column.nbytes for column in arrays.values()) > _MOST_BYTES
  ):
    return
  path, root = _path(name, data_dir), _root(data_dir)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    source = os.path.relpath(builder.data_path, root)
    content = _arrays.encoded(arrays, [_facts(name, root, source), num_classes])
    path.parent.mkdir(exist_ok=True)
    try:
      temporary.write_bytes(content)
      # The checksum detects a file that a crash left incomplete.
      os.replace(temporary, path)
    finally:
      temporary.unlink(missing_ok=True)
  except OSError as error:  # Such as a folder without write access.
    logging.info('the decoded data set %s cannot be stored: %s', name, error)


# Replaces the name of a data set, model or split that the caller brings.
OWN = 'own'
_DIGITS_TEST_EXAMPLES = 360
# Retries after a network failure; they take two seconds in all.
_DOWNLOAD_RETRIES = 3
_SCALED_AT_ONCE = 1024
# (TFDS's name, folder) -> the data set that a thread reads ahead.
_ahead: dict[tuple[str, str | None], futures.Future[Parts | None]] = {}


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A classification data set.

  Attributes:
    name: The value of `--dataset`.
    train_features: float32 [n, ...], scaled to [0, 1] by public constants; or
      read from disk on demand. With `load(..., in_bytes=True)`, bytes until
      `dealt` scales them.
    train_labels: int32 [n], in [0, num_classes).
    test_features: float32, as above.
    test_labels: int32, as above.
    num_classes: Number of classes.
  """

  name: str
  train_features: np.ndarray | on_disk.Examples
  train_labels: np.ndarray
  test_features: np.ndarray
  test_labels: np.ndarray
  num_classes: int

  @property
  def is_on_disk(self) -> bool:
    """Whether training examples are read from disk on demand."""
    return isinstance(self.train_features, on_disk.Examples)


@dataclasses.dataclass(frozen=True)
class Facts:
  """The public facts about a data set, known before it is loaded.

  Attributes:
    examples: Size of the training part.
    input_shape: Shape of one example's features.
    num_classes: Number of classes.
  """

  examples: int
  input_shape: tuple[int, ...]
  num_classes: int


def _load_digits(data_dir: str | None) -> Dataset:
  del data_dir  # Embedded in scikit-learn.
  from sklearn import datasets as sklearn_datasets  # noqa: PLC0415

  digits = sklearn_datasets.load_digits()
  features = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
  labels = digits.target.astype(np.int32)
  # A fixed test set, the same for every seed of a run.
  order = np.random.default_rng(0).permutation(len(labels))
  test, train = order[:_DIGITS_TEST_EXAMPLES], order[_DIGITS_TEST_EXAMPLES:]
  return Dataset(
    name='digits',
    train_features=features[train],
    train_labels=labels[train],
    test_features=features[test],
    test_labels=labels[test],
    num_classes=10,
  )


def _scaled(
  images: np.ndarray, order: np.ndarray | None = None
) -> np.ndarray[Any, Any]:
  """Bytes divided by 255, float32, reordered by `order` if it is given."""
  count = len(images if order is None else order)
  result = aligned.empty([count, *images.shape[1:]], np.float32)
  # A few at a time, to avoid a second copy of all images.
  for start in range(0, count, _SCALED_AT_ONCE):
    part = slice(start, start + _SCALED_AT_ONCE)
    rows = images[part] if order is None else np.take(images, order[part], 0)
    np.divide(rows, np.float32(255), out=result[part], dtype=np.float32)
  return result


def dealt(
  dataset: Dataset, parts: Sequence[np.ndarray | range]
) -> tuple[Dataset, Sequence[np.ndarray | range]]:
  """Sorts the training examples by the users who hold them.

  A user's examples are then a view, not a copy. TFDS's bytes are scaled.

  Args:
    dataset: The data set.
    parts: For each user, the indices of its training examples.

  Returns:
    The data set with its training part in that order, and the users' ranges in
    it. A data set on disk keeps its order, and the parts are unchanged.
  """
  if dataset.is_on_disk:
    return dataset, parts
  order = np.concatenate(parts)
  ends = np.cumsum([len(part) for part in parts]).tolist()

  def taken(array):
    result = aligned.empty([len(order), *array.shape[1:]], array.dtype)
    # The default mode makes another copy.
    return np.take(array, order, axis=0, out=result, mode='clip')

  features = dataset.train_features
  assert isinstance(features, np.ndarray)
  in_bytes = features.dtype == np.uint8 and dataset.name != OWN
  ordered = dataclasses.replace(
    dataset,
    train_features=_scaled(features, order) if in_bytes else taken(features),
    train_labels=taken(dataset.train_labels),
  )
  return ordered, list(map(range, [0, *ends[:-1]], ends))


TEST_PARTS = ('all', 'tuning', 'reported')


def with_test_part(dataset: Dataset, part: str) -> Dataset:
  """Returns the data set with only a part of its test set.

  Every fifth test example is public and used to choose learning rates
  ('tuning'). Reported numbers use only the other examples ('reported').

  Args:
    dataset: The data set.
    part: One of `TEST_PARTS`.

  Returns:
    The data set.
  """
  _validate.one_of('test_part', part, TEST_PARTS)
  if part == 'all':
    return dataset
  tuning = np.arange(len(dataset.test_labels)) % 5 == 0
  kept = tuning if part == 'tuning' else ~tuning
  return dataclasses.replace(
    dataset,
    test_features=dataset.test_features[kept],
    test_labels=dataset.test_labels[kept],
  )


def _read_tfds(
  name: str, data_dir: str | None, make_builder: Callable[..., Any]
) -> tuple[Any, Any, int]:
  """(train, test) as arrays by column, and the number of classes."""
  ahead = _ahead.pop((name, data_dir), None)
  parts = read_decoded(name, data_dir) if ahead is None else ahead.result()
  if parts is not None:
    return parts
  import tensorflow_datasets as tfds  # noqa: PLC0415
  from tensorflow_datasets.core.download import downloader  # noqa: PLC0415

  tfds.disable_progress_bar()
  folder = data_dir or 'the default TFDS folder'
  try:
    builder = make_builder(data_dir=data_dir)
    if not builder.is_prepared():
      logging.warning('data set %s is not in %s: downloading it', name, folder)
      # Without a network, TFDS's ten retries would take minutes.
      downloader.MAX_RETRIES = _DOWNLOAD_RETRIES
      builder.download_and_prepare()
    train, test = (
      tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
      for split in ('train', 'test')
    )
  # TFDS raises anything from OSError to AssertionError.
  except Exception as error:
    raise errors.DatasetUnavailableError(
      f'data set {name} is not in {folder} and could not be downloaded and '
      f'prepared there: '
      f'{_validate.failure(error)}'
    ) from error
  parts = train, test, builder.info.features['label'].num_classes
  write_decoded(name, data_dir, builder, parts)
  return parts


def _image_features(columns) -> np.ndarray:
  images = columns['image']
  if images.dtype == np.uint8:
    return _scaled(images)
  return images.astype(np.float32) / 255


def _load_images(
  name: str, data_dir: str | None, in_bytes: bool = False
) -> Dataset:
  """Loads any TFDS classification data set of images of one size."""

  def make_builder(data_dir):
    import tensorflow_datasets as tfds  # noqa: PLC0415

    builder = tfds.builder(name, data_dir=data_dir)
    features, splits = builder.info.features, builder.info.splits
    if not {'image', 'label'} <= set(features):
      raise ValueError(f'it has {", ".join(features)}, not image and label')
    if None in features['image'].shape:
      raise ValueError('its images are not of one size')
    if splits and not {'train', 'test'} <= set(splits):
      raise ValueError(f'it has splits {", ".join(splits)}, not train, test')
    return builder

  train, test, num_classes = _read_tfds(name, data_dir, make_builder)
  images = train['image']
  return Dataset(
    name=name,
    train_features=images
    if in_bytes and images.dtype == np.uint8
    else _image_features(train),
    train_labels=train['label'].astype(np.int32),
    test_features=_image_features(test),
    test_labels=test['label'].astype(np.int32),
    num_classes=num_classes,
  )


def _load_adult(data_dir: str | None) -> Dataset:
  from tvdp_tf.learning import adult  # noqa: PLC0415

  train, test, num_classes = _read_tfds('adult', data_dir, adult.Adult)
  return Dataset(
    name='adult',
    train_features=adult.encode(train),
    train_labels=train['label'].astype(np.int32),
    test_features=adult.encode(test),
    test_labels=test['label'].astype(np.int32),
    num_classes=num_classes,
  )


_FACTS = {
  'digits': Facts(1437, (8, 8, 1), 10),
  'mnist': Facts(60_000, (28, 28, 1), 10),
  'fashion_mnist': Facts(60_000, (28, 28, 1), 10),
  'cifar10': Facts(50_000, (32, 32, 3), 10),
  'adult': Facts(32_561, (108,), 2),
}
_GENERATED = {
  f'generated_{name}': dataclasses.replace(facts, examples=400)
  for name, facts in _FACTS.items()
  if name != 'digits'
}


def _generate(name: str, data_dir: str | None) -> Dataset:
  """Generates a few noisy copies of a random prototype of each class."""
  del data_dir
  facts = _GENERATED[name]
  shape, num_classes = facts.input_shape, facts.num_classes
  rng = np.random.default_rng(0)
  prototypes = rng.random([num_classes, *shape])

  def draw(size):
    labels = rng.integers(0, num_classes, size).astype(np.int32)
    noisy = prototypes[labels] + rng.normal(0, 0.3, [size, *shape])
    return np.clip(noisy, 0, 1).astype(np.float32), labels

  train_features, train_labels = draw(facts.examples)
  test_features, test_labels = draw(100)
  return Dataset(
    name=name,
    train_features=train_features,
    train_labels=train_labels,
    test_features=test_features,
    test_labels=test_labels,
    num_classes=num_classes,
  )


LOADERS: dict[str, Callable[[str | None], Dataset]] = {
  'digits': _load_digits,
  'mnist': functools.partial(_load_images, 'mnist'),
  'fashion_mnist': functools.partial(_load_images, 'fashion_mnist'),
  'cifar10': functools.partial(_load_images, 'cifar10'),
  'adult': _load_adult,
  **{name: functools.partial(_generate, name) for name in _GENERATED},
}
_BUILT_IN = dict(LOADERS)
_FILES = 'files:'
_TFDS = re.compile(r'tfds:(\w+(?:/[\w.-]+)?(?::\d+\.\d+\.\d+)?)')


def check_name(name: str) -> str:
  """Checks and returns the name of a data set.

  Raises:
    ValueError: If it is not the name of a data set.
  """
  if name in LOADERS or _folder(name):
    return name
  if isinstance(name, str) and _TFDS.fullmatch(name):
    return name
  raise ValueError(
    f'dataset must be one of {", ".join(LOADERS)}, tfds:NAME or files:FOLDER, '
    f'got {name!r}'
  )


def is_fixed(name: str) -> bool:
  """Whether code alone defines a data set, so that no file can change it."""
  fixed = name in {'digits', *_GENERATED}
  return fixed and LOADERS[name] is _BUILT_IN[name]


def _folder(name: str) -> str:
  """The folder of a data set in files; empty for other data sets."""
  if isinstance(name, str) and name.startswith(_FILES):
    return name.removeprefix(_FILES)
  return ''


def place(name: str, data_dir: str | None = None) -> str:
  """The name of a data set together with its folder, if one is given.

  The path is absolute, because a relative one depends on the working directory.

  Args:
    name: As for `load`.
    data_dir: As for `load`.
  """
  if folder := _folder(name):
    return f'{_FILES}{pathlib.Path(folder).resolve()}'
  return f'{name} in {_root(data_dir).resolve()}' if data_dir else name


def check_natural(name: str) -> str:
  """Checks and returns a name whose data set can define its own users.

  Raises:
    ValueError: If the name is not files:FOLDER.
  """
  if not _folder(name):
    raise ValueError(
      f'split natural must be used with a data set files:FOLDER, got {name!r}'
    )
  return name


def natural(name: str) -> list[range]:
  """The examples of each user, as defined by the data set itself.

  Args:
    name: files:FOLDER.

  Raises:
    ValueError: If the name has another form.
    DatasetUnavailableError: If the data set does not define its users.
  """
  return on_disk.users(_folder(check_natural(name)))


def _images(name: str) -> str:
  """TFDS's name of a data set of images; empty for other data sets."""
  if match := _TFDS.fullmatch(name):
    return match[1]
  loader = LOADERS.get(name)
  if isinstance(loader, functools.partial) and loader.func is _load_images:
    return loader.args[0]
  return ''


def read_ahead(name: str, data_dir: str | None = None) -> None:
  """Starts the work of `load` and `dealt` in a thread, where it is supported.

  For programs, whose imports keep another processor busy for seconds.

  Args:
    name: As for `load`.
    data_dir: As for `load`.
  """
  if not (images := _images(name)):
    return
  ahead = _ahead[images, data_dir] = futures.Future()

  def read():
    try:
      parts = read_decoded(images, data_dir)
      if parts is not None and (found := parts[0]['image']).dtype == np.uint8:
        aligned.claim(found.size * np.dtype(np.float32).itemsize)
      ahead.set_result(parts)
    except Exception as error:  # For the waiter.
      ahead.set_exception(error)

  threading.Thread(target=read, daemon=True).start()


def load(
  name: str, data_dir: str | None = None, in_bytes: bool = False
) -> Dataset:
  """Loads a data set by name.

  Args:
    name: A key of `LOADERS`, tfds:NAME for a data set of TFDS, or files:FOLDER.
    data_dir: TFDS's folder; by default, the one that TFDS uses. A data set that
      is not there is downloaded to it.
    in_bytes: Whether to leave training images that come as bytes for `dealt` to
      scale, which takes a quarter of the memory until then.

  Returns:
    The data set.

  Raises:
    ValueError: If there is no such data set.
    DatasetUnavailableError: If it cannot be loaded or downloaded.
  """
  if folder := _folder(check_name(name)):
    return Dataset(name, *on_disk.load(folder))
  match = _TFDS.fullmatch(name)
  if in_bytes and (images := _images(name)):
    return _load_images(images, data_dir, in_bytes=True)
  if match:
    return _load_images(match[1], data_dir)
  loader = LOADERS[name]
  if loader is _BUILT_IN.get(name):
    return loader(data_dir)
  try:
    found = loader(data_dir)
    if not isinstance(found, Dataset):
      raise TypeError(f'a Dataset is expected, got {type(found).__name__}')
    return Dataset(**own_arrays.dataset_fields(found))
  except errors.TvdpError:
    raise
  except Exception as error:  # Any error: user code.
    raise errors.DatasetUnavailableError(
      f'data set {name} cannot be loaded: {type(error).__name__}: {error}'
    ) from error


def facts(name: str, data_dir: str | None = None) -> Facts:
  """The public facts about a data set, without TensorFlow where they are known.

  For data sets that are not built in, `load` determines them. Arguments and
  errors are those of `load`.
  """
  known = (_FACTS | _GENERATED).get(check_name(name))
  if known is not None and LOADERS[name] is _BUILT_IN[name]:
    return known
  dataset = load(name, data_dir)
  return Facts(
    len(dataset.train_labels),
    dataset.train_features.shape[1:],
    dataset.num_classes,
  )
