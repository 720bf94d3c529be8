"""Flower with a budget: asked before every round, its state among the metrics.

Each client clips its update and hides it with noise, so that the server may see
every upload. Run it in a separate environment with Flower and the core of this
package (`make check-examples`):

  python examples/flower/budget.py
"""

import logging
import tempfile

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import tvdp_tf

CLIENTS, ROUNDS, CLIP, Z = 4, 20, 1.0, 3.0
client_app, server_app = ClientApp(), ServerApp()
logging.getLogger('flwr').setLevel(logging.ERROR)


@client_app.train()
def train(message, context):
  """A step of least squares, clipped, with noise; no metric leaves."""
  rng = np.random.default_rng(context.node_config['partition-id'])
  x = rng.normal(size=[50, 3])  # Stands for the client's own data.
  y = x @ [1.0, -1.0, 0.5]
  (weights,) = message.content['arrays'].to_numpy_ndarrays()
  update = -0.5 * x.T @ (x @ weights - y) / len(x)
  update *= CLIP / max(CLIP, float(np.linalg.norm(update)))
  noise = np.random.default_rng().normal(0, Z * 2 * CLIP, update.shape)
  content = {
    'arrays': ArrayRecord([weights + update + noise]),
    'metrics': MetricRecord({'num-examples': 1}),  # All clients weigh the same.
  }
  return Message(content=RecordDict(content), reply_to=message)


class BudgetedFedAvg(FedAvg):
  """Federated averaging that spends before it sends."""

  def __init__(self, budget):
    super().__init__(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    # Nodes are numbered by their order; a deployment keeps a list of its own.
    self._budget, self._numbers = budget, {}

  def configure_train(self, server_round, arrays, config, grid):
    messages = super().configure_train(server_round, arrays, config, grid)
    nodes = [message.metadata.dst_node_id for message in messages]
    for node in sorted(nodes):
      self._numbers.setdefault(node, len(self._numbers))
    # On the disk; only then do messages leave.
    self._budget.spend(server_round, [self._numbers[n] for n in nodes], Z)
    return messages

  def aggregate_train(self, server_round, replies):
    arrays, _ = super().aggregate_train(server_round, replies)
    metrics = self._budget.metrics()
    print(server_round, metrics, flush=True)
    return arrays, MetricRecord(metrics)


@server_app.main()
def serve(grid, context):
  """Trains until the rounds or the budget end."""
  del context
  of = f'2 * clip = {2 * CLIP}'
  path = f'{tempfile.mkdtemp()}/ledger.jsonl'
  with tvdp_tf.Budget(
    path, epsilon=3, delta=1e-5, clients=CLIENTS, unit='user', sensitivity=of
  ) as budget:
    try:
      start = ArrayRecord([np.zeros(3)])
      BudgetedFedAvg(budget).start(grid, start, num_rounds=ROUNDS)
    except tvdp_tf.privacy.BudgetExceededError as error:
      print(f'end of budget: {error}', flush=True)


if __name__ == '__main__':
  run_simulation(server_app, client_app, num_supernodes=CLIENTS)
