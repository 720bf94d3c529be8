"""Opacus, ghost clipping: its modules, its loss and its optimizer.

Forms: `loop`, the clients one after the other, each on all cores; `threads`,
one Python thread per core, each with its own module, each client on one core.
Convolutions are not channels-last, unlike in the plain PyTorch program: with
that layout, Opacus 1.6 reads the wrong pixels (`unfold2d` assumes that its
input is contiguous), so the norms of the kernels' gradients are wrong, and the
clip with them.
"""

import concurrent.futures
import os
import queue

import opacus
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from benchmarks.harness import program as program_lib
from benchmarks.peers.pytorch import program as pytorch_program


class _Rows(torch.nn.Module):
  """Flattens [n, channels, height, width] in the order of Keras."""

  def forward(self, values):
    """Flattens to [n, height * width * channels]."""
    return values.permute(0, 2, 3, 1).flatten(1)


def network(work) -> torch.nn.Sequential:
  """Builds the work's model from PyTorch's layers, with default weights."""
  layers: list[torch.nn.Module] = []
  is_cnn = len(work.input_shape) > 1
  for place, layer in enumerate(work.layers):
    is_last = place == len(work.layers) - 1
    inputs, outputs = layer.kernel[-2:]
    if len(layer.kernel) == 4:
      layers.append(torch.nn.Conv2d(inputs, outputs, layer.kernel[:2]))
      layers += [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
      if len(work.layers[place + 1].kernel) == 2:
        layers.append(_Rows())
    else:
      layers.append(torch.nn.Linear(inputs, outputs))
      if is_cnn and not is_last:
        layers.append(torch.nn.ReLU())
  return torch.nn.Sequential(*layers)


class Trainer:
  """A module with Opacus' hooks, and its optimizer and loss."""

  def __init__(self, work, noise_stddev: float):
    self._work = work
    clip, count = work.example_l2_norm_clip, work.examples_per_user
    self._module = GradSampleModuleFastGradientClipping(
      network(work), max_grad_norm=clip, use_ghost_clipping=True
    )
    self._parameters = list(self._module.parameters())
    self._optimizer = DPOptimizerFastGradientClipping(
      torch.optim.SGD(self._parameters, lr=work.learning_rate),
      # Opacus adds the noise to the sum of the gradients.
      noise_multiplier=noise_stddev * count / clip,
      max_grad_norm=clip,
      expected_batch_size=count,
    )
    self._loss = DPLossFastGradientClipping(
      self._module, self._optimizer, torch.nn.CrossEntropyLoss()
    )

  def train(self, weights, features, labels) -> list[torch.Tensor]:
    """Trains the local model from the global one."""
    with torch.no_grad():
      torch._foreach_copy_(self._parameters, weights)
    for _ in range(self._work.local_steps):
      self._optimizer.zero_grad()
      self._loss(self._module(features), labels).backward()
      self._optimizer.step()
    return [p.detach().clone() for p in self._parameters]


class Opacus(program_lib.Program):
  """The forms above."""

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    pytorch_program.keep_memory()
    cores = len(os.sched_getaffinity(0))
    self._workers = cores if server.form == 'threads' else 1
    torch.set_num_threads(cores // self._workers)
    self._users = [
      (
        pytorch_program.images_last(features).contiguous(),
        torch.from_numpy(labels).long(),
      )
      for features, labels in zip(server.features, server.labels, strict=True)
    ]
    self._pool = concurrent.futures.ThreadPoolExecutor(self._workers)
    self._initial = work.initial_weights()

  def reset(self, noise_stddev):
    self._trainers: queue.SimpleQueue[Trainer] = queue.SimpleQueue()
    for _ in range(self._workers):
      self._trainers.put(Trainer(self._work, noise_stddev))
    self._weights = [
      pytorch_program.from_keras(w).contiguous() for w in self._initial
    ]

  def _client(self, user):
    trainer = self._trainers.get()
    try:
      return trainer.train(self._weights, *self._users[user])
    finally:
      self._trainers.put(trainer)

  @torch.no_grad()
  def round(self, round_number):
    cohort = self._work.cohort(round_number).tolist()
    total = [torch.zeros_like(w) for w in self._weights]
    for weights in self._pool.map(torch.enable_grad()(self._client), cohort):
      torch._foreach_add_(total, weights)
    self._weights = list(torch._foreach_div(total, float(len(cohort))))

  @property
  def tensors(self) -> list[torch.Tensor]:
    """Returns the global model."""
    return self._weights

  def weights(self):
    return list(map(pytorch_program.to_keras, self._weights))


if __name__ == '__main__':
  server = program_lib.start('loop')
  server.serve(
    Opacus(server), opacus=opacus.__version__, torch=torch.__version__
  )
