"""TFF's federated averaging; every client clips its update and adds its noise.

The guarantee is for whole clients, against the server that sees each upload.

  python examples/local_noise.py
"""

import tensorflow_federated as tff

from tvdp_tf import federated, privacy, runtimes
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
  metrics_aggregator=federated.withheld_metrics,
)
federated.check_nesting(process)
with runtimes.local_runtime():
  state = process.initialize()
  for _ in range(ROUNDS):
    state, metrics = process.next(state, clients)
    print(metrics['aggregator'])
