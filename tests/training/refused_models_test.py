"""A model that no noise can hide is refused before there is a folder."""

import pathlib

import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf import errors
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

LAYERS = tf.keras.layers


def softmax_over_batch():
  return [LAYERS.Softmax(axis=0)]


def unit_normalization_over_batch():
  return [LAYERS.UnitNormalization(axis=0)]


def batch_normalization():
  return [LAYERS.BatchNormalization()]


def frozen_layer():
  return [LAYERS.Dense(8, trainable=False)]


def half_precision():
  return [LAYERS.Dense(8, dtype='float16')]


def mixed_precision():
  return [LAYERS.Dense(8, dtype='mixed_float16')]


class RefusedModelsTest(parameterized.TestCase):
  def save(self, layers, between=()):
    path = pathlib.Path(self.create_tempdir().full_path) / 'model.keras'
    tf.keras.Sequential(
      [
        *(LAYERS.InputLayer((8, 8, 1)), *between, LAYERS.Flatten()),
        *(*layers, LAYERS.Dense(10)),
      ]
    ).save(path)
    return path

  def settings(self, path, **changes):
    given = {'mechanism': 'gradient', 'rounds': 1, 'local_steps': 1, **changes}
    return settings_lib.TrainingSettings(model=f'keras:{path}', **given)

  @parameterized.parameters(
    softmax_over_batch,
    unit_normalization_over_batch,
    batch_normalization,
    frozen_layer,
    half_precision,
    mixed_precision,
  )
  def test_in_one_line_and_without_a_folder(self, build):
    path = self.save(build())
    output_dir = path.parent / 'run'
    with self.assertRaises(errors.UsageError) as caught:
      training.train(self.settings(path), output_dir)
    text = str(caught.exception)
    self.assertStartsWith(text, 'model must ')
    self.assertNotIn('\n', text)
    self.assertLess(len(text), 400)
    self.assertEqual([p.name for p in path.parent.iterdir()], ['model.keras'])

  def test_a_recurrent_model_works(self):
    path = self.save(
      [], [LAYERS.Reshape((2, 32)), LAYERS.SimpleRNN(2, return_sequences=True)]
    )
    result = training.train(
      self.settings(path, users=200, users_per_round=1, local_steps=1),
      path.parent / 'run',
    )
    self.assertTrue(result.statement.holds)

  def test_a_user_may_mix_examples_of_their_own(self):
    # There the unit is the user, and all of an update is clipped.
    path = self.save(softmax_over_batch())
    result = training.train(
      self.settings(path, mechanism='central'), path.parent / 'run'
    )
    self.assertTrue(result.statement.holds)


if __name__ == '__main__':
  absltest.main()
