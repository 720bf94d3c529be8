"""The paper's figures and tables.

The paper prints U = 100, K = 10, tau = 5, C = 5, delta = 1e-3, M = 30, and
epsilon = 10 unless swept. It does not give, so we chose, the learning rates
(`tasks`), the number of examples per user, the split (seeded, IID), weights,
scaling, and how Laplace noise is calibrated (`plans.laplace`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from reproduction.catalogue import claims, tasks
from reproduction.catalogue.experiment import ROUND, ROUNDS, Experiment

_THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)
_LABELS = tuple(f'theta = {theta:g}' for theta in _THETAS)
_FALLING, _CONSTANT, _RISING = _LABELS[:2], _LABELS[2], _LABELS[3:]
_EPSILONS = (1.0, 5.0, 10.0, 20.0, 50.0)
_EPSILON_LABELS = tuple(f'epsilon = {epsilon:g}' for epsilon in _EPSILONS)
_SVM_ROUND_NUMBERS = (1, 2, 4, 6, 8, 10, 13, 17, 20, 25, 30, 35, 40, 45, 50)
# A round of the CNN takes a second, one of the MLP a fiftieth of that.
_CNN_ROUND_NUMBERS = (5, 10, 20, 40)
_MLP = tasks.MNIST.settings
_SVM = tasks.ADULT.settings
_CNN = {
  **tasks.PAPER,
  'model': 'cnn',
  'l2_norm_clip': tasks.CNN_L2_NORM_CLIP,
}
_IMAGE_TASKS = (tasks.CIFAR10, tasks.FASHION_MNIST)
# A target that overfits: 20 examples per user, trained to the end every round.
# With more users, the same noise would destroy the model.
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
  curves['no noise'] = {'mechanism': 'algorithm1', **more}
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


def _each_task(
  make: Callable[..., claims.Claim], text: str, *groups: Sequence[str] | str
) -> Iterator[claims.Claim]:
  """A claim about each of the image tasks."""
  for task in _IMAGE_TASKS:
    yield make(
      f'{task.name}: {text}',
      *(
        f'{task.name}, {group}'
        if isinstance(group, str)
        else [f'{task.name}, {label}' for label in group]
        for group in groups
      ),
    )


_LAPLACE = {'Laplace': {'mechanism': 'laplace', 'theta': 1.0}}
_WORST_IS_LAPLACE = claims.worst(
  'Laplace noise is the worst.', 'Laplace', _LABELS
)
_REFINED = {
  f'{label}, alpha_d = {alpha_d:g}': {
    **change,
    'refinement': 'theorem2',
    'alpha_d': alpha_d,
  }
  for alpha_d in (0.8, 0.9)
  for label, change in _thetas().items()
}

# Fewer and smaller steps, because each one is noisy.
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

_GAMES = {
  f'theta = {theta:g}, epsilon = {epsilon:g}': {
    'theta': theta,
    'epsilon': epsilon,
  }
  for epsilon in (5.0, 10.0, 20.0)
  for theta in (0.95, 1.0, 1.05)
}
_WITHIN = f'within {100 * claims.NEAR:g} %'


def _best_refined(alpha_d: float, winner: str) -> claims.Claim:
  refined = [f'{label}, alpha_d = {alpha_d:g}' for label in _LABELS]
  winners = [label for label in refined if label.startswith(f'{winner},')]
  return claims.best(
    f'With alpha_d = {alpha_d:g}, {winner} is the best.',
    winners,
    [label for label in refined if label not in winners],
  )


EXPERIMENTS = (
  Experiment(
    'fig2',
    'MLP on MNIST, against the rounds',
    (
      claims.best_place_moves(
        'The larger theta is, the earlier the least loss.',
        *reversed(_LABELS),
      ),
      claims.degrades(
        'With theta > 1 the loss rises again before the end.', *_RISING
      ),
      _WORST_IS_LAPLACE,
    ),
    _MLP,
    {**_thetas(), **_LAPLACE},
    ROUND,
  ),
  Experiment(
    'fig3',
    'MLP on MNIST, against the number of rounds',
    (
      claims.best_place_inside(
        'The loss falls and rises again in M, for every theta.', *_LABELS
      ),
      claims.best_place_is('The best M is 17 for every theta.', 17, *_LABELS),
      claims.each_better(
        'theta = 1.05 and theta = .95 are better than 1.',
        [('theta = 1.05', _CONSTANT), ('theta = 0.95', _CONSTANT)],
      ),
      claims.best(
        'The best theta is above 1.', _RISING, (*_FALLING, _CONSTANT)
      ),
      _WORST_IS_LAPLACE,
    ),
    _MLP,
    {**_thetas(), **_LAPLACE},
    ROUNDS,
  ),
  Experiment(
    'table2',
    'MLP on MNIST: noise of round 1 and least loss',
    (
      claims.rises(
        'The noise of round 1 rises with theta: sigma = .003556, .003654, '
        '.003749, .003841, .003932.',
        'noise_stddev',
        *_LABELS,
        at='first',
      ),
      claims.order(
        'The least losses are in the order of 1.05 (.88862), .95 (.92706), 1 '
        '(.94142), 1.1 (1.01871), .9 (1.03783).',
        *(f'theta = {theta:g}' for theta in (1.05, 0.95, 1.0, 1.1, 0.9)),
      ),
    ),
    _MLP,
    _thetas(),
    ROUND,
    columns=('noise_stddev', 'test_loss'),
  ),
  Experiment(
    'fig4',
    'MLP on MNIST, theta = 1.05, against the number of rounds',
    (
      claims.best_place_moves(
        'The best M grows with epsilon.', *_EPSILON_LABELS
      ),
      claims.order(
        'The least loss falls as epsilon grows.', *reversed(_EPSILON_LABELS)
      ),
      claims.near(
        f'With epsilon >= 20 it is near the one without noise ({_WITHIN}).',
        _EPSILON_LABELS[-2:],
        'no noise',
      ),
    ),
    _MLP,
    _epsilons(),
    ROUNDS,
  ),
  Experiment(
    'fig5',
    "MLP on MNIST, Theorem 2's refinement: rounds planned",
    (
      claims.steps_down(
        "M' falls, in steps, and never rises.", 'rounds', *_REFINED
      ),
    ),
    _MLP,
    _REFINED,
    ROUND,
    columns=('rounds',),
  ),
  Experiment(
    'fig6',
    "MLP on MNIST, Theorem 2's refinement",
    (
      claims.each_better(
        'It lowers the least loss for theta >= 1.',
        [
          (f'{label}, alpha_d = {alpha_d:g}', label)
          for label in (_CONSTANT, *_RISING)
          for alpha_d in (0.8, 0.9)
        ],
      ),
      _best_refined(0.8, 'theta = 1.05'),
      _best_refined(0.9, 'theta = 1.1'),
    ),
    _MLP,
    {**_REFINED, **_thetas()},
    ROUND,
  ),
  Experiment(
    'table3',
    'MLP on MNIST, overfitted: membership inference',
    (
      claims.between(
        'Without DP the attack with shadow models succeeds in 99.3 % of the '
        'trials (here: at least 90 %).',
        'shadow_success',
        0.9,
        1.0,
        'no DP',
      ),
      claims.between(
        'With it in 57.3 to 60.7 %, at claimed epsilons of 5 to 20 (here: at '
        'most 65 %).',
        'shadow_success',
        0.0,
        0.65,
        *_GAMES,
      ),
      *(
        claims.rises(
          f'At epsilon = {epsilon:g} it succeeds less often the larger theta '
          'is.',
          'shadow_success',
          *reversed([g for g in _GAMES if g.endswith(f'= {epsilon:g}')]),
        )
        for epsilon in (5.0, 10.0, 20.0)
      ),
      claims.between(
        'Ours: the noise defends the members (the stronger attack, which '
        'sees the models of all rounds: at most 65 %).',
        'lira_all_rounds_success',
        0.0,
        0.65,
        *_GAMES,
      ),
    ),
    _OVERFITTED,
    {
      **_GAMES,
      'no DP': {'mechanism': 'algorithm1'},
      **_GRADIENT,
    },
    ROUND,
    game={'examples': 40, 'shadow_models': 25, 'trials': 50},
  ),
  Experiment(
    'fig7',
    'Linear SVM on Adult, against the number of rounds',
    (
      claims.best('theta > 1 is better than 1.', _RISING, (_CONSTANT,)),
      claims.best(
        'theta = 1 is better than theta < 1.', (_CONSTANT,), _FALLING
      ),
      claims.best_place_inside(
        'The loss falls and rises again in M, for every theta.', *_LABELS
      ),
    ),
    _SVM,
    _thetas(),
    ROUNDS,
  ),
  Experiment(
    'fig8',
    'CNN, against the number of rounds',
    (
      *_each_task(
        claims.best,
        'theta < 1 is the best.',
        _FALLING,
        (_CONSTANT, *_RISING),
      ),
      *_each_task(
        claims.best_place_inside,
        'the loss falls and rises again in M, for every theta.',
        *_LABELS,
      ),
    ),
    _CNN,
    _on_images(_thetas()),
    ROUNDS,
    round_numbers=_CNN_ROUND_NUMBERS,
  ),
  Experiment(
    'fig9',
    'Linear SVM on Adult, theta = 1.05, against the number of rounds',
    (
      claims.rests(
        f'Without noise the loss does not rise again (ends {_WITHIN} of its '
        'least).',
        'no noise',
      ),
      claims.degrades('With noise it does.', *_EPSILON_LABELS),
      claims.order(
        'The least loss falls as epsilon grows.', *reversed(_EPSILON_LABELS)
      ),
    ),
    _SVM,
    _epsilons(),
    ROUNDS,
    round_numbers=_SVM_ROUND_NUMBERS,
  ),
  Experiment(
    'fig10',
    'CNN, theta = 1.05, against the number of rounds',
    (
      *_each_task(
        claims.best_place_moves,
        'the best M grows with epsilon.',
        *_EPSILON_LABELS,
      ),
      *_each_task(
        claims.order,
        'the least loss falls as epsilon grows.',
        *reversed(_EPSILON_LABELS),
      ),
    ),
    _CNN,
    _on_images(_epsilons()),
    ROUNDS,
    round_numbers=_CNN_ROUND_NUMBERS,
  ),
)
