"""A plan as files: `plan.json`, `plan.csv`, `plan.png` and `report.html`.

With a pilot, there is also `contraction.png`, its loss curve and the fit.
"""

import dataclasses
import itertools
import pathlib

import numpy as np

from tvdp_tf.output import files, plots
from tvdp_tf.output import report as output_report
from tvdp_tf.output.plots import plt, ticker
from tvdp_tf.planner import bound as planning_bound
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import report as planning_report
from tvdp_tf.planner import settings as planning_settings

JSON = 'plan.json'
CSV = 'plan.csv'
PICTURE = 'plan.png'
PILOT_PICTURE = 'contraction.png'
COLUMNS = tuple(
  field.name for field in dataclasses.fields(planning_bound.BoundPoint)
)

# Bounds above this multiple of the start only say that training diverges.
_HEADROOM = 3.0
_CURVE_POINTS = 300


def write(report: planning_report.PlanReport, path: pathlib.Path) -> None:
  """Creates the folder with its files.

  Args:
    report: The plan.
    path: The folder; see `output_folder.check`.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  with files.create_folder(path) as folder:
    files.write_json(folder / JSON, report.to_json_dict())
    files.write_csv(
      folder / CSV,
      COLUMNS,
      ([repr(getattr(p, name)) for name in COLUMNS] for p in report.curve),
    )
    _draw(report, folder / PICTURE)
    pictures = {
      PICTURE: 'The convergence bound against the number of rounds, a curve'
      ' for each theta; the best plan and the one you asked for are'
      ' in the table above.'
    }
    if report.pilot is not None:
      _draw_pilot(report.pilot, folder / PILOT_PICTURE)
      pictures[PILOT_PICTURE] = (
        "The pilot's test loss against the rounds, and what was fitted to it."
      )
    output_report.write_plan(
      folder,
      report.statement,
      report.settings.to_json_dict(),
      [
        output_report.Number(f'{name}: {what}', f'{value:.6g}')
        for name, point in (
          ('Best', report.optimal),
          ('As asked', report.asked.asked),
        )
        for what, value in (
          ('theta', point.theta),
          ('rounds', point.rounds),
          ('bound of the gap to the optimum', point.bound),
        )
      ],
      pictures,
    )


def _title(report) -> str:
  settings = report.settings
  worth = 'guaranteed' if report.statement.holds else 'claimed, not guaranteed'
  return (
    f'Convergence bound at one budget: mechanism {settings.mechanism},'
    f' calibration {settings.calibration}\n'
    f'epsilon = {settings.epsilon!r} ({worth}), delta = {settings.delta!r},'
    f' {settings.users_per_round} of {settings.users} users per round,'
    f' {settings.participation}'
  )


def _footer(report) -> str:
  settings = report.settings
  inputs = (
    f'{name} = {getattr(settings, name):g} ({settings.origin(name)})'
    for name in (*planning_settings.MEASURED, 'smoothness')
  )
  return ', '.join((*inputs, f'd = {report.population.num_parameters}'))


def _draw(report, path: pathlib.Path) -> None:
  optimal, asked = report.optimal, report.asked.asked
  figure, axis = plt.subplots(figsize=(12, 6))
  styles = itertools.cycle(plots.STYLES)
  for plan, style in zip(report.plans, styles, strict=False):
    theta = plan.asked.theta
    points = [point for point in report.curve if point.theta == theta]
    axis.plot(
      [point.rounds for point in points],
      [point.bound for point in points],
      style,
      markersize=4,
      linewidth=2.5 if theta == optimal.theta else 1.5,
      label=f'theta = {theta:.4g}: best M = {plan.best.rounds}',
    )
  top = max(_HEADROOM * report.objective.initial_gap, 2 * optimal.bound)
  for point, name, marker, size in (
    (asked, f'asked: {report.asked_plan}', 'X', 9),
    (optimal, f'best: {report.plan_in_words(optimal)}', '*', 16),
  ):
    above = ' (above the picture)' if point.bound > top else ''
    axis.plot(
      *(point.rounds, point.bound, marker),
      color='black',
      markersize=size,
      zorder=5,
      label=f'{name}{above}',
    )
  seen = [p for p in (optimal, *report.curve) if p.bound <= top]
  axis.set_yscale('log')
  axis.set_ylim(0.8 * min(p.bound for p in seen), 1.2 * top)
  axis.set_xlim(0, 1.1 * max(p.rounds for p in seen))
  axis.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 3, 5)))
  for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
    which(ticker.FormatStrFormatter('%g'))
  axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  axis.set_xlabel('rounds M')
  axis.set_ylabel('bound of F(w(M)) - F* (log scale)')
  axis.grid(alpha=0.3, which='both')
  axis.set_title(_title(report), fontsize=11)
  plots.legend_beside(axis)
  figure.text(0.5, 0.01, _footer(report), ha='center', fontsize=8, color='0.35')
  figure.tight_layout(rect=(0, 0.06, 1, 1))
  plots.save_figure(figure, path)


def _draw_pilot(pilot: planning_pilot.Pilot, path: pathlib.Path) -> None:
  """Draws the losses with the fit, and the residuals below."""
  estimate = pilot.estimate
  rounds, losses = np.array(pilot.rounds), np.array(pilot.losses)
  low, high = estimate.contraction_interval
  dense = np.linspace(0, rounds[-1], _CURVE_POINTS)
  figure, (above, below) = plt.subplots(
    *(2, 1), figsize=(9, 6), sharex=True, height_ratios=(3, 1)
  )
  above.plot(rounds, losses, 'k.', label='test loss of the pilot', zorder=3)
  above.plot(
    *(dense, estimate.loss(dense)),
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
  below.plot(rounds, losses - estimate.loss(rounds), 'k.')
  below.axhline(0)
  below.set_ylabel('loss - fit')
  below.set_xlabel('round m')
  below.set_xlim(left=0)
  for axis in (above, below):
    axis.grid(alpha=0.3)
  figure.align_ylabels()
  figure.tight_layout()
  plots.save_figure(figure, path)
