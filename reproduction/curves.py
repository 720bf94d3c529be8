"""Experiments whose points are training runs: curves of loss and accuracy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import catalogue
from reproduction import curve_plots as training_plots
from tvdp_tf import runtimes
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import sweep

COLUMNS = tuple(field.name for field in dataclasses.fields(sweep.Measurement))


class Runner:
  """Runs simulations one after the other.

  Args:
    experiment: The experiment.
    context: Executes the simulations; it must be installed.
  """

  def __init__(
    self,
    experiment: catalogue.Experiment,
    context: runtimes.CompiledContext,
  ):
    self._every_round = experiment.against == catalogue.ROUND
    self._sweep = sweep.Sweep(context, experiment.test_part)

  def run(
    self,
    settings: settings_lib.TrainingSettings,
    game: Mapping[str, int] | None = None,
  ) -> list[dict[str, Any]]:
    """Returns rows of `COLUMNS`, of all rounds or the last; ignores `game`."""
    del game
    measurements = self._sweep.run(settings, self._every_round)
    return [dataclasses.asdict(measurement) for measurement in measurements]


draw = training_plots.draw


def summarize(
  experiment: catalogue.Experiment, rows: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
  """Returns a curve's best point, given its rows."""
  x, loss, spread = training_plots.series(rows, experiment.against, 'test_loss')
  _, accuracy, _ = training_plots.series(
    rows, experiment.against, 'test_accuracy'
  )
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
