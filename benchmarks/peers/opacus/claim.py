"""Opacus' DP-SGD, audited: every step's noisy gradient, as an attacker sees it.

The model is linear without a bias, so an example's gradient is the example
itself, and the attacker reads each step's noisy sum from the change of the
weights. There are two ways to draw batches:

* `poisson_sampling=True`, the default. There are many canaries, each with its
  own weight, half of them in the data and half not, so one training is as many
  independent trials. The score is the log-likelihood ratio.
* `poisson_sampling=False`: batches as shuffled by PyTorch. One canary of +1
  among examples of -1, or 0 in its place (Chua et al., "How Private are DP-SGD
  Implementations?", 2024), so one epoch is one trial. The score is the
  log-likelihood ratio.
"""

import argparse
import pathlib
import time
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from scipy import special
from torch.utils import data

from benchmarks.harness import audited

# For the Poisson cases.
CANARIES, RATE = 1000, 0.1
# For the shuffled case, with batches of one example.
EXAMPLES = 30


class _Training:
  """A private training whose noisy sums of gradients can be read."""

  def __init__(
    self, examples: torch.Tensor, batch: int, z: float, is_poisson: bool
  ):
    self.engine = PrivacyEngine()
    model = torch.nn.Linear(examples.shape[1], 1, bias=False)
    self._model, self._optimizer, self._batches = self.engine.make_private(
      module=model,
      optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
      data_loader=data.DataLoader(
        data.TensorDataset(examples), batch_size=batch, shuffle=True
      ),
      noise_multiplier=z,
      max_grad_norm=1.0,
      poisson_sampling=is_poisson,
    )

  def epoch(self) -> np.ndarray:
    """Returns the noisy sums of one epoch, [steps, weights]."""
    (weights,) = self._model.parameters()
    sums = []
    for (examples,) in self._batches:
      before = weights.detach().clone()
      self._optimizer.zero_grad()
      outputs = self._model(examples)
      # The mean of no example is NaN, and so is its gradient.
      (outputs.mean() if len(examples) else outputs.sum()).backward()
      self._optimizer.step()
      sums.append((before - weights.detach())[0].numpy())
    return np.array(sums, np.float64) * self._optimizer.expected_batch_size


def _poisson(
  z: float, delta: float, epochs: int, all_trials: int, share: float
):
  trials = max(CANARIES, round(all_trials * share))
  scores = []
  for _ in range(trials // CANARIES):
    canaries = torch.eye(CANARIES, 2 * CANARIES)
    training = _Training(canaries, round(RATE * CANARIES), z, True)
    sums = np.concatenate([training.epoch() for _ in range(epochs)])
    ratios = np.logaddexp(
      np.log1p(-RATE), np.log(RATE) + (sums - 0.5) / z**2
    ).sum(axis=0)
    scores.append(ratios.reshape(2, CANARIES))
  one, other = np.concatenate(scores, axis=1)
  return audited.Case(
    name=f'DP-SGD, Poisson batches, epochs: {epochs}',
    delta=delta,
    epsilon_set=None,
    epsilon_told=training.engine.get_epsilon(delta),
    formula='dp-sgd',
    arguments={
      'rounds': len(sums),
      'noise_multiplier': z,
      'sampling_rate': RATE,
    },
    is_gaussian=False,
    scores=one,
    alternative_scores=other,
  )


def _shuffled(z: float, delta: float, all_trials: int, share: float):
  scores = []
  for canary in (1.0, 0.0):
    examples = torch.full([EXAMPLES, 1], -1.0)
    examples[0] = canary
    training = _Training(examples, 1, z, False)
    sums = np.array(
      [
        # The other examples are known, because they are all equal.
        training.epoch()[:, 0] + 1
        for _ in range(max(4, round(all_trials * share)))
      ]
    )
    # The canary's batch is unknown; +2 or +1 is added to one of the batches.
    scores.append(
      special.logsumexp((2 * sums - 2) / z**2, axis=1)
      - special.logsumexp((sums - 0.5) / z**2, axis=1)
    )
  alone = _Training(examples, 1, z, False)
  alone.epoch()
  return audited.Case(
    name='DP-SGD, poisson_sampling=False, epochs: 1',
    delta=delta,
    epsilon_set=None,
    epsilon_told=alone.engine.get_epsilon(delta),
    formula='dp-sgd',
    arguments={
      'rounds': EXAMPLES,
      'noise_multiplier': z,
      'sampling_rate': 1 / EXAMPLES,
      'batches': 'shuffled',
    },
    is_gaussian=False,
    scores=scores[0],
    alternative_scores=scores[1],
  )


def main() -> None:
  """Runs the audit, and writes the scores."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--share', type=float, default=1.0)
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  warnings.simplefilter('ignore')
  torch.manual_seed(arguments.seed)
  started = time.monotonic()
  cases = [
    _poisson(0.8, 1e-5, 1, 50_000, arguments.share),
    _poisson(1.0, 1e-3, 5, 20_000, arguments.share),
    _shuffled(0.7, 1e-3, 4_000, arguments.share),
  ]
  audited.write(arguments.output, 'opacus', time.monotonic() - started, cases)


if __name__ == '__main__':
  main()
