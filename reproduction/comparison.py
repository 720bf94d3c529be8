"""Trains with the same data and target epsilon in several ways."""

import csv
import itertools
import math
import pathlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvdp_tf.mechanisms import MECHANISMS
from tvdp_tf.output import files, plots, report
from tvdp_tf.output.plots import plt
from tvdp_tf.privacy import statement as statement_lib
from tvdp_tf.training import run_folder
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

TABLE = 'comparison.csv'
PICTURE = 'comparison.png'
_COLUMNS = (
  'run',
  'mechanism',
  'theta',
  'claimed_epsilon',
  'delivered_epsilon',
  'delta',
  'holds',
  'test_loss',
  'test_accuracy',
)


def compare(
  settings: Mapping[str, settings_lib.TrainingSettings],
  output_dir: pathlib.Path,
  progress: bool = False,
) -> dict[str, training.TrainingResult]:
  """Runs each of the settings, and writes to a folder with its name.

  Args:
    settings: The settings to run, by name, from `settings_of`.
    output_dir: The folder to create; `comparison.csv`, `comparison.png` and
      `report.html` are written beside the runs.
    progress: Whether to draw progress bars.

  Returns:
    The results by name.

  Raises:
    UsageError: As for `training.train`.
    DatasetUnavailableError: As for `training.train`.
    TrainingFailedError: As for `training.train`.
  """
  run_folder.check_absent(output_dir)
  results = {}
  for name, one in settings.items():
    if progress:
      print(f'run {name}')
    results[name] = training.train(one, output_dir / name, progress)
  rows = [
    (name, settings[name].mechanism, settings[name].theta, *_row(result))
    for name, result in results.items()
  ]
  files.write_csv(output_dir / TABLE, _COLUMNS, rows)
  _draw(output_dir, results)
  report.write_comparison(
    output_dir,
    {
      name: (result.statement, result.loss, result.accuracy)
      for name, result in results.items()
    },
    TABLE,
    PICTURE,
  )
  return results


def _row(result: training.TrainingResult) -> tuple:
  statement = result.statement
  return (
    statement.claimed_epsilon,
    statement.epsilon,
    statement.delta,
    statement.holds,
    result.loss,
    result.accuracy,
  )


def describe(results: Mapping[str, training.TrainingResult]) -> str:
  """Returns the comparison as a table for a terminal."""
  width = max(10, *map(len, results))
  lines = [
    f'{"run":{width}} {"claimed":>8} {"delivered":>10} {"guarantee":>12} '
    f'{"loss":>7} {"accuracy":>9}'
  ]
  for name, result in results.items():
    statement = result.statement
    claimed = statement_lib.format_epsilon(statement.claimed_epsilon)
    delivered = statement_lib.format_epsilon(statement.epsilon)
    # With an unproven sensitivity, epsilon may be far above this.
    rule = statement.sensitivity
    if rule is not None and not rule.proven:
      delivered += '*'
    verdict = 'holds' if statement.holds else 'none'
    lines.append(
      f'{name:{width}} {claimed:>8} {delivered:>10} {verdict:>12} '
      f'{result.loss:7.4f} {result.accuracy:9.4f}'
    )
  if any('*' in line for line in lines):
    lines.append('* if the sensitivity held that it rests on, which does not')
  if len(results) > 1:
    words = report.together([result.statement for result in results.values()])
    lines += textwrap.wrap(words, 79)
  return '\n'.join(lines)


def _doubt(result: training.TrainingResult) -> str:
  rule = result.statement.sensitivity
  if result.statement.epsilon == math.inf:
    return ' (infinite)'
  return '' if rule is None or rule.proven else ' (if its sensitivity held)'


def _draw(
  output_dir: pathlib.Path, results: Mapping[str, training.TrainingResult]
) -> None:
  figure, axes = plt.subplots(1, 3, figsize=(15, 4))
  panels = (
    ('test_loss', 'test loss'),
    ('test_accuracy', 'test accuracy'),
    ('delivered_epsilon', 'delivered epsilon, worst client'),
  )
  styles = itertools.cycle(plots.STYLES)
  for (name, result), style in zip(results.items(), styles, strict=False):
    path = output_dir / name / run_folder.METRICS
    with open(path, newline='', encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    rounds = [int(row['round']) for row in rows]
    labels = [name, name, name + _doubt(result)]
    for axis, (column, title), label in zip(axes, panels, labels, strict=True):
      axis.plot(
        rounds, [float(row[column]) for row in rows], style, label=label
      )
      axis.set(xlabel='round', ylabel=title)
      axis.xaxis.get_major_locator().set_params(integer=True)
  target = min(result.statement.target_epsilon for result in results.values())
  axes[2].axhline(target, color='black', linewidth=1, label='target')
  for axis in axes:
    axis.grid(alpha=0.3)
  plots.legend_beside(axes[2])
  figure.suptitle(
    'What is claimed and what is delivered, at the same target epsilon'
  )
  figure.tight_layout()
  plots.save_figure(figure, output_dir / PICTURE)


def settings_of(
  mechanisms: Sequence[str],
  thetas: Sequence[float],
  values: Callable[[str], Mapping[str, Any]],
) -> dict[str, settings_lib.TrainingSettings]:
  """Returns settings of several runs that differ in their mechanism or theta.

  Args:
    mechanisms: Names of the mechanisms.
    thetas: Each mechanism whose noise depends on theta is run with each theta.
    values: Mechanism -> the other settings.

  Returns:
    The settings by name: the mechanism, and theta if there are several.

  Raises:
    ValueError: If a setting is out of its range, or if a mechanism or theta
      occurs twice.
  """
  for what, given in (('mechanisms', mechanisms), ('theta', thetas)):
    if len(set(given)) != len(given) or not given:
      raise ValueError(
        f'{what} must be distinct, got {",".join(map(str, given))!r}'
      )
  settings: dict[str, settings_lib.TrainingSettings] = {}
  for mechanism in mechanisms:
    varies = MECHANISMS[mechanism].takes_schedule
    for theta in thetas:
      one = settings_lib.TrainingSettings.of_mechanism(
        mechanism, {**values(mechanism), 'theta': theta}
      )
      if len(thetas) == 1 or not varies:
        settings.setdefault(mechanism, one)
      else:
        settings[f'{mechanism}_theta_{theta:g}'] = one
  return settings
