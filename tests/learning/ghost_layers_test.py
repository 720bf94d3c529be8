"""Ghost clipping of layers that are neither convolutions nor recurrent."""

import unittest
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import (
  clipping,
  functional,
  ghost_clipping,
  keras_version,
  view_gradients,
  views,
)

LAYERS = tf.keras.layers
ROW, IMAGE, SEQUENCE, WORDS = (6,), (4, 3, 4), (5, 4), (6,)


def of(shape, *layers):
  return ghost_cases.sequential(
    shape, *layers, LAYERS.Flatten(), LAYERS.Dense(3)
  )


def of_words(*layers):
  return ghost_cases.sequential(
    WORDS,
    LAYERS.Embedding(ghost_cases.VOCABULARY, 4, mask_zero=True),
    *layers,
    LAYERS.Dense(3),
    dtype='int32',
  )


def functional_model(shape, build, dtype=None):
  inputs = tf.keras.Input(shape, dtype=dtype)
  outputs = LAYERS.Dense(3)(LAYERS.Flatten()(build(inputs)))
  return tf.keras.Model(inputs, outputs)


def attention(inputs, **options):
  values = LAYERS.Dense(4, activation='tanh')(inputs)
  attended = LAYERS.MultiHeadAttention(2, 3, value_dim=2)(
    inputs, values, **options
  )
  return LAYERS.LayerNormalization()(inputs + attended)


def attention_of_words(inputs):
  rows = LAYERS.Embedding(ghost_cases.VOCABULARY, 4, mask_zero=True)(inputs)
  return LAYERS.MultiHeadAttention(2, 3)(rows, rows)


def residual(inputs):
  hidden = LAYERS.Dense(4)(1 - tf.nn.tanh(LAYERS.Dense(4)(inputs))) / 2.0
  return tf.math.multiply(tf.nn.relu(inputs + hidden), hidden)


def of_models(inputs):
  """Sequential and functional models in a model, and in one of these."""
  first = ghost_cases.sequential(SEQUENCE, LAYERS.Dense(4, activation='tanh'))
  rows = tf.keras.Input(SEQUENCE)
  hidden = LAYERS.Dense(4)(first(rows))
  inner = tf.keras.Model(rows, LAYERS.Add()([rows, 2.0 * hidden]))
  # Built when it is called.
  last = tf.keras.Sequential(
    [tf.keras.Sequential([LAYERS.SimpleRNN(3)]), LAYERS.LayerNormalization()]
  )
  return last(inner(inputs))


MODELS: dict[str, Callable[..., tf.keras.Model]] = {
  'sequence': lambda: of(
    SEQUENCE,
    LAYERS.Dense(3, activation='tanh'),
    LAYERS.Dense(5, use_bias=False),
  ),
  'image': lambda: of(IMAGE, LAYERS.Dense(3, activation='tanh')),
  'words': lambda: of_words(
    LAYERS.Dense(3, activation='tanh'), LAYERS.GlobalAveragePooling1D()
  ),
  'einsum': lambda: of(
    SEQUENCE,
    LAYERS.EinsumDense('abc,cde->abed', (None, 2, 3), bias_axes='ed'),
    LAYERS.EinsumDense('abed,dx->abex', (None, None, 3), activation='tanh'),
    LAYERS.EinsumDense('abex,bxy->aey', (None, 2), bias_axes='y'),
  ),
  'layer_normalization': lambda: of(
    ROW, LAYERS.LayerNormalization(), LAYERS.Dense(4, activation='tanh')
  ),
  'without_weights': lambda: of(
    SEQUENCE, LAYERS.LayerNormalization(center=False, scale=False)
  ),
  'of_several_axes': lambda: of(
    IMAGE,
    LAYERS.LayerNormalization(axis=[1, 3], epsilon=1e-6, center=False),
    LAYERS.LayerNormalization(axis=[3, 2, 1], scale=False),
    LAYERS.LayerNormalization(axis=(-1, -2)),
    LAYERS.LayerNormalization(center=False, scale=False),
  ),
  'of_sequences': lambda: of(
    SEQUENCE, LAYERS.Dense(4), LAYERS.LayerNormalization()
  ),
  'of_groups': lambda: of(
    IMAGE,
    LAYERS.Conv2D(4, 2, padding='same'),
    LAYERS.GroupNormalization(2),
    LAYERS.ReLU(),
    LAYERS.GroupNormalization(-1, axis=1, center=False),
    LAYERS.GroupNormalization(1, scale=False),
  ),
  'activations': lambda: of(
    IMAGE,
    LAYERS.Dense(4, activation='leaky_relu'),
    LAYERS.Conv2D(4, 2, padding='same', activation=LAYERS.LeakyReLU(0.1)),
    LAYERS.Conv2D(5, 1, activation=LAYERS.ReLU(2.0, negative_slope=0.1)),
    LAYERS.Dense(4, activation='relu6'),
    LAYERS.Dense(3, activation='log_softmax'),
    LAYERS.Dense(3, activation=LAYERS.ELU(0.5)),
  ),
  'learned_slopes': lambda: of(
    IMAGE,
    LAYERS.PReLU('uniform'),
    LAYERS.Dense(3),
    LAYERS.PReLU('uniform', shared_axes=[1, 2]),
    LAYERS.Conv2D(4, 2, padding='same'),
    LAYERS.PReLU('uniform', shared_axes=[1, 2, 3]),
  ),
  'softmax': lambda: of(
    SEQUENCE,
    LAYERS.Dense(4),
    LAYERS.Softmax(),
    LAYERS.Softmax(axis=1),
    LAYERS.Dense(3),
  ),
  'moved': lambda: of(
    SEQUENCE,
    LAYERS.Dense(3, activation='tanh'),
    LAYERS.Cropping1D((1, 2)),
    LAYERS.UpSampling1D(3),
    LAYERS.Dense(2, activation='tanh'),
  ),
  'repeated': lambda: of(
    ROW, LAYERS.Dense(3, activation='tanh'), LAYERS.RepeatVector(4)
  ),
  'by_numbers': lambda: of(
    SEQUENCE,
    LAYERS.Normalization(mean=np.arange(4.0), variance=[1, 4, 2, 3]),
    LAYERS.Dense(3, activation='tanh'),
    LAYERS.Normalization(axis=None, mean=0.5, variance=3, invert=True),
    LAYERS.Normalization(axis=(1, 2), mean=0.5, variance=2),
  ),
  'attention': lambda: functional_model(SEQUENCE, attention),
  'causal_attention': lambda: functional_model(
    SEQUENCE, lambda inputs: attention(inputs, use_causal_mask=True)
  ),
  'attention_of_words': lambda: functional_model(
    WORDS, attention_of_words, 'int32'
  ),
  'residual': lambda: functional_model(SEQUENCE, residual),
  'models': lambda: functional_model(SEQUENCE, of_models),
}


# Of as many steps as there are examples when a copy is tried: what is put in
# another's place is no error.
SQUARE = (3, 3)


def attention_among(axes):
  return functional_model(
    SQUARE,
    lambda inputs: LAYERS.MultiHeadAttention(2, 3, attention_axes=axes)(
      inputs, inputs
    ),
  )


def attention_on_rank(rank):
  """Keras puts a mask of rows and columns beside other examples."""

  def build(inputs):
    rows = LAYERS.Embedding(ghost_cases.VOCABULARY, 4)(inputs)
    return LAYERS.MultiHeadAttention(2, 3, attention_axes=(1,))(rows, rows)

  return functional_model((3,) * (rank - 2), build, 'int32')


def attention_with_a_mask(is_bad):
  """Of as many rows as there are steps, as if it were of examples."""

  def build(inputs):
    mask = [LAYERS.GlobalMaxPool1D(data_format='channels_first')(inputs)]
    return LAYERS.MultiHeadAttention(2, 3)(
      inputs, inputs, inputs, *(mask if is_bad else [])
    )

  return functional_model(SQUARE, build)


def masked_groups(is_bad):
  masking = [LAYERS.Masking()] if is_bad else []
  return of(SQUARE, *masking, LAYERS.GroupNormalization(3))


def masked_softmax(is_bad):
  masking = [LAYERS.Masking()] if is_bad else []
  return of(SQUARE, *masking, LAYERS.Softmax())


def softmax_along(axis):
  return of(SQUARE, LAYERS.Softmax(axis=axis))


def normalized(is_bad):
  axis = 0 if is_bad else 1
  return of(
    SQUARE, LAYERS.LayerNormalization(axis=axis, center=False, scale=False)
  )


def einsum(arguments):
  equation, output_shape = arguments
  return of((4, 2), LAYERS.EinsumDense(equation, output_shape, bias_axes='d'))


def einsum_of_three(equation):
  """Of batches of three, whose places Keras may take for others."""
  inputs = tf.keras.Input(SQUARE, batch_size=3)
  outputs = LAYERS.EinsumDense(equation, SQUARE)(inputs)
  return tf.keras.Model(inputs, LAYERS.Dense(3)(LAYERS.Flatten()(outputs)))


def added(build):
  return functional_model(SQUARE, build)


def other_ranks(inputs):
  """Broadcast, an example's are added to those of others."""
  return inputs + LAYERS.GlobalMaxPool1D()(inputs)


def a_constant(inputs):
  """A number for each example of a batch of three."""
  return inputs * np.array([[[1.0]], [[2.0]], [[3.0]]], np.float32)


def doubled(inputs):
  return inputs + inputs


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostLayersTest(ghost_cases.ModelTestCase):
  @parameterized.parameters(*MODELS)
  def test_is_the_sum_over_the_examples(self, name):
    self.check_sum(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters(
    *('sequence', 'of_groups', 'attention', 'residual', 'learned_slopes'),
  )
  def test_a_single_gradient_is_within_the_clip(self, name):
    self.check_single(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters(
    *('sequence', 'einsum', 'of_several_axes', 'of_groups', 'residual'),
    *('causal_attention', 'learned_slopes', 'softmax'),
  )
  def test_an_example_is_nothing_to_the_others(self, name):
    self.check_apart(ghost_cases.sums_of(MODELS[name]))

  @parameterized.parameters('words', 'attention_of_words')
  def test_nor_are_its_words(self, name):
    values = -1, 0, ghost_cases.VOCABULARY, 2**31 - 1
    self.check_apart(ghost_cases.sums_of(MODELS[name]), values)

  @parameterized.parameters(
    *('image', 'of_several_axes', 'of_groups', 'learned_slopes'),
  )
  def test_of_an_image_and_its_mirror_image(self, name):
    model = functional.FunctionalModel(MODELS[name]())
    features, labels, weights, clip = self.arguments(model.keras_model, 0.05)
    loss = view_gradients.averaged(
      lambda weights, x, y: ghost_cases.CROSS_ENTROPY(
        y, model(weights, x, True)
      ),
      views.MIRROR,
    )
    ghost, looped = (
      [
        part.numpy()
        for part in clipped_sum(
          list(map(tf.constant, weights)),
          tf.constant(features, tf.float32),
          tf.constant(labels, tf.int32),
          tf.ones([len(labels)], tf.bool),
          tf.constant(clip, tf.float64),
        )
      ]
      for clipped_sum in (
        ghost_clipping.ghost_clipped_sum(
          model, ghost_cases.CROSS_ENTROPY, views_name=views.MIRROR
        ),
        tf.function(clipping.looped_clipped_sum(loss), autograph=False),
      )
    )
    for one, other in zip(ghost, looped, strict=True):
      # With views a dense layer's norm is a bound, up to a thousandth more.
      np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-3 * clip)

  def test_what_is_normalized_is_held_for_many(self):
    model = functional.FunctionalModel(MODELS['layer_normalization']())
    clipped_sum = ghost_clipping.ghost_clipped_sum(
      model, ghost_cases.CROSS_ENTROPY
    )
    assert isinstance(clipped_sum, clipping.PreparedSum)
    self.assertEqual(clipped_sum.microbatches, 16)

  def test_a_gradient_where_a_scale_is_zero(self):
    sums = ghost_cases.sums_of(MODELS['layer_normalization'])
    features, labels, weights, clip = self.arguments(sums.model, 0.05)
    weights[0] = np.zeros_like(weights[0])
    ghost, looped = (
      one(features, labels, weights, clip) for one in (sums.ghost, sums.looped)
    )
    self.assertGreater(np.abs(looped[: len(weights[0])]).max(), 1e-3)
    np.testing.assert_allclose(ghost, looped, rtol=1e-4, atol=1e-6)

  @parameterized.named_parameters(
    ('among_examples', attention_among, (0,), (1,)),
    ('among_all', attention_among, (0, 1), None),
    ('of_more_axes', attention_on_rank, 4, 3),
    ('with_a_mask', attention_with_a_mask, True, False),
    ('normalized_over_examples', normalized, True, False),
    ('masks_of_others', masked_groups, True, False),
    ('masks_in_a_softmax', masked_softmax, True, False),
    ('softmax_of_examples', softmax_along, 0, 1),
    ('softmax_of_all', softmax_along, [0, 1], 2),
    ('any_axes', einsum, ('...c,cd->...d', (4, 3)), ('abc,cd->abd', (4, 3))),
    ('summed', einsum, ('abc,cd->ad', 3), ('abc,bcd->ad', 3)),
    ('a_diagonal', einsum, ('abc,cdd->abd', (4, 3)), ('abc,cd->adb', (3, 4))),
    ('of_the_example', einsum_of_three, 'abc,acd->abd', 'abc,bcd->abd'),
    ('moved', einsum_of_three, 'abc,cd->bad', 'abc,cd->abd'),
    ('other_ranks', added, other_ranks, doubled),
    ('a_constant', added, a_constant, lambda inputs: 1 - inputs * 2.5),
    (
      'an_axis',
      added,
      lambda inputs: tf.nn.softmax(inputs, axis=0),
      tf.nn.softmax,
    ),
    ('other_functions', added, tf.sort, tf.nn.relu),
  )
  def test_takes_a_model_only_without(self, build, bad, good):
    self.check_only_without(build(bad), build(good))


if __name__ == '__main__':
  absltest.main()
