"""What the paper does not show: its claims at equal delivered epsilon.

It also shows what the learning rates change (`tasks`).
"""

import math
from collections.abc import Sequence
from typing import Any

from reproduction.catalogue import claims, tasks
from reproduction.catalogue.experiment import ROUND, ROUNDS, Experiment
from tvdp_tf import privacy

_EPSILONS = (1.0, 3.0, 10.0)


def paper_at(task: tasks.Task, epsilon: float, **more: Any) -> dict[str, Any]:
  """Returns settings of `paper` that deliver epsilon to the worst client.

  Cohorts are balanced, so everybody takes part in q M rounds. `paper` is
  calibrated for a client in all M rounds, so its target is the epsilon that
  such a client would get. It delivers epsilon only if its sensitivity held.
  """
  paper = {**task.settings, 'participation': 'balanced', 'theta': 1.0, **more}
  delta = paper['delta']
  rate = paper['users_per_round'] / paper['users']
  return {
    **paper,
    'calibration': 'exact',
    'epsilon': privacy.gaussian_epsilon(
      privacy.gaussian_noise_multiplier(epsilon, delta) * math.sqrt(rate),
      delta,
    ),
  }


def _at_equal_epsilon(
  task: tasks.Task,
  epsilons: Sequence[float] = _EPSILONS,
  label: str = '',
  **more: Any,
) -> dict[str, dict[str, Any]]:
  """Returns both mechanisms at equal worst-client epsilon, and no noise."""
  paper = {**task.settings, 'participation': 'balanced', 'theta': 1.0, **more}
  curves: dict[str, dict[str, Any]] = {}
  for epsilon in epsilons:
    curves[f'{label}paper, epsilon = {epsilon:g}'] = paper_at(
      task, epsilon, **more
    )
    curves[f'{label}gradient, epsilon = {epsilon:g}'] = {
      **paper,
      **tasks.GRADIENT,
      **task.gradient,
      'epsilon': epsilon,
    }
  curves[f'{label}no noise'] = {**paper, 'mechanism': 'algorithm1'}
  return curves


def _equal_claims(
  epsilons: Sequence[float] = _EPSILONS, label: str = ''
) -> tuple[claims.Claim, ...]:
  gradient, paper = (
    [f'{label}{name}, epsilon = {epsilon:g}' for epsilon in epsilons]
    for name in ('gradient', 'paper')
  )
  return tuple(
    claims.each_better(
      f'Ours: {good} ends with a lower loss than {bad}.',
      [(good, bad)],
      at='last',
    )
    for good, bad in zip(gradient, paper, strict=True)
  )


def _equal_epsilon(task: tasks.Task) -> Experiment:
  return Experiment(
    f'equal_{task.dataset}',
    f'{task.name} at equal delivered epsilon',
    _equal_claims(),
    task.settings,
    _at_equal_epsilon(task),
    ROUND,
  )


def _both_small(**more: Any) -> dict[str, dict[str, Any]]:
  curves: dict[str, dict[str, Any]] = {}
  for task in (tasks.MNIST, tasks.ADULT):
    curves |= _at_equal_epsilon(task, (3.0,), f'{task.name}, ', **more)
  return curves


def _both_small_claims() -> tuple[claims.Claim, ...]:
  return tuple(
    claim
    for task in (tasks.MNIST, tasks.ADULT)
    for claim in _equal_claims((3.0,), f'{task.name}, ')
  )


def _steps(
  epsilon: float, eta: float, thetas: Sequence[float]
) -> tuple[str, ...]:
  return tuple(
    f'epsilon = {epsilon:g}, eta = {eta:g}, theta = {theta:g}'
    for theta in thetas
  )


def _thetas_of(task: tasks.Task, thetas: Sequence[float]) -> tuple[str, ...]:
  return tuple(f'{task.name}, theta = {theta:g}' for theta in thetas)


_STEPS = ((10.0, 0.05), (10.0, 0.2), (10.0, 0.5), (3.0, 0.1))
# The effect of the printed C on the CNN.
_SMALL_BALL = {
  f'FMNIST, no noise, C = 5, eta = {eta:g}': {
    **tasks.FASHION_MNIST.settings,
    'mechanism': 'algorithm1',
    'l2_norm_clip': tasks.PAPER['l2_norm_clip'],
    'learning_rate': eta,
  }
  for eta in tasks.FASHION_MNIST.grid
}
# For images whose class does not change when they are mirrored.
_MIRRORED = {
  f'{task.name}, views = {views}': {
    **task.settings,
    **tasks.GRADIENT,
    **tasks.MNIST.gradient,
    'model': 'mlp',
    'views': views,
  }
  for task in (tasks.FASHION_MNIST, tasks.CIFAR10)
  for views in ('none', 'mirror')
}
_BELOW_1 = (0.8, 0.85, 0.9, 0.925, 0.95, 0.975)

EXPERIMENTS = (
  Experiment(
    'learning_rates',
    'The loss that chooses the learning rates, on the tuning examples',
    (),
    tasks.PAPER,
    tasks.tuning_curves((tasks.MNIST, tasks.ADULT)),
    ROUNDS,
    round_numbers=(30,),
    test_part='tuning',
  ),
  Experiment(
    'learning_rates_cnn',
    'The same for the CNN',
    (
      claims.best(
        'Ours: C = 5 keeps the CNN from learning: without noise it ends above '
        'C = 20 with noise.',
        [
          tasks.tuning_label(tasks.FASHION_MNIST, rate)
          for rate in tasks.FASHION_MNIST.grid
        ],
        tuple(_SMALL_BALL),
      ),
    ),
    tasks.PAPER,
    {
      **tasks.tuning_curves((tasks.CIFAR10, tasks.FASHION_MNIST), (3.0,)),
      **_SMALL_BALL,
    },
    ROUNDS,
    round_numbers=(30,),
    test_part='tuning',
    seeds=1,
  ),
  Experiment(
    'step_size',
    'MLP on MNIST: what epsilon, eta and theta do together',
    (
      claims.best(
        'Ours: with epsilon = 3 and eta = .1 a theta just below 1 is best.',
        _steps(3.0, 0.1, (0.95, 0.975)),
        _steps(3.0, 0.1, (1.0, 1.05, 1.1)),
      ),
      claims.best(
        'Ours: so it is with epsilon = 10 and eta = .05.',
        _steps(10.0, 0.05, (0.95, 0.975)),
        _steps(10.0, 0.05, (1.0, 1.05, 1.1)),
      ),
      *(
        claims.order(
          f'Ours: with epsilon = {epsilon:g} and eta = {eta:g} the loss '
          'rises with theta from 1 to 1.1.',
          *_steps(epsilon, eta, (1.0, 1.05, 1.1)),
        )
        for epsilon, eta in _STEPS
      ),
    ),
    tasks.MNIST.settings,
    {
      f'epsilon = {epsilon:g}, eta = {eta:g}, theta = {theta:g}': {
        'epsilon': epsilon,
        'learning_rate': eta,
        'theta': theta,
      }
      for epsilon, eta in _STEPS
      for theta in (0.9, 0.95, 0.975, 1.0, 1.05, 1.1)
    }
    | {
      f'no noise, eta = {eta:g}': {'mechanism': 'none', 'learning_rate': eta}
      for eta in (0.05, 0.2, 0.5)
    },
    ROUNDS,
    round_numbers=(10, 20, 30, 40),
    test_part='all',
  ),
  Experiment(
    'best_theta',
    'The best theta, epsilon = 3, M = 30',
    (
      claims.best(
        'theta = 1.05 is the best for the MLP.',
        _thetas_of(tasks.MNIST, (1.05,)),
        _thetas_of(tasks.MNIST, (*_BELOW_1, 1.0, 1.1)),
      ),
      claims.best(
        'theta > 1 is the best for the SVM.',
        _thetas_of(tasks.ADULT, (1.05, 1.1)),
        _thetas_of(tasks.ADULT, (*_BELOW_1, 1.0)),
      ),
      *(
        claims.best(
          f'Ours: for {task.name} the best theta is below 1.',
          _thetas_of(task, _BELOW_1),
          _thetas_of(task, (1.0, 1.05, 1.1)),
        )
        for task in (tasks.MNIST, tasks.ADULT)
      ),
    ),
    tasks.PAPER,
    {
      f'{task.name}, theta = {theta:g}': {
        **task.settings,
        'epsilon': 3.0,
        'theta': theta,
      }
      for task in (tasks.MNIST, tasks.ADULT)
      for theta in (*_BELOW_1, 1.0, 1.05, 1.1)
    },
    ROUNDS,
    round_numbers=(30,),
  ),
  *map(_equal_epsilon, tasks.TASKS),
  Experiment(
    'equal_skewed',
    'Users of few classes (Dirichlet, concentration .3), at equal epsilon',
    _both_small_claims(),
    tasks.PAPER,
    _both_small(split='dirichlet', dirichlet_concentration=0.3),
    ROUND,
  ),
  Experiment(
    'equal_everyone',
    'Every user in every round (K = U), at equal delivered epsilon',
    _both_small_claims(),
    tasks.PAPER,
    _both_small(users_per_round=100),
    ROUND,
  ),
  Experiment(
    'views',
    'MLP, epsilon = 3: gradients of an image and of its mirror image',
    tuple(
      claims.each_better(
        f'Ours: for {task.name} the mean of both views ends with a lower loss.',
        [(f'{task.name}, views = mirror', f'{task.name}, views = none')],
        at='last',
      )
      for task in (tasks.FASHION_MNIST, tasks.CIFAR10)
    ),
    tasks.PAPER,
    _MIRRORED,
    ROUND,
  ),
)
