"""Exports, loaded by a process that has TensorFlow alone.

PLAIN_PYTHON names an interpreter with TensorFlow and nothing else; without it
the tests' own does, and refuses to import the project.
"""

import datetime
import fractions
import json
import os
import pathlib
import subprocess
import sys
import time
import unittest
import zipfile
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.learning import model_files, models
from tvdp_tf.training import export

_PYTHON = os.environ.get('PLAIN_PYTHON', sys.executable)
_LOADER = pathlib.Path(__file__).with_name('plain_tensorflow.py')
_LAYERS = tf.keras.layers
_CASES = {
  'mlp': ((8, 8, 1), 10),
  'svm': ((12,), 2),
  'cnn': ((16, 16, 3), 4),
}


def statement(reason='a test'):
  return privacy.PrivacyStatement(
    target_epsilon=float('inf'),
    delta=1e-5,
    claimed_epsilon=3.0,
    delivered={'server': {'exact': float('inf')}},
    unit='example',
    adjacency='replace-one',
    assumptions=('none',),
    holds=False,
    reason=reason,
    view='server',
  ).to_json_dict()


def export_model(folder: pathlib.Path, name: str) -> None:
  """Exports a model of random weights, and what it is to say."""
  input_shape, num_classes = _CASES[name]
  spec = models.MODELS[name]
  rng = np.random.default_rng(0)
  model = spec.build(input_shape, num_classes, 1)
  weights = [
    rng.normal(size=w.shape).astype(np.float32) for w in model.get_weights()
  ]
  model.set_weights(weights)
  features = rng.random((7, *input_shape), np.float32)
  scores = model(features).numpy()
  predicted = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(1)
  export.save_model(
    folder / 'model',
    spec,
    input_shape,
    num_classes,
    weights,
    statement(f'for {name}'),
  )
  np.savez(
    folder / 'expected.npz',
    features=features,
    class_scores=scores,
    predicted_class=predicted,
  )


@tf.keras.saving.register_keras_serializable('export_test')
class _Layers(tf.keras.layers.Layer):
  """Layers without names of their own, which no configuration holds."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.hidden = tf.keras.layers.Dense(5)
    self.scores = tf.keras.layers.Dense(4)

  def call(self, inputs):
    return self.scores(self.hidden(inputs))


def _functional():
  inputs = tf.keras.Input([6, 5, 4])
  hidden = _LAYERS.DepthwiseConv2D(3, padding='same')(inputs)
  hidden = _LAYERS.ReLU()(_LAYERS.GroupNormalization(2)(hidden))
  hidden = _LAYERS.Add()([inputs, hidden])
  hidden = _LAYERS.SeparableConv2D(3, 2, strides=2)(hidden)
  return tf.keras.Model(inputs, _LAYERS.Dense(3)(_LAYERS.Flatten()(hidden)))


_OF_BOTH_KERAS = {
  'shape_of_a_layer': lambda: tf.keras.Sequential(
    [_LAYERS.Dense(4, 'relu', input_shape=[5]), _LAYERS.Dense(3)]
  ),
  'recurrent': lambda: tf.keras.Sequential(
    [
      tf.keras.Input([5, 3]),
      _LAYERS.GRU(3, return_sequences=True),
      _LAYERS.SimpleRNN(3, return_sequences=True),
      _LAYERS.Bidirectional(_LAYERS.LSTM(2)),
      _LAYERS.LayerNormalization(),
      _LAYERS.Dense(3),
    ]
  ),
  'words': lambda: tf.keras.Sequential(
    [
      _LAYERS.Embedding(9, 4, input_length=5, mask_zero=True),
      _LAYERS.LSTM(3, return_sequences=True),
      _LAYERS.Dropout(0.5),
      _LAYERS.GlobalAveragePooling1D(),
      _LAYERS.Dense(3),
    ]
  ),
  'sequence': lambda: tf.keras.Sequential(
    [
      tf.keras.Input([9, 2]),
      _LAYERS.Conv1D(3, 2, padding='causal', dilation_rate=2),
      _LAYERS.DepthwiseConv1D(2),
      _LAYERS.SeparableConv1D(3, 2, padding='same'),
      _LAYERS.GlobalMaxPool1D(),
      _LAYERS.Dense(3),
    ]
  ),
  'functional': _functional,
}


def _loop():
  layers = [_LAYERS.Embedding(9, 4, input_length=3, mask_zero=True)]
  layers += [_LAYERS.SimpleRNN(3), _LAYERS.Dropout(0.5), _LAYERS.Dense(3)]
  return tf.keras.Sequential(layers)


def _numbers():
  """With constants, and with gradients of one's own, which swish has."""
  inputs = tf.keras.Input([4])
  hidden = 0.1 * _LAYERS.Dense(3, 'swish')(inputs)
  hidden = tf.where(hidden > 0.2, hidden, 2.0 * hidden)
  return tf.keras.Model(inputs, _LAYERS.Dense(3)(hidden))


@tf.keras.saving.register_keras_serializable('export_test')
class _Made(tf.keras.layers.Layer):
  """Captures a tensor, of its making and in a loop."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.scales = tf.constant([0.5, 2.0, 1.0, 3.0])

  def call(self, inputs):
    return tf.while_loop(
      lambda i, _: i < 2,
      lambda i, x: (i + 1, x * self.scales),
      (tf.constant(0), inputs + self.scales),
    )[1]


def _made_before():
  layers = [tf.keras.Input([4], name='in'), _Made(name='made')]
  layers.append(_LAYERS.Dense(3, name='out'))
  return tf.keras.Sequential(layers, name='all')


def _operators():
  inputs = tf.keras.Input([5, 4])
  hidden = inputs + _LAYERS.MultiHeadAttention(2, 3)(inputs, inputs)
  return tf.keras.Model(inputs, _LAYERS.Dense(3)(_LAYERS.Flatten()(hidden)))


_PREDICT = """
import sys
import numpy as np
import tensorflow as tf
for folder in sys.argv[1:]:
  model = tf.keras.models.load_model(f'{folder}/model/model.keras')
  outputs = np.asarray(model(np.load(f'{folder}/features.npy')))
  np.save(f'{folder}/outputs.npy', outputs)
"""
_ROOT = pathlib.Path(__file__).parents[2]
_KERAS_3 = _ROOT / '.venv-keras3/bin/python'


class KerasFilesTest(parameterized.TestCase):
  def exported(self, name):
    """The folder of an exported model, and some of its outputs."""
    folder = pathlib.Path(self.create_tempdir().full_path)
    model = _OF_BOTH_KERAS[name]()
    rng = np.random.default_rng(0)
    model.set_weights(
      [rng.standard_normal(w.shape) for w in model.get_weights()]
    )
    spec = models.ModelSpec(
      name,
      lambda *_: tf.keras.models.clone_model(model),
      models.MODELS['mlp'].loss,
    )
    export.save_model(
      folder / 'model', spec, model.input_shape[1:], 3, model.get_weights()
    )
    # Numbers of words, too.
    features = rng.integers(9, size=[4, *model.input_shape[1:]])
    features = features.astype(np.float32)
    np.save(folder / 'features.npy', features)
    return folder, model(features).numpy()

  def check_outputs(self, found, expected):
    scale = np.abs(expected).max()
    self.assertGreater(scale, 0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * scale)

  @parameterized.parameters(*_OF_BOTH_KERAS)
  def test_keras_2(self, name):
    folder, expected = self.exported(name)
    loaded = tf.keras.models.load_model(folder / 'model' / export.KERAS)
    kinds = {type(_OF_BOTH_KERAS[name]()), type(loaded)}
    self.assertLen(kinds, 1)
    features = np.load(folder / 'features.npy')
    self.check_outputs(loaded(features).numpy(), expected)
    served = tf.saved_model.load(str(folder / 'model'))
    outputs = served.signatures['serving_default'](
      features=tf.constant(features)
    )
    self.check_outputs(outputs['class_scores'].numpy(), expected)

  @unittest.skipUnless(
    _KERAS_3.exists(), 'needs what `make check-keras3` makes'
  )
  def test_keras_3(self):
    exported = list(map(self.exported, _OF_BOTH_KERAS))
    folders = [str(folder) for folder, _ in exported]
    done = subprocess.run(
      [_KERAS_3, '-I', '-c', _PREDICT, *folders],
      capture_output=True,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr[-2000:])
    for folder, expected in exported:
      self.check_outputs(np.load(folder / 'outputs.npy'), expected)

  def test_a_class_of_ones_own_stays_as_it_is(self):
    own = {
      'module': 'mine',
      'class_name': 'LSTM',
      'config': {'time_major': False, 'batch_input_shape': [None, 3]},
    }
    self.assertEqual(export._for_both(own), own)

  def test_a_model_in_a_model_stays_as_it_is(self):
    inner = {
      'module': 'keras.src.engine.functional',
      'class_name': 'Functional',
      'config': {'layers': []},
    }
    outer = {
      'module': 'keras',
      'class_name': 'Sequential',
      'config': {'layers': [inner]},
    }
    self.assertEqual(export._for_both(outer), outer)

  def test_what_means_something_is_not_left_out(self):
    config = {'time_major': True, 'units': 3}
    layer = {'module': 'keras.layers', 'class_name': 'LSTM', 'config': config}
    self.assertEqual(export._for_both(layer), layer)


class ExportTest(parameterized.TestCase):
  def folder(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path)

  def save(self, path, **kwargs):
    spec = models.MODELS['svm']
    weights = spec.build([3], 2, 0).get_weights()
    export.save_model(path, spec, [3], 2, weights, **kwargs)

  def test_plain_tensorflow_loads_all_models(self):
    folders = []
    for name in _CASES:
      folders.append(self.folder() / name)
      folders[-1].mkdir()
      export_model(folders[-1], name)
    done = subprocess.run(
      # -I: neither the checkout nor the tests are on the path.
      [_PYTHON, '-I', str(_LOADER), *map(str, folders)],
      capture_output=True,
      cwd=self.folder(),
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
      stdin=subprocess.DEVNULL,
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertEqual(
      done.stdout.splitlines(),
      [f'{folder} for {folder.name}' for folder in folders],
    )

  def test_loader_refuses_the_project(self):
    code = (
      'import runpy, sys; sys.argv = ["x"]; '
      f'runpy.run_path({str(_LOADER)!r}, run_name="__main__"); import tvdp_tf'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertIn('ImportError: tvdp_tf was imported', done.stderr)

  @parameterized.parameters(
    *('mlp', 'cnn', 'file', 'loop', 'operators', 'words'),
    *('numbers', 'made_before'),
  )
  def test_neither_the_process_nor_the_day_leaves_a_trace(self, name):
    folder = self.folder()
    input_shape, num_classes = _CASES['cnn']
    before = [_made_before() for _ in range(6)]
    made: dict[str, Any] = {
      **_OF_BOTH_KERAS,
      'loop': _loop,
      'operators': _operators,
      'numbers': _numbers,
      'made_before': before.pop,
    }
    if name == 'file':
      own = tf.keras.Sequential(
        [tf.keras.Input(input_shape), tf.keras.layers.Flatten(), _Layers()]
      )
      own.save(folder / 'own.keras')
      name = f'keras:{folder / "own.keras"}'
    if name in made:
      spec = models.ModelSpec(
        name, lambda *_: made[name](), models.CrossEntropyLoss()
      )
      input_shape = made[name]().input_shape[1:]
    else:
      spec = model_files.find(name)
    weights = spec.build(input_shape, num_classes, 1).get_weights()
    exports = []
    for day in (10_000, 20_000):
      clock = time.localtime(day * 24 * 3600)
      with mock.patch.object(time, 'localtime', lambda *_, now=clock: now):
        export.save_model(
          folder / 'model', spec, input_shape, num_classes, weights
        )
      exports.append(
        {
          str(path.relative_to(folder)): path.read_bytes()
          for path in (folder / 'model').rglob('*')
          if path.is_file()
        }
      )
      # Numbered like what is saved: tensors, functions and layers.
      sum(tf.constant(i) for i in range(100))
      spec.build(input_shape, num_classes, 1)
      _Layers()
    self.assertContainsSubset(
      ['model/saved_model.pb', 'model/model.keras'], exports[0]
    )
    self.assertEqual(exports[0].keys(), exports[1].keys())
    for file, content in exports[0].items():
      self.assertEqual(content, exports[1][file], file)
    # Keras asks another clock.
    with zipfile.ZipFile(folder / 'model' / export.KERAS) as archive:
      metadata = archive.read('metadata.json').decode()
    self.assertNotIn(datetime.date.today().isoformat(), metadata)

  def test_names_with_large_numbers_of_ones_own_stay(self):
    def build(*_):
      layers = [tf.keras.Input([4]), _LAYERS.Dense(3, name='of_20241231')]
      return tf.keras.Sequential(layers)

    folder = self.folder()
    spec = models.ModelSpec('own', build, models.CrossEntropyLoss())
    weights = build().get_weights()
    export.save_model(folder / 'model', spec, [4], 3, weights)
    graph = (folder / 'model' / 'saved_model.pb').read_bytes()
    self.assertIn(b'of_20241231_matmul', graph)

  def test_keras_goes_on_with_its_names(self):
    before = tf.keras.layers.Dense(1).name
    self.save(self.folder() / 'model')
    after = tf.keras.layers.Dense(1).name
    number = before.removeprefix('dense').removeprefix('_') or 0
    self.assertEqual(after, f'dense_{int(number) + 1}')

  def test_no_warning_of_metrics_that_nobody_compiled(self):
    logger = tf.get_logger()
    level = logger.level
    with self.assertNoLogs(logger, 'WARNING'):
      self.save(self.folder() / 'model')
    self.assertEqual(logger.level, level)

  def test_no_statement_and_nothing_half_written(self):
    folder = self.folder()
    self.save(folder / 'model')
    self.save(folder / 'model')  # Over the former.
    self.assertEqual([path.name for path in folder.iterdir()], ['model'])
    extra = folder / 'model' / 'assets.extra'
    self.assertEqual([p.name for p in extra.iterdir()], [export.SPEC])
    spec = json.loads((extra / export.SPEC).read_text())
    self.assertEqual(
      spec,
      {
        'model': 'svm',
        'features': 'none',
        'inputs': {'features': {'dtype': 'float32', 'shape': [None, 3]}},
        'outputs': {
          'class_scores': {'dtype': 'float32', 'shape': [None, 1]},
          'predicted_class': {'dtype': 'int64', 'shape': [None]},
        },
      },
    )
    with zipfile.ZipFile(folder / 'model' / export.KERAS) as archive:
      self.assertNotIn(export.STATEMENT, archive.namelist())

  def test_a_failed_write_leaves_the_former_model(self):
    folder = self.folder()
    self.save(folder / 'model', statement=statement())
    before = sorted(path for path in folder.rglob('*'))
    with (
      mock.patch.object(tf.keras.Sequential, 'save', side_effect=OSError),
      self.assertRaises(OSError),
    ):
      self.save(folder / 'model')
    self.assertEqual(sorted(path for path in folder.rglob('*')), before)

  def test_a_model_that_keras_can_write_in_no_form(self):
    class Odd(tf.keras.layers.Layer):
      def __init__(myself):  # noqa: N805
        super().__init__()
        myself.hidden = tf.keras.layers.Dense(3)

      # Keras takes the first of the arguments off by its usual name.
      def call(myself, inputs, training=None):  # noqa: N805
        return myself.hidden(inputs)

      def get_config(self):
        raise ValueError('none')

    def build(input_shape, num_classes, seed):
      del seed
      inputs = tf.keras.Input(tuple(input_shape))
      outputs = tf.keras.layers.Dense(num_classes)(Odd()(inputs))
      return tf.keras.Model(inputs, outputs)

    spec = models.ModelSpec('odd', build, models.MODELS['mlp'].loss)
    model = build([3], 2, 0)
    folder = self.folder()
    with mock.patch.object(export.logging, 'warning') as warning:
      export.save_model(folder / 'model', spec, [3], 2, model.get_weights())
    for call, text in zip(
      warning.call_args_list,
      ('the SavedModel has only the signature', 'no Keras file is written'),
      strict=True,
    ):
      self.assertStartsWith(call[0][0], text)
    served = tf.saved_model.load(str(folder / 'model'))
    features = np.random.default_rng(0).random([5, 3], np.float32)
    outputs = served.signatures['serving_default'](
      features=tf.constant(features)
    )
    np.testing.assert_allclose(
      outputs['class_scores'], model(features), rtol=1e-6
    )

  def test_a_model_that_keras_cannot_write(self):
    class Odd(tf.keras.layers.Layer):
      def __init__(self, scale):
        super().__init__()
        self.scale = scale

      def call(self, inputs):
        return float(self.scale) * inputs

    def build(input_shape, num_classes, seed):
      del seed
      return tf.keras.Sequential(
        [
          tf.keras.layers.InputLayer(input_shape=tuple(input_shape)),
          Odd(fractions.Fraction(2)),  # What Keras has no form for.
          tf.keras.layers.Dense(num_classes),
        ]
      )

    spec = models.ModelSpec('odd', build, models.MODELS['mlp'].loss)
    weights = build([3], 2, 0).get_weights()
    folder = self.folder()
    # Not what comes out of the log, which other tests have set.
    with mock.patch.object(export.logging, 'warning') as warning:
      export.save_model(folder / 'model', spec, [3], 2, weights)
    self.assertStartsWith(warning.call_args[0][0], 'no Keras file is written')
    self.assertFalse((folder / 'model' / export.KERAS).exists())
    served = tf.saved_model.load(str(folder / 'model'))
    outputs = served.signatures['serving_default'](
      features=tf.ones([1, 3], tf.float32)
    )
    np.testing.assert_allclose(
      outputs['class_scores'],
      2 * np.ones([1, 3], np.float32) @ weights[0] + weights[1],
      rtol=1e-6,
    )


if __name__ == '__main__':
  absltest.main()
