"""A start for a trainer's own program: TFF's federated averaging, spread.

WORKERS=one:8443,two:8443 TLS=certificates/trainer python train.py
"""

import os

import tensorflow_federated as tff

from tvdp_tf import federated, privacy
from tvdp_tf.federated import distributed_runtime
from tvdp_tf.learning import models

ROUNDS, CLIP = 3, 1.0
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
schedule = privacy.calibrate(
  epsilon=8.0,
  delta=1e-5,
  theta=0.9,
  rounds=ROUNDS,
  sensitivity=privacy.update_rule(CLIP).value,
)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  federated.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=federated.UnweightedTimeVaryingGaussianFactory(
    schedule, l2_norm_clip=CLIP
  ),
)
with distributed_runtime.remote_runtime(
  os.environ['WORKERS'].split(','),
  credentials=distributed_runtime.tls_credentials(os.environ['TLS']),
) as context:
  state = process.initialize()
  for _ in range(ROUNDS):
    state, metrics = process.next(state, clients)
    print(metrics['aggregator'], 'lost:', context.lost_workers)
