"""The same data and target epsilon under several mechanisms."""

import csv
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvdp_tf.output import files, plots
from tvdp_tf.output.plots import plt
from tvdp_tf.privacy import statement as statement_lib
from tvdp_tf.training import run_folder
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

TABLE = 'comparison.csv'
PICTURE = 'comparison.png'
_COLUMNS = (
  'mechanism',
  'claimed_epsilon',
  'delivered_epsilon',
  'delta',
  'holds',
  'test_loss',
  'test_accuracy',
)


def compare(
  settings: Sequence[settings_lib.TrainingSettings],
  output_dir: pathlib.Path,
  progress: bool = False,
) -> dict[str, training.TrainingResult]:
  """Runs each of the settings into a folder of its mechanism's name.

  Args:
    settings: What to run; their mechanisms are distinct.
    output_dir: The folder to create; `comparison.csv` and `comparison.png` are
      written beside the runs.
    progress: Whether to draw progress bars.

  Returns:
    The results by mechanism.

  Raises:
    UsageError: As `training.train`.
    DatasetUnavailableError: As `training.train`.
    TrainingFailedError: As `training.train`.
  """
  run_folder.check_absent(output_dir)
  results = {}
  for one in settings:
    if progress:
      print(f'mechanism {one.mechanism}')
    results[one.mechanism] = training.train(
      one, output_dir / one.mechanism, progress
    )
  rows = [_row(name, result) for name, result in results.items()]
  files.write_csv(output_dir / TABLE, _COLUMNS, rows)
  _draw(output_dir, results)
  return results


def _row(name: str, result: training.TrainingResult) -> tuple:
  statement = result.statement
  return (
    name,
    statement.claimed_epsilon,
    statement.epsilon,
    statement.delta,
    statement.holds,
    result.loss,
    result.accuracy,
  )


def describe(results: Mapping[str, training.TrainingResult]) -> str:
  """The comparison as a table for a terminal."""
  lines = [
    f'{"mechanism":10} {"claimed":>8} {"delivered":>10} {"guarantee":>12} '
    f'{"loss":>7} {"accuracy":>9}'
  ]
  for name, result in results.items():
    statement = result.statement
    claimed = statement_lib.format_epsilon(statement.claimed_epsilon)
    delivered = statement_lib.format_epsilon(statement.epsilon)
    # An epsilon that rests on an unproven sensitivity may be far above this.
    rule = statement.sensitivity
    if rule is not None and not rule.proven:
      delivered += '*'
    verdict = 'holds' if statement.holds else 'none'
    lines.append(
      f'{name:10} {claimed:>8} {delivered:>10} {verdict:>12} '
      f'{result.loss:7.4f} {result.accuracy:9.4f}'
    )
  if any('*' in line for line in lines):
    lines.append('* if the sensitivity held that it rests on, which does not')
  return '\n'.join(lines)


def _doubt(result: training.TrainingResult) -> str:
  rule = result.statement.sensitivity
  if result.statement.epsilon == math.inf:
    return ' (infinite)'
  return '' if rule is None or rule.proven else ' (if its sensitivity held)'


def _draw(
  output_dir: pathlib.Path, results: Mapping[str, training.TrainingResult]
) -> None:
  figure, axes = plt.subplots(1, 3, figsize=(13, 4))
  panels = (
    ('test_loss', 'test loss'),
    ('test_accuracy', 'test accuracy'),
    ('delivered_epsilon', 'delivered epsilon, worst client'),
  )
  for name, result in results.items():
    path = output_dir / name / run_folder.METRICS
    with open(path, newline='', encoding='utf-8') as file:
      rows = list(csv.DictReader(file))
    rounds = [int(row['round']) for row in rows]
    labels = [name, name, name + _doubt(result)]
    for axis, (column, title), label in zip(axes, panels, labels, strict=True):
      axis.plot(rounds, [float(row[column]) for row in rows], '.-', label=label)
      axis.set(xlabel='round', ylabel=title)
      axis.xaxis.get_major_locator().set_params(integer=True)
  target = min(result.statement.target_epsilon for result in results.values())
  axes[2].axhline(
    target, color='black', linestyle='--', linewidth=1, label='target'
  )
  for axis in axes:
    axis.grid(alpha=0.3)
  axes[1].legend()
  axes[2].legend()
  figure.suptitle(
    'What is claimed and what is delivered, at the same target epsilon'
  )
  figure.tight_layout()
  plots.save_figure(figure, output_dir / PICTURE)


def settings_of(
  mechanisms: Sequence[str], values: Callable[[str], Mapping[str, Any]]
) -> list[settings_lib.TrainingSettings]:
  """The settings of several runs that differ in their mechanism.

  Args:
    mechanisms: Their names.
    values: Of a name: the other settings.

  Raises:
    ValueError: If a setting is out of its range, or a mechanism comes twice.
  """
  if len(set(mechanisms)) != len(mechanisms) or not mechanisms:
    raise ValueError(
      f'mechanisms must be distinct names, got {",".join(mechanisms)!r}'
    )
  return [
    settings_lib.TrainingSettings.of_mechanism(mechanism, values(mechanism))
    for mechanism in mechanisms
  ]
