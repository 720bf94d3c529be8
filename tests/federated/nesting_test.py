"""What else a round sends: found by what its parts depend on."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
from absl.testing import absltest, parameterized
from tensorflow_privacy.privacy.dp_query import nested_query

from tvdp_tf import federated, privacy
from tvdp_tf.learning import models

ALGORITHMS = tff.learning.algorithms
CLIP = 0.3
SCHEDULE = privacy.GeometricSchedule(theta=0.5, rounds=3, initial_stddev=0.2)
LISTED = privacy.ListedSchedule((0.2, 0.7, 0.1))
SGD = tff.learning.optimizers.build_sgdm(0.1, momentum=0.9)
SPEC = (
  tf.TensorSpec([None, 3], tf.float32),
  tf.TensorSpec([None], tf.int32),
)
WITHHELD = {'metrics_aggregator': federated.withheld_metrics}


def local(schedule=SCHEDULE):
  return federated.UnweightedTimeVaryingGaussianFactory(
    schedule, l2_norm_clip=CLIP
  )


def weighted():
  return federated.TimeVaryingGaussianFactory(SCHEDULE, l2_norm_clip=CLIP)


def of_query(query):
  return tff.aggregators.DifferentiallyPrivateFactory(query)


def own_query():
  return federated.GeometricGaussianSumQuery(CLIP, SCHEDULE)


def central():
  return of_query(tfp.NormalizedQuery(own_query(), 2.0))


def without_weights(factory):
  return tff.aggregators.as_weighted_aggregator(factory)


def keras_model():
  return models.MODELS['svm'].build([3], 2, 1)


def model_fn():
  return tff.learning.models.from_keras_model(
    keras_model(), loss=tf.keras.losses.Hinge(), input_spec=SPEC
  )


def functional_model():
  svm = models.MODELS['svm']
  return federated.functional_model(svm, keras_model())


def reconstruction_model():
  keras = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(2, input_shape=(3,)),
      tf.keras.layers.Dense(1),
    ]
  )
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
    keras,
    global_layers=keras.layers[:1],
    local_layers=keras.layers[1:],
    input_spec=SPEC,
  )


def fed_avg(aggregator=None, model=model_fn, optimizer=SGD):
  return ALGORITHMS.build_unweighted_fed_avg(
    model, optimizer, model_aggregator=aggregator or local(), **WITHHELD
  )


def fed_prox():
  return ALGORITHMS.build_unweighted_fed_prox(
    model_fn, 1.0, SGD, model_aggregator=local(), **WITHHELD
  )


def fed_sgd():
  return ALGORITHMS.build_fed_sgd(
    model_fn, model_aggregator=without_weights(local()), **WITHHELD
  )


def fed_recon():
  return ALGORITHMS.build_fed_recon(
    reconstruction_model,
    loss_fn=tf.keras.losses.Hinge,
    metrics_fn=lambda: [],
    server_optimizer_fn=SGD,
    client_optimizer_fn=SGD,
    reconstruction_optimizer_fn=SGD,
    model_aggregator_factory=without_weights(local()),
    **WITHHELD,
  )


def scheduled_fed_avg():
  return ALGORITHMS.build_weighted_fed_avg_with_optimizer_schedule(
    model_fn,
    client_learning_rate_fn=lambda m: 0.1 / tf.cast(m + 1, tf.float32),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm,
    model_aggregator=without_weights(local()),
    **WITHHELD,
  )


def mime_lite(aggregator=None, model=model_fn, gradients=None, optimizer=SGD):
  return ALGORITHMS.build_unweighted_mime_lite(
    model,
    optimizer,
    model_aggregator=aggregator or local(),
    full_gradient_aggregator=gradients,
    **WITHHELD,
  )


def weighted_mime_lite():
  return ALGORITHMS.build_weighted_mime_lite(
    model_fn, SGD, model_aggregator=weighted(), **WITHHELD
  )


def scheduled_mime_lite():
  return ALGORITHMS.build_mime_lite_with_optimizer_schedule(
    model_fn,
    learning_rate_fn=lambda m: 0.1,
    base_optimizer=SGD,
    model_aggregator=without_weights(local()),
    **WITHHELD,
  )


def own_work(keeps=False, metric=None):
  """A client work whose state looks like a learning rate's.

  Args:
    keeps: Whether it becomes the sum of what the clients' data add up to.
    metric: The name under which that sum is a metric; None for none.
  """
  weights_type = tff.learning.models.weights_type_from_model(model_fn)
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(SPEC))

  @tff.federated_computation()
  def initialize():
    return tff.federated_value(
      collections.OrderedDict(learning_rate=np.float32(0.1)), tff.SERVER
    )

  @tff.tensorflow.computation(data_type)
  def total(data):
    return data.reduce(0.0, lambda t, batch: t + tf.reduce_sum(batch[0]))

  @tff.tensorflow.computation(weights_type, data_type)
  def train(weights, data):
    value = data.reduce(0.0, lambda t, batch: t + tf.reduce_sum(batch[0]))
    return tff.learning.templates.ClientResult(
      tf.nest.map_structure(lambda w: w * value, weights.trainable), 1.0
    )

  @tff.tensorflow.computation(np.float32)
  def as_state(value):
    return collections.OrderedDict(learning_rate=value)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, data):
    measurements = tff.federated_value((), tff.SERVER)
    if keeps or metric:
      summed = tff.federated_sum(tff.federated_map(total, data))
      if keeps:
        state = tff.federated_map(as_state, summed)
      if metric:
        measurements = tff.federated_zip(
          collections.OrderedDict([(metric, summed)])
        )
    return tff.templates.MeasuredProcessOutput(
      state, tff.federated_map(train, (weights, data)), measurements
    )

  return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def counting_distributor(weights_type):
  """A broadcast whose state and metric is a number."""

  @tff.federated_computation()
  def initialize():
    return tff.federated_value(np.float32(0), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.SERVER),
  )
  def next_fn(state, weights):
    return tff.templates.MeasuredProcessOutput(
      state, tff.federated_broadcast(weights), state
    )

  return tff.learning.templates.DistributionProcess(initialize, next_fn)


def with_work(work, aggregator=None):
  weights_type = tff.learning.models.weights_type_from_model(model_fn)

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights.from_model(model_fn())

  return tff.learning.templates.compose_learning_process(
    initial_weights,
    counting_distributor(weights_type),
    work,
    without_weights(aggregator or local()).create(
      weights_type.trainable, tff.TensorType(np.float32)
    ),
    tff.learning.templates.build_apply_optimizer_finalizer(SGD, weights_type),
  )


def overwritten(kind, part, aggregator):
  """A process of one's own: a part of its result becomes a sum of the data."""
  process = with_work(own_work(), aggregator)
  state_type, data_type = process.next.type_signature.parameter
  output_type = process.next.type_signature.result
  kind_type = getattr(output_type, kind).member
  part_type = getattr(kind_type, part)

  @tff.tensorflow.computation(data_type.member)
  def filled(data):
    value = data.reduce(0.0, lambda t, batch: t + tf.reduce_sum(batch[0]))
    return tf.nest.map_structure(
      lambda spec: tf.fill(spec.shape, tf.cast(value, spec.dtype)),
      tff.types.type_to_tf_tensor_specs(part_type),
    )

  @tff.federated_computation(state_type, data_type)
  def next_fn(state, data):
    output = process.next(state, data)
    parts = {
      name: getattr(getattr(output, kind), name)
      for name, _ in tff.structure.iter_elements(kind_type)
    }
    parts[part] = tff.federated_sum(tff.federated_map(filled, data))
    changed = tff.federated_zip(kind_type.python_container(**parts))
    return tff.learning.templates.LearningProcessOutput(
      **{'state': output.state, 'metrics': output.metrics, kind: changed}
    )

  return tff.learning.templates.LearningProcess(
    process.initialize,
    next_fn,
    process.get_model_weights,
    process.set_model_weights,
  )


class HalfNoisyFactory(tff.aggregators.UnweightedAggregationFactory):
  """Noise on the first part of a pair alone."""

  def create(self, value_type):
    noisy = local().create(value_type[0])

    @tff.federated_computation(
      noisy.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      first = noisy.next(state, value[0])
      return tff.templates.MeasuredProcessOutput(
        first.state,
        tff.federated_zip((first.result, tff.federated_mean(value[1]))),
        first.measurements,
      )

    return tff.templates.AggregationProcess(noisy.initialize, next_fn)


@tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
def norm(value):
  return tf.norm(value)


def measured(factory, measure):
  """TFF's own way to have a look at what clients send."""

  def of_values(value):
    return tff.federated_zip(
      collections.OrderedDict(seen=tff.federated_sum(measure(value)))
    )

  is_weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  return tff.aggregators.add_measurements(
    factory,
    client_measurement_fn=(
      (lambda value, weight: of_values(value)) if is_weighted else of_values
    ),
  )


def measured_norm(factory):
  return measured(factory, lambda value: tff.federated_map(norm, value))


def measured_values(factory):
  return measured(factory, lambda value: value)


def create(factory, value_type=None):
  value_type = value_type or tff.TensorType(np.float32, [2])
  if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    return factory.create(value_type, tff.TensorType(np.float32))
  return factory.create(value_type)


class _Asking(tff.aggregators.UnweightedAggregationFactory):
  """A client asks the server for the row that its value names."""

  def __init__(self, select):
    self._select = select

  def create(self, value_type):
    inner = local().create(value_type)

    @tff.tensorflow.computation(value_type)
    def keys(value):
      return tf.reshape(tf.argmax(value, output_type=tf.int32), [1])

    @tff.tensorflow.computation(np.float32, np.int32)
    def row(table, key):
      return table + tf.cast(key, tf.float32)

    @tff.tensorflow.computation(tff.SequenceType(np.float32), value_type)
    def used(rows, value):
      return value + 0 * rows.reduce(0.0, lambda one, other: one + other)

    @tff.federated_computation(
      inner.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      rows = self._select(
        tff.federated_map(keys, value),
        tff.federated_value(np.int32(2), tff.SERVER),
        tff.federated_value(np.float32(1), tff.SERVER),
        row,
      )
      return inner.next(state, tff.federated_map(used, (rows, value)))

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


class SelectTest(parameterized.TestCase):
  @parameterized.parameters(tff.federated_select, tff.federated_secure_select)
  def test_what_clients_ask_for_is_sent(self, select):
    process = create(_Asking(select))
    with self.assertRaisesRegex(ValueError, r'values of type int32\[1\]$'):
      federated.check_nesting(process)


class AlgorithmsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    # Its client work has the optimizer's hyperparameters for a state.
    ('fed_avg', fed_avg),
    ('fed_avg_of_a_list', lambda: fed_avg(local(LISTED))),
    ('fed_avg_central', lambda: fed_avg(central())),
    ('fed_avg_functional', lambda: fed_avg(model=functional_model())),
    (
      'fed_avg_adam',
      lambda: fed_avg(optimizer=tff.learning.optimizers.build_adam(0.1)),
    ),
    ('fed_prox', fed_prox),
    ('fed_sgd', fed_sgd),
    ('fed_recon', fed_recon),
    # A state of rounds, and the learning rate among the metrics.
    ('fed_avg_with_a_schedule', scheduled_fed_avg),
    ('own_work', lambda: with_work(own_work())),
  )
  def test_kept(self, build):
    federated.check_nesting(build())

  @parameterized.named_parameters(
    ('local', mime_lite),
    ('functional', lambda: mime_lite(model=functional_model())),
    ('central', lambda: mime_lite(central())),
    # A second release of the round, that the schedule does not count.
    ('noise_twice', lambda: mime_lite(gradients=local())),
    ('weighted', weighted_mime_lite),
    ('with_a_schedule', scheduled_mime_lite),
    (
      'adagrad',
      lambda: mime_lite(optimizer=tff.learning.optimizers.build_adagrad(0.1)),
    ),
  )
  def test_mime_lite_is_refused(self, build):
    with self.assertRaisesRegex(
      ValueError,
      r'got state of client_work \(.*\), in which the algorithm keeps what '
      'clients send, as Mime Lite does$',
    ):
      federated.check_nesting(build(), public_weights=True)

  def test_a_state_of_clients_by_the_name_of_a_learning_rate(self):
    for aggregator in (local(), central()):
      with self.assertRaisesRegex(
        ValueError, r'got state of client_work \(learning_rate\)'
      ):
        federated.check_nesting(with_work(own_work(keeps=True), aggregator))

  def test_a_metric_of_clients_by_the_name_of_the_schedules(self):
    for name in ('round', 'noise_multiplier'):
      with self.assertRaisesRegex(
        ValueError, rf'got training metrics \({name}\), unless'
      ):
        federated.check_nesting(with_work(own_work(metric=name)))

  @parameterized.named_parameters(
    ('model', 'state', 'global_model_weights', 'global_model_weights of state'),
    ('finalizer', 'state', 'finalizer', 'finalizer of state'),
    ('distributor', 'state', 'distributor', 'state of distributor'),
    ('its_metric', 'metrics', 'distributor', 'distributor of metrics'),
  )
  def test_processes_of_ones_own(self, kind, part, message):
    # Of the trusted server's too: they are its model, and what it reports.
    for aggregator in (local(), central()):
      with self.assertRaisesRegex(ValueError, rf'got {message} \([^;]*$'):
        federated.check_nesting(overwritten(kind, part, aggregator))


def standing_still(process):
  """It keeps its state: every round has the noise of the first."""
  state, value = process.next.type_signature.parameter

  @tff.federated_computation(state, value)
  def next_fn(state, value):
    after = process.next(state, value)
    return tff.templates.MeasuredProcessOutput(
      state, after.result, after.measurements
    )

  return tff.templates.AggregationProcess(process.initialize, next_fn)


class AggregatorsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('local', local),
    (
      'listed',
      lambda: of_query(federated.GeometricGaussianSumQuery(CLIP, LISTED)),
    ),
    ('normalized', lambda: of_query(tfp.NormalizedQuery(own_query(), 2.0))),
    (
      'clipped',
      lambda: tff.aggregators.clipping_factory(1.0, of_query(own_query())),
    ),
  )
  def test_a_schedule_that_stands_still_is_found(self, build):
    process = create(build())
    federated.check_nesting(process)
    with self.assertRaisesRegex(
      ValueError, '^the state after a round .* is still at the previous round$'
    ):
      federated.check_nesting(standing_still(process))

  @parameterized.named_parameters(
    ('a_number', measured_norm, False, r'float32$'),
    ('values', measured_values, False, r'float32\[2\]$'),
    ('values_beside_weights', measured_values, True, r'float32\[2\]$'),
  )
  def test_other_values_are_found(self, wrap, has_weights, types):
    process = create(wrap(weighted() if has_weights else local()))
    with self.assertRaisesRegex(
      ValueError, f'got other values of type {types}'
    ):
      federated.check_nesting(process, public_weights=has_weights)

  def test_a_part_without_noise_is_found(self):
    pair = tff.to_type((tff.TensorType(np.float32, [2]),) * 2)
    with self.assertRaisesRegex(
      ValueError, r'got result \(.*\), which has no noise$'
    ):
      federated.check_nesting(create(HalfNoisyFactory(), pair))


class QueriesTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('alone', own_query),
    ('normalized', lambda: tfp.NormalizedQuery(own_query(), 2.0)),
    (
      'listed',
      lambda: federated.GeometricGaussianSumQuery(CLIP, LISTED),
    ),
  )
  def test_ours(self, query):
    federated.check_nesting(create(of_query(query())))

  @parameterized.named_parameters(
    ('none', tfp.NoPrivacySumQuery),
    ('zero', lambda: tfp.GaussianSumQuery(1e9, stddev=0.0)),
    ('of_others', lambda: tfp.GaussianSumQuery(1.0, stddev=1.0)),
  )
  def test_without_noise_of_ours(self, query):
    for made in (query(), tfp.NormalizedQuery(query(), 2.0)):
      with self.assertRaisesRegex(
        ValueError,
        '^process must contain an aggregator with noise .* got none$',
      ):
        federated.check_nesting(create(of_query(made)))
      with self.assertRaisesRegex(ValueError, 'got none$'):
        federated.check_nesting(fed_avg(of_query(made)))

  def test_noise_on_a_part_alone(self):
    pair = tff.to_type([tff.TensorType(np.float32, [2])] * 2)
    nested = nested_query.NestedSumQuery([own_query(), tfp.NoPrivacySumQuery()])
    for query in (nested, tfp.NormalizedQuery(nested, 2.0)):
      with self.assertRaisesRegex(
        ValueError, '^query must be a GeometricGaussianSumQuery, alone or in'
      ):
        federated.check_nesting(create(of_query(query), pair))


if __name__ == '__main__':
  absltest.main()
