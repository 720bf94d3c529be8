"""A plan as files: `plan.json`, `plan.csv` and `plan.png`.

With a pilot also `contraction.png`, its loss curve and the fit.
"""

import csv
import dataclasses
import json
import math
import pathlib

import matplotlib

matplotlib.use('Agg')  # No screen is needed.

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import ticker

from tvdp_tf.output import folder as output_folder
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import report as planning_report

JSON = 'plan.json'
CSV = 'plan.csv'
PICTURE = 'plan.png'
PILOT_PICTURE = 'contraction.png'
COLUMNS = tuple(
  field.name for field in dataclasses.fields(planning_bound.BoundPoint)
)

# What lies higher than this above the start says only that it diverges.
_HEADROOM = 3.0
_FEW = 12
_CURVE_POINTS = 300
# More markers than this run into one another.
_MANY = 100
_ORIGINS = {
  'given': '',
  'assumed': ' (assumed)',
  'measured': ' (measured)',
}
_BEST_COLOR = 'tab:red'
_COLORS = (
  *('tab:blue', 'tab:orange', 'tab:green', 'tab:purple', 'tab:brown'),
  *('tab:pink', 'tab:gray'),
)


def write(report: planning_report.PlanReport, path: pathlib.Path) -> None:
  """Creates the folder with its files.

  Args:
    report: The plan.
    path: The folder, see `output_folder.check`.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  with output_folder.create(path) as folder:
    _write_json(report, folder / JSON)
    _write_csv(report, folder / CSV)
    _draw(report, folder / PICTURE)
    if report.pilot is not None:
      _draw_pilot(report.pilot, folder / PILOT_PICTURE)


def _write_json(report, path: pathlib.Path) -> None:
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(report.to_json_dict(), file, indent=2, allow_nan=False)
    file.write('\n')


def _write_csv(report, path: pathlib.Path) -> None:
  with open(path, 'w', newline='', encoding='utf-8') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(COLUMNS)
    for point in report.curve:
      writer.writerow([repr(getattr(point, name)) for name in COLUMNS])


def _title(report) -> str:
  settings = report.settings
  worth = 'guaranteed' if report.statement.holds else 'claimed, not guaranteed'
  return (
    f'Convergence bound at one budget: mechanism {settings.mechanism},'
    f' calibration {settings.calibration}\n'
    f'epsilon = {settings.epsilon:g} ({worth}), delta = {settings.delta:g},'
    f' {settings.users_per_round} of {settings.users} users a round,'
    f' {settings.participation}'
  )


def _footer(report) -> str:
  settings = report.settings
  inputs = (
    f'{name} = {getattr(settings, name):g}{_ORIGINS[settings.origin(name)]}'
    for name in ('contraction', 'initial_gap', 'smoothness')
  )
  return ', '.join((*inputs, f'd = {report.population.num_parameters}'))


def _draw_curves(report, axis) -> None:
  for plan, color in zip(report.plans, _COLORS, strict=False):
    theta = plan.asked.theta
    points = [point for point in report.curve if point.theta == theta]
    is_best = math.isclose(theta, report.optimal.theta)
    axis.plot(
      [point.rounds for point in points],
      [point.bound for point in points],
      # Single numbers of rounds can be told apart only if they are few.
      marker='.' if len(points) <= _FEW else None,
      # Two thetas whose product is A have the same bound.
      linestyle='--' if theta > 1 else '-',
      color=_BEST_COLOR if is_best else color,
      linewidth=2.5 if is_best else 1.5,
      label=f'theta = {theta:.4g}: best M = {plan.best.rounds}',
    )
    axis.plot(
      *(plan.best.rounds, plan.best.bound, 'o'),
      color=_BEST_COLOR if is_best else color,
      markersize=6,
    )


def _draw_plan(axis, point, name: str, **style) -> None:
  outside = point.bound > axis.get_ylim()[1]
  axis.plot(
    *(point.rounds, point.bound),
    linestyle='none',
    zorder=5,
    label=f'{name}: theta = {point.theta:.4g}, M = {point.rounds}'
    f'{" (above the picture)" if outside else ""}',
    **style,
  )


def _set_axes(report, axis) -> None:
  bounds = [point.bound for point in report.curve]
  shown = [report.optimal.bound, *bounds]
  ceiling = max(
    _HEADROOM * report.settings.initial_gap, 2 * report.optimal.bound
  )
  axis.set_yscale('log')
  top = 1.2 * min(max(shown), ceiling)
  axis.set_ylim(0.8 * min(shown), top)
  # No empty paper to the right of where the last curve leaves the picture.
  last = max(p.rounds for p in [report.optimal, *report.curve] if p.bound < top)
  most = max(point.rounds for point in report.curve)
  axis.set_xlim(0, 1.05 * min(most, 1.5 * last + 1))
  axis.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 3, 5)))
  axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axis.yaxis.set_minor_formatter(ticker.FormatStrFormatter('%g'))
  axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  axis.set_xlabel('rounds M')
  axis.set_ylabel('bound of F(w(M)) - F* (log scale)')
  axis.grid(alpha=0.3, which='both')


def _draw(report, path: pathlib.Path) -> None:
  figure, axis = plt.subplots(figsize=(9, 6))
  _draw_curves(report, axis)
  _set_axes(report, axis)
  _draw_plan(
    axis, report.asked.asked, 'asked', marker='X', color='black', markersize=9
  )
  _draw_plan(
    axis,
    report.optimal,
    'optimum',
    marker='*',
    color=_BEST_COLOR,
    markersize=16,
  )
  axis.set_title(_title(report), fontsize=11)
  axis.legend(fontsize=9)
  figure.text(0.5, 0.01, _footer(report), ha='center', fontsize=8, color='0.35')
  figure.tight_layout(rect=(0, 0.06, 1, 1))
  figure.savefig(path, format='png', dpi=120)
  plt.close(figure)


def _draw_pilot(pilot: planning_pilot.Pilot, path: pathlib.Path) -> None:
  """Draws the losses with the fit, and the residuals below.

  Args:
    pilot: The pilot.
    path: The PNG file to write.
  """
  estimate = pilot.estimate
  rounds, losses = np.array(pilot.rounds), np.array(pilot.losses)
  low, high = estimate.contraction_interval
  dense = np.linspace(0, rounds[-1], _CURVE_POINTS)
  figure, (above, below) = plt.subplots(
    *(2, 1), figsize=(9, 6), sharex=True, height_ratios=(3, 1)
  )
  dots = {
    'linestyle': 'none',
    'marker': '.',
    'markersize': 8 if len(rounds) <= _MANY else 3,
    'color': 'black',
  }
  above.plot(rounds, losses, label='test loss of the pilot', zorder=3, **dots)
  above.plot(
    *(dense, estimate.loss(dense)),
    color='tab:blue',
    label=f'fit: A = {estimate.contraction:.5g} (95 % interval {low:.5g} to'
    f' {high:.5g}), Theta = {estimate.initial_gap:.4g}',
  )
  above.axhline(
    estimate.final_loss,
    color='0.5',
    linestyle='--',
    label=f'L_inf = {estimate.final_loss:.4g}',
  )
  above.set_ylabel('loss')
  above.set_title(
    'Contraction of a round without noise: loss(m) = L_inf + Theta A^m',
    fontsize=11,
  )
  above.legend(fontsize=9)
  below.plot(rounds, losses - estimate.loss(rounds), **dots)
  below.axhline(0, color='tab:blue')
  below.set_ylabel('loss - fit')
  below.set_xlabel('round m')
  below.set_xlim(left=0)
  for axis in (above, below):
    axis.grid(alpha=0.3)
  figure.align_ylabels()
  figure.tight_layout()
  figure.savefig(path, format='png', dpi=120)
  plt.close(figure)
