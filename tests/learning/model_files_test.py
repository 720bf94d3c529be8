"""Models in files: what cannot be trained says what to do about it."""

import importlib
import importlib.util
import pathlib
import sys
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tvdp_tf.learning import functional, model_files, models

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


def _saved(test, *parts):
  model = tf.keras.Sequential([layers.InputLayer((8, 8, 1)), *parts])
  path = f'{test.create_tempdir().full_path}/model.keras'
  model.save(path)
  return model, f'keras:{path}'


class FindTest(parameterized.TestCase):
  def test_starts_from_the_weights_of_the_file(self):
    model, name = _saved(self, layers.Flatten(), layers.Dense(10))
    spec = model_files.find(name)
    built = spec.build((8, 8, 1), 10, 0)
    for one, other in zip(model.weights, built.weights, strict=True):
      self.assertAllEqual(one, other)
    self.assertIsInstance(
      spec.loss, tf.keras.losses.SparseCategoricalCrossentropy
    )

  def assertAllEqual(self, one, other):
    self.assertEqual(one.numpy().tolist(), other.numpy().tolist())

  def test_a_single_score_has_the_loss_of_the_svm(self):
    _, name = _saved(self, layers.Flatten(), layers.Dense(1))
    spec = model_files.find(name)
    self.assertIs(type(spec.loss), type(models.MODELS['svm'].loss))
    spec.build((8, 8, 1), 2, 0)

  @parameterized.parameters(
    (10, 'softmax', models.CrossEntropyLoss),
    (1, 'sigmoid', models.LogisticLoss),
  )
  def test_the_last_step_is_left_to_the_loss(self, outputs, step, loss):
    model, name = _saved(self, layers.Flatten(), layers.Dense(outputs, step))
    spec = model_files.find(name)
    self.assertIs(type(spec.loss), loss)
    built = spec.build((8, 8, 1), max(outputs, 2), 0)
    images = tf.random.stateless_normal((3, 8, 8, 1), (1, 2))
    scores = built(images)
    self.assertGreater(np.abs(scores).max(), 1)
    np.testing.assert_allclose(
      getattr(tf.nn, step)(scores), model(images), rtol=1e-5
    )

  def test_a_model_for_images_of_any_size(self):
    model = tf.keras.Sequential(
      [
        layers.InputLayer((None, None, 1)),
        layers.Conv2D(4, 3),
        layers.GlobalMaxPool2D(),
        layers.Dense(10),
      ]
    )
    path = f'{self.create_tempdir().full_path}/model.keras'
    model.save(path)
    spec = model_files.find(f'keras:{path}')
    for size in (8, 5):
      built = spec.build((size, size, 1), 10, 0)
      self.assertEqual(built.input_shape, (None, size, size, 1))
      images = tf.random.stateless_normal((3, size, size, 1), (1, 2))
      np.testing.assert_allclose(built(images), model(images), rtol=1e-5)

  @parameterized.parameters(
    ((8, 8, 3), 10, r'must map \(None, 8, 8, 3\)'),
    ((8, 8, 1), 3, r'to \(None, 3\), got a file .* to \(None, 10\)$'),
    ((8, 8, 1), 2, r'to \(None, 2\), got a file .* to \(None, 10\)$'),
  )
  def test_a_file_that_does_not_fit(self, input_shape, classes, message):
    _, name = _saved(self, layers.Flatten(), layers.Dense(10))
    with self.assertRaisesRegex(ValueError, message):
      model_files.find(name).build(input_shape, classes, 0)

  def test_a_score_tells_two_classes(self):
    _, name = _saved(self, layers.Flatten(), layers.Dense(1))
    with self.assertRaisesRegex(
      ValueError, r'to \(None, 10\), got a file .* to \(None, 1\)$'
    ):
      model_files.find(name).build((8, 8, 1), 10, 0)

  def test_probabilities_in_the_midst(self):
    _, name = _saved(self, layers.Flatten(), layers.Dense(10), layers.Softmax())
    with self.assertRaisesRegex(ValueError, '^model must end in scores, or in'):
      model_files.find(name).build((8, 8, 1), 10, 0)

  def test_code_in_a_file_is_not_run(self):
    _, name = _saved(
      self, layers.Flatten(), layers.Lambda(lambda x: x), layers.Dense(10)
    )
    with self.assertRaisesRegex(ValueError, 'a file that Keras saved'):
      model_files.find(name)

  @parameterized.parameters(
    'perceptron', '', None, 'keras:', 'keras:/no/such.keras', 'keras:/etc/hosts'
  )
  def test_no_model(self, name):
    with self.assertRaisesRegex(
      ValueError, 'must be one of mlp, svm, cnn, linear or'
    ):
      model_files.find(name)

  def test_garbage(self):
    path = self.create_tempfile('garbage.keras', 'PK garbage').full_path
    with self.assertRaisesRegex(ValueError, 'a file that Keras saved'):
      model_files.find(f'keras:{path}')


class ModelFilesTest(parameterized.TestCase):
  def saved(self, model):
    path = f'{self.create_tempdir().full_path}/model.keras'
    model.save(path)
    return f'keras:{path}'

  @parameterized.named_parameters(
    ('unbuilt', _unbuilt, 'called or built before it is saved'),
    ('unbuilt_class', Net, 'called or built before it is saved'),
    ('two_inputs', _two_inputs, 'model must have one input, got 2: its input'),
    (
      'two_outputs',
      _two_outputs,
      'model must have one output, got 2: its input',
    ),
  )
  def test_the_cure_is_named(self, build, message):
    with self.assertRaisesRegex(ValueError, message):
      model_files.find(self.saved(build()))

  @parameterized.named_parameters(
    ('called', lambda: _called(_unbuilt())),
    ('called_class', lambda: _called(Net())),
  )
  def test_a_model_that_was_called_is_the_same_function(self, build):
    model = build()
    loaded = model_files.find(self.saved(model)).build((8, 8, 1), 10, 0)
    function = functional.FunctionalModel(loaded)
    images = tf.random.stateless_uniform((3, 8, 8, 1), (1, 2))
    self.assertLen(function.initial_weights, 2)
    self.assertAllClose(
      function(function.initial_weights, images), model(images)
    )

  def assertAllClose(self, one, other):
    tf.debugging.assert_near(one, other)

  def test_a_model_that_is_no_graph_of_layers(self):
    with self.assertRaisesRegex(ValueError, 'must be built from keras.Input'):
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
      '--model must consist of classes that Keras finds, got Thrice in '
      "'Thrice.keras': decorate them with @tf.keras.saving.register_keras_s",
      result.stderr,
    )
    self.assertIn('--import=own_layers', result.stderr)
    self.assertFalse((folder / 'run').exists())
    result = train('Twice', '--import=own_layers')
    self.assertEqual((result.returncode, result.stderr), (0, ''))


if __name__ == '__main__':
  absltest.main()
