"""Experiments whose points are membership games: the paper's Table III.

A point is a game with its shadow models and trials. The results of an attack
are in columns with the attack's name.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import catalogue
from tvdp_tf import runtimes
from tvdp_tf.attacks import membership
from tvdp_tf.attacks.membership_game import game as membership_game
from tvdp_tf.attacks.membership_game import report as membership_report
from tvdp_tf.attacks.membership_game import settings as membership_settings
from tvdp_tf.output import plots
from tvdp_tf.output.plots import plt
from tvdp_tf.training import settings as settings_lib

_OF_ATTACK = (
  *(field.name for field in dataclasses.fields(membership.Metrics)),
  'epsilon_lower_bound',
)
COLUMNS = (
  *('round', 'test_loss', 'test_accuracy', 'member_accuracy'),
  *('noise_stddev', 'delivered_epsilon'),
  *(f'{attack}_{name}' for attack in membership.ATTACKS for name in _OF_ATTACK),
)
_LABELS = {
  'shadow': 'shadow models, last model',
  'lira': 'likelihood ratio, last model',
  'lira_all_rounds': 'likelihood ratio, models of all rounds',
}


class Runner:
  """Plays games one after the other.

  Args:
    experiment: The experiment.
    context: Executes the games; it must be installed.
  """

  def __init__(
    self,
    experiment: catalogue.Experiment,
    context: runtimes.CompiledContext,
  ):
    del experiment
    self._games = membership_game.Games(context)

  def run(
    self,
    settings: settings_lib.TrainingSettings,
    game: Mapping[str, int],
  ) -> list[dict[str, Any]]:
    """Plays a game; returns one row of `COLUMNS`."""
    played = self._games.play(
      membership_settings.GameSettings(settings, **game)
    )
    row = {
      'round': settings.rounds,
      'test_loss': played.test_loss,
      'test_accuracy': played.test_accuracy,
      'member_accuracy': played.member_accuracy,
      'noise_stddev': played.noise_stddev,
      'delivered_epsilon': played.delivered_epsilon,
    }
    for name, values in membership_report.attack(played).items():
      row |= {f'{name}_{key}': value for key, value in values.items()}
    return [row]


def _column(rows: Sequence[Mapping[str, str]], name: str) -> np.ndarray:
  return np.array([float(row[name]) for row in rows])


def draw(
  experiment: catalogue.Experiment,
  rows_by_curve: Mapping[str, Sequence[Mapping[str, str]]],
  path: pathlib.Path,
) -> None:
  """Draws success and shown epsilon, mean and range over the seeds."""
  curves = [(curve, own) for curve, own in rows_by_curve.items() if own]
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(13, 2 + 0.42 * len(curves)), sharey=True
  )
  places = np.arange(len(curves))
  for index, name in enumerate(membership.ATTACKS):
    for axis, column in ((left, 'success'), (right, 'epsilon_lower_bound')):
      values = [_column(own, f'{name}_{column}') for _, own in curves]
      mean = np.array([v.mean() for v in values])
      spread = [
        [m - v.min() for m, v in zip(mean, values, strict=True)],
        [v.max() - m for m, v in zip(mean, values, strict=True)],
      ]
      axis.errorbar(
        mean,
        places + 0.22 * (index - 1),
        xerr=spread,
        fmt='o',
        markersize=4,
        capsize=2,
        label=_LABELS[name],
      )
  delivered = [_column(own, 'delivered_epsilon').max() for _, own in curves]
  finite = [value if math.isfinite(value) else np.nan for value in delivered]
  right.plot(
    finite, places, 'k|', markersize=14, label='delivered, if it holds'
  )
  left.axvline(0.5, color='gray', linewidth=1)
  left.set_xlabel('success rate (guessing: 0.5)')
  right.set_xlabel(
    'epsilon shown, a lower bound with '
    f'{100 * membership_settings.GameSettings.confidence:g} % confidence'
  )
  right.set_xscale('symlog', linthresh=1)
  right.set_xlim(left=-0.05)
  left.set_yticks(places, [curve for curve, _ in curves])
  left.invert_yaxis()
  for axis in (left, right):
    axis.grid(alpha=0.3)
  figure.legend(*right.get_legend_handles_labels(), loc='lower center', ncol=4)
  figure.suptitle(f'{experiment.name}: {experiment.title}')
  figure.tight_layout(rect=(0, 0.06, 1, 1))
  plots.save_figure(figure, path)


def _json_number(value: float) -> float | str:
  return value if math.isfinite(value) else str(value)


def summarize(
  experiment: catalogue.Experiment, rows: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
  """Returns means over the seeds, given a curve's rows."""
  del experiment
  means = {
    name: _json_number(float(_column(rows, name).mean()))
    for name in COLUMNS
    if name != 'round' and not name.endswith(('_stderr', '_lower_bound'))
  }
  for attack_name in membership.ATTACKS:
    success = _column(rows, f'{attack_name}_success')
    means[f'{attack_name}_success_std_over_seeds'] = float(success.std())
  return {
    'best_at': int(rows[0]['round']),
    'seeds': len({row['seed'] for row in rows}),
    **means,
    # Each bound has the confidence; their mean would not.
    'epsilon_lower_bounds': {
      name: _column(rows, f'{name}_epsilon_lower_bound').tolist()
      for name in membership.ATTACKS
    },
  }
