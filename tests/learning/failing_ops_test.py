"""No values of an example make a model that is taken fail."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.learning import (
  clipping,
  example_independence,
  failing_ops,
  functional,
  models,
)

LAYERS = tf.keras.layers
ROWS = 5
TABLE = np.arange(2.0 * ROWS, dtype=np.float32).reshape([ROWS, 2])
# What any float may be as an integer.
HOSTILE = np.array(
  [np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0, 4.0, 5.0, 1e30, -1e-40],
  np.float32,
)


def integers(features):
  return tf.cast(features, tf.int32)


def clipped(features, high=ROWS - 1):
  return tf.clip_by_value(integers(features), 0, high)


def looped(body):
  """The sum of what is made of each of three values."""

  def call(features):
    return tf.while_loop(
      lambda i, _: i < 3,
      lambda i, total: (i + 1, total + tf.reduce_sum(body(features[i], i))),
      (tf.constant(0), tf.constant(0.0)),
    )[1]

  return call


def tensor_list(parts):
  return tf.raw_ops.TensorListFromTensor(
    tensor=tf.stack(parts), element_shape=[10]
  )


def called(body):
  return tf.function(body, autograph=False)


TAKEN = {
  'clipped': lambda x: tf.gather(TABLE, clipped(x)),
  'clipped_first': lambda x: tf.gather(
    TABLE, tf.cast(tf.reshape(clipped(x), [-1, 1]), tf.int64)
  ),
  'other_axis': lambda x: tf.gather(TABLE, clipped(x, 1), axis=1),
  'remainder': lambda x: tf.gather(TABLE, integers(x) % ROWS),
  'bucket': lambda x: tf.gather(
    TABLE, tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0, 2.0, 3.0])
  ),
  'place_of_maximum': lambda x: tf.gather(TABLE, tf.argmax(x[:ROWS])),
  # As Keras 3 takes rows, counted from the end below 0.
  'from_the_end': lambda x: tf.gather(
    TABLE, tf.where(clipped(x) < 0, clipped(x) + ROWS, clipped(x))
  ),
  'truth': lambda x: tf.gather(TABLE, tf.cast(x > 0, tf.int32)),
  'choice': lambda x: tf.gather(TABLE, tf.where(x > 0, clipped(x), 2)),
  'stack': lambda x: tf.gather(TABLE, tf.stack([clipped(x), clipped(-x)])),
  'function': lambda x: called(lambda i: tf.gather(TABLE, i))(clipped(x)),
  'rows_of_a_shape': lambda x: tf.math.unsorted_segment_sum(
    x, clipped(x), tf.shape(TABLE)[0]
  ),
  'counter': looped(lambda v, i: v * tf.gather(TABLE, i)),
  'one_hot': lambda x: tf.one_hot(integers(x), ROWS),
  'segments': lambda x: tf.math.unsorted_segment_sum(x, clipped(x), ROWS),
  'shape': lambda x: tf.reshape(x, [tf.shape(x)[0], 1]) + tf.ones([2, 1, 1]),
  'divisor': lambda x: 7 // tf.maximum(integers(x), 1),
  'floats': lambda x: (7.0 // x) + tf.pow(x, -x) + x % 2.0,
  'powers': lambda x: tf.pow(2, tf.maximum(integers(x), 0)),
  'ranked': lambda x: tf.math.top_k(x, 3)[0],
  'public_branches': lambda x: tf.cond(
    tf.shape(x)[0] > 3, lambda: x * 2, lambda: x / 0
  ),
  'decomposed': lambda x: tf.linalg.qr(tf.reshape(x, [5, 2]))[0],
}
REFUSED = {
  # It takes minutes for some values, and does not end for others.
  'series': lambda x: tf.math.betainc(x, x, x),
  'bare': lambda x: tf.gather(TABLE, integers(x)),
  'beyond': lambda x: tf.gather(TABLE, clipped(x, ROWS)),
  'below': lambda x: tf.gather(TABLE, tf.clip_by_value(integers(x), -1, 4)),
  'clipped_as_floats': lambda x: tf.gather(
    TABLE, integers(tf.clip_by_value(x, 0.0, 4.0))
  ),
  'from_above_alone': lambda x: tf.gather(
    TABLE, tf.minimum(integers(x), ROWS - 1)
  ),
  'from_below_alone': lambda x: tf.gather(TABLE, tf.maximum(integers(x), 0)),
  # 2^32 - 1 becomes -1.
  'narrowed': lambda x: tf.gather(
    TABLE,
    tf.minimum(
      tf.cast(tf.maximum(tf.cast(x, tf.int64), 0), tf.int32), ROWS - 1
    ),
  ),
  'remainder_beyond': lambda x: tf.gather(TABLE, integers(x) % (ROWS + 1)),
  'remainder_of_several': lambda x: tf.gather(
    TABLE, integers(x) % tf.clip_by_value(integers(x), 1, 9)
  ),
  'negative_remainder': lambda x: tf.gather(
    TABLE, integers(x) % ([ROWS, -ROWS] * 5)
  ),
  'place_of_maximum': lambda x: tf.gather(TABLE, tf.argmax(x)),
  'place_on_another_axis': lambda x: tf.gather(
    TABLE[:2], tf.argmax(tf.reshape(x, [2, 5]), axis=1)
  ),
  'stack': lambda x: tf.gather(
    TABLE, tf.stack([clipped(x), tf.clip_by_value(integers(x), -1, 4)])
  ),
  'second_result': lambda x: tf.gather(
    TABLE, called(lambda i: (tf.constant(0), i + 1))(integers(x))[1]
  ),
  'from_the_end': lambda x: tf.gather(
    TABLE, tf.where(clipped(x) < 1, clipped(x) + ROWS, clipped(x))
  ),
  'moved': lambda x: tf.gather(TABLE, clipped(x) + 1),
  'other_axis': lambda x: tf.gather(TABLE, clipped(x), axis=1),
  'axis': lambda x: tf.gather(TABLE, [0], axis=clipped(x, 1)[0]),
  'function': lambda x: called(lambda i: tf.gather(TABLE, i))(integers(x)),
  'loop': looped(lambda v, _: tf.gather(TABLE, integers(v))),
  'branches': lambda x: tf.cond(x[0] > 0, lambda: x * 2, lambda: x / 0),
  'constants_in_a_branch': lambda x: tf.cond(
    x[0] > 0, lambda: x + float(ROWS), lambda: x + tf.gather(TABLE[0], [7])
  ),
  'branch': lambda x: tf.cond(
    x[0] > 0, lambda: tf.gather(TABLE, integers(x)), lambda: tf.zeros([10, 2])
  ),
  'chosen': lambda x: tf.gather(
    TABLE, tf.cond(x[0] > 0, lambda: ROWS, lambda: 0)
  ),
  'shapes_of_branches': lambda x: tf.ones_like(
    tf.cond(x[0] > 0, lambda: tf.concat([x, x], 0), lambda: x)
  ),
  'lengths_of_branches': lambda x: tf.raw_ops.TensorListStack(
    input_handle=tf.cond(
      x[0] > 0,
      lambda: tensor_list([x]),
      lambda: tensor_list([x, x]),
    ),
    element_shape=[10],
    element_dtype=tf.float32,
    num_elements=1,
  ),
  'without_end': lambda x: tf.while_loop(
    lambda v: tf.reduce_any(v > 1), lambda v: [tf.where(v > 1, v / 2, v)], [x]
  )[0],
  'zeta': lambda x: tf.math.zeta(
    tf.cast(x, tf.float64), tf.ones([], tf.float64)
  ),
  'crops': lambda x: tf.raw_ops.BatchToSpace(
    input=tf.reshape(x[:4], [4, 1, 1, 1]),
    crops=tf.reshape(clipped(x[:4]), [2, 2]),
    block_size=2,
  ),
  'small_places': lambda x: tf.gather(
    tf.zeros([40_010]),
    tf.raw_ops.ArgMax(
      input=tf.tile(x, [4001]), dimension=0, output_type=tf.int16
    ),
  ),
  'how_often': lambda x: tf.while_loop(
    lambda i, _: tf.cast(i, tf.float32) < x[0],
    lambda i, total: (i + 1, total + tf.gather(TABLE, i)[0]),
    (tf.constant(0), tf.constant(0.0)),
  ),
  'carried': lambda x: tf.while_loop(
    lambda i, *_: i < 3,
    lambda i, index, total: (
      i + 1,
      index + 1,
      total + tf.gather(TABLE, index)[0],
    ),
    (tf.constant(0), clipped(x)[0], tf.constant(0.0)),
  ),
  # From one to the next, until it is the index.
  'passed_on': lambda x: tf.while_loop(
    lambda i, *_: i < 6,
    lambda i, a, b, c, d, total: (
      *(i + 1, b, c, d, integers(x)[0]),
      total + tf.gather(TABLE, a)[0],
    ),
    (*map(tf.constant, [0] * 5), tf.constant(0.0)),
  ),
  'nd': lambda x: tf.gather_nd(TABLE, integers(x)[:, tf.newaxis]),
  'segments': lambda x: tf.math.unsorted_segment_sum(x, integers(x), ROWS),
  'dropped': lambda x: tf.math.unsorted_segment_sum(
    x, tf.clip_by_value(integers(x), -1, ROWS - 1), ROWS
  ),
  'sorted_segments': lambda x: tf.math.segment_sum(x, integers(x)),
  'scattered': lambda x: tf.scatter_nd(integers(x)[:, tf.newaxis], x, [ROWS]),
  'divisor': lambda x: 7 // integers(x),
  'divisor_of_zero': lambda x: 7 // tf.maximum(integers(x), 0),
  'remainder': lambda x: 7 % integers(x),
  'powers': lambda x: tf.pow(2, integers(x)),
  'filled': lambda x: tf.ones([integers(x)[0]]),
  'sliced': lambda x: x[: integers(x)[0]],
  'range': lambda x: tf.range(integers(x)[0]),
  'where': lambda x: tf.where(x > 0),
  'mask': lambda x: tf.boolean_mask(x, x > 0),
  'inverse': lambda x: tf.linalg.inv(tf.reshape(x[:4], [2, 2])),
  'cholesky': lambda x: tf.linalg.cholesky(tf.reshape(x[:4], [2, 2])),
  'labels': lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(
    integers(x), tf.zeros([10, 3])
  ),
}


def traced(function):
  return tf.function(function, autograph=False).get_concrete_function(
    tf.TensorSpec([10], tf.float32)
  )


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(*TAKEN)
  def test_takes(self, name):
    concrete = traced(TAKEN[name])
    failing_ops.check('model', concrete.graph, concrete.graph.inputs)
    rng = np.random.default_rng(0)
    for _ in range(20):
      concrete(tf.constant(rng.permutation(HOSTILE)))  # It does not fail.

  @parameterized.parameters(*REFUSED)
  def test_refuses(self, name):
    concrete = traced(REFUSED[name])
    with self.assertRaisesRegex(
      ValueError, '^model must compute with any values, .* got the op '
    ):
      failing_ops.check('model', concrete.graph, concrete.graph.inputs)
    # Of what is public, all of it is taken.
    failing_ops.check('model', concrete.graph, [])

  def test_says_what_to_do(self):
    concrete = traced(REFUSED['bare'])
    with self.assertRaisesRegex(
      ValueError, r'outside of the 5 rows: clip it as an integer, by tf\.'
    ):
      failing_ops.check('model', concrete.graph, concrete.graph.inputs)

  def test_says_what_an_example_reaches(self):
    def call(features):
      public = tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0])[0]
      return tf.gather(TABLE, clipped(features)) * tf.cast(public, tf.float32)

    concrete = traced(call)
    inputs = concrete.graph.inputs
    reached = failing_ops.check('model', concrete.graph, inputs)
    self.assertContainsSubset(['Cast', 'GatherV2', 'Mul'], reached)
    self.assertNoCommonElements(reached, failing_ops.LOOPS)
    self.assertEmpty(failing_ops.check('model', concrete.graph, []))


def wrapped(*layers):
  return functional.FunctionalModel(
    tf.keras.Sequential([tf.keras.Input([6]), *layers, LAYERS.Dense(3)])
  )


class _Pool(tf.keras.layers.Layer):
  """Sums over the places that an example names; others are left out."""

  def build(self, shape):
    del shape
    self.kernel = self.add_weight(name='kernel', shape=[6], initializer='ones')

  def call(self, features):
    def one(features):
      places = tf.clip_by_value(integers(features), -1, 3)
      return tf.math.unsorted_segment_sum(self.kernel, places, 4)

    return tf.ensure_shape(
      tf.map_fn(one, features, parallel_iterations=1), [None, 4]
    )


class _Subclass(tf.keras.layers.Embedding):
  """It is Keras's but for its name."""


class _Buckets(tf.keras.layers.Embedding):
  """It takes no indices, and makes some."""

  def call(self, inputs):
    return super().call(
      tf.raw_ops.Bucketize(input=inputs, boundaries=[-0.5, 0.0, 0.5])
    )


class _Ranked(tf.keras.layers.Layer):
  def call(self, features):
    return tf.math.top_k(features, 3)[0]


class _Branches(tf.keras.layers.Layer):
  def call(self, features):
    return tf.map_fn(
      lambda x: tf.cond(tf.shape(x)[0] > 3, lambda: x * 2, lambda: -x), features
    )


def assert_bounded(test, summed, model):
  """Whatever one example becomes, the sum moves by two clips at most."""
  weights = [tf.constant(w) for w in model.initial_weights]

  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([9, 6], tf.float32)]
  )
  def total(features):
    return clipping.flat_gradient_sum(
      summed,
      weights,
      clipping.examples(summed, features, tf.zeros([9], tf.int32)),
      example_l2_norm_clip=1.0,
    )

  batch = np.random.default_rng(0).uniform(-9, 16, [9, 6]).astype(np.float32)
  expected, other = total(tf.constant(batch)), batch.copy()
  for value in HOSTILE:
    other[4] = value
    gap = float(tf.norm(total(tf.constant(other)) - expected))
    test.assertLess(gap, 2 + 1e-5)


class ModelTest(parameterized.TestCase):
  def test_a_pool_that_reaches_other_examples_is_refused(self):
    """Vectorized, an index of -1 is the last place of the example before."""
    with self.assertRaisesRegex(ValueError, 'got the op UnsortedSegmentSum'):
      wrapped(_Pool())

  @parameterized.parameters(LAYERS.Embedding, _Subclass)
  def test_embeddings_take_any_index(self, layer):
    model = wrapped(layer(16, 4), LAYERS.GlobalAveragePooling1D())
    summed = example_independence.clipped_sum(
      model, models.CrossEntropyLoss(), 1.0
    )
    assert_bounded(self, summed, model)

  def test_an_embedding_with_a_call_of_its_own_is_what_it_is(self):
    layer = _Buckets(4, 2)
    model = wrapped(layer, LAYERS.Flatten())
    features = np.linspace(-1, 1, 12).reshape([2, 6]).astype(np.float32)
    np.testing.assert_allclose(
      model(model.initial_weights, features),
      model.keras_model(features),
      rtol=1e-5,
    )

  @parameterized.parameters(_Ranked, _Branches)
  def test_in_a_loop(self, layer):
    model = wrapped(layer())
    summed = example_independence.clipped_sum(
      model, models.CrossEntropyLoss(), 1.0
    )
    self.assertIn('summed_one_by_one', summed.__qualname__)
    assert_bounded(self, summed, model)

  @parameterized.parameters(
    (tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), 3),
    (tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False), 3),
    (models.CrossEntropyLoss(), 3),
    (tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), 6),
  )
  def test_any_label(self, loss, width):
    layers = [] if width == 3 else [LAYERS.LayerNormalization()]  # No ghost.
    model = wrapped(*layers)
    summed = example_independence.clipped_sum(model, loss, 1.0)
    weights = [tf.constant(w) for w in model.initial_weights]
    features = tf.ones([5, 6])

    @tf.function(autograph=False)
    def total(labels):
      return clipping.flat_gradient_sum(
        summed,
        weights,
        clipping.examples(summed, features, labels),
        example_l2_norm_clip=1e6,
      )

    known = total(tf.constant([0, 1, 2, 2, 2]))
    twice = total(tf.constant([0, 1, -1, 2**31 - 1, 2]))
    fewer = total(tf.constant([0, 1, 2, -(2**31), 3]))
    np.testing.assert_allclose(twice, fewer, atol=1e-6)
    self.assertGreater(float(tf.norm(known - twice)), 1e-3)

  def test_the_loss_of_a_spec(self):
    keras_loss = tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, ignore_class=2, name='mine'
    )
    spec = models.ModelSpec('mine', models.build_mlp, keras_loss)
    self.assertIsInstance(spec.loss, models.CrossEntropyLoss)
    self.assertEqual(spec.loss.name, 'mine')
    labels, scores = tf.constant([0, 1, 2]), tf.constant(np.eye(3)[[1, 1, 0]])
    np.testing.assert_allclose(
      spec.loss(labels, scores), keras_loss(labels, scores)
    )
    self.assertIs(models.any_label(spec.loss), spec.loss)


class StepsTest(parameterized.TestCase):
  """A user's own steps, after which the weights are private."""

  def check(self, loss, labels=tf.int32):
    example_independence.check_steps(
      loss,
      [np.ones([6, 3], np.float32)],
      tf.TensorSpec([None, 6], tf.float32),
      tf.TensorSpec([None], labels),
      learning_rate=0.1,
    )

  def test_takes(self):
    cross_entropy = models.CrossEntropyLoss()
    self.check(lambda w, x, y: cross_entropy(y, tf.matmul(x, w[0])))
    # Rows of a table that is learned, and of its gradient.
    self.check(
      lambda w, x, y: tf.reduce_sum(
        tf.gather(w[0], tf.clip_by_value(y, 0, 5)) ** 2
      )
    )

  @parameterized.parameters(
    lambda w, x, y: tf.reduce_sum(w[0] * tf.gather(TABLE, y)[0, 0]),
    lambda w, x, y: tf.reduce_sum(
      w[0] * tf.gather(TABLE, integers(w[0][0, 0]))[0]
    ),
  )
  def test_fails_on_what_a_user_holds(self, loss):
    with self.assertRaisesRegex(
      ValueError, '^model with its loss must compute .* got the op GatherV2'
    ):
      self.check(loss)

  def test_labels_of_another_type(self):
    def loss(w, x, y):
      index = tf.cast(tf.clip_by_value(y, 0, 2), tf.int32)
      return tf.reduce_sum(tf.gather(TABLE[:, 0], index)) * tf.reduce_sum(w[0])

    self.check(loss)
    with self.assertRaisesRegex(ValueError, 'got the op GatherV2'):
      self.check(loss, tf.float32)  # Not of a label that is not a number.

  def test_number_of_examples(self):
    def loss(w, x, y):
      pairs = tf.reshape(tf.matmul(x, w[0]), [-1, 2, 3])
      return tf.reduce_sum(pairs[:, 0] * pairs[:, 1])

    with self.assertRaisesRegex(
      ValueError, '^model must accept any number of examples, .* with 1 of them'
    ):
      self.check(loss)

  def test_number_of_examples_that_is_built_in(self):
    def loss(w, x, y):
      padded = tf.pad(x, [[0, 64 - tf.shape(x)[0]], [0, 0]])
      return tf.reduce_sum(tf.matmul(padded, w[0]))

    with self.assertRaisesRegex(ValueError, 'any number .* with 65 of them'):
      self.check(loss)

  def test_state_and_seeds(self):
    count = tf.Variable(1.0)
    for factor, text in (
      (lambda: count.assign_add(1.0), 'got the op'),
      (lambda: tf.random.normal([], seed=3), 'without a seed, .* got the op'),
    ):
      with self.assertRaisesRegex(ValueError, text):
        self.check(lambda w, x, y, f=factor: f() * tf.reduce_sum(w[0]))


class LossTest(parameterized.TestCase):
  def clipped_sum(self, factor, labels=tf.int32):
    """Of a loss that is linear in the weights, times a number."""

    def loss(weights, features, labels):
      terms = tf.reduce_sum(weights[0] * features, axis=1)
      return tf.reduce_mean(terms * tf.stop_gradient(factor(features, labels)))

    return example_independence.example_clipped_sum(
      *(loss, [np.ones(6, np.float32)]),
      tf.TensorSpec([None, 6], tf.float32),
      ROWS,
      1.0,
      labels_spec=tf.TensorSpec([None], labels),
    )

  def test_labels_of_another_type(self):
    def factor(features, labels):
      del features
      index = tf.cast(tf.clip_by_value(labels, 0, 2), tf.int32)
      return tf.gather(TABLE[:, 0], index)[0]

    self.clipped_sum(factor)
    with self.assertRaisesRegex(ValueError, 'got the op GatherV2'):
      self.clipped_sum(factor, tf.float32)  # One that is not a number.

  @parameterized.parameters(
    lambda features, labels: tf.gather(TABLE[:, 0], labels),
    lambda features, labels: tf.gather(TABLE[:, 0], integers(features[:, 0])),
  )
  def test_that_fails_on_an_example(self, factor):
    with self.assertRaisesRegex(
      ValueError, '^model with its loss must compute .* got the op GatherV2'
    ):
      self.clipped_sum(factor)

  @parameterized.parameters(
    lambda features, labels: tf.cond(
      tf.shape(features)[0] > 3, lambda: features[0, 0], lambda: 3.0
    ),
    lambda features, labels: tf.while_loop(
      lambda i, _: i < 3,
      lambda i, total: (i + 1, total + features[0, 0]),
      (0, 0.0),
    )[1],
    lambda features, labels: tf.roll(features[0], 1, 0)[0],
    # Public, and out of range.
    lambda features, labels: tf.math.unsorted_segment_sum(
      features[0], tf.minimum(tf.range(6) - 1, 1), 2
    )[0],
  )
  def test_that_goes_by_an_example_is_in_a_loop(self, factor):
    summed = self.clipped_sum(factor)
    self.assertIn('summed_one_by_one', summed.__qualname__)


if __name__ == '__main__':
  absltest.main()
