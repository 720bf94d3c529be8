"""A private model of the digits, by Flower; the server adds the noise."""

import sys

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import (
  NeighboringRelation,
  PrivacyConfig,
  RdpAccountant,
  SamplingMethod,
  ServerApp,
)
from flwr.serverapp.strategy import (
  DifferentialPrivacyClientSideFixedClipping,
  FedAvg,
)
from flwr.simulation import run_simulation

CLIENTS, ROUNDS = 100, 30
digits = np.load(sys.argv[1])
data = {name: digits[name] for name in digits.files}
client_app = ClientApp(mods=[fixedclipping_mod])
server_app = ServerApp()


@client_app.train()
def train(message, context):
  """Five steps of softmax regression on the client's share."""
  number = context.node_config['partition-id']
  x, y = data['x'][number::CLIENTS], data['y'][number::CLIENTS]
  kernel, bias = message.content['arrays'].to_numpy_ndarrays()
  for _ in range(5):
    outputs = np.exp(x @ kernel + bias)
    errors = outputs / outputs.sum(1, keepdims=True) - np.eye(10)[y]
    kernel = kernel - 0.2 * x.T @ errors / len(x)
    bias = bias - 0.2 * errors.mean(0)
  content = {
    'arrays': ArrayRecord([kernel, bias]),
    'metrics': MetricRecord({'num-examples': 1}),
  }
  return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid, context):
  """All clients in every round."""
  del context
  accountant = RdpAccountant(
    PrivacyConfig(
      target_delta=1e-4,
      population_size=CLIENTS,
      neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
      sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
  )
  strategy = DifferentialPrivacyClientSideFixedClipping(
    FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS),
    noise_multiplier=7.0,
    clipping_norm=0.5,
    num_sampled_clients=CLIENTS,
    accountant=accountant,
  )
  start = ArrayRecord([np.zeros([64, 10]), np.zeros(10)])
  result = strategy.start(grid, start, num_rounds=ROUNDS)
  print('statement:', accountant.get_privacy_spent())
  kernel, bias = result.arrays.to_numpy_ndarrays()
  right = np.argmax(data['test_x'] @ kernel + bias, 1) == data['test_y']
  print(f'accuracy: {right.mean()}')


if __name__ == '__main__':
  run_simulation(
    server_app,
    client_app,
    num_supernodes=CLIENTS,
    backend_config={'init_args': {'log_to_driver': False}},
  )
