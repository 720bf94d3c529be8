"""The paper's four tasks, and their learning rates.

The paper prints U = 100, K = 10, tau = 5, C = 5, delta = 1e-3, M = 30 and
epsilon = 10. It prints no learning rate. Our rule makes one choice for each
task and mechanism, whatever is swept: the least mean loss after 30 rounds on
the tuning part of the test set, which no reported number uses
(`datasets.with_test_part`). `learning_rates` and `learning_rates_cnn` of the
catalogue run the grid: for the paper's algorithm with theta = 1 and its noise
as printed; for the gradient mechanism, together with C_g, with theta = 1 and
epsilon = 3.

In the ball of radius C = 5, the CNN hardly learns, even without noise: five
layers share the norm of 5, but start with a norm of 18. So its C is 20. The
runs of `learning_rates_cnn` show it.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

PAPER = {
  'users': 100,
  'users_per_round': 10,
  'local_steps': 5,
  'rounds': 30,
  'l2_norm_clip': 5.0,
  'delta': 1e-3,
  'epsilon': 10.0,
  'mechanism': 'paper',
}
GRADIENT = {'mechanism': 'gradient', 'theta': 1.0, 'epsilon': 3.0}
EXAMPLE_L2_NORM_CLIPS = (1.0, 3.0)
CNN_L2_NORM_CLIP = 20.0


@dataclasses.dataclass(frozen=True)
class Task:
  """A model on a data set.

  Attributes:
    name: Name in labels.
    dataset: A key of `datasets.LOADERS`.
    model: A key of `models.MODELS`.
    grid: The learning rates to choose from.
    learning_rate: Learning rate of the paper's algorithm.
    gradient: Settings of the gradient mechanism.
  """

  name: str
  dataset: str
  model: str
  grid: tuple[float, ...]
  learning_rate: float
  gradient: dict[str, float]

  @property
  def settings(self) -> dict[str, Any]:
    """Settings of the paper's algorithm."""
    settings = {
      **PAPER,
      'dataset': self.dataset,
      'model': self.model,
      'learning_rate': self.learning_rate,
    }
    if self.model == 'cnn':
      settings['l2_norm_clip'] = CNN_L2_NORM_CLIP
    return settings


def _gradient(learning_rate: float, clip: float) -> dict[str, float]:
  return {'learning_rate': learning_rate, 'example_l2_norm_clip': clip}


MNIST = Task(
  'MNIST', 'mnist', 'mlp', (0.05, 0.1, 0.2, 0.5, 1.0), 0.5, _gradient(0.5, 3.0)
)
ADULT = Task(
  'Adult', 'adult', 'svm', (0.03, 0.1, 0.3, 1.0), 0.3, _gradient(1.0, 3.0)
)
_CNN_GRID = (0.05, 0.1, 0.2, 0.5)
CIFAR10 = Task(
  'CIFAR-10', 'cifar10', 'cnn', _CNN_GRID, 0.1, _gradient(0.2, 3.0)
)
FASHION_MNIST = Task(
  'FMNIST', 'fashion_mnist', 'cnn', _CNN_GRID, 0.2, _gradient(0.5, 3.0)
)
TASKS = (MNIST, ADULT, CIFAR10, FASHION_MNIST)


def tuning_curves(
  tasks: Iterable[Task], clips: Iterable[float] = EXAMPLE_L2_NORM_CLIPS
) -> dict[str, dict[str, Any]]:
  """Returns label -> settings, for the whole grid of the tasks."""
  curves: dict[str, dict[str, Any]] = {}
  for task in tasks:
    for rate in task.grid:
      curves[tuning_label(task, rate)] = {
        **task.settings,
        'learning_rate': rate,
      }
      for clip in clips:
        curves[tuning_label(task, rate, clip)] = {
          **task.settings,
          **GRADIENT,
          **_gradient(rate, clip),
        }
  return curves


def tuning_label(
  task: Task, learning_rate: float, clip: float | None = None
) -> str:
  """Returns a label of `tuning_curves`; with a clip, for `gradient`."""
  mechanism = 'paper' if clip is None else f'gradient, C_g = {clip:g}'
  return f'{task.name}, {mechanism}, eta = {learning_rate:g}'
