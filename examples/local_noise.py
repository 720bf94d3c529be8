"""TFF's federated averaging; every client clips its update and adds noise.

The guarantee is for whole clients, against a server that sees each upload.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/local_noise.py
"""

import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf.learning import models

CLIP, ROUNDS = 1.0, 3
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=tvdp_tf.local_noise(
    epsilon=8.0, delta=1e-5, rounds=ROUNDS, theta=0.9, l2_norm_clip=CLIP
  ),
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
tvdp_tf.check_nesting(process)
print(f'{len(clients)} clients clip their updates to {CLIP} and add noise.')
with tvdp_tf.local_runtime():
  state = process.initialize()
  for m in range(1, ROUNDS + 1):
    state, metrics = process.next(state, clients)
    found = metrics['aggregator']
    stddev, used = found['noise_stddev'], found['inner']['used_clients']
    print(f'Round {m} of {ROUNDS}: noise {stddev:.4g}, mean of {used} clients.')
print('All rounds together: epsilon = 8 at delta = 1e-05, for each client.')
