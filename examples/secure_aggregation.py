"""Clients that clip and add noise, under TFF's secure aggregation.

The platform's protocol shows the server only the sum. Here, without a platform,
the sums are simulated. `process` is the part that you hand over.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/secure_aggregation.py
"""

import tensorflow as tf
import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated
from tvdp_tf.federated import secure_sums
from tvdp_tf.learning import models

tf.get_logger().setLevel('CRITICAL')  # Not of assertions that TFF never runs.
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
secure_mean = tff.aggregators.UnweightedMeanFactory(
  # Each coordinate of an upload, in [-8, 8]: the clip and much noise.
  value_sum_factory=tff.aggregators.SecureSumFactory(8.0),
  count_sum_factory=tff.aggregators.SecureSumFactory(1, 0),
)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=federated.UnweightedTimeVaryingGaussianFactory(
    tvdp_tf.GeometricSchedule(theta=0.9, rounds=3, initial_stddev=0.5),
    inner=secure_mean,
    l2_norm_clip=1.0,
  ),
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
tvdp_tf.check_nesting(process)
simulated = secure_sums.simulated(process)
with tvdp_tf.local_runtime():
  found = simulated.next(simulated.initialize(), clients).metrics['aggregator']
clipped = found['inner']['mean_value']['secure_upper_clipped_count']
print(len(clients), 'uploads, each with noise of', found['noise_stddev'])
print('SIMULATED: on a platform the server sees their sum alone.')
print('Uploads with coordinates above the range of the sum:', clipped)
