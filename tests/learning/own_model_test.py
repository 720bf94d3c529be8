"""Models of the caller's own: taken as they are, or refused."""

import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  functional,
  ghost_list,
  keras_version,
  models,
  own_model,
)

_X = np.arange(24).reshape(6, 4) / 8
_LAYERS = tf.keras.layers


class _Subclass(tf.keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = _LAYERS.Dense(3)

  def call(self, inputs):
    return self.dense(inputs)


def _sequential(*layers):
  return tf.keras.Sequential(list(layers))


class _Broadcasting(tf.keras.losses.Loss):
  """Of labels [n] and scores [n, 1] it makes [n, n]."""

  def call(self, y_true, y_pred):
    return tf.square(tf.cast(y_true, tf.float32) - y_pred)


def _used_twice() -> tf.keras.Model:
  """Its last layer is its first one, too."""
  inputs = tf.keras.Input([4])
  layer = _LAYERS.Dense(4, 'softmax')
  return tf.keras.Model(inputs, layer(layer(inputs)))


class _Gated(tf.keras.layers.Dense):
  """Its activation is not at the end."""

  def call(self, inputs):
    return self.activation(tf.matmul(inputs, self.kernel)) * inputs[:, :3]


def _named():
  inputs = tf.keras.Input([4], name='features')
  outputs = _LAYERS.Dense(3, 'softmax')(inputs)
  return tf.keras.Model({'features': inputs}, {'scores': outputs})


def _of_tokens(*ends):
  """A model with one output, much the same for all tokens."""
  return _sequential(
    tf.keras.Input([4], dtype='int32'),
    _LAYERS.Embedding(9, 2),
    _LAYERS.Flatten(),
    _LAYERS.Dense(1),
    *ends,
  )


class ModelTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('never_called', lambda: _sequential(_LAYERS.Dense(3, 'softmax'))),
    (
      'activation',
      lambda: _sequential(_LAYERS.Dense(3), _LAYERS.Activation('softmax')),
    ),
    ('of_tensorflow', lambda: _sequential(_LAYERS.Dense(3, tf.nn.softmax))),
    ('scores', lambda: _sequential(_LAYERS.Dense(3))),
    ('names', _named),
    ('subclass', _Subclass),
  )
  def test_trains_scores_and_gives_back_what_it_was(self, make):
    own = own_model.OwnModel(make, (4,))
    self.assertEqual((own.input_shape, own.num_classes), ((4,), 3))
    self.assertIsInstance(own.spec.loss, models.CrossEntropyLoss)
    built = own.spec.build((4,), 3, 0)
    weights = built.get_weights()
    again = own.spec.build((4,), 3, 1)
    for one, other in zip(weights, again.get_weights(), strict=True):
      np.testing.assert_array_equal(one, other)
    scores = built(_X.astype(np.float32)).numpy()
    np.testing.assert_allclose(scores, _X @ weights[0] + weights[1], rtol=1e-4)
    trained = own.with_weights([w + 1 for w in weights])
    for one, other in zip(weights, trained.get_weights(), strict=True):
      np.testing.assert_array_equal(one + 1, other)
    functional.FunctionalModel(built)  # It can be trained.

  def test_an_activation_that_is_not_the_end_stays(self):
    model = _sequential(_Gated(3, 'sigmoid'))
    built = own_model.OwnModel(lambda: model, (4,)).spec.build((4,), 3, 0)
    np.testing.assert_array_equal(built(_X), model(_X))

  def test_a_model_that_was_called_with_one_example_takes_more(self):
    model = _sequential(_LAYERS.Dense(3, 'softmax'))
    model(np.zeros([1, 4], np.float32))
    built = own_model.OwnModel(model, (4,)).spec.build((4,), 3, 0)
    self.assertEqual(built.input_shape, (None, 4))
    self.assertEqual(
      ghost_list.supports(
        functional.FunctionalModel(built), models.CrossEntropyLoss()
      ),
      not keras_version.IS_KERAS_3,
    )

  @parameterized.parameters(True, False)
  def test_a_model_for_any_length_is_trained_at_that_of_the_data(self, copied):
    def make():
      inputs = tf.keras.Input([None], dtype='int64')
      hidden = _LAYERS.Embedding(9, 2)(inputs)
      hidden = _LAYERS.Conv1D(3, 2, activation='relu')(hidden)
      hidden = _LAYERS.GlobalMaxPool1D()(hidden)
      outputs = _LAYERS.Dense(1, 'sigmoid')(hidden)
      return tf.keras.Model(inputs, outputs)

    model = make()
    own = own_model.OwnModel(model if copied else make, (4,))
    built = own.spec.build((4,), 2, 0)
    self.assertEqual(built.input_shape, (None, 4))
    self.assertEqual(
      ghost_list.supports(
        functional.FunctionalModel(built), models.LogisticLoss()
      ),
      not keras_version.IS_KERAS_3,
    )
    trained = own.with_weights(built.get_weights())
    self.assertEqual(trained.input_shape, (None, None))
    tokens = np.random.default_rng(0).integers(9, size=[5, 4])
    np.testing.assert_allclose(
      tf.sigmoid(built(tokens)), trained(tokens), rtol=1e-6
    )

  def test_scores_that_could_be_probabilities_by_chance(self):
    taken = set()
    models_of_seeds: list[tf.keras.Model] = []

    def last():
      return models_of_seeds[-1]

    for seed in range(8):
      tf.keras.utils.set_random_seed(seed)
      models_of_seeds.append(model := _of_tokens())
      weights = model.get_weights()
      own_model.OwnModel(last, (4,))
      for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
      scores = model(np.random.default_rng(0).integers(0, 2, [16, 4])).numpy()
      taken.add(bool(((scores >= 0) & (scores <= 1)).all()))
    self.assertEqual(taken, {False, True})  # The test can fail.

  def test_a_model_that_is_refused_is_as_it_was(self):
    model = _of_tokens(_LAYERS.Activation('sigmoid'), _LAYERS.Flatten())
    weights = model.get_weights()
    with self.assertRaisesRegex(ValueError, 'outputs that are probabilities'):
      own_model.OwnModel(lambda: model, (4,))
    for one, other in zip(weights, model.get_weights(), strict=True):
      np.testing.assert_array_equal(one, other)

  def test_logistic_loss_is_that_of_keras(self):
    scores = np.array([[-30.0], [-1.0], [0.5], [40.0]], np.float32)
    labels = np.array([1, 0, 1, 0])
    np.testing.assert_allclose(
      models.LogisticLoss()(labels, scores),
      tf.keras.losses.BinaryCrossentropy(from_logits=True)(
        labels[:, np.newaxis], scores
      ),
      rtol=1e-6,
    )

  @parameterized.named_parameters(
    ('text', 'mlp', None, r'^model must be a tf.keras.Model, .* builtins.str$'),
    (
      'softmax_layer',
      lambda: _sequential(_LAYERS.Dense(3), _LAYERS.Softmax()),
      None,
      'outputs that are probabilities: remove the last step',
    ),
    (
      'image',
      lambda: _sequential(_LAYERS.Reshape([2, 2])),
      None,
      r'^model must have outputs of the shape \(None, classes\), got',
    ),
    (
      'shape',
      lambda: _sequential(_LAYERS.Conv2D(2, 3)),
      None,
      r'^model must take examples of the shape \(4,\), got ValueError',
    ),
    (
      'from_probabilities',
      lambda: _sequential(_LAYERS.Dense(3)),
      tf.keras.losses.SparseCategoricalCrossentropy(),
      '^loss must take scores, got one with from_logits=False',
    ),
    (
      'float64',
      lambda: _sequential(_LAYERS.Dense(3, dtype='float64')),
      None,
      '^model must have weights in float32, got .*kernel.* in float64: '
      'build it in float32',
    ),
    (
      'adapted',
      lambda: _sequential(_LAYERS.Normalization(), _LAYERS.Dense(3)),
      None,
      'count.* in int64: a layer that was adapted to data',
    ),
    (
      'function',
      lambda: 1 / 0,
      None,
      '^model must be a function that builds one, got ZeroDivisionError: ',
    ),
    (
      'nan',
      lambda: _sequential(
        _LAYERS.Dense(
          3, bias_initializer=tf.keras.initializers.Constant(np.nan)
        )
      ),
      None,
      '^model must have finite weights, got some that are not$',
    ),
    (
      'words',
      lambda: _sequential(
        tf.keras.Input([4], dtype='string'),
        _LAYERS.StringLookup(vocabulary=['a', 'b'], output_mode='multi_hot'),
        _LAYERS.Dense(3),
      ),
      None,
      'an input of numbers, got one of .*string.*: look up words in',
    ),
    (
      'several_classes',
      lambda: _sequential(_LAYERS.Dense(3, activation='sigmoid')),
      None,
      'end in scores or a softmax, .*got sigmoid: an example has one class$',
    ),
    (
      'fails',
      lambda: _sequential(_LAYERS.CategoryEncoding(4), _LAYERS.Dense(3)),
      None,
      '^model must accept any values of the shape of its input, got ',
    ),
    (
      'one_hot_loss',
      lambda: _sequential(_LAYERS.Dense(3)),
      tf.keras.losses.CategoricalCrossentropy(from_logits=True),
      '^loss must take class numbers, .* got CategoricalCrossentropy: ',
    ),
    (
      'no_loss',
      lambda: _sequential(_LAYERS.Dense(3)),
      'mse',
      '^loss must be one of ',
    ),
    (
      'losses',
      lambda: _sequential(_LAYERS.Dense(3)),
      ['cross_entropy'],
      r"^loss must be one of .*, got \['cross_entropy'\]$",
    ),
    (
      'other_shapes',
      lambda: _sequential(_LAYERS.Dense(3)),
      tf.keras.losses.MeanSquaredError(),
      r'^loss must take labels \[n\], class numbers, and scores \[n, 3\], got',
    ),
    (
      'each_label_with_each_score',
      lambda: _sequential(_LAYERS.Dense(1)),
      _Broadcasting(),
      r'^loss must be the mean over labels \[n\] and scores \[n, 1\], got',
    ),
    (
      'no_weights',
      lambda: _sequential(_LAYERS.Flatten()),
      None,
      '^model must have weights to train, got none$',
    ),
    (
      'used_twice',
      _used_twice,
      None,
      'outputs that are probabilities: remove the last step',
    ),
    (
      'integers',
      lambda: _sequential(
        tf.keras.Input([4], dtype='int32'),
        _LAYERS.Embedding(2, 2),
        _LAYERS.Flatten(),
        _LAYERS.Dense(3),
        _LAYERS.Softmax(),
      ),
      None,
      'outputs that are probabilities: remove the last step',
    ),
    (
      'one_output',
      lambda: _of_tokens(_LAYERS.Activation('sigmoid'), _LAYERS.Flatten()),
      None,
      'outputs that are probabilities: remove the last step',
    ),
  )
  def test_refused(self, model, loss, text):
    with self.assertRaisesRegex(ValueError, text):
      own_model.OwnModel(model, (4,), loss)

  def test_indices_that_no_embedding_has(self):
    own = own_model.OwnModel(
      _sequential(
        tf.keras.Input([4], dtype='int32'),
        _LAYERS.Embedding(5, 2),
        _LAYERS.Flatten(),
        _LAYERS.Dense(3),
      ),
      (4,),
    )
    examples = np.zeros([3000, 4], np.int32)
    own.check_indices(examples)
    for row in (2999, 2048, 7, 0):
      examples[row:, 1] = 5
      with self.assertRaisesRegex(
        ValueError, f'^test must hold indices that .* in row {row}$'
      ):
        own.check_indices(examples)
    own = own_model.OwnModel(_sequential(_LAYERS.Dense(3)), (4,))
    own.check_indices(examples)

  def test_copies_that_are_not(self):
    sizes = iter((3, 3, 3, 4, 5))
    with self.assertRaisesRegex(ValueError, 'built identically by each call'):
      own = own_model.OwnModel(
        lambda: _sequential(_LAYERS.Dense(next(sizes)), _LAYERS.Dense(3)),
        (4,),
      )
      for _ in range(3):
        own.spec.build((4,), 3, 0)


@parameterized.named_parameters(
  ('sigmoids', lambda: [_LAYERS.Dense(2, activation='sigmoid')], 'a softmax'),
  ('softmax_of_one', lambda: [_LAYERS.Dense(1, 'softmax')], 'a sigmoid, for'),
)
class EndTest(parameterized.TestCase):
  def test_an_end_of_another_loss(self, layers, message):
    with self.assertRaisesRegex(
      ValueError, f'^model must end in scores or {message}'
    ):
      own_model.OwnModel(_sequential(*layers()), (4,), None)


class LeftOutTest(absltest.TestCase):
  """What training would not keep is not dropped without a word."""

  @unittest.skipIf(keras_version.IS_KERAS_3, 'it takes no functions')
  def test_a_loss_of_its_own(self):
    model = _sequential(tf.keras.Input([4]), _LAYERS.Dense(3))
    model.add_loss(lambda: tf.reduce_sum(model.weights[0]))
    with self.assertRaisesRegex(ValueError, '^model must have no losses of'):
      own_model.OwnModel(model, (4,), None)

  def test_a_constraint(self):
    model = _sequential(
      tf.keras.Input([4]), _LAYERS.Dense(3, kernel_constraint='non_neg')
    )
    with self.assertRaisesRegex(
      ValueError, '^model must have no constraints of .*, got .*kernel'
    ):
      functional.FunctionalModel(model)


if __name__ == '__main__':
  absltest.main()
