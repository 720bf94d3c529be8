"""Flower's simulation on Ray, one actor per core, clients in PyTorch.

It uses Flower's FedAvg strategy and its LocalDpMod. The mod's clip is never
reached, because models of norm C are at most 2 C apart. The data are in files
that all actors map, so they are not sent. One form: `simulation`.
"""

import math
import os
import tempfile

os.environ.update(
  FLWR_TELEMETRY_ENABLED='0',
  RAY_USAGE_STATS_ENABLED='0',
  RAY_DEDUP_LOGS='0',
)

import logging
import pathlib

import flwr
import numpy as np
import ray
import torch
from flwr.app import (
  ArrayRecord,
  ConfigRecord,
  Message,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib
from benchmarks.peers.pytorch import program as pytorch_program

CORES = len(os.sched_getaffinity(0))


def privacy_mod(work):
  """Returns Flower's mod; the message defines the noise."""

  def mod(message, context, call_next):
    # In the actor, which would otherwise log two lines per client.
    logging.getLogger('flwr').setLevel(logging.ERROR)
    noise_stddev = message.content['config']['noise-stddev']
    if not noise_stddev:
      return call_next(message, context)
    # Its standard deviation is sensitivity sqrt(2 ln(1.25 / delta)) / epsilon.
    local_dp = LocalDpMod(
      clipping_norm=2.1 * work.l2_norm_clip,
      sensitivity=noise_stddev,
      epsilon=1.0,
      delta=1.25 * math.exp(-0.5),
    )
    return local_dp(message, context, call_next)

  return mod


def make_client_app(work: work_lib.Work, data_of) -> ClientApp:
  """Returns a client app that trains on the user named by the message.

  Args:
    work: The work.
    data_of: User -> features and labels; it is sent to the actors.
  """
  app = ClientApp(mods=[privacy_mod(work)])

  @app.train()
  def train(message: Message, context):
    del context
    pytorch_program.keep_memory()
    torch.set_num_threads(1)
    features, labels = data_of(message.content['config']['user'])
    weights = pytorch_program.local_training(work)(
      [
        pytorch_program.from_keras(array)
        for array in message.content['arrays'].to_numpy_ndarrays()
      ],
      pytorch_program.images_last(features),
      torch.from_numpy(labels).long(),
    )
    content = RecordDict(
      {
        'arrays': ArrayRecord(list(map(pytorch_program.to_keras, weights))),
        'metrics': MetricRecord({'num-examples': len(labels)}),
      }
    )
    return Message(content=content, reply_to=message)

  return app


class CohortStrategy(FedAvg):
  """FedAvg that trains given cohorts."""

  def __init__(self, noise_stddev, cohort_of):
    super().__init__(fraction_evaluate=0.0)
    self.cohort_of = cohort_of
    self._noise_stddev = float(noise_stddev)

  def configure_train(self, server_round, arrays, config, grid):
    del config
    cohort = self.cohort_of(server_round).tolist()
    # Nodes hold no data, so any node can be any user.
    nodes = list(grid.get_node_ids())[: len(cohort)]
    return [
      Message(
        content=RecordDict(
          {
            'arrays': arrays,
            'config': ConfigRecord(
              {'user': user, 'noise-stddev': self._noise_stddev}
            ),
          }
        ),
        message_type='train',
        dst_node_id=node,
      )
      for node, user in zip(nodes, cohort, strict=True)
    ]

  def aggregate_train(self, server_round, replies):
    """Like Flower's, which would ignore clients that failed."""
    replies = list(replies)
    for reply in replies:
      if reply.has_error():
        raise RuntimeError(f'a client failed: {reply.error.reason}')
    return super().aggregate_train(server_round, replies)


def initial_arrays(work: work_lib.Work) -> ArrayRecord:
  """Returns the initial model in Flower's format."""
  return ArrayRecord(work.initial_weights())


def simulate(work: work_lib.Work, server_app: ServerApp, data_of) -> None:
  """Runs a server with one actor per core; see `make_client_app`."""
  run_simulation(
    server_app,
    make_client_app(work, data_of),
    num_supernodes=work.users,
    backend_config={
      'init_args': {'num_cpus': CORES, 'include_dashboard': False},
      'client_resources': {'num_cpus': 1, 'num_gpus': 0},
    },
  )


class Flower(program_lib.Program):
  """Runs rounds of the strategy."""

  def __init__(self, server: program_lib.Server, grid):
    self._work = server.work
    self._grid = grid

  def reset(self, noise_stddev):
    self._strategy = CohortStrategy(noise_stddev, self._work.cohort)
    self._arrays = initial_arrays(self._work)

  def round(self, round_number):
    # For the strategy, each round is the first.
    self._strategy.cohort_of = lambda _: self._work.cohort(round_number)
    result = self._strategy.start(self._grid, self._arrays, num_rounds=1)
    self._arrays = result.arrays

  def weights(self):
    return self._arrays.to_numpy_ndarrays()


def main() -> None:
  """Starts the simulation; its server executes the commands."""
  server = program_lib.start('simulation')
  logging.getLogger('flwr').setLevel(logging.ERROR)
  server_app = ServerApp()

  @server_app.main()
  def serve(grid, context):
    del context
    server.serve(
      Flower(server, grid),
      flwr=flwr.__version__,
      ray=ray.__version__,
      torch=torch.__version__,
    )

  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    np.save(folder / 'features.npy', server.features)
    np.save(folder / 'labels.npy', server.labels)

    def data_of(user):
      # Mapped, not read.
      return tuple(
        np.load(folder / f'{part}.npy', mmap_mode='c')[user]
        for part in ('features', 'labels')
      )

    simulate(server.work, server_app, data_of)


if __name__ == '__main__':
  main()
