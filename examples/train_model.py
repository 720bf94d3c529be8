"""TFF's own training program, with its managers, on a runtime of this package.

Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/train_model.py
"""

import asyncio
import os
import tempfile

import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import runtimes
from tvdp_tf.learning import models

emnist = tff.simulation.datasets.emnist.get_synthetic().preprocess(
  lambda data: data.map(lambda e: (e['pixels'], e['label'])).batch(5)
)
mlp = models.MODELS['mlp']
noise = tvdp_tf.local_noise(epsilon=8, delta=1e-5, rounds=3, l2_norm_clip=1)
process = tff.learning.algorithms.build_unweighted_fed_avg(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
  model_aggregator=noise,
  metrics_aggregator=tvdp_tf.withheld_metrics,
)
compose = tff.simulation.compose_dataset_computation_with_learning_process
# A new folder: to go on after a kill may release a round twice, which only a
# tvdp_tf.Budget counts.
folder = tempfile.mkdtemp()
program = tff.learning.programs.train_model(
  train_process=compose(emnist.dataset_computation, process),
  train_data_source=tff.program.ClientIdDataSource(emnist.client_ids),
  train_per_round_clients=2,
  train_total_rounds=3,
  program_state_manager=tff.program.FileProgramStateManager(f'{folder}/state'),
  model_output_manager=tff.program.SavedModelFileReleaseManager(folder, 'm_'),
  evaluation_manager=None,
  evaluation_periodicity=1,
)
with tvdp_tf.local_runtime() as runtime, runtimes.program_context(runtime):
  asyncio.run(program)
print('TFF trained for 3 rounds, under epsilon = 8 at delta = 1e-05.')
print(f'In {folder}:', *sorted(os.listdir(folder)))
