"""A private model of the digits, by Opacus."""

import sys

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils import data

digits = np.load(sys.argv[1])
x, y, test_x, test_y = (
  torch.from_numpy(digits[name]) for name in ('x', 'y', 'test_x', 'test_y')
)
engine = PrivacyEngine()
model = torch.nn.Linear(64, 10)
model, optimizer, batches = engine.make_private_with_epsilon(
  module=model,
  optimizer=torch.optim.SGD(model.parameters(), lr=2.0),
  data_loader=data.DataLoader(data.TensorDataset(x, y), batch_size=256),
  epochs=20,
  target_epsilon=3.0,
  target_delta=1e-4,
  max_grad_norm=1.0,
)
for _ in range(20):
  for features, labels in batches:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features), labels).backward()
    optimizer.step()
print('statement:', engine.get_epsilon(1e-4))
right = (model(test_x).argmax(1) == test_y).float().mean()
print(f'accuracy: {right.item()}')
