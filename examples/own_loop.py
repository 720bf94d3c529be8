"""A custom loop, here FedAdam, that asks its budget before each round.

Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/own_loop.py
"""

import tempfile

import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated
from tvdp_tf.learning import models

CLIP, Z, EVERYBODY = 1.0, 2.0, [0, 1]
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
noise = tvdp_tf.GeometricSchedule(1.0, 100, initial_stddev=Z * 2 * CLIP)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  server_optimizer_fn=tff.learning.optimizers.build_adam(0.01),
  model_aggregator=tff.aggregators.clipping_factory(
    *(CLIP, federated.UnweightedTimeVaryingGaussianFactory(noise)),
    federated.WithheldCountFactory(),
  ),
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
path, of = f'{tempfile.mkdtemp()}/ledger.jsonl', f'2 * clip = {2 * CLIP}'
with (
  tvdp_tf.local_runtime(),
  tvdp_tf.Budget(
    path, epsilon=4, delta=1e-5, clients=2, unit='user', sensitivity=of
  ) as budget,
):
  state, m = process.initialize(), 0
  while budget.affordable_clients(EVERYBODY, Z) == EVERYBODY:
    budget.spend(m := m + 1, EVERYBODY, Z)  # On the disk; only then:
    state = process.next(state, clients).state
    print(f'Round {m}: {budget.metrics()}')
  print(f'Round {m + 1} does not fit the budget: it never happens.')
