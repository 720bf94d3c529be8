"""Experiments whose points are training runs: loss and accuracy as curves."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker

from tvdp_tf import simulation
from tvdp_tf.experiments import catalogue, plots, sweep
from tvdp_tf.experiments import settings as settings_lib

COLUMNS = tuple(field.name for field in dataclasses.fields(sweep.Measurement))

_LABELS = {
  'test_loss': 'test loss',
  'test_accuracy': 'test accuracy',
  'noise_stddev': 'noise stddev',
  'rounds': "rounds planned, M'",
}


class Runner:
  """Runs simulations one after the other.

  Args:
    experiment: What they are for.
    context: What executes them; its context must be installed.
  """

  def __init__(
    self,
    experiment: catalogue.Experiment,
    context: simulation.CompiledContext,
  ):
    self._every_round = experiment.against == catalogue.ROUND
    self._sweep = sweep.Sweep(context, experiment.test_part)

  def run(
    self,
    settings: settings_lib.TrainingSettings,
    game: Mapping[str, int] | None = None,
  ) -> list[dict[str, Any]]:
    """Rows of `COLUMNS`: one a round, or the last alone; there is no game."""
    del game
    measurements = self._sweep.run(settings, self._every_round)
    return [dataclasses.asdict(measurement) for measurement in measurements]


def _series(
  rows: Sequence[Mapping[str, str]], against: str, column: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(x, mean over seeds, standard deviation over seeds)."""
  x_name = 'round' if against == catalogue.ROUND else 'planned_rounds'
  by_x: dict[int, list[float]] = {}
  for row in rows:
    by_x.setdefault(int(row[x_name]), []).append(float(row[column]))
  x = sorted(by_x)
  return (
    np.array(x),
    np.array([np.mean(by_x[i]) for i in x]),
    np.array([np.std(by_x[i]) for i in x]),
  )


def draw(
  experiment: catalogue.Experiment,
  rows_by_curve: Mapping[str, Sequence[Mapping[str, str]]],
  path: pathlib.Path,
) -> None:
  """Draws mean and band over the seeds; a curve without rows is left out."""
  count = len(experiment.columns)
  figure, axes = plt.subplots(
    1, count, figsize=(6.5 * count, 4.5), squeeze=False
  )
  palette = plt.get_cmap('tab10' if len(experiment.curves) <= 10 else 'tab20')
  colors = [palette(index) for index in range(len(experiment.curves))]
  for axis, column in zip(axes[0], experiment.columns, strict=True):
    for (curve, own), color in zip(rows_by_curve.items(), colors, strict=True):
      if own:
        x, mean, spread = _series(own, experiment.against, column)
        axis.plot(x, mean, '.-', color=color, label=curve)
        axis.fill_between(
          x, mean - spread, mean + spread, color=color, alpha=0.2
        )
    against_round = experiment.against == catalogue.ROUND
    axis.set_xlabel('round' if against_round else 'number of rounds M')
    axis.set_ylabel(_LABELS[column])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    if column == 'test_loss':
      _scale_losses(axis)
  axes[0][-1].legend(fontsize='small')
  figure.suptitle(f'{experiment.name}: {experiment.title}')
  figure.tight_layout()
  plots.save_figure(figure, path)


def _scale_losses(axis) -> None:
  losses = [line.get_ydata() for line in axis.get_lines()]
  axis.set_yscale('log')
  # One curve that goes through the roof must not flatten the others.
  axis.set_ylim(
    0.95 * min(map(np.nanmin, losses)),
    1.3 * np.nanmedian(list(map(np.nanmax, losses))),
  )
  axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%.2g'))
  axis.yaxis.set_minor_formatter(ticker.FormatStrFormatter('%.2g'))


def summarize(
  experiment: catalogue.Experiment, rows: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
  """A curve's best point, of its rows."""
  x, loss, spread = _series(rows, experiment.against, 'test_loss')
  _, accuracy, _ = _series(rows, experiment.against, 'test_accuracy')
  # A run that diverged has no least loss.
  finite = np.where(np.isfinite(loss), loss, np.inf)
  best = int(np.argmin(finite))
  return {
    'best_at': int(x[best]),
    'test_loss': float(loss[best]) if np.isfinite(loss[best]) else None,
    'test_loss_std_over_seeds': (
      float(spread[best]) if np.isfinite(spread[best]) else None
    ),
    'test_accuracy': float(accuracy[best]),
    'seeds': len({row['seed'] for row in rows}),
    'noise_stddev_of_its_first_row': float(rows[0]['noise_stddev']),
  }
