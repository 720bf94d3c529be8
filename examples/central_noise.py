"""TFF's federated averaging; a trusted server adds the noise to the sum.

TFF's own factory runs the query, and each round's event goes to dp_accounting.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/central_noise.py
"""

import dp_accounting
import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf.learning import models
from tvdp_tf.privacy import statement

ROUNDS, DELTA = 3, 1e-5
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
clients = [emnist.create_tf_dataset_for_client(c) for c in emnist.client_ids]
mlp = models.MODELS['mlp']
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=tvdp_tf.central_noise(
    epsilon=8.0,
    delta=DELTA,
    rounds=ROUNDS,
    theta=0.9,
    l2_norm_clip=1.0,
    clients_per_round=len(clients),
  ),
)
tvdp_tf.check_nesting(process)
accountant = dp_accounting.pld.PLDAccountant()
print(f'The server adds noise to the sum of {len(clients)} clipped updates.')
with tvdp_tf.local_runtime():
  state = process.initialize()
  for m in range(1, ROUNDS + 1):
    state = process.next(state, clients).state
    event = dp_accounting.DpEvent.from_named_tuple(state.aggregator.dp_event)
    accountant.compose(event)
    spent = statement.format_epsilon(accountant.get_epsilon(DELTA))
    print(f'Round {m}: {event}')
    print(f'  A user has spent epsilon = {spent} so far, at delta = {DELTA}.')
