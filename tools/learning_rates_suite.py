"""Test accuracy of `fit` at its own learning rate and at fixed ones.

Each task is trained with the defaults of `fit` (`distributed`, 50 rounds) at
several epsilons. `_RULE` marks the runs in which `fit` chose the rate.
"""

import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tools import turns
from tvdp_tf.learning import datasets
from tvdp_tf.output import files, plots
from tvdp_tf.training import fit

_EPSILONS = (1.0, 3.0)
_RATES = (0.1, 0.2, 0.5, 1.0, 2.0)
_USERS = 10
_WORDS = 500
_RULE = 'fit'
_COLUMNS = (
  'task', 'epsilon', 'rate_of', 'learning_rate', 'seed', 'test_accuracy',
)  # fmt: skip
# (train x, y), (test x, y).
_Parts = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def _of_scikit_learn(load: str) -> _Parts:
  """Loads a small data set, scaled by its public ranges to [0, 1]."""
  from sklearn import datasets as sklearn_datasets  # noqa: PLC0415

  x, y = getattr(sklearn_datasets, load)(return_X_y=True)
  # The ranges stand for public knowledge of the columns.
  x = ((x - x.min(0)) / np.maximum(np.ptp(x, axis=0), 1e-9)).astype(np.float32)
  order = np.random.default_rng(0).permutation(len(x))
  test, train = np.split(order, [len(x) // 5])
  return (x[train], y[train]), (x[test], y[test])


def _of_tfds(name: str, examples: int, data_dir: str | None) -> _Parts:
  data = datasets.load(name, data_dir)
  return (
    (data.train_features[:examples], data.train_labels[:examples]),
    (data.test_features, data.test_labels),
  )


def _mlp(width: int) -> Callable[[tuple[int, ...], int], tf.keras.Model]:
  def build(shape, classes):
    return tf.keras.Sequential(
      [
        tf.keras.Input(shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(width, 'relu'),
        tf.keras.layers.Dense(classes),
      ]
    )

  return build


def _linear(shape: tuple[int, ...], classes: int) -> tf.keras.Model:
  return tf.keras.Sequential(
    [tf.keras.Input(shape), tf.keras.layers.Dense(classes)]
  )


def _cnn(shape: tuple[int, ...], classes: int) -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      tf.keras.Input(shape),
      layers.Conv2D(16, 8, 2, 'same', activation='relu'),
      layers.MaxPool2D(2, 1),
      layers.Conv2D(32, 4, 2, activation='relu'),
      layers.MaxPool2D(2, 1),
      layers.Flatten(),
      layers.Dense(32, 'relu'),
      layers.Dense(classes),
    ]
  )


def _topics(_: str | None) -> _Parts:
  """Made-up texts of 40 words out of 500, each about one of four topics."""
  rng = np.random.default_rng(0)
  words = 0.3 * rng.dirichlet(np.full(_WORDS, 0.1), 4) + 0.7 / _WORDS
  y = rng.integers(4, size=6000)
  x = np.stack([rng.choice(_WORDS, 40, p=words[topic]) for topic in y])
  x = x.astype(np.int32)
  return (x[:5000], y[:5000]), (x[5000:], y[5000:])


def _waves(_: str | None) -> _Parts:
  """Noisy sine waves of 64 steps, each of one of three frequencies."""
  rng = np.random.default_rng(0)
  y = rng.integers(3, size=5000)
  phases = rng.uniform(0, 2 * np.pi, [len(y), 1])
  angles = np.array([0.2, 0.35, 0.5])[y, None] * np.arange(64) + phases
  x = np.sin(angles) + rng.normal(0, 0.6, angles.shape)
  x = x[..., None].astype(np.float32)
  return (x[:4000], y[:4000]), (x[4000:], y[4000:])


def _of_words(*layers: Any) -> Callable[..., tf.keras.Model]:
  """A classifier whose `layers` follow an embedding of the words."""

  def build(shape, classes):
    inputs = outputs = tf.keras.Input(shape, dtype=tf.int32)
    for layer in (lambda: tf.keras.layers.Embedding(_WORDS, 16), *layers):
      outputs = layer()(outputs)
    outputs = tf.keras.layers.Dense(classes)(outputs)
    return tf.keras.Model(inputs, outputs)

  return build


def _attention() -> Callable[[Any], Any]:
  layer = tf.keras.layers.MultiHeadAttention(2, 8)
  return lambda inputs: inputs + layer(inputs, inputs)


def _of_waves(shape: tuple[int, ...], classes: int) -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      tf.keras.Input(shape),
      layers.Conv1D(16, 7, activation='relu'),
      layers.MaxPool1D(2),
      layers.Conv1D(16, 5, activation='relu'),
      layers.GlobalAveragePooling1D(),
      layers.Dense(classes),
    ]
  )


_pooled = tf.keras.layers.GlobalAveragePooling1D
# Task -> its data and its model.
_TASKS: dict[str, tuple[Callable[[str | None], _Parts], Callable[..., Any]]] = {
  'wine, linear': (lambda _: _of_scikit_learn('load_wine'), _linear),
  'breast cancer, MLP': (
    lambda _: _of_scikit_learn('load_breast_cancer'),
    _mlp(16),
  ),
  'digits, MLP': (lambda _: _of_scikit_learn('load_digits'), _mlp(64)),
  'Adult, linear': (lambda folder: _of_tfds('adult', 32_561, folder), _linear),
  'waves, Conv1D': (_waves, _of_waves),
  'topics, embedding': (_topics, _of_words(_pooled)),
  'topics, Conv1D': (
    _topics,
    _of_words(
      lambda: tf.keras.layers.Conv1D(32, 3, activation='relu'),
      tf.keras.layers.GlobalMaxPooling1D,
    ),
  ),
  'topics, LayerNormalization': (
    _topics,
    _of_words(tf.keras.layers.LayerNormalization, _pooled),
  ),
  'topics, attention, LayerNormalization': (
    _topics,
    _of_words(_attention, tf.keras.layers.LayerNormalization, _pooled),
  ),
  'Fashion-MNIST of 10,000, MLP': (
    lambda folder: _of_tfds('fashion_mnist', 10_000, folder),
    _mlp(64),
  ),
  'Fashion-MNIST of 3,000, CNN': (
    lambda folder: _of_tfds('fashion_mnist', 3_000, folder),
    _cnn,
  ),
}


def measure(
  tasks: Iterable[str],
  data_dir: str | None,
  rates: Sequence[float],
  epsilons: Sequence[float],
  seeds: int,
  **settings: Any,
) -> list[dict[str, Any]]:
  """Trains every task at every epsilon and rate.

  Args:
    tasks: Names of `_TASKS`.
    data_dir: TFDS's folder.
    rates: The fixed learning rates; the run of `fit`'s own comes first.
    epsilons: The targets.
    seeds: Runs of each kind.
    **settings: Other settings of `fit`.

  Returns:
    A row of `_COLUMNS` for each run.
  """
  rows = []
  runs = [
    (task, epsilon, rate, seed)
    for task in tasks
    for epsilon in epsilons
    for rate in (_RULE, *rates)
    for seed in range(seeds)
  ]
  data: dict[str, _Parts] = {}
  for task, epsilon, rate, seed in tqdm.tqdm(runs, unit='run', disable=None):
    load, build = _TASKS[task]
    if task not in data:
      data = {task: load(data_dir)}
    (x, y), test = data[task]
    tf.keras.utils.set_random_seed(seed)
    model = build(x.shape[1:], len(np.unique(y)))
    chosen = {} if rate == _RULE else {'learning_rate': rate}
    with tempfile.TemporaryDirectory() as folder:
      run = fit.fit(
        model, x, y, test=test, users=_USERS, epsilon=epsilon, seed=seed,
        output_dir=pathlib.Path(folder) / 'run', progress=False,
        **chosen, **settings,
      )  # fmt: skip
      config = files.read_json(run.output_dir / 'config.json')
      accuracy = run.metrics['test_accuracy'][-1]
    rate_of = _RULE if rate == _RULE else 'grid'
    used = config['settings']['learning_rate']
    row = (task, epsilon, rate_of, used, seed, accuracy)
    rows.append(dict(zip(_COLUMNS, row, strict=True)))
  return rows


def _accuracies(
  rows: list[dict[str, Any]], task: str, epsilon: float, rate_of: str
) -> dict[float, float]:
  """Returns the mean accuracy over the seeds, by learning rate."""
  found: dict[float, list[float]] = {}
  for row in rows:
    if (row['task'], row['epsilon'], row['rate_of']) == (
      task, epsilon, rate_of,
    ):  # fmt: skip
      found.setdefault(row['learning_rate'], []).append(row['test_accuracy'])
  return {rate: statistics.mean(values) for rate, values in found.items()}


def _kinds(rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
  return list(dict.fromkeys((row['task'], row['epsilon']) for row in rows))


def write(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
  """Writes the runs, a table of the means, and a picture."""
  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'runs.csv', _COLUMNS, [list(row.values()) for row in rows]
  )
  table = []
  for task, epsilon in _kinds(rows):
    grid = _accuracies(rows, task, epsilon, 'grid')
    ((rate, accuracy),) = _accuracies(rows, task, epsilon, _RULE).items()
    best = max(grid, key=grid.__getitem__)
    table.append(
      (
        task,
        f'{epsilon:g}',
        f'{rate:g}',
        f'{accuracy:.3f}',
        f'{best:g}',
        f'{grid[best]:.3f}',
        f'{grid[best] - accuracy:.3f}',
      )
    )
  seeds = len({row['seed'] for row in rows})
  rates = sorted(
    {row['learning_rate'] for row in rows if row['rate_of'] == 'grid'}
  )
  turns.write_table(
    folder / 'README.md',
    'The learning rate that fit chooses',
    'python -m tools.learning_rates',
    f'mean test accuracy of {seeds} runs of each rate, with the defaults of '
    f'`fit` and {_USERS} users; the best of the rates '
    f'{", ".join(f"{rate:g}" for rate in rates)} (chosen on the test data, '
    'so it is slightly too good).',
    (
      'task',
      'epsilon',
      'rate of fit',
      'accuracy',
      'best rate',
      'accuracy',
      'lost',
    ),
    table,
  )
  _draw(rows, folder / 'runs.png')


def _draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
  tasks = list(dict.fromkeys(row['task'] for row in rows))
  figure, axes = plots.plt.subplots(
    2, -(-len(tasks) // 2), figsize=(15, 7), sharex=True, squeeze=False
  )
  for axis, task in zip(axes.flat, tasks, strict=False):
    epsilons = [epsilon for name, epsilon in _kinds(rows) if name == task]
    for epsilon, style in zip(epsilons, plots.STYLES, strict=False):
      grid = _accuracies(rows, task, epsilon, 'grid')
      (line,) = axis.plot(
        grid.keys(), grid.values(), style, label=f'epsilon = {epsilon:g}'
      )
      own = _accuracies(rows, task, epsilon, _RULE)
      axis.plot(
        own.keys(), own.values(), '*', markersize=14, color=line.get_color()
      )
    axis.set(title=task, xscale='log', xlabel='learning rate')
    axis.grid(alpha=0.3)
  for row in axes:
    row[0].set_ylabel('test accuracy')
  axes.flat[0].legend(fontsize='small')
  figure.suptitle('Test accuracy by learning rate; stars: the rate of fit')
  figure.tight_layout()
  plots.save_figure(figure, path)


def run(folder: pathlib.Path, data_dir: str | None, seeds: int) -> None:
  """Measures all tasks, and writes the results."""
  write(measure(_TASKS, data_dir, _RATES, _EPSILONS, seeds), folder)
