"""Models in files: what cannot be trained says what to do about it."""

import importlib
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tvdp_tf.learning import functional, models

layers = tf.keras.layers

_OWN = """
import tensorflow as tf

@tf.keras.saving.register_keras_serializable()
class Twice(tf.keras.layers.Layer):
  def call(self, x):
    return 2 * x

class Thrice(tf.keras.layers.Layer):
  def call(self, x):
    return 3 * x
"""


@tf.keras.utils.register_keras_serializable('model_files_test')
class Net(tf.keras.Model):
  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.flatten = layers.Flatten()
    self.scores = layers.Dense(10)

  def call(self, x):
    return self.scores(self.flatten(x))


def _image():
  return layers.Input((8, 8, 1))


def _two_inputs():
  inputs = [_image(), _image()]
  scores = layers.Dense(10)(layers.Flatten()(layers.Add()(inputs)))
  return tf.keras.Model(inputs, scores)


def _two_outputs():
  inputs = _image()
  flat = layers.Flatten()(inputs)
  return tf.keras.Model(inputs, [layers.Dense(10)(flat) for _ in range(2)])


def _unbuilt():
  return tf.keras.Sequential([layers.Flatten(), layers.Dense(10)])


def _called(model):
  model(tf.zeros((1, 8, 8, 1)))
  return model


class ModelFilesTest(parameterized.TestCase):
  def saved(self, model):
    path = f'{self.create_tempdir().full_path}/model.keras'
    model.save(path)
    return f'keras:{path}'

  @parameterized.named_parameters(
    ('unbuilt', _unbuilt, 'called or built before it was saved'),
    ('unbuilt_class', Net, 'called or built before it was saved'),
    ('two_inputs', _two_inputs, 'model must have one input, got 2: one array'),
    ('two_outputs', _two_outputs, 'model must have one output, got 2: one'),
  )
  def test_the_cure_is_named(self, build, message):
    with self.assertRaisesRegex(ValueError, message):
      models.find(self.saved(build()))

  @parameterized.named_parameters(
    ('called', lambda: _called(_unbuilt())),
    ('called_class', lambda: _called(Net())),
  )
  def test_a_model_that_was_called_is_the_same_function(self, build):
    model = build()
    loaded = models.find(self.saved(model)).build((8, 8, 1), 10, 0)
    function = functional.FunctionalModel(loaded)
    images = tf.random.stateless_uniform((3, 8, 8, 1), (1, 2))
    self.assertLen(function.initial_weights, 2)
    self.assertAllClose(
      function(function.initial_weights, images), model(images)
    )

  def assertAllClose(self, one, other):
    tf.debugging.assert_near(one, other)

  def test_a_model_that_is_no_graph_of_layers(self):
    with self.assertRaisesRegex(ValueError, 'must be built of keras.Input'):
      functional.FunctionalModel(_called(Net()))
    with self.assertRaisesRegex(ValueError, 'one output, got 2 and 1'):
      functional.FunctionalModel(_two_inputs())


class ImportTest(absltest.TestCase):
  @unittest.skipIf(
    importlib.util.find_spec('tensorflow_federated') is None, 'it trains'
  )
  def test_classes_of_ones_own(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / 'own_layers.py').write_text(_OWN)
    with mock.patch.object(sys, 'path', [str(folder), *sys.path]):
      own_layers = importlib.import_module('own_layers')
    for name in ('Twice', 'Thrice'):
      own_layer = getattr(own_layers, name)()
      model = tf.keras.Sequential(
        [_image(), own_layer, layers.Flatten(), layers.Dense(10)]
      )
      model.save(folder / f'{name}.keras')

    def train(name, *arguments):
      return program_runner.run(
        'train.py',
        f'--model=keras:{name}.keras',
        '--rounds=1',
        '--local_steps=1',
        '--noprogress',
        '--output_dir=run',
        *arguments,
        cwd=folder,
      )

    # Found, but not registered.
    result = train('Thrice', '--import=own_layers')
    self.assertEqual(result.returncode, 2)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn(
      '--model must be of classes that Keras finds, got Thrice in '
      "'Thrice.keras': decorate them with @tf.keras.saving.register_keras_s",
      result.stderr,
    )
    self.assertIn('--import=own_layers', result.stderr)
    self.assertFalse((folder / 'run').exists())
    result = train('Twice', '--import=own_layers')
    self.assertEqual((result.returncode, result.stderr), (0, ''))


if __name__ == '__main__':
  absltest.main()
