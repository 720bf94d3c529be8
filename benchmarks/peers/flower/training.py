"""A whole training with Flower: its strategy evaluates after each round."""

import logging

import numpy as np
import torch
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp

from benchmarks.harness import training as training_lib
from benchmarks.peers.flower import program as program_lib
from benchmarks.peers.pytorch import program as pytorch_program


def evaluation(training: training_lib.Training):
  """Returns the strategy's `evaluate_fn`, which evaluates and saves."""
  features, labels = map(torch.from_numpy, training.test())
  labels = labels.long()

  @torch.no_grad()
  def evaluate(server_round, arrays):
    if not server_round:  # It is called before the first round, too.
      return None
    weights = arrays.to_numpy_ndarrays()
    outputs = pytorch_program.forward(
      list(map(pytorch_program.from_keras, weights)), features
    )
    loss = torch.nn.functional.cross_entropy(outputs, labels).item()
    accuracy = (outputs.argmax(1) == labels).float().mean().item()
    training.record(server_round, loss, accuracy)
    with open(training.checkpoint(server_round), 'wb') as file:
      np.savez(file, *weights)
    return MetricRecord({'loss': loss, 'accuracy': accuracy})

  return evaluate


def main() -> None:
  """Starts the simulation and trains in it."""
  training = training_lib.start()
  logging.getLogger('flwr').setLevel(logging.ERROR)
  indices = training.indices()
  server_app = ServerApp()

  @server_app.main()
  def serve(grid, context):
    del context
    strategy = program_lib.CohortStrategy(
      training.work.noise_stddev, training.work.cohort
    )
    strategy.start(
      grid,
      program_lib.initial_arrays(training.work),
      num_rounds=training.rounds,
      evaluate_fn=evaluation(training),
    )

  program_lib.simulate(
    training.work, server_app, lambda user: training.user(indices[user])
  )


if __name__ == '__main__':
  main()
