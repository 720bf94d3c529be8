"""Draws experiments whose points are training runs."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import catalogue
from tvdp_tf.output import plots
from tvdp_tf.output.plots import plt, ticker

Rows = Sequence[Mapping[str, str]]

_LABELS = {
  'test_loss': 'test loss',
  'test_accuracy': 'test accuracy',
  'noise_stddev': 'noise stddev',
  'rounds': "rounds planned, M'",
}


def series(
  rows: Rows, against: str, column: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Computes means over the seeds, where all of them have a value.

  A refinement ends the runs of some seeds before others, and a mean over the
  remaining ones would jump.

  Args:
    rows: The rows of one curve.
    against: As for the experiment.
    column: A column of the CSV.

  Returns:
    x, the mean and the standard deviation over the seeds.
  """
  x_name = 'round' if against == catalogue.ROUND else 'planned_rounds'
  by_x: dict[int, list[float]] = {}
  for row in rows:
    by_x.setdefault(int(row[x_name]), []).append(float(row[column]))
  seeds = len({row['seed'] for row in rows})
  x = sorted(x for x, values in by_x.items() if len(values) == seeds)
  x = x or sorted(by_x)  # A shard's seeds may have no x in common.
  return (
    np.array(x),
    np.array([np.mean(by_x[i]) for i in x]),
    np.array([np.std(by_x[i]) for i in x]),
  )


def draw(
  experiment: catalogue.Experiment,
  rows_by_curve: Mapping[str, Rows],
  path: pathlib.Path,
) -> None:
  """Draws mean and deviation over the seeds.

  Args:
    experiment: The experiment.
    rows_by_curve: Rows of the CSV; a curve without rows is left out.
    path: The PNG to write.
  """
  curves = {curve: own for curve, own in rows_by_curve.items() if own}
  numbers = {row['planned_rounds'] for own in curves.values() for row in own}
  if experiment.against == catalogue.ROUNDS and len(numbers) == 1:
    figure = _draw_points(experiment, curves)
  else:
    figure = _draw_curves(experiment, curves)
  figure.suptitle(f'{experiment.name}: {experiment.title}')
  figure.tight_layout()
  plots.save_figure(figure, path)


def _draw_points(
  experiment: catalogue.Experiment, curves: Mapping[str, Rows]
) -> Any:
  """Draws one line of the picture for each curve, which has only one point."""
  count = len(experiment.columns)
  figure, axes = plt.subplots(
    1,
    count,
    figsize=(6.5 * count, 1.5 + 0.25 * len(curves)),
    sharey=True,
    squeeze=False,
  )
  for axis, column in zip(axes[0], experiment.columns, strict=True):
    means = []
    for place, own in enumerate(curves.values()):
      (rounds,), mean, spread = series(own, experiment.against, column)
      axis.errorbar(mean, [place], xerr=spread, fmt='o', capsize=3)
      means.append(mean)
    axis.set_xlabel(f'{_LABELS[column]} after {rounds} rounds')
    axis.set_yticks(range(len(curves)), list(curves))
    axis.grid(alpha=0.3)
    if column == 'test_loss' and not experiment.generated:
      losses = np.concatenate(_finite(means))
      # A run that diverged must not flatten the others.
      axis.set_xlim(
        0.95 * losses.min(), min(1.05 * losses.max(), 4 * np.median(losses))
      )
  axes[0][0].invert_yaxis()
  return figure


def _draw_curves(
  experiment: catalogue.Experiment, curves: Mapping[str, Rows]
) -> Any:
  """Draws a row of panels per data set, as their losses do not compare."""
  data_sets: dict[str, list[str]] = {}
  for curve, change in experiment.curves.items():
    data_set = {**experiment.base, **change}['dataset']
    data_sets.setdefault(data_set, []).append(curve)
  shape = len(data_sets), len(experiment.columns)
  figure, axes = plt.subplots(
    *shape, figsize=(6.5 * shape[1] + 2, 4.5 * shape[0]), squeeze=False
  )
  for row, names in zip(axes, data_sets.values(), strict=True):
    _draw_row(
      experiment, {name: curves.get(name, []) for name in names}, list(row)
    )
  return figure


def _draw_row(
  experiment: catalogue.Experiment,
  curves: Mapping[str, Rows],
  axes: Sequence[Any],
) -> None:
  """Draws a panel per column; a curve without rows leaves its color unused."""
  palette = plt.get_cmap('tab10' if len(curves) <= 10 else 'tab20')
  for axis, column in zip(axes, experiment.columns, strict=True):
    for index, (curve, own) in enumerate(curves.items()):
      if not own:
        continue
      x, mean, spread = series(own, experiment.against, column)
      color = palette(index)
      axis.plot(x, mean, '.-', color=color, label=curve)
      axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2)
    against_round = experiment.against == catalogue.ROUND
    axis.set_xlabel('round' if against_round else 'number of rounds M')
    axis.set_ylabel(_LABELS[column])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    values = _finite([line.get_ydata() for line in axis.get_lines()])
    if column == 'test_loss':
      axis.set_yscale('log')
      if not experiment.generated:
        axis.set_ylim(*_loss_limits(values))
      axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%.2g'))
      axis.yaxis.set_minor_formatter(ticker.FormatStrFormatter('%.2g'))
    elif column == 'test_accuracy' and not experiment.generated:
      axis.set_ylim(*_accuracy_limits(values))
    _name_what_is_outside(axis)
  if axes[-1].get_lines():
    plots.legend_beside(axes[-1])


def _finite(curves: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Returns the finite values of each curve; at least one, if all diverged."""
  finite = [values[np.isfinite(values)] for values in curves]
  return [values for values in finite if len(values)] or [np.ones(1)]


def _loss_limits(losses: Sequence[np.ndarray]) -> tuple[float, float]:
  """Returns the limits within which the curves differ.

  Neither the common start nor a diverging curve may flatten the others.
  """
  least = [values.min() for values in losses]
  usual = np.median([values.max() for values in losses])
  return 0.95 * min(least), min(1.3 * usual, 2 * np.median(least))


def _accuracy_limits(accuracies: Sequence[np.ndarray]) -> tuple[float, float]:
  best = [values.max() for values in accuracies]
  return 0.75 * float(np.median(best)), 1.02 * max(best) or 1.0


def _name_what_is_outside(axis) -> None:
  low, high = axis.get_ylim()
  for line in axis.get_lines():
    values = line.get_ydata()
    if not np.any((low <= values) & (values <= high)):
      line.set_label(f'{line.get_label()} (outside)')
