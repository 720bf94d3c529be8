"""The committed results as tables of docs/REPRODUCTION.md."""

import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from reproduction import catalogue, verdicts
from reproduction import frontier as frontier_plots
from reproduction import runner as reproduction
from reproduction.catalogue import claims, frontier, tasks
from tvdp_tf.output import layout
from tvdp_tf.privacy import statement

RESULTS = pathlib.Path(__file__).resolve().parents[1] / 'results/experiments'

Rows = Sequence[Mapping[str, str]]


@functools.cache
def _rows(name: str) -> Rows:
  return reproduction.read_points(
    RESULTS / name / reproduction.POINTS, catalogue.EXPERIMENTS[name]
  )


def _summary(name: str) -> Mapping:
  return json.loads((RESULTS / name / reproduction.SUMMARY).read_text())


def _x(name: str) -> str:
  against_round = catalogue.EXPERIMENTS[name].against == catalogue.ROUND
  return 'round' if against_round else 'planned_rounds'


def column(
  name: str, curve: str, column_name: str, x: int | None = None
) -> list[float]:
  """Returns a value for every seed, by default where the curve ends."""
  rows = [row for row in _rows(name) if row['curve'] == curve]
  if x is None:
    x = max(int(row[_x(name)]) for row in rows)
  own = [row for row in rows if int(row[_x(name)]) == x]
  own.sort(key=lambda row: int(row['seed']))
  return [float(row[column_name]) for row in own]


def mean_curve(name: str, curve: str) -> tuple[list[int], list[float]]:
  """Returns (x, mean of the test loss over the seeds)."""
  xs = {int(row[_x(name)]) for row in _rows(name) if row['curve'] == curve}
  return sorted(xs), [
    float(np.mean(column(name, curve, 'test_loss', x))) for x in sorted(xs)
  ]


def claims_table(name: str) -> str:
  """Returns the claims about an experiment, with verdicts, and its cost."""
  experiment = catalogue.EXPERIMENTS[name]
  seconds = _summary(name)['ran']['seconds']
  took = (
    f'{seconds:.0f} seconds' if seconds < 100 else f'{seconds / 60:.0f} minutes'
  )
  return '\n'.join(
    [
      verdicts.table(verdicts.decide(experiment, _rows(name))),
      '',
      f'`python binaries/reproduce.py --experiment={name}` '
      f'({experiment.seeds} seed{"s" * (experiment.seeds > 1)}, {took} on two '
      'cores): '
      f'[picture](../results/experiments/{name}/figure.png), '
      f'[points](../results/experiments/{name}/points.csv).',
    ]
  )


def _epsilon(values: Sequence[float]) -> str:
  worst = max(values)
  if not math.isfinite(worst):
    return 'none'
  return statement.format_epsilon(worst)


def ends_table(name: str) -> str:
  """Returns every curve's final loss and accuracy, and its worst epsilon."""
  experiment = catalogue.EXPERIMENTS[name]
  rows = []
  for curve, change in experiment.curves.items():
    mechanism = {**experiment.base, **change}['mechanism']
    epsilon = _epsilon(column(name, curve, 'delivered_epsilon'))
    rows.append(
      [
        curve,
        claims.text_of(column(name, curve, 'test_loss')),
        claims.text_of(column(name, curve, 'test_accuracy')),
        f'{epsilon}*' if mechanism == 'paper' else epsilon,
      ]
    )
  table = layout.markdown_table(
    ('', 'test loss', 'test accuracy', 'epsilon delivered to the worst user'),
    rows,
  )
  if not any(row[-1].endswith('*') for row in rows):
    return table
  return (
    f'{table}\n\n\\* if the sensitivity held that it rests on, which does not: '
    'no guarantee'
  )


def draw_frontier(path: pathlib.Path) -> None:
  """Draws accuracy over epsilon, with all data sets side by side."""
  by_curve: dict[str, Rows] = {}
  for experiment in frontier.FRONTIERS:
    for row in _rows(experiment.name):
      by_curve[row['curve']] = [*by_curve.get(row['curve'], ()), row]
  frontier_plots.draw_panels(by_curve, path)


def frontier_table() -> str:
  """Returns accuracy in percent, by data set, view and epsilon."""
  cells: dict[tuple[str, str], dict[float | None, str]] = {}
  for experiment in frontier.FRONTIERS:
    for curve in experiment.curves:
      dataset, view, epsilon = frontier.parts(curve)
      accuracies = 100 * np.array(
        column(experiment.name, curve, 'test_accuracy')
      )
      cells.setdefault((dataset, view), {})[epsilon] = (
        f'{accuracies.mean():.1f} ± {accuracies.std(ddof=1):.1f}'
      )
  rows = []
  for (dataset, view), found in sorted(cells.items()):
    by_epsilon = [found.get(epsilon, '') for epsilon in frontier.EPSILONS]
    mark = '*' if view == frontier.PAPER else ''
    rows.append([dataset, view + mark, *by_epsilon, found.get(None, '')])
  table = layout.markdown_table(
    (
      *('', 'test accuracy in %'),
      *(f'epsilon = {epsilon:g}' for epsilon in frontier.EPSILONS),
      'no noise',
    ),
    rows,
  )
  return f'{table}\n\n\\* no guarantee: its sensitivity does not hold'


def mean_loss(name: str, curve: str) -> float:
  """Returns the mean final loss over the seeds; inf if a seed diverged."""
  value = float(np.mean(column(name, curve, 'test_loss')))
  return value if math.isfinite(value) else math.inf


def tuning_losses(
  task: tasks.Task,
) -> tuple[dict[float, float], dict[tuple[float, float], float]]:
  """Returns losses on the tuning examples: by rate, and by (rate, clip)."""
  cnn = task.model == 'cnn'
  name = 'learning_rates_cnn' if cnn else 'learning_rates'
  curves = catalogue.EXPERIMENTS[name].curves
  paper, gradient = {}, {}
  for rate in task.grid:
    paper[rate] = mean_loss(name, tasks.tuning_label(task, rate))
    for clip in tasks.EXAMPLE_L2_NORM_CLIPS:
      label = tasks.tuning_label(task, rate, clip)
      if label in curves:
        gradient[rate, clip] = mean_loss(name, label)
  return paper, gradient


def learning_rates_table() -> str:
  """Returns the grid of every task and mechanism; the least loss is bold."""
  rows = []
  for task in tasks.TASKS:
    paper, gradient = tuning_losses(task)
    kinds: dict[str, dict[float, float]] = {'paper': paper}
    for (rate, clip), loss in gradient.items():
      kinds.setdefault(f'gradient, C_g = {clip:g}', {})[rate] = loss
    best = {'paper': min(paper.values()), 'gradient': min(gradient.values())}
    for kind, losses in kinds.items():
      cells = []
      for rate, loss in losses.items():
        cell = f'{rate:g}: {loss:.3f}'
        chosen = loss == best[kind.partition(',')[0]]
        cells.append(f'**{cell}**' if chosen else cell)
      rows.append([task.name, kind, ', '.join(cells)])
  return layout.markdown_table(('task', 'mechanism', 'eta: loss'), rows)
