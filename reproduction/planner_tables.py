"""Compares the planner with experiments: tables of docs/REPRODUCTION.md.

A, Theta and the final loss come from a run without noise; the cost of a unit of
noise variance comes from one run with noise (theta = 1, the largest M). Nothing
else is fitted: the best theta and the best M of all other runs are predictions.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from reproduction import catalogue, result_tables
from reproduction.catalogue import claims, tasks
from reproduction.theory_tables import DELTA, EPSILON, SAMPLING_RATE, THETAS
from tvdp_tf import privacy
from tvdp_tf.output import layout
from tvdp_tf.planner import pilot

_LARGEST = 40  # M of the run with noise.


@dataclasses.dataclass(frozen=True)
class Sources:
  """The experiments about a task.

  Attributes:
    quiet: The experiment with the run without noise.
    thetas: The loss against M, for every theta.
    epsilons: The loss against M, for every epsilon at theta = 1.05.
  """

  quiet: str
  thetas: str
  epsilons: str


_SOURCES = {
  tasks.MNIST.name: Sources('equal_mnist', 'fig3', 'fig4'),
  tasks.ADULT.name: Sources('equal_adult', 'fig7', 'fig9'),
}


@functools.cache
def _estimate(task: str) -> pilot.ContractionEstimate:
  rounds, losses = result_tables.mean_curve(_SOURCES[task].quiet, 'no noise')
  return pilot.estimate_contraction(rounds, losses)


def _setting(
  task: str, theta: float, epsilon: float, noise_weight: float
) -> privacy.ConvergenceSetting:
  """Returns the planner's setting; a noise weight of 1/2 means smoothness 1."""
  estimate = _estimate(task)
  stddev = result_tables.column(
    _SOURCES[task].thetas, 'theta = 1', 'noise_stddev'
  )[0]
  # Theorem 1's noise is proportional to the sensitivity.
  unit = privacy.theorem1_stddev(
    1.0, _LARGEST, EPSILON, DELTA, SAMPLING_RATE, 1.0
  )
  return privacy.ConvergenceSetting(
    contraction=estimate.contraction,
    initial_gap=estimate.initial_gap,
    theta=theta,
    smoothness=2 * noise_weight,
    sensitivity=stddev / unit,
    epsilon=epsilon,
    delta=DELTA,
    sampling_rate=SAMPLING_RATE,
    dimension=1,
    sum_squared_weights=1.0,
  )


@functools.cache
def _noise_weight(task: str) -> float:
  """Returns what a unit of variance adds to the loss, from a run with noise."""
  loss = float(
    np.mean(
      result_tables.column(_SOURCES[task].thetas, 'theta = 1', 'test_loss')
    )
  )
  terms = privacy.convergence_terms(_setting(task, 1.0, EPSILON, 1.0), _LARGEST)
  added = loss - _estimate(task).final_loss - terms.decay
  return added / terms.noise


def best_theta() -> str:
  """Returns a table of A, its root, and the best theta of the grid."""
  experiment = catalogue.EXPERIMENTS['best_theta']
  rows = []
  for task in _SOURCES:
    labels = [x for x in experiment.curves if x.startswith(f'{task},')]
    losses = {x: result_tables.mean_loss('best_theta', x) for x in labels}
    best = min(losses, key=losses.__getitem__)
    constant = f'{task}, theta = 1'
    estimate = _estimate(task)
    rows.append(
      [
        task,
        f'{estimate.contraction:.3f}',
        f'{privacy.optimal_theta(estimate.contraction):.3f}',
        best.rpartition(' ')[2],
        *(
          claims.text_of(result_tables.column('best_theta', x, 'test_loss'))
          for x in (best, constant, f'{task}, theta = 1.05')
        ),
      ]
    )
  return layout.markdown_table(
    (
      'task',
      'A, measured without noise',
      'sqrt(A)',
      'best theta',
      'loss with it',
      'with theta = 1',
      'with theta = 1.05',
    ),
    rows,
  )


def _best_rounds_row(
  task: str, name: str, curve: str, theta: float, epsilon: float
) -> list[str]:
  weight = _noise_weight(task)
  predicted = privacy.optimal_rounds(_setting(task, theta, epsilon, weight))
  numbers, losses = result_tables.mean_curve(name, curve)
  finite = np.where(np.isfinite(losses), losses, np.inf)
  best = int(np.argmin(finite))
  # The grid point that is nearest to the prediction.
  nearest = int(np.argmin(np.abs(np.array(numbers) - predicted.rounds)))
  return [
    task,
    f'{theta:g}',
    f'{epsilon:g}',
    str(predicted.rounds),
    str(numbers[best]),
    f'{losses[best]:.3f}',
    f'{losses[nearest]:.3f}',
  ]


def best_rounds() -> str:
  """Returns a table of planned numbers of rounds, and those of least loss."""
  rows = []
  for task, sources in _SOURCES.items():
    for theta in THETAS:
      rows.append(
        _best_rounds_row(
          task, sources.thetas, f'theta = {theta:g}', theta, EPSILON
        )
      )
    for epsilon in (1.0, 5.0, 10.0, 20.0, 50.0):
      rows.append(
        _best_rounds_row(
          task, sources.epsilons, f'epsilon = {epsilon:g}', 1.05, epsilon
        )
      )
  return layout.markdown_table(
    (
      'task',
      'theta',
      'claimed epsilon',
      "planner's M",
      'best M measured',
      'least loss',
      "loss at the planner's M",
    ),
    rows,
  )


TABLES: Mapping[str, Callable[[], str]] = {
  'best_theta_planned': best_theta,
  'best_rounds': best_rounds,
}
