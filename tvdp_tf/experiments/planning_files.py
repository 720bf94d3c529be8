"""A plan as files: `plan.json`, `plan.csv` and `plan.png`.

The folder appears whole or not at all: it is written beside its place and
renamed.
"""

import csv
import json
import math
import os
import pathlib
import shutil

import matplotlib

matplotlib.use('Agg')  # No screen is needed.

from matplotlib import pyplot as plt
from matplotlib import ticker

from tvdp_tf.experiments import planning_report
from tvdp_tf.privacy import statement as statement_lib

JSON = 'plan.json'
CSV = 'plan.csv'
PICTURE = 'plan.png'
COLUMNS = ('theta', 'rounds', 'bound', 'decay', 'noise', 'sigma')

# What lies higher than this above the start says only that it diverges.
_HEADROOM = 3.0
_FEW = 12
_BEST_COLOR = 'tab:red'
_COLORS = (
  *('tab:blue', 'tab:orange', 'tab:green', 'tab:purple', 'tab:brown'),
  *('tab:pink', 'tab:gray'),
)


def check_folder(path: pathlib.Path) -> None:
  """Checks that the folder can be created.

  Args:
    path: The folder.

  Raises:
    ValueError: If there is something at `path`, or no folder can be made there.
  """
  if os.path.lexists(path):
    raise ValueError(f'output_dir must not exist yet, got {str(path)!r}')
  above = path.absolute().parent
  while not os.path.lexists(above):
    above = above.parent
  if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
    raise ValueError(f'output_dir must be writable, got {str(path)!r}')


def write(report: planning_report.PlanReport, path: pathlib.Path) -> None:
  """Creates the folder with the three files.

  Args:
    report: The plan.
    path: The folder, see `check_folder`.

  Raises:
    ValueError: If the folder exists or cannot be written.
  """
  check_folder(path)
  path = path.absolute()
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    temporary.mkdir(parents=True)
    _write_json(report, temporary / JSON)
    _write_csv(report, temporary / CSV)
    _draw(report, temporary / PICTURE)
    os.rename(temporary, path)
  except OSError as error:
    raise ValueError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


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
  target = statement_lib.format_epsilon(settings.epsilon)
  worth = 'guaranteed' if report.statement.holds else 'claimed, not guaranteed'
  return (
    f'Convergence bound at one budget: mechanism {settings.mechanism},'
    f' calibration {settings.calibration}\nepsilon = {target} ({worth}), delta'
    f' = {settings.delta:g}, {settings.users_per_round} of {settings.users}'
    f' users a round, {settings.participation}'
  )


def _footer(report) -> str:
  settings = report.settings
  inputs = (
    f'{name} = {getattr(settings, name):g}'
    f'{" (assumed)" if name in settings.assumed else ""}'
    for name in settings.open_inputs
  )
  texts = list(inputs)
  half = (len(texts) + 1) // 2
  return '\n'.join(', '.join(part) for part in (texts[:half], texts[half:]))


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
  axis.set_ylim(0.8 * min(shown), 1.2 * min(max(shown), ceiling))
  axis.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 3, 5)))
  axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axis.yaxis.set_minor_formatter(ticker.FormatStrFormatter('%g'))
  axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  axis.set_xlim(left=0)
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
