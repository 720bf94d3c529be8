"""A private model of the digits, by Apple's pfl; the server adds the noise."""

import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant

USERS, ROUNDS = 100, 30
digits = np.load(sys.argv[1])
x, y, test_x, test_y = (
  torch.from_numpy(digits[name]) for name in ('x', 'y', 'test_x', 'test_y')
)


class Model(torch.nn.Linear):
  """Softmax regression; pfl requires the two methods."""

  def loss(self, features, labels):
    return torch.nn.functional.cross_entropy(self(features), labels)

  def metrics(self, features, labels):
    return {}


module = Model(64, 10)
accountant = PLDPrivacyAccountant(
  num_compositions=ROUNDS,
  sampling_probability=1.0,
  mechanism='gaussian',
  epsilon=3.0,
  delta=1e-4,
)
noise = GaussianMechanism.from_privacy_accountant(accountant, 0.5)
everybody = iter(list(range(USERS)) * ROUNDS)
FederatedAveraging().run(
  NNAlgorithmParams(
    central_num_iterations=ROUNDS,
    evaluation_frequency=ROUNDS + 1,
    train_cohort_size=USERS,
    val_cohort_size=None,
  ),
  SimulatedBackend(
    FederatedDataset(
      lambda user: Dataset((x[user::USERS], y[user::USERS]), user_id=user),
      lambda: next(everybody),
    ),
    val_data=None,
    postprocessors=[CentrallyAppliedPrivacyMechanism(noise)],
  ),
  PyTorchModel(
    module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
  ),
  NNTrainHyperParams(
    local_num_epochs=5, local_learning_rate=0.2, local_batch_size=None
  ),
)
print('statement:', accountant)
right = (module(test_x).argmax(1) == test_y).float().mean()
print(f'accuracy: {right.item()}')
