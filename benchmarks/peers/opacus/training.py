"""A whole training with Opacus: rounds, evaluations, checkpoints."""

import torch

from benchmarks.harness import training as training_lib
from benchmarks.peers.opacus import program as program_lib
from benchmarks.peers.pytorch import program as pytorch_program


def main() -> None:
  """Trains, evaluates and saves."""
  training = training_lib.start()
  program = program_lib.Opacus(training)
  program.reset(training.work.noise_stddev)
  features, labels = training.test()
  features = pytorch_program.images_last(features).contiguous()
  labels = torch.from_numpy(labels).long()
  for number in range(1, training.rounds + 1):
    program.round(number)
    with torch.no_grad():
      outputs = pytorch_program.forward(program.tensors, features)
      loss = torch.nn.functional.cross_entropy(outputs, labels)
      right = (outputs.argmax(1) == labels).float().mean()
    training.record(number, loss.item(), right.item())
    torch.save(program.tensors, training.checkpoint(number))


if __name__ == '__main__':
  main()
