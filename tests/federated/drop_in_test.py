"""In TFF's stock algorithms, among TFF's own aggregators."""

import contextlib
import pathlib
import re
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
from absl.testing import absltest, parameterized

import tvdp_tf
from tests import noise_checks
from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import secure_sums
from tvdp_tf.learning import models

SIZE = 3000
SCHEDULE = privacy.GeometricSchedule(theta=0.5, rounds=3, initial_stddev=0.2)
QUIET = privacy.GeometricSchedule(theta=1.0, rounds=3, initial_stddev=1e-8)
CLIP = 0.3
AGGREGATORS = tff.aggregators
VALUE_TYPE = tff.TensorType(np.float32, [2])
NO_COUNT = federated.WithheldCountFactory()
README = pathlib.Path(__file__).parents[2] / 'README.md'

_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


def weighted(schedule=SCHEDULE, inner=None, **kwargs):
  return federated.TimeVaryingGaussianFactory(schedule, inner, **kwargs)


def unweighted(schedule=SCHEDULE, inner=None, **kwargs):
  return federated.UnweightedTimeVaryingGaussianFactory(
    schedule, inner, **kwargs
  )


def central_around(inner):
  return AGGREGATORS.DifferentiallyPrivateFactory(
    tfp.NormalizedQuery(
      federated.GeometricGaussianSumQuery(CLIP, SCHEDULE), 2.0
    ),
    inner,
  )


def central(denominator=2.0, sums=None, schedule=SCHEDULE):
  query = federated.GeometricGaussianSumQuery(CLIP, schedule)
  return AGGREGATORS.DifferentiallyPrivateFactory(
    tfp.NormalizedQuery(query, denominator), sums
  )


def without_denominator():
  return AGGREGATORS.DifferentiallyPrivateFactory(
    federated.GeometricGaussianSumQuery(CLIP, SCHEDULE)
  )


def adaptive_norm():
  return AGGREGATORS.PrivateQuantileEstimationProcess.no_noise(1.0, 0.8, 0.2)


def secure_mean(bound=4.0):
  return AGGREGATORS.UnweightedMeanFactory(
    AGGREGATORS.SecureSumFactory(bound), AGGREGATORS.SecureSumFactory(1, 0)
  )


def adaptive_secure_mean():
  return AGGREGATORS.MeanFactory(AGGREGATORS.SecureSumFactory(adaptive_norm()))


def create(factory, value_type=VALUE_TYPE):
  if isinstance(factory, AGGREGATORS.WeightedAggregationFactory):
    return factory.create(value_type, tff.TensorType(np.float32))
  return factory.create(value_type)


def emnist():
  data = tff.simulation.datasets.emnist.get_synthetic().preprocess(
    lambda d: d.map(lambda e: (e['pixels'], e['label'])).batch(4)
  )
  return [data.create_tf_dataset_for_client(c) for c in data.client_ids]


def emnist_model():
  mlp = models.MODELS['mlp']
  return federated.functional_model(mlp, mlp.build([28, 28], 10, 1))


def tiny_data():
  return [
    tf.data.Dataset.from_tensor_slices(
      (np.eye(3, dtype=np.float32) + client, np.array([0, 1, 0], np.int32))
    ).batch(2)
    for client in range(2)
  ]


def tiny_model():
  svm = models.MODELS['svm']
  return federated.functional_model(svm, svm.build([3], 2, 1))


def fed_avg(model, factory, learning_rate=0.005):
  is_weighted = isinstance(factory, AGGREGATORS.WeightedAggregationFactory)
  build = (
    tff.learning.algorithms.build_weighted_fed_avg
    if is_weighted
    else tff.learning.algorithms.build_unweighted_fed_avg
  )
  return build(
    model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(learning_rate),
    model_aggregator=factory,
  )


def wide_model():
  """Features of zero give it no gradient: its update is noise alone."""
  keras_model = tf.keras.Sequential(
    [tf.keras.layers.Dense(SIZE, input_shape=(1,), use_bias=False)]
  )
  return tff.learning.models.from_keras_model(
    keras_model,
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(
      tf.TensorSpec([None, 1], tf.float32),
      tf.TensorSpec([None, SIZE], tf.float32),
    ),
  )


class StockAlgorithmTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('weighted', weighted, 0.2 / 2**0.5),
    ('unweighted', lambda: unweighted(l2_norm_clip=CLIP), 0.2 / 2**0.5),
    # One noise on the sum, in units of the clip, over the denominator.
    ('central', central, 0.2 * CLIP / 2),
  )
  def test_the_update_has_the_noise_of_the_round(self, factory, stddev):
    process = fed_avg(wide_model, factory())
    state = process.initialize()
    data = tf.data.Dataset.from_tensors(
      (np.zeros([2, 1], np.float32), np.zeros([2, SIZE], np.float32))
    )
    for m, theta in ((1, 1.0), (2, 0.5)):
      before = state.global_model_weights.trainable[0]
      state = process.next(state, [data, data]).state
      change = np.ravel(state.global_model_weights.trainable[0] - before)
      expected = stddev * theta**0.5
      self.assertTrue(noise_checks.has_stddev(change, expected))
      self.assertTrue(noise_checks.rejects_neighbours(change, expected))
      if hasattr(state.aggregator, 'dp_event'):
        event = dp_accounting.DpEvent.from_named_tuple(
          state.aggregator.dp_event
        )
        self.assertAlmostEqual(event.noise_multiplier, SCHEDULE.stddev(m))

  def test_without_noise_to_speak_of_it_is_federated_averaging(self):
    model, data = emnist_model(), emnist()
    plain = fed_avg(model, AGGREGATORS.MeanFactory())
    expected = plain.next(plain.initialize(), data).state.global_model_weights
    process = fed_avg(
      model,
      AGGREGATORS.zeroing_factory(
        100.0, AGGREGATORS.clipping_factory(100.0, weighted(QUIET))
      ),
    )
    output = process.next(process.initialize(), data)
    for one, other in zip(
      output.state.global_model_weights.trainable,
      expected.trainable,
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


class NestingTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('own_clip', lambda: unweighted(l2_norm_clip=CLIP)),
    (
      'zero_and_clip',
      lambda: AGGREGATORS.zeroing_factory(
        9.0,
        AGGREGATORS.clipping_factory(1.0, unweighted(), NO_COUNT),
        zeroed_count_sum_factory=NO_COUNT,
      ),
    ),
    ('secure', lambda: unweighted(inner=secure_mean())),
    ('zero_central', lambda: AGGREGATORS.zeroing_factory(9.0, central())),
    (
      'rotated_central',
      lambda: AGGREGATORS.HadamardTransformFactory(central()),
    ),
    (
      'query_with_a_constant_clip',
      lambda: AGGREGATORS.DifferentiallyPrivateFactory(
        tfp.NormalizedQuery(tfp.GaussianSumQuery(1.0, 0.0), 2.0), unweighted()
      ),
    ),
  )
  def test_kept(self, factory):
    federated.check_nesting(create(factory()))

  @parameterized.named_parameters(
    ('ours', weighted),
    ('bound_after_the_noise', lambda: weighted(inner=adaptive_secure_mean())),
    (
      'clip',
      lambda: AGGREGATORS.clipping_factory(1.0, weighted(), NO_COUNT),
    ),
  )
  def test_kept_if_weights_are_public(self, factory):
    process = create(factory())
    federated.check_nesting(process, public_weights=True)
    with self.assertRaisesRegex(ValueError, '^clients must .* got weights,'):
      federated.check_nesting(process)

  @parameterized.named_parameters(
    (
      'clip_around_a_list',
      lambda: AGGREGATORS.clipping_factory(
        1.0,
        federated.UnweightedTimeVaryingGaussianFactory(
          privacy.ListedSchedule((1.0, 2.0))
        ),
      ),
      'clipped_count, unless its sum is federated.WithheldCountFactory$',
    ),
    (
      'clip',
      lambda: AGGREGATORS.clipping_factory(1.0, unweighted()),
      'clipped_count, unless its sum is federated.WithheldCountFactory$',
    ),
    (
      'one_of_two',
      lambda: AGGREGATORS.clipping_factory(
        1.0, AGGREGATORS.zeroing_factory(9.0, unweighted()), NO_COUNT
      ),
      'zeroed_count, unless its sum is federated.WithheldCountFactory$',
    ),
    (
      'secure_count',
      lambda: AGGREGATORS.clipping_factory(
        1.0, unweighted(), AGGREGATORS.SecureSumFactory(1, 0)
      ),
      'clipped_count, unless',
    ),
    (
      'all',
      lambda: AGGREGATORS.zeroing_factory(
        9.0, AGGREGATORS.clipping_factory(1.0, weighted())
      ),
      'zeroed_count, .*; clipped_count, .*; weights, ',
    ),
  )
  def test_what_leaves_without_noise(self, factory, message):
    with self.assertRaisesRegex(
      ValueError, f'^clients must send nothing without noise, got {message}'
    ):
      federated.check_nesting(create(factory()))

  @parameterized.named_parameters(
    (
      'adaptive_clip',
      lambda: AGGREGATORS.clipping_factory(adaptive_norm(), weighted()),
      'clipping_norm must be a constant',
    ),
    (
      'adaptive_zero_deep',
      lambda: AGGREGATORS.clipping_factory(
        1.0, AGGREGATORS.zeroing_factory(adaptive_norm(), unweighted())
      ),
      'zeroing_norm must be a constant',
    ),
    (
      'adaptive_central',
      lambda: AGGREGATORS.zeroing_factory(adaptive_norm(), central()),
      'zeroing_norm must be a constant',
    ),
    (
      'adaptive_clip_in_query',
      lambda: central_around(
        AGGREGATORS.clipping_factory(adaptive_norm(), AGGREGATORS.SumFactory())
      ),
      'must not adapt .* current_estimate',
    ),
    (
      'adaptive_zero_in_query',
      lambda: central_around(
        AGGREGATORS.zeroing_factory(adaptive_norm(), AGGREGATORS.SumFactory())
      ),
      'must not adapt .* current_estimate',
    ),
    (
      'adaptive_sum_in_query',
      lambda: central_around(AGGREGATORS.SecureSumFactory(adaptive_norm())),
      'must not adapt .* current_estimate',
    ),
    (
      'adaptive_query',
      lambda: AGGREGATORS.DifferentiallyPrivateFactory(
        tfp.QuantileAdaptiveClipSumQuery(1.0, 0.0, 0.5, 0.2, 0.0, 3.0, True),
        unweighted(),
      ),
      'must have a constant clip',
    ),
    (
      'weights',
      lambda: AGGREGATORS.MeanFactory(without_denominator()),
      'divided by a fixed number',
    ),
    ('no_noise', AGGREGATORS.MeanFactory, 'got none'),
  )
  def test_found(self, factory, message):
    with self.assertRaisesRegex(ValueError, message):
      federated.check_nesting(create(factory()))

  @parameterized.named_parameters(
    (
      'clip',
      lambda: unweighted(
        inner=AGGREGATORS.clipping_factory(
          1.0, AGGREGATORS.UnweightedMeanFactory()
        )
      ),
    ),
    (
      'zero_inside_the_mean',
      lambda: weighted(
        inner=AGGREGATORS.MeanFactory(
          AGGREGATORS.zeroing_factory(1.0, AGGREGATORS.SumFactory())
        )
      ),
    ),
    (
      'tffs_robust_mean',
      lambda: weighted(inner=tff.learning.robust_aggregator()),
    ),
  )
  def test_clip_after_the_noise_is_refused_at_once(self, factory):
    with self.assertRaisesRegex(ValueError, 'inner must not clip or zero'):
      create(factory())

  def test_learning_processes(self):
    process = fed_avg(tiny_model(), weighted())
    federated.check_nesting(process, public_weights=True)
    with self.assertRaisesRegex(ValueError, 'got weights, unless'):
      federated.check_nesting(process)
    adaptive = AGGREGATORS.clipping_factory(adaptive_norm(), weighted())
    with self.assertRaisesRegex(ValueError, 'clipping_norm must be'):
      federated.check_nesting(fed_avg(tiny_model(), adaptive))

  def next(self, factory, values):
    process = create(factory)
    return process.next(process.initialize(), values, [1.0] * len(values))

  def test_outermost_comes_first(self):
    values = [np.array(v, np.float32) for v in ([30, 40], [0.03, 0.04])]
    clipped = AGGREGATORS.clipping_factory(0.5, weighted(QUIET))
    np.testing.assert_allclose(
      self.next(clipped, values).result, [0.165, 0.22], rtol=1e-5
    )
    zeroed = AGGREGATORS.zeroing_factory(1.0, clipped)
    np.testing.assert_allclose(
      self.next(zeroed, values).result, [0.015, 0.02], rtol=1e-5
    )

  @parameterized.named_parameters(
    ('local', lambda: (unweighted(QUIET), unweighted(QUIET, secure_mean()))),
    (
      'central',
      lambda: (
        central(schedule=QUIET),
        central(sums=AGGREGATORS.SecureSumFactory(1.0), schedule=QUIET),
      ),
    ),
  )
  def test_secure_sums_are_the_same_sums(self, factories):
    values = [np.array(v, np.float32) for v in ([0.2, -0.1], [0.1, 0.05])]
    plain, secure = map(create, factories())
    federated.check_nesting(secure)
    simulated = secure_sums.simulated(secure)
    np.testing.assert_allclose(
      simulated.next(simulated.initialize(), values).result,
      plain.next(plain.initialize(), values).result,
      atol=1e-7,
    )

  def test_a_client_that_is_zeroed_sends_noise_all_the_same(self):
    factory = AGGREGATORS.zeroing_factory(1.0, weighted())
    process = create(factory, tff.TensorType(np.float32, [SIZE]))
    bad = np.full(SIZE, np.inf, np.float32)
    output = process.next(process.initialize(), [bad], [1.0])
    self.assertTrue(noise_checks.has_stddev(output.result, 0.2))
    self.assertEqual(output.measurements['zeroed_count'], 1)


def metered_model():
  """A Keras model with metrics of its own."""
  return tff.learning.models.from_keras_model(
    models.MODELS['svm'].build([3], 2, 1),
    loss=tf.keras.losses.Hinge(),
    input_spec=tiny_data()[0].element_spec,
    metrics=[tf.keras.metrics.BinaryAccuracy()],
  )


class WithheldTest(parameterized.TestCase):
  def assert_sends(self, process, expected: str) -> None:
    """What the computation of a client sends to the server, as a type."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      process.next
    )
    self.assertEqual(str(form.work.type_signature.result[0]), expected)

  def test_nothing_but_the_update_leaves_the_client(self):
    process = tff.learning.algorithms.build_unweighted_fed_avg(
      metered_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
      model_aggregator=AGGREGATORS.clipping_factory(
        0.01, unweighted(), NO_COUNT
      ),
      metrics_aggregator=federated.withheld_metrics,
    )
    federated.check_nesting(process)
    # The perturbed update, and the 1 that the mean counts clients by.
    self.assert_sends(process, '<<<float32[3,1],float32[1]>,float32>>')
    metrics = process.next(process.initialize(), tiny_data()).metrics
    self.assertEqual(metrics['aggregator']['clipped_count'], -1)
    self.assertEmpty(metrics['client_work']['train'])

  @parameterized.named_parameters(
    ('local', lambda: unweighted(l2_norm_clip=CLIP)), ('central', central)
  )
  def test_training_metrics_are_found(self, factory):
    with self.assertRaisesRegex(
      ValueError,
      r'got training metrics \(binary_accuracy, loss, num_batches, '
      r'num_examples\), unless metrics_aggregator is '
      r'federated.withheld_metrics$',
    ):
      federated.check_nesting(fed_avg(metered_model, factory()))
    # Ours have none.
    federated.check_nesting(fed_avg(tiny_model(), factory()))

  def test_our_own_processes(self):
    ours: list[mechanisms.GraphMechanism] = [
      mechanisms.CentralMechanism(SCHEDULE, CLIP, 2),
      mechanisms.PaperMechanism(SCHEDULE, CLIP),
    ]
    for mechanism in ours:
      process = federated.build_learning_process(
        tiny_model(), mechanism, local_steps=1, learning_rate=0.1
      )
      federated.check_nesting(process, public_weights=True)

  def test_example_of_the_readme(self):
    (code,) = re.findall(
      r'```python\n(import tensorflow_federated.*?)```',
      README.read_text(),
      re.DOTALL,
    )
    scope: dict[str, Any] = {'model_fn': metered_model}
    # It is the runtime of this module.
    with mock.patch.object(tvdp_tf, 'local_runtime', contextlib.nullcontext):
      exec(code, scope)
    process = scope['process']
    self.assert_sends(process, '<<<float32[3,1],float32[1]>,float32>>')
    output = process.next(scope['state'], tiny_data())
    self.assertEqual(output.metrics['aggregator']['round'], 1)

  def test_refuses_other_types(self):
    factory = federated.WithheldCountFactory()
    for value_type in (np.float32, (np.int32, np.int32)):
      with self.assertRaisesRegex(TypeError, 'only an integer'):
        factory.create(tff.to_type(value_type))


if __name__ == '__main__':
  absltest.main()
