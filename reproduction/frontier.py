"""Experiments with one run per curve: accuracy over epsilon."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import catalogue
from reproduction import curves as training_curves
from reproduction.catalogue import frontier
from tvdp_tf.output import plots
from tvdp_tf.output.plots import plt

COLUMNS = training_curves.COLUMNS
Runner = training_curves.Runner
summarize = training_curves.summarize

# Distinguishable without colors.
_STYLES = {
  frontier.SECURE: 's-',
  frontier.ZERO_OUT: 'D',
  frontier.SERVER: 'o--',
  frontier.PAPER: '^:',
}
_TITLES = {
  'mnist': 'MNIST',
  'fashion_mnist': 'Fashion-MNIST',
  'cifar10': 'CIFAR-10',
  'adult': 'Adult',
}


def _accuracies(rows: Sequence[Mapping[str, str]]) -> np.ndarray:
  return np.array([float(row['test_accuracy']) for row in rows])


def _draw_dataset(axis, dataset: str, found: Mapping) -> None:
  for view, style in _STYLES.items():
    by_epsilon = sorted(
      (epsilon, accuracies)
      for (name, of_view, epsilon), accuracies in found.items()
      if (name, of_view) == (dataset, view)
    )
    if by_epsilon:
      epsilons, accuracies = zip(*by_epsilon, strict=True)
      means = np.array([values.mean() for values in accuracies])
      low = means - [values.min() for values in accuracies]
      high = [values.max() for values in accuracies] - means
      axis.errorbar(
        epsilons, means, yerr=[low, high], fmt=style, capsize=3, label=view
      )
  without = found.get((dataset, frontier.NO_NOISE, None))
  if without is not None:
    axis.axhline(
      without.mean(), color='gray', linewidth=1, label=frontier.NO_NOISE
    )
  for published in frontier.PUBLISHED.get(dataset, ()):
    axis.plot(
      *(published.epsilon, published.accuracy, 'x'),
      color='black',
      markersize=8,
      label=published.source,
    )
  axis.set_title(_TITLES[dataset])
  axis.set_xscale('log')
  axis.set_xticks(frontier.EPSILONS, [f'{e:g}' for e in frontier.EPSILONS])
  axis.minorticks_off()
  axis.set_xlabel('epsilon at delta = 1e-5')
  axis.grid(alpha=0.3)


def draw(
  experiment: catalogue.Experiment,
  by_curve: Mapping[str, Sequence[Mapping[str, str]]],
  path: pathlib.Path,
) -> None:
  """Draws mean and range over the seeds, with a panel for each data set."""
  draw_panels(by_curve, path, f'{experiment.name}: {experiment.title}')


def draw_panels(
  by_curve: Mapping[str, Sequence[Mapping[str, str]]],
  path: pathlib.Path,
  title: str = '',
) -> None:
  """Like `draw`, for curves from any of these experiments.

  Args:
    by_curve: Label -> its points.
    path: The PNG to write, atomically.
    title: One line above the picture, if any.
  """
  found = {
    frontier.parts(curve): _accuracies(rows)
    for curve, rows in by_curve.items()
    if rows
  }
  datasets = [name for name in _TITLES if any(name == key[0] for key in found)]
  panels = max(1, len(datasets))
  figure, axes = plt.subplots(
    1, panels, figsize=(3 + 3.2 * panels, 4.6), squeeze=False
  )
  for axis, dataset in zip(axes[0], datasets, strict=False):
    _draw_dataset(axis, dataset, found)
  axes[0, 0].set_ylabel('test accuracy')
  handles: dict[str, Any] = {}
  for axis in axes[0]:
    handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
  figure.legend(
    *(handles.values(), handles.keys()),
    loc='lower center',
    ncols=min(panels, 3),
    fontsize=8,
  )
  if title:
    figure.suptitle(title)
  lines = -(-len(handles) // min(panels, 3))
  figure.tight_layout(rect=(0, 0.05 * lines, 1, 1))
  plots.save_figure(figure, path)
