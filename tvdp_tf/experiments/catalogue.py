"""The experiments as data: what is swept, what is drawn.

The paper's figures and tables, and `guarantee`, which is ours: the paper's
mechanism beside one whose guarantee holds.

Printed in the paper: U = 100, K = 10, tau = 5, C = 5, delta = 1e-3, M = 30,
epsilon = 10 unless swept. Not given, so ours: the learning rates, the number of
examples of a user, the split (seeded, IID), weights, scaling, and how Laplace
noise is calibrated (`plans.laplace`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

ROUND = 'round'  # One run a curve, against its rounds.
ROUNDS = 'rounds'  # A run a point, against its number of rounds M.

_THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)
_EPSILONS = (1.0, 5.0, 10.0, 20.0, 50.0)
_ROUND_NUMBERS = (1, 2, 4, 6, 8, 10, 13, 17, 20, 25, 30, 35, 40)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """One figure or table.

  Attributes:
    name: Of the program's flag.
    title: What it shows.
    claim: The paper's, in a sentence.
    base: Settings of all its runs.
    curves: Label -> the settings in which the curve differs.
    against: `ROUND` or `ROUNDS`.
    round_numbers: The values of M, for `ROUNDS`.
    columns: What is drawn: fields of `sweep.Measurement`.
  """

  name: str
  title: str
  claim: str
  base: Mapping[str, Any]
  curves: Mapping[str, Mapping[str, Any]]
  against: str
  round_numbers: Sequence[int] = _ROUND_NUMBERS
  columns: Sequence[str] = ('test_loss', 'test_accuracy')


_PAPER = {
  'users': 100,
  'users_per_round': 10,
  'local_steps': 5,
  'rounds': 30,
  'l2_norm_clip': 5.0,
  'delta': 1e-3,
  'epsilon': 10.0,
  'mechanism': 'paper',
}
_MLP = {**_PAPER, 'dataset': 'mnist', 'model': 'mlp', 'learning_rate': 0.05}
_SVM = {**_PAPER, 'dataset': 'adult', 'model': 'svm', 'learning_rate': 0.3}
_CNN = {**_PAPER, 'model': 'cnn', 'learning_rate': 0.1}


def _thetas(values: Sequence[float] = _THETAS, **more: Any) -> dict[str, dict]:
  return {f'theta = {theta:g}': {'theta': theta, **more} for theta in values}


def _epsilons(**more: Any) -> dict[str, dict]:
  curves: dict[str, dict] = {
    f'epsilon = {epsilon:g}': {'epsilon': epsilon, 'theta': 1.05, **more}
    for epsilon in _EPSILONS
  }
  curves['no noise'] = {'mechanism': 'none', **more}
  return curves


def _on(dataset: str, curves: Mapping[str, Mapping]) -> dict[str, dict]:
  return {
    f'{dataset}, {label}': {**change, 'dataset': dataset}
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
_IMAGE_SETS = ('cifar10', 'fashion_mnist')

EXPERIMENTS = {
  experiment.name: experiment
  for experiment in (
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
      'guarantee',
      'MLP on MNIST: a guarantee that holds beside the claim of the paper',
      'None of the paper: its own best loss is .88862, at a claimed epsilon of '
      '10.',
      {**_MLP, 'theta': 1.0},
      {
        f'gradient, epsilon = {epsilon:g}': {
          'mechanism': 'gradient',
          'epsilon': epsilon,
          'example_l2_norm_clip': clip,
          'learning_rate': learning_rate,
        }
        for epsilon, clip, learning_rate in ((1.0, 1.0, 1.0), (3.0, 2.0, 0.5))
      }
      | {'paper, claimed epsilon = 10': {'learning_rate': 0.2}},
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
      {k: v for name in _IMAGE_SETS for k, v in _on(name, _thetas()).items()},
      ROUNDS,
    ),
    Experiment(
      'fig9',
      'Linear SVM on Adult, theta = 1.05, against the number of rounds',
      'Without noise it does not diverge.',
      _SVM,
      _epsilons(),
      ROUNDS,
      round_numbers=(*_ROUND_NUMBERS, 45, 50),
    ),
    Experiment(
      'fig10',
      'CNN, theta = 1.05, against the number of rounds',
      'The best number of rounds grows with epsilon.',
      _CNN,
      {k: v for name in _IMAGE_SETS for k, v in _on(name, _epsilons()).items()},
      ROUNDS,
    ),
  )
}
