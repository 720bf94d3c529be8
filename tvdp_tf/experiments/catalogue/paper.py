"""The paper's figures and tables.

Printed in the paper: U = 100, K = 10, tau = 5, C = 5, delta = 1e-3, M = 30,
epsilon = 10 unless swept. Not given, so ours: the learning rates (`tasks`), the
number of examples of a user, the split (seeded, IID), weights, scaling, and how
Laplace noise is calibrated (`plans.laplace`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tvdp_tf.experiments.catalogue import tasks
from tvdp_tf.experiments.catalogue.experiment import ROUND, ROUNDS, Experiment

_THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)
_EPSILONS = (1.0, 5.0, 10.0, 20.0, 50.0)
_SVM_ROUND_NUMBERS = (1, 2, 4, 6, 8, 10, 13, 17, 20, 25, 30, 35, 40, 45, 50)
# A round of the CNN takes half a minute where one of the MLP takes half a
# second.
_CNN_ROUND_NUMBERS = (5, 10, 20, 30, 40)
_MLP = tasks.MNIST.settings
_SVM = tasks.ADULT.settings
_CNN = {**tasks.PAPER, 'model': 'cnn'}
_IMAGE_TASKS = (tasks.CIFAR10, tasks.FASHION_MNIST)
# A target that overfits: 20 examples a user, trained to the end in every round.
# Of more users the same noise would leave no model at all.
_OVERFITTED = {
  **_MLP,
  'users': 2,
  'users_per_round': 2,
  'rounds': 10,
  'local_steps': 50,
  'learning_rate': 0.2,
}


def _thetas(values: Sequence[float] = _THETAS, **more: Any) -> dict[str, dict]:
  return {f'theta = {theta:g}': {'theta': theta, **more} for theta in values}


def _epsilons(**more: Any) -> dict[str, dict]:
  curves: dict[str, dict] = {
    f'epsilon = {epsilon:g}': {'epsilon': epsilon, 'theta': 1.05, **more}
    for epsilon in _EPSILONS
  }
  curves['no noise'] = {'mechanism': 'none', **more}
  return curves


def _on_images(curves: Mapping[str, Mapping]) -> dict[str, dict]:
  return {
    f'{task.name}, {label}': {
      **change,
      'dataset': task.dataset,
      'learning_rate': task.learning_rate,
    }
    for task in _IMAGE_TASKS
    for label, change in curves.items()
  }


_LAPLACE = {'Laplace': {'mechanism': 'laplace', 'theta': 1.0}}
_REFINED = {
  f'{label}, alpha_d = {alpha_d:g}': {
    **change,
    'refinement': 'theorem2',
    'alpha_d': alpha_d,
  }
  for alpha_d in (0.8, 0.9)
  for label, change in _thetas().items()
}

# Smaller steps, fewer of them: each is noisy.
_GRADIENT = {
  f'gradient, epsilon = {epsilon:g}': {
    'mechanism': 'gradient',
    'theta': 1.0,
    'epsilon': epsilon,
    'local_steps': 5,
    'learning_rate': 0.5,
  }
  for epsilon in (1.0, 3.0)
}

EXPERIMENTS = (
  Experiment(
    'fig2',
    'MLP on MNIST, against the rounds',
    'A larger theta reaches its optimum earlier and then degrades; Laplace '
    'noise is worst.',
    _MLP,
    {**_thetas(), **_LAPLACE},
    ROUND,
  ),
  Experiment(
    'fig3',
    'MLP on MNIST, against the number of rounds',
    'The loss is convex in M, with its minimum at M = 17 for every theta; '
    'theta = 1.05 and .95 beat 1.',
    _MLP,
    {**_thetas(), **_LAPLACE},
    ROUNDS,
  ),
  Experiment(
    'table2',
    'MLP on MNIST: noise of round 1 and least loss',
    'sigma .003556 to .003932, loss 1.03783 .92706 .94142 .88862 1.01871 for '
    'theta .9 to 1.1.',
    _MLP,
    _thetas(),
    ROUND,
    columns=('noise_stddev', 'test_loss'),
  ),
  Experiment(
    'fig4',
    'MLP on MNIST, theta = 1.05, against the number of rounds',
    'The best number of rounds grows with epsilon; epsilon >= 20 is near no '
    'noise.',
    _MLP,
    _epsilons(),
    ROUNDS,
  ),
  Experiment(
    'fig5',
    "MLP on MNIST, Theorem 2's refinement: rounds planned",
    "M' steps down when the loss stops falling.",
    _MLP,
    _REFINED,
    ROUND,
    columns=('rounds',),
  ),
  Experiment(
    'fig6',
    "MLP on MNIST, Theorem 2's refinement",
    'It helps for theta >= 1; the best theta is 1.05 (alpha_d = .8) and 1.1 '
    '(alpha_d = .9).',
    _MLP,
    _REFINED,
    ROUND,
  ),
  Experiment(
    'table3',
    'MLP on MNIST, overfitted: membership inference',
    'success .581 .582 .573 at epsilon = 5, .599 .587 .583 at 10, .607 .602 '
    '.596 at 20 for theta .95 1 1.05; .993 without DP.',
    _OVERFITTED,
    {
      **{
        f'theta = {theta:g}, epsilon = {epsilon:g}': {
          'theta': theta,
          'epsilon': epsilon,
        }
        for epsilon in (5.0, 10.0, 20.0)
        for theta in (0.95, 1.0, 1.05)
      },
      'no DP': {'mechanism': 'none'},
      **_GRADIENT,
    },
    ROUND,
    game={'examples': 40, 'shadow_models': 25, 'trials': 50},
  ),
  Experiment(
    'fig7',
    'Linear SVM on Adult, against the number of rounds',
    'theta > 1 is best, then 1, then < 1.',
    _SVM,
    _thetas(),
    ROUNDS,
  ),
  Experiment(
    'fig8',
    'CNN, against the number of rounds',
    'theta < 1 is best.',
    _CNN,
    _on_images(_thetas()),
    ROUNDS,
    round_numbers=_CNN_ROUND_NUMBERS,
  ),
  Experiment(
    'fig9',
    'Linear SVM on Adult, theta = 1.05, against the number of rounds',
    'Without noise it does not diverge.',
    _SVM,
    _epsilons(),
    ROUNDS,
    round_numbers=_SVM_ROUND_NUMBERS,
  ),
  Experiment(
    'fig10',
    'CNN, theta = 1.05, against the number of rounds',
    'The best number of rounds grows with epsilon.',
    _CNN,
    _on_images(_epsilons()),
    ROUNDS,
    round_numbers=_CNN_ROUND_NUMBERS,
  ),
)
