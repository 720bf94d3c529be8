"""Experiments whose curves are one run each: accuracy over epsilon."""

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

_MARKERS = ('o-', 's-', '^--')


def _accuracies(rows: Sequence[Mapping[str, str]]) -> np.ndarray:
  return np.array([float(row['test_accuracy']) for row in rows])


def draw(
  experiment: catalogue.Experiment,
  by_curve: Mapping[str, Sequence[Mapping[str, str]]],
  path: pathlib.Path,
) -> None:
  """Draws mean and range over the seeds, a panel for each data set."""
  found: dict[str, dict[str, list[tuple[float, np.ndarray]]]] = {}
  for curve, rows in by_curve.items():
    if rows:
      change: Mapping[str, Any] = experiment.curves[curve]
      view = curve.partition(', ')[2].rpartition(', ')[0]
      of_view = found.setdefault(change['dataset'], {}).setdefault(view, [])
      of_view.append((change['epsilon'], _accuracies(rows)))
  figure, axes = plt.subplots(
    1, max(1, len(found)), figsize=(7 * max(1, len(found)), 4), squeeze=False
  )
  for axis, (dataset, views) in zip(axes[0], found.items(), strict=False):
    for (view, points), marker in zip(
      sorted(views.items()), _MARKERS, strict=False
    ):
      ordered = sorted(points, key=lambda point: point[0])
      epsilons = [epsilon for epsilon, _ in ordered]
      accuracies = [values for _, values in ordered]
      means = np.array([values.mean() for values in accuracies])
      low = means - [values.min() for values in accuracies]
      high = [values.max() for values in accuracies] - means
      axis.errorbar(
        epsilons, means, yerr=[low, high], fmt=marker, capsize=3, label=view
      )
    for published in frontier.PUBLISHED.get(dataset, ()):
      axis.plot(
        *(published.epsilon, published.accuracy, 'x'),
        color='black',
        label=published.source,
      )
    axis.set_title(dataset)
    axis.set_xlabel('epsilon at delta = 1e-5')
    axis.set_ylabel('test accuracy')
    axis.grid(alpha=0.3)
    plots.legend_beside(axis)
  figure.suptitle(f'{experiment.name}: {experiment.title}')
  figure.tight_layout()
  plots.save_figure(figure, path)
