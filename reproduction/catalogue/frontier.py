"""Useful models at small epsilon: fixed features, a linear model, all users.

Settings are those of `train.py --auto` (`tvdp_tf.planner.automatic`), except
the baselines: the same training without noise, and the paper's mechanism on the
paper's model. delta = 1e-5, U = 100. The kind of features was chosen with
knowledge of all image test sets; searches and the rule's constants only saw the
public fifths. Reported runs use the other four fifths.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reproduction.catalogue import second_look, tasks
from reproduction.catalogue.experiment import POINT, ROUND, Experiment

SERVER = 'server sees uploads'
SECURE = 'secure aggregation'
ZERO_OUT = 'secure aggregation, zero-out'
PAPER = "paper's mechanism and model, if its sensitivity held"
NO_NOISE = 'no noise'

EPSILONS = (1.0, 3.0, 8.0)
_DELTA = 1e-5
BASE: dict[str, Any] = {
  'model': 'linear',
  'users': 100,
  'users_per_round': 100,
  'local_steps': 1,
  'theta': 1.0,
  'delta': _DELTA,
  'example_l2_norm_clip': 0.05,
}
_MOMENTUM = 0.9
VIEWS: dict[str, dict[str, Any]] = {
  SERVER: {'mechanism': 'gradient'},
  SECURE: {'mechanism': 'distributed'},
  ZERO_OUT: {'mechanism': 'distributed', 'adjacency': 'zero-out'},
}
_TASKS = {task.dataset: task for task in tasks.TASKS}

# (data set, view) -> epsilon -> (rounds, learning rate), as chosen by --auto.
CHOSEN: dict[tuple[str, str], dict[float, tuple[int, float]]] = {
  ('mnist', SERVER): {1: (50, 60), 3: (50, 160), 8: (50, 370)},
  ('mnist', SECURE): {1: (81, 350), 3: (100, 740), 8: (100, 1700)},
  ('mnist', ZERO_OUT): {3: (100, 1500)},
  ('fashion_mnist', SERVER): {1: (50, 60), 3: (50, 160), 8: (50, 370)},
  ('fashion_mnist', SECURE): {1: (81, 350), 3: (100, 740), 8: (100, 1700)},
  ('fashion_mnist', ZERO_OUT): {3: (100, 1500)},
  ('cifar10', SERVER): {1: (50, 50), 3: (50, 130), 8: (50, 310)},
  ('cifar10', SECURE): {1: (68, 350), 3: (100, 620), 8: (100, 1400)},
  ('cifar10', ZERO_OUT): {3: (100, 1200)},
  ('adult', SERVER): {1: (50, 32), 3: (50, 87), 8: (50, 200)},
  ('adult', SECURE): {1: (50, 320), 3: (100, 400), 8: (100, 930)},
  ('adult', ZERO_OUT): {3: (100, 810)},
}
# The learning rate without noise: the one of 1, 3, 10, 30, 100 and 300 with the
# least loss on the public fifth.
_NO_NOISE_RATES = {
  'mnist': 100.0,
  'fashion_mnist': 100.0,
  'cifar10': 100.0,
  'adult': 10.0,
}
# For `frontier_search`: factors of the rate that --auto chooses.
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_SEARCH_RATES = (30.0, 100.0, 300.0)


@dataclasses.dataclass(frozen=True)
class Published:
  """A result that others have published, for a central trusted server.

  Attributes:
    epsilon: Epsilon at delta = 1e-5.
    accuracy: Accuracy on the test set.
    source: Its source.
  """

  epsilon: float
  accuracy: float
  source: str


# Tramer and Boneh, 2021: adding or removing a record.
_TRAMER_BONEH = 'ScatterNet, linear, central (Tramer, Boneh)'
PUBLISHED: Mapping[str, tuple[Published, ...]] = {
  'mnist': (Published(3.0, 0.987, _TRAMER_BONEH),),
  'fashion_mnist': (Published(3.0, 0.897, _TRAMER_BONEH),),
  'cifar10': (Published(3.0, 0.670, _TRAMER_BONEH),),
}


def label(dataset: str, view: str, epsilon: float | None) -> str:
  """Returns the label of a curve."""
  words = '' if epsilon is None else f', epsilon = {epsilon:g}'
  return f'{dataset}, {view}{words}'


def parts(curve: str) -> tuple[str, str, float | None]:
  """Splits a label into (data set, view, epsilon); None without noise."""
  dataset, _, rest = curve.partition(', ')
  view, _, epsilon = rest.rpartition(', epsilon = ')
  return (dataset, view, float(epsilon)) if view else (dataset, rest, None)


def settings(dataset: str, view: str, epsilon: float) -> dict[str, Any]:
  """Returns the settings in which a view's curve differs from the base."""
  rounds, rate = CHOSEN[dataset, view][epsilon]
  return {
    'dataset': dataset,
    'features': 'unit_norm' if dataset == 'adult' else 'scattering',
    'epsilon': float(epsilon),
    **VIEWS[view],
    'rounds': rounds,
    'learning_rate': float(rate),
    # Averages about the last tenth.
    'server_momentum': _MOMENTUM,
    'server_average': round(1 - 10 / rounds, 2),
  }


def _automatic(dataset: str) -> dict[str, dict[str, Any]]:
  curves = {
    label(dataset, view, epsilon): settings(dataset, view, epsilon)
    for (name, view), by_epsilon in CHOSEN.items()
    for epsilon in by_epsilon
    if name == dataset
  }
  curves[label(dataset, NO_NOISE, None)] = _no_noise(
    dataset, _NO_NOISE_RATES[dataset]
  )
  for epsilon in EPSILONS:
    curves[label(dataset, PAPER, epsilon)] = {
      'server_momentum': 0.0,
      **second_look.paper_at(_TASKS[dataset], epsilon, delta=_DELTA),
    }
  return curves


def _no_noise(dataset: str, rate: float) -> dict[str, Any]:
  """Returns settings of the same training without noise or clip."""
  return {
    **settings(dataset, SERVER, 8),
    'mechanism': 'none',
    'rounds': 100,
    'learning_rate': rate,
  }


def searched_rate(dataset: str, view: str, factor: float) -> str:
  """Returns the label of a curve of `frontier_search`, at epsilon = 3."""
  return f'{dataset}, {view}, {factor:g} of the rate of --auto'


def _search(dataset: str) -> dict[str, dict[str, Any]]:
  """Returns rates around that of --auto, at epsilon = 3 and without noise."""
  chosen = settings(dataset, SERVER, 3)
  return {
    searched_rate(dataset, SERVER, factor): {
      **chosen,
      'learning_rate': factor * chosen['learning_rate'],
    }
    for factor in _FACTORS
  } | {
    f'{dataset}, {NO_NOISE}, eta = {rate:g}': _no_noise(dataset, rate)
    for rate in _SEARCH_RATES
  }


def _experiment(
  dataset: str, base: Mapping[str, Any], curves: Mapping[str, dict[str, Any]]
) -> Experiment:
  return Experiment(
    f'frontier_{dataset}',
    f'A useful model at small epsilon: {dataset}, accuracy over epsilon',
    (),
    base,
    curves,
    POINT,
    smoke={'users_per_round': 4, 'local_steps': 1},
  )


# The experiments in the table and the picture of all data sets.
FRONTIERS = tuple(
  _experiment(
    dataset, {**BASE, 'server_momentum': _MOMENTUM}, _automatic(dataset)
  )
  for dataset in _NO_NOISE_RATES
)
EXPERIMENTS = (
  *FRONTIERS,
  Experiment(
    'frontier_search',
    'Learning rates around those of --auto, on the tuning examples',
    (),
    {**BASE, 'server_momentum': _MOMENTUM},
    _search('fashion_mnist'),
    ROUND,
    test_part='tuning',
    seeds=1,
    smoke={'users_per_round': 4, 'local_steps': 1},
  ),
)
