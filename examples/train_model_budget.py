"""TFF's training program, which asks a budget before it selects clients.

Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/train_model_budget.py
"""

import asyncio
import itertools
import tempfile

import numpy as np
import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated, runtimes
from tvdp_tf.learning import models

CLIP, Z = 1.0, 2.0
emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
mlp = models.MODELS['mlp']
noise = tvdp_tf.GeometricSchedule(1.0, 100, initial_stddev=Z * 2 * CLIP)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=federated.UnweightedTimeVaryingGaussianFactory(
    noise, l2_norm_clip=CLIP
  ),
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
everybody = list(range(len(emnist.client_ids)))
folder, rounds, spent = tempfile.mkdtemp(), itertools.count(1), {}
budget = tvdp_tf.Budget(
  f'{folder}/ledger.jsonl',
  epsilon=4,
  delta=1e-5,
  clients=len(everybody),
  unit='user',
  sensitivity=f'2 * clip = {2 * CLIP}',
)


class Everybody(
  tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator
):
  """All clients, once they have paid."""

  federated_type = tff.FederatedType(np.str_, tff.CLIENTS)

  def iterator(self):
    return self

  def select(self, k=None):
    budget.spend(m := next(rounds), everybody, Z)  # On the disk; only then:
    spent[m] = budget.metrics()
    return emnist.client_ids

  def to_bytes(self):
    return b''  # What it has spent is in the ledger.

  @classmethod
  def from_bytes(cls, buffer):
    return cls()


class BudgetMetrics(tff.program.ReleaseManager):
  """Delivered and remaining epsilon, after each round."""

  async def release(self, value, key):
    print(key, spent[key])  # The next round may have been paid by now.


# TFF's program ends after a number of rounds: as many as everybody can pay.
total = next(
  n
  for n in itertools.count()
  if budget.affordable_clients(everybody, Z, n + 1) != everybody
)
compose = tff.simulation.compose_dataset_computation_with_learning_process
program = tff.learning.programs.train_model(
  train_process=compose(emnist.dataset_computation, process),
  train_data_source=Everybody(),
  train_per_round_clients=len(everybody),
  train_total_rounds=total,
  program_state_manager=tff.program.FileProgramStateManager(f'{folder}/state'),
  model_output_manager=tff.program.SavedModelFileReleaseManager(folder, 'm_'),
  train_metrics_manager=BudgetMetrics(),
  evaluation_manager=None,
  evaluation_periodicity=1,
)
with tvdp_tf.local_runtime() as runtime, runtimes.program_context(runtime):
  asyncio.run(program)
print(f'end of budget: round {total + 1} would cost more than is left')
budget.close()
