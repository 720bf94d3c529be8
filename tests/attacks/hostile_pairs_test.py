"""The search finds each break of the clip when it is put back (`broken`).

Two breaks that were found with these are none of a model: a published count of
failed users (`tests/non_interference_test.py` looks for such), and a ledger
that endorses seeded runs (`tests/privacy/ledger_audit_test.py`).
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.attacks import broken
from tvdp_tf.attacks import clipped_mean, hostile_pairs
from tvdp_tf.federated import models
from tvdp_tf.learning import models as models_lib

_LAYERS = tf.keras.layers
_LOSS = models_lib.MODELS['mlp'].loss


def _functional_model(call, shape=(4,)) -> models.KerasFunctionalModel:
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input(shape)
  keras_model = tf.keras.Model(inputs, call(inputs))
  spec = models_lib.ModelSpec('mine', lambda *_: keras_model, _LOSS)
  return models.KerasFunctionalModel(spec, keras_model)


@functools.cache
def _plain_model():
  return _functional_model(_plain)


@functools.cache
def _sound():
  return clipped_mean.subject('model', _plain_model(), 1.0)


def tearDownModule():
  # TensorFlow's functions should not outlive it.
  _plain_model.cache_clear()
  _sound.cache_clear()


def _loss_fn(model):
  def loss_fn(weights, features, labels):
    outputs = model.predict_on_batch((tuple(weights), ()), features, True)
    return model.loss(outputs, labels)

  return loss_fn


def _ghost(model, clip=1.0) -> clipped_mean.Subject:
  """With ghost clipping as it was, which took any model."""
  return clipped_mean.subject(
    *('model', model, clip),
    clipped_sum=broken.ghost_clipped_sum(model.source, model.keras_loss),
  )


def _search(target, **kwargs) -> hostile_pairs.SearchResult:
  arguments: Any = {'sizes': (7,), 'ascents': 0, 'seconds': 1e6} | kwargs
  return hostile_pairs.search(target, **arguments)


def _dense(units=3):
  return _LAYERS.Dense(units)


def _plain(x):
  return _dense()(_dense(64)(x))


_MIXING = {
  'mean': lambda x: _dense()(x - tf.reduce_mean(x, 0)),
  'attention': lambda x: _dense()(_LAYERS.Attention()([x, x])),
  'softmax': lambda x: _dense()(_LAYERS.Softmax(axis=0)(x)),
  'sort': lambda x: _dense()(tf.sort(x, axis=0)),
}


def _convolution_of_5_dimensions(x):
  return _LAYERS.GlobalAveragePooling3D()(_LAYERS.Conv2D(3, 1)(x))


def _same_model_twice(x):
  inner = tf.keras.Sequential([_LAYERS.InputLayer((4,)), _dense(4)])
  return inner(inner(x))


def _half_precision_model() -> tff.learning.models.FunctionalModel:
  weights = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float16)

  @tf.function(autograph=False)
  def predict(model_weights, x, training=True):
    del training
    x = tf.cast(x, tf.float16)
    return tf.cast(tf.matmul(x, model_weights[0][0]), tf.float32)

  @tf.function(autograph=False)
  def loss(output, label, sample_weight=None):
    del sample_weight
    return _LOSS(label, output)

  return tff.learning.models.FunctionalModel(
    initial_weights=((weights,), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(tf.TensorSpec([None, 6]), tf.TensorSpec([None], tf.int32)),
  )


class BreaksTest(parameterized.TestCase):
  @parameterized.parameters(*_MIXING)
  def test_mixed_examples(self, name):
    model = _functional_model(_MIXING[name])
    found = _search(_ghost(model))
    self.assertGreater(found.ratio, 1.5)
    self.assertTrue(found.refuted)
    with self.assertRaisesRegex(ValueError, 'treat every example'):
      clipped_mean.subject('model', model, 1.0)

  def test_underflow_of_squares(self):
    found = _search(_ghost(_plain_model()), sizes=(2,))
    self.assertGreater(found.ratio, 1.2)
    assert found.worst is not None
    self.assertStartsWith(found.worst.family, 'edge, weights edge')
    self.assertBetween(_search(_sound(), sizes=(2,)).ratio, 0.9, 1)

  @parameterized.parameters('ghost', 'vectorized')
  def test_underflow_below_a_tiny_clip(self, path):
    model = _plain_model()
    target = clipped_mean.subject(
      *('model', model, 1e-22),
      clipped_sum=(
        broken.ghost_clipped_sum(model.source, model.keras_loss)
        if path == 'ghost'
        else broken.vectorized_clipped_sum(_loss_fn(model))
      ),
      mean=broken.clipped_mean_gradient,
    )
    self.assertGreater(_search(target, sizes=(2,)).ratio, 10)

  def test_the_least_clip_holds(self):
    target = clipped_mean.subject('model', _plain_model(), 1e-10)
    self.assertBetween(_search(target, sizes=(2,)).ratio, 0.9, 1)

  def test_bias_of_a_convolution_of_5_dimensions(self):
    model = _functional_model(_convolution_of_5_dimensions, (3, 3, 8, 2))
    # An axis of 8 is missed: sqrt(8) times the cosine of what labels allow.
    self.assertBetween(_search(_ghost(model, 0.1), sizes=(2,)).ratio, 2.3, 2.84)
    sound = clipped_mean.subject('model', model, 0.1)
    self.assertBetween(_search(sound, sizes=(2,)).ratio, 0.9, 1)

  @parameterized.parameters(1.0, 0.3)
  def test_sums_in_float32(self, clip):
    probe = hostile_pairs.linear_probe()
    target = clipped_mean.subject(
      *('probe', probe, clip),
      clipped_sum=broken.ghost_clipped_sum(probe.source, probe.keras_loss),
      mean=broken.clipped_mean_gradient,
    )
    pair = hostile_pairs.binade_pair(target)
    self.assertBetween(pair.ratio, 1.8, 2.2)
    sound = clipped_mean.subject('probe', probe, clip)
    ratios = [
      hostile_pairs.binade_pair(sound).ratio,
      # What was found, where it was found.
      clipped_mean.measured(sound, pair).ratio,
    ]
    for ratio in ratios:
      self.assertBetween(ratio, 0.99, 1)

  def test_half_precision(self):
    model = _half_precision_model()
    target = clipped_mean.subject(
      *('model', model, 1.0),
      clipped_sum=broken.vectorized_clipped_sum(_loss_fn(model)),
      mean=broken.clipped_mean_gradient,
    )
    self.assertGreater(_search(target).ratio, 1.0001)
    with self.assertRaisesRegex(ValueError, 'float16'):
      clipped_mean.subject('model', model, 1.0)

  def test_a_wrong_gradient(self):
    model = _functional_model(_same_model_twice)
    found = _search(_ghost(model), sizes=(2,))
    self.assertTrue(found.wrong_gradient)
    self.assertFalse(found.refuted)  # The clip holds.
    sound = clipped_mean.subject('model', model, 1.0)
    found = _search(sound, sizes=(2,))
    self.assertFalse(found.wrong_gradient)
    self.assertLess(found.gradient_error, 1e-3)


class SearchTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.model = _plain_model()
    self.target = _sound()

  def test_a_sound_model(self):
    found = _search(
      self.target,
      sizes=(1, 65),
      ascents=1,
      probe=clipped_mean.subject('probe', hostile_pairs.linear_probe(), 1.0),
    )
    self.assertBetween(found.ratio, 0.9, 1)
    self.assertFalse(found.refuted)
    self.assertFalse(found.wrong_gradient)
    self.assertEqual(found.subject, self.target)
    self.assertEqual({1, 65}, {f.examples for f in found.findings[:-2]})
    self.assertEqual(found.findings[-1].family, 'binade')
    self.assertLessEqual(max(f.ratio for f in found.findings), 1)
    self.assertFalse(found.to_json_dict()['refuted'])

  def test_a_clip_that_is_too_long_by_two_thousandths(self):
    # A bit more than what rounding has for itself.
    model = _functional_model(_dense())
    wrong = clipped_mean.subject('model', model, 1.002)
    target = dataclasses.replace(wrong, example_l2_norm_clip=1.0)
    found = _search(target, sizes=(2,))
    self.assertTrue(found.refuted)
    self.assertBetween(found.ratio, 1, 1.002)

  def test_worst_is_measured_anew(self):
    found = _search(self.target, sizes=(2,))
    assert found.worst is not None
    again = clipped_mean.measured(self.target, found.worst)
    self.assertEqual(again.ratio, found.ratio)
    features, labels = found.worst.data
    others, other_labels = found.worst.alternative
    differ = ~np.array(
      [
        np.array_equal(a, b, equal_nan=True) and c == d
        for a, b, c, d in zip(
          features, others, labels, other_labels, strict=True
        )
      ]
    )
    self.assertEqual(differ.sum(), 1)

  def test_a_mean_that_is_not_finite_is_the_worst(self):
    def mean(clipped_sum, weights, features, labels, example_l2_norm_clip):
      del clipped_sum, labels, example_l2_norm_clip
      return [tf.reduce_sum(features) * tf.ones_like(w) for w in weights]

    target = clipped_mean.subject('model', self.model, 1.0, mean=mean)
    found = _search(target, sizes=(2,))
    self.assertEqual(found.ratio, np.inf)
    self.assertEqual(found.to_json_dict()['largest_ratio'], 'inf')

  def test_ascent_goes_up(self):
    target = _ghost(_functional_model(_MIXING['mean']))
    rng = np.random.default_rng(0)
    features = rng.random([7, 4]).astype(np.float32)
    start = clipped_mean.measured(
      target,
      clipped_mean.Pair(
        *('start', target.weights, features, np.zeros(7, np.int32), 0),
        feature=features[0] + 0.01,
        label=np.array(0, np.int32),
      ),
    )
    found = hostile_pairs.ascend(target, start, rng)
    self.assertLess(start.ratio, 0.5)
    self.assertGreater(found.ratio, 2 * start.ratio)
    self.assertEqual(clipped_mean.measured(target, found).ratio, found.ratio)

  def test_random_models_are_not_compared(self):
    model = _functional_model(lambda x: _dense()(_LAYERS.Dropout(0.5)(x)))
    found = _search(clipped_mean.subject('model', model, 1.0))
    self.assertFalse(found.repeatable)
    self.assertEqual((found.pairs, found.ratio), (0, 0))

  def test_ends_in_time(self):
    found = _search(self.target, seconds=1e-9, ascents=4)
    self.assertLen(found.findings, 1)


if __name__ == '__main__':
  absltest.main()
