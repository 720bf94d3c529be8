"""Apple's pfl with a budget: asked before every iteration, its state a metric.

The server clips updates and adds noise to their sum, so it must be trusted.
pfl's own metrics have no noise, so only the server may see them. Run it in a
separate environment with pfl and the core of this package
(`make check-examples`):

  python examples/pfl/budget.py
"""

import tempfile

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

import tvdp_tf

USERS, ITERATIONS, CLIP, Z = 8, 20, 1.0, 3.0


class Model(torch.nn.Linear):
  """Least squares; pfl asks for the two methods."""

  def loss(self, x, y):
    return torch.nn.functional.mse_loss(self(x), y)

  def metrics(self, x, y):
    return {}


class BudgetCallback(TrainingProcessCallback):
  """Spends before the first iteration, and after each one for the next."""

  def __init__(self, budget):
    self._budget = budget

  def _spend(self, iteration):
    self._budget.spend(iteration, range(USERS), Z)

  def on_train_begin(self, *, model):
    self._spend(1)
    return Metrics()

  def after_central_iteration(self, metrics, model, *, central_iteration):
    delivered = self._budget.metrics()
    print(central_iteration + 1, delivered)
    ends = False
    if central_iteration + 1 < ITERATIONS:
      try:
        self._spend(central_iteration + 2)
      except tvdp_tf.privacy.BudgetExceededError as error:
        print(f'end of budget: {error}')
        ends = True
    return ends, Metrics(delivered.items())


def user(number):
  """The data of one user."""
  rng = np.random.default_rng(number)
  x = rng.normal(size=[50, 3]).astype(np.float32)
  y = x @ np.array([[1.0], [-1.0], [0.5]], np.float32)
  return Dataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=number)


def main():
  """Trains until the iterations or the budget end."""
  module = Model(3, 1, bias=False)
  everybody = iter(list(range(USERS)) * ITERATIONS)
  noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, Z))
  path = f'{tempfile.mkdtemp()}/ledger.jsonl'
  with tvdp_tf.Budget(
    path,
    epsilon=3,
    delta=1e-5,
    clients=USERS,
    unit='user',
    sensitivity=f'clip = {CLIP}',
    adjacency='add-or-remove-one',
  ) as budget:
    FederatedAveraging().run(
      NNAlgorithmParams(
        central_num_iterations=ITERATIONS,
        evaluation_frequency=ITERATIONS + 1,
        train_cohort_size=USERS,
        val_cohort_size=None,
      ),
      SimulatedBackend(
        FederatedDataset(user, lambda: next(everybody)),
        val_data=None,
        postprocessors=[noise],
      ),
      PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
      ),
      NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=0.1, local_batch_size=None
      ),
      callbacks=[BudgetCallback(budget)],
    )


if __name__ == '__main__':
  main()
