import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import models

layers = tf.keras.layers


def saved(test, *parts):
  model = tf.keras.Sequential([layers.InputLayer((8, 8, 1)), *parts])
  path = f'{test.create_tempdir().full_path}/model.keras'
  model.save(path)
  return model, f'keras:{path}'


class OwnModelTest(parameterized.TestCase):
  def test_starts_from_the_weights_of_the_file(self):
    model, name = saved(self, layers.Flatten(), layers.Dense(10))
    spec = models.find(name)
    built = spec.build((8, 8, 1), 10, 0)
    for one, other in zip(model.weights, built.weights, strict=True):
      self.assertAllEqual(one, other)
    self.assertIsInstance(
      spec.loss, tf.keras.losses.SparseCategoricalCrossentropy
    )

  def assertAllEqual(self, one, other):
    self.assertEqual(one.numpy().tolist(), other.numpy().tolist())

  def test_a_single_score_has_the_loss_of_the_svm(self):
    _, name = saved(self, layers.Flatten(), layers.Dense(1))
    spec = models.find(name)
    self.assertIs(type(spec.loss), type(models.MODELS['svm'].loss))
    spec.build((8, 8, 1), 2, 0)

  @parameterized.parameters(
    ((8, 8, 3), 10, r'must map \(None, 8, 8, 3\)'),
    ((8, 8, 1), 3, r'to \(None, 3\), got'),
    ((8, 8, 1), 10, 'without an activation, got softmax'),
  )
  def test_a_file_that_does_not_fit(self, input_shape, classes, message):
    _, name = saved(self, layers.Flatten(), layers.Dense(10, 'softmax'))
    with self.assertRaisesRegex(ValueError, message):
      models.find(name).build(input_shape, classes, 0)

  def test_code_in_a_file_is_not_run(self):
    _, name = saved(
      self, layers.Flatten(), layers.Lambda(lambda x: x), layers.Dense(10)
    )
    with self.assertRaisesRegex(ValueError, 'a file that Keras saved'):
      models.find(name)

  @parameterized.parameters(
    'perceptron', '', None, 'keras:', 'keras:/no/such.keras', 'keras:/etc/hosts'
  )
  def test_no_model(self, name):
    with self.assertRaisesRegex(
      ValueError, 'must be one of mlp, svm, cnn, linear or'
    ):
      models.find(name)

  def test_garbage(self):
    path = self.create_tempfile('garbage.keras', 'PK garbage').full_path
    with self.assertRaisesRegex(ValueError, 'a file that Keras saved'):
      models.find(f'keras:{path}')


if __name__ == '__main__':
  absltest.main()
