"""Measures the mean of clipped gradients, compared to the plain gradient.

For models of the layers that ghost clipping supports, on 256 random examples:
the gradient without privacy, the clipped mean as training computes it, and the
same one example at a time (vectorized if TensorFlow can do it, else in a loop),
as for models with other layers. The three take turns.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tools import turns as turns_lib
from tvdp_tf.learning import (
  clipping,
  example_independence,
  functional,
  ghost_clipping,
  models,
  onednn,
)

_EXAMPLES = 256
_CLIP = 1.0
_VOCABULARY = 5000
_KINDS = 'without privacy', 'clipped', 'one example at a time'
_layers = tf.keras.layers


def _sequential(
  shape: tuple[int, ...], *layers: Any, dtype: str | None = None
) -> tf.keras.Model:
  return tf.keras.Sequential([_layers.InputLayer(shape, dtype=dtype), *layers])


def _of_words(*layers: Any, mask_zero: bool = False) -> tf.keras.Model:
  embedding = _layers.Embedding(_VOCABULARY, 32, mask_zero=mask_zero)
  return _sequential((60,), embedding, *layers, dtype='int32')


def _dense() -> tf.keras.Model:
  return _sequential(
    (784,), _layers.Dense(256, activation='relu'), _layers.Dense(10)
  )


def _layer_normalization() -> tf.keras.Model:
  return _sequential(
    (784,),
    _layers.Dense(256),
    _layers.LayerNormalization(),
    _layers.ReLU(),
    _layers.Dense(10),
  )


def _convolutions(
  *after_each: Callable[[], Any], kind: Any = _layers.Conv2D
) -> tf.keras.Model:
  layers = [kind(32, 3), *(one() for one in after_each), _layers.ReLU()]
  layers += [_layers.MaxPool2D(), kind(64, 3)]
  layers += [*(one() for one in after_each), _layers.ReLU()]
  pooled = _layers.GlobalAveragePooling2D()
  return _sequential((28, 28, 1), *layers, pooled, _layers.Dense(10))


def _causal() -> tf.keras.Model:
  layers = [
    _layers.Conv1D(
      32, 3, padding='causal', dilation_rate=2**depth, activation='relu'
    )
    for depth in range(3)
  ]
  pooled = _layers.GlobalAveragePooling1D()
  return _sequential((100, 8), *layers, pooled, _layers.Dense(4))


def _attention() -> tf.keras.Model:
  inputs = tf.keras.Input((60,), dtype='int32')
  rows = _layers.Embedding(_VOCABULARY, 32)(inputs)
  attended = _layers.MultiHeadAttention(2, 16)(rows, rows)
  rows = _layers.LayerNormalization()(rows + attended)
  hidden = _layers.Dense(32)(_layers.Dense(64, activation='relu')(rows))
  rows = _layers.LayerNormalization()(rows + hidden)
  pooled = _layers.GlobalAveragePooling1D()(rows)
  return tf.keras.Model(inputs, _layers.Dense(2)(pooled))


def _table() -> tf.keras.Model:
  inputs = tf.keras.Input((23,))
  categories = tf.cast(inputs[:, 20:], tf.int32)
  embedded = _layers.Flatten()(_layers.Embedding(50, 8)(categories))
  values = tf.concat([inputs[:, :20], embedded], axis=1)
  hidden = _layers.Dense(64, activation='relu')(values)
  return tf.keras.Model(inputs, _layers.Dense(2)(hidden))


_MODELS: dict[str, Callable[[], tf.keras.Model]] = {
  'dense 784-256-10': _dense,
  'the same with layer normalization': _layer_normalization,
  'a table of 20 numbers and 3 categories': _table,
  'convolutions of 32 and 64 filters, 28 x 28': _convolutions,
  'the same with group normalization': lambda: _convolutions(
    lambda: _layers.GroupNormalization(8)
  ),
  'the same, separable': lambda: _convolutions(kind=_layers.SeparableConv2D),
  'causal convolutions, dilated, 100 steps': _causal,
  'words, attention, 60 steps': _attention,
  'words, LSTM of 32, 60 steps': lambda: _of_words(
    _layers.LSTM(32), _layers.Dense(2)
  ),
  'the same, masked and both ways': lambda: _of_words(
    _layers.Bidirectional(_layers.LSTM(32)), _layers.Dense(2), mask_zero=True
  ),
  'words, LSTM of 32, 60 steps, dropout': lambda: _of_words(
    _layers.LSTM(32, dropout=0.2, recurrent_dropout=0.2), _layers.Dense(2)
  ),
  'words, GRU of 32, 60 steps': lambda: _of_words(
    _layers.GRU(32), _layers.Dense(2)
  ),
}


def _calls(build: Callable[[], tf.keras.Model]) -> dict[str, Callable]:
  """Returns kind -> function of features and labels to measure."""
  with functional.unfused():
    model = functional.FunctionalModel(build())
  weights = [tf.constant(w) for w in model.initial_weights]
  loss = models.CrossEntropyLoss()

  def loss_fn(weights, features, labels):
    return loss(labels, model(weights, features, True))

  def plain(features, labels):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = loss_fn(weights, features, labels)
    # The gradient of an embedding is sparse.
    return list(map(tf.convert_to_tensor, tape.gradient(value, weights)))

  def mean(clipped_sum):
    return lambda features, labels: clipping.clipped_mean_gradient(
      clipped_sum, weights, features, labels, example_l2_norm_clip=_CLIP
    )

  classes = model.keras_model.output_shape[-1]
  by_kind = (
    plain,
    mean(ghost_clipping.ghost_clipped_sum(model, loss)),
    mean(
      example_independence.example_clipped_sum(
        loss_fn, model.initial_weights, model.features_spec, classes, _CLIP
      )
    ),
  )
  return {
    kind: tf.function(call, autograph=False)
    for kind, call in zip(_KINDS, by_kind, strict=True)
  }


def _batch(
  model: tf.keras.Model, rng: np.random.Generator
) -> tuple[tf.Tensor, tf.Tensor]:
  shape, dtype = (_EXAMPLES, *model.input_shape[1:]), model.inputs[0].dtype
  features = (
    rng.integers(1, _VOCABULARY, shape)
    if dtype.is_integer
    else rng.standard_normal(shape)
  )
  labels = rng.integers(model.output_shape[-1], size=_EXAMPLES)
  return tf.constant(features, dtype), tf.constant(labels, tf.int32)


def measure(turns: int, wanted: str = '') -> dict[str, dict[str, list[float]]]:
  """Measures the seconds of each kind of mean, by model.

  Args:
    turns: How often to measure each kind.
    wanted: Prefix of the names of the models to measure.
  """
  onednn.require_sound()
  rng = np.random.default_rng(0)
  results = {}
  names = [name for name in _MODELS if name.startswith(wanted)]
  for name in tqdm.tqdm(names, unit='model'):
    calls = _calls(_MODELS[name])
    batch = _batch(_MODELS[name](), rng)
    seconds: dict[str, list[float]] = {kind: [] for kind in calls}
    for turn in range(turns + 1):
      for kind, call in calls.items():
        started = time.perf_counter()
        tf.nest.map_structure(lambda one: one.numpy(), call(*batch))
        if turn:
          seconds[kind].append(time.perf_counter() - started)
    results[name] = seconds
  return results


def _write(results: turns_lib.Seconds, folder: pathlib.Path) -> None:
  turns_lib.write_csv(folder / 'means.csv', ('model', 'kind'), results)
  rows = []
  for name, seconds in results.items():
    plain, ghost, alone = turns_lib.medians_ms(seconds)
    times = f'{ghost / plain:.1f}', f'{alone / ghost:.1f}'
    rows.append((name, f'{plain:.1f}', f'{ghost:.1f}', f'{alone:.1f}', *times))
  turns = len(next(iter(results.values()))['clipped'])
  turns_lib.write_table(
    folder / 'README.md',
    'What a clipped mean costs',
    'python -m tools.clipping_cost',
    f'a mean of {_EXAMPLES} examples, in milliseconds, medians of {turns}, '
    'which took turns. Training computes the second column for models of these '
    'layers, and the third for others.',
    (
      *('model', *_KINDS, 'clipped / without privacy'),
      'one at a time / clipped',
    ),
    rows,
  )


def run(folder: pathlib.Path, turns: int) -> None:
  """Measures each mean `turns` times, and writes the results."""
  _write(measure(turns), folder)
