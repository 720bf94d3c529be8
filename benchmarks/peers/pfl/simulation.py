"""pfl's federated averaging and simulation behind our protocol.

The projection is in the local optimizer, and the noise is pfl's Gaussian
mechanism as a local one. Its clip is never reached, because models of norm C
are at most 2 C apart.
"""

import itertools
import os

import pfl
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism

from benchmarks.harness import program as program_lib
from benchmarks.peers.pytorch import program as pytorch_program


class Module(torch.nn.Module):
  """The work's model, with the methods that pfl requires."""

  def __init__(self, work):
    super().__init__()
    self.kernels_and_biases = torch.nn.ParameterList(
      map(pytorch_program.from_keras, work.initial_weights())
    )

  def forward(self, features):
    """Computes the logits."""
    return pytorch_program.forward(list(self.kernels_and_biases), features)

  def loss(self, features, labels):
    """Computes the mean cross-entropy."""
    return torch.nn.functional.cross_entropy(self(features), labels)

  @torch.no_grad()
  def metrics(self, features, labels):
    """Computes metrics for evaluation."""
    count = len(labels)
    outputs = self(features)
    losses = torch.nn.functional.cross_entropy(outputs, labels, reduction='sum')
    right = (outputs.argmax(1) == labels).sum()
    return {
      'loss': Weighted(losses.item(), count),
      'accuracy': Weighted(right.item(), count),
    }


class ProjectedSgd(torch.optim.SGD):
  """SGD that projects all parameters to a ball after each step."""

  def __init__(self, parameters, l2_norm_clip, **kwargs):
    parameters = list(parameters)
    super().__init__(parameters, **kwargs)
    self._parameters, self._clip = parameters, l2_norm_clip

  @torch.no_grad()
  def step(self, closure=None):
    super().step(closure)
    norms = torch.stack(torch._foreach_norm(self._parameters))
    norm = torch.linalg.vector_norm(norms)
    scale = self._clip / torch.clamp(norm, min=self._clip)
    torch._foreach_mul_(self._parameters, scale)


def dataset(features, labels, user_id=None):
  """Returns a pfl data set from arrays."""
  tensors = pytorch_program.images_last(features), torch.from_numpy(labels)
  return Dataset((tensors[0], tensors[1].long()), user_id=user_id)


class Pfl(program_lib.Program):
  """One of the workers, or the only one.

  Args:
    server: The server of the protocol.
    has_workers: Whether there are other workers.
    is_first: Whether it commands the others.
  """

  def __init__(self, server: program_lib.Server, has_workers, is_first):
    self._work = work = server.work
    self._tells = has_workers and is_first
    pytorch_program.keep_memory()
    torch.set_num_threads(1 if has_workers else len(os.sched_getaffinity(0)))
    users = [
      dataset(x, y, i)
      for i, (x, y) in enumerate(
        zip(server.features, server.labels, strict=True)
      )
    ]
    self._cohort = iter(())
    self._data = FederatedDataset(users.__getitem__, lambda: next(self._cohort))
    self._train_params = NNTrainHyperParams(
      local_num_epochs=work.local_steps,
      local_learning_rate=work.learning_rate,
      local_batch_size=None,
    )

  def reset(self, noise_stddev):
    work = self._work
    self._tell(0, int(noise_stddev > 0))
    self._module = Module(work)
    self._model = PyTorchModel(
      self._module,
      lambda parameters, lr: ProjectedSgd(parameters, work.l2_norm_clip, lr=lr),
      torch.optim.SGD(self._module.parameters(), lr=1.0),
    )
    # Larger than the distance of any two models of norm C.
    clip = 2.1 * work.l2_norm_clip
    noise = [GaussianMechanism(clip, noise_stddev / clip)]
    self._backend = SimulatedBackend(
      training_data=self._data,
      val_data=None,
      postprocessors=noise if noise_stddev else [],
    )
    self._algorithm = FederatedAveraging()

  def round(self, round_number):
    self._tell(1, round_number)
    # Each worker draws the whole cohort.
    self._cohort = itertools.cycle(self._work.cohort(round_number).tolist())
    self._run(round_number, [])

  def train(self, rounds, callbacks):
    """Runs all rounds at once, without other workers."""
    numbers = range(1, rounds + 1)
    cohorts = [self._work.cohort(number).tolist() for number in numbers]
    self._cohort = itertools.chain.from_iterable(cohorts)
    self._run(rounds, callbacks)

  def _run(self, last_round, callbacks):
    """Runs the remaining rounds up to a given one."""
    params = NNAlgorithmParams(
      central_num_iterations=last_round,
      evaluation_frequency=10**9,
      train_cohort_size=self._work.users_per_round,
      val_cohort_size=None,
    )
    self._algorithm.run(
      params,
      self._backend,
      self._model,
      self._train_params,
      callbacks=callbacks,
      send_metrics_to_platform=False,
    )

  def weights(self):
    parameters = self._module.kernels_and_biases
    return list(map(pytorch_program.to_keras, parameters))

  def _tell(self, *message):
    """Makes the other workers do the same."""
    if self._tells:
      torch.distributed.broadcast(torch.tensor(message), 0)

  def follow(self):
    """Follows the first worker's commands until it ends."""
    message = torch.empty(2, dtype=torch.int64)
    while True:
      torch.distributed.broadcast(message, 0)
      action, number = message.tolist()
      if action == 0:
        self.reset(self._work.noise_stddev * number)
      elif action == 1:
        self.round(number)
      else:
        return

  def close(self):
    """Ends the other workers."""
    self._tell(2, 0)


def main(has_workers, is_first):
  """Executes commands of the benchmark or of the first worker."""
  server = program_lib.start('process')
  program = Pfl(server, has_workers, is_first)
  if is_first:
    server.serve(program, pfl=pfl.__version__, torch=torch.__version__)
    program.close()
  else:
    program.follow()
