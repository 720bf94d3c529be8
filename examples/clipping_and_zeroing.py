"""TFF's zeroing and clipping around the noise, in build_unweighted_fed_avg.

The outermost factory acts first: zero, clip, add noise, average. The counts of
zeroed and clipped clients have no noise, so no client sends them.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/clipping_and_zeroing.py
"""

import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated
from tvdp_tf.learning import models

CLIP = 1.0
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
no_count = federated.WithheldCountFactory()
aggregator = federated.UnweightedTimeVaryingGaussianFactory(
  tvdp_tf.GeometricSchedule(theta=0.9, rounds=3, initial_stddev=0.01)
)
aggregator = tff.aggregators.clipping_factory(CLIP, aggregator, no_count)
aggregator = tff.aggregators.zeroing_factory(
  100.0, aggregator, zeroed_count_sum_factory=no_count
)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=aggregator,
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
tvdp_tf.check_nesting(process)
with tvdp_tf.local_runtime():
  zeroing = process.next(process.initialize(), clients).metrics['aggregator']
clipping = zeroing['zeroing']
print(
  len(clients), 'updates were clipped to', CLIP, 'and got noise of', end=' '
)
print(clipping['clipping']['noise_stddev'])
print('Counts are withheld, -1 stands in their place:')
print('  clipped_count', clipping['clipped_count'])
print('  zeroed_count', zeroing['zeroed_count'])
