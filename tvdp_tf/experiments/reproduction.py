"""Runs an experiment of the paper, point by point, and draws it."""

import csv
import dataclasses
import io
import os
import pathlib
import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from matplotlib import pyplot as plt
from matplotlib import ticker

from tvdp_tf import errors, simulation
from tvdp_tf.experiments import catalogue, plots, run_folder, sweep
from tvdp_tf.experiments import settings as settings_lib

POINTS = 'points.csv'
PICTURE = 'figure.png'
SUMMARY = 'summary.json'

_KEY = ('curve', 'seed', 'planned_rounds')
_COLUMNS = (
  *_KEY,
  *(field.name for field in dataclasses.fields(sweep.Measurement)),
)
# What takes seconds and needs no download; the shapes stay those of the data.
_SMOKE = {'users': 4, 'users_per_round': 2, 'local_steps': 2, 'rounds': 3}
_SMOKE_ROUND_NUMBERS = (1, 3)
_LABELS = {
  'test_loss': 'test loss',
  'test_accuracy': 'test accuracy',
  'noise_stddev': 'noise stddev',
  'rounds': "rounds planned, M'",
}


@dataclasses.dataclass(frozen=True)
class Point:
  """One run.

  Attributes:
    curve: The label of its curve.
    settings: Of the run.
  """

  curve: str
  settings: settings_lib.TrainingSettings

  @property
  def key(self) -> tuple[str, str, str]:
    """What tells it from the other points, as in the CSV."""
    return (
      self.curve,
      str(self.settings.seed),
      str(self.settings.rounds),
    )


def points(
  experiment: catalogue.Experiment,
  seeds: int,
  smoke: bool = False,
  data_dir: str | None = None,
) -> list[Point]:
  """The runs of an experiment, those on the same data one after the other.

  Args:
    experiment: What to run.
    seeds: How many seeds, from 0.
    smoke: Whether to run on few generated examples for a few rounds.
    data_dir: TFDS's folder.

  Returns:
    The points.
  """
  numbers: Sequence[int | None] = [None]
  if experiment.against == catalogue.ROUNDS:
    numbers = _SMOKE_ROUND_NUMBERS if smoke else experiment.round_numbers
  found = []
  for seed in range(seeds):
    for label, change in experiment.curves.items():
      for number in numbers:
        values: dict[str, Any] = {
          **experiment.base,
          **change,
          'seed': seed,
          'data_dir': data_dir,
        }
        if smoke:
          values.update(_SMOKE, dataset=f'generated_{values["dataset"]}')
        if number is not None:
          values['rounds'] = number
        found.append(Point(label, settings_lib.TrainingSettings(**values)))
  return sorted(found, key=lambda p: (p.settings.dataset, p.settings.seed))


def read_points(path: pathlib.Path) -> list[dict[str, str]]:
  """The rows of a `points.csv`.

  Raises:
    UsageError: If it is none.
  """
  try:
    text = path.read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise errors.UsageError(
      f'output_dir must hold a readable {POINTS}, got {str(path)!r}'
    ) from error
  rows = list(csv.DictReader(io.StringIO(text)))
  if not text.startswith(','.join(_COLUMNS)) or any(
    None in row.values() or None in row for row in rows
  ):
    raise errors.UsageError(
      f'output_dir must hold a {POINTS} of this program, got {str(path)!r}'
    )
  return rows


def _write_points(path: pathlib.Path, rows: Sequence[Mapping]) -> None:
  text = io.StringIO()
  writer = csv.DictWriter(text, _COLUMNS, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  run_folder.write_text(path, text.getvalue())


def run(
  experiment: catalogue.Experiment,
  to_run: Sequence[Point],
  output_dir: pathlib.Path,
  device: str = 'auto',
  progress: bool = False,
) -> None:
  """Runs the points that the folder lacks, then draws what it has.

  Args:
    experiment: The experiment.
    to_run: Its points, or a shard of them.
    output_dir: The folder; it may hold points of an interrupted run.
    device: As of `simulation.compiled_runtime`.
    progress: Whether to draw a progress bar, in rounds.

  Raises:
    UsageError: If the folder holds something else.
    DatasetUnavailableError: If a data set cannot be loaded.
  """
  path = output_dir / POINTS
  rows: list[Mapping] = list(read_points(path)) if path.exists() else []
  done = {tuple(row[name] for name in _KEY) for row in rows}
  missing = [point for point in to_run if point.key not in done]
  output_dir.mkdir(parents=True, exist_ok=True)
  every_round = experiment.against == catalogue.ROUND
  started = time.monotonic()
  with (
    simulation.compiled_runtime(device) as context,
    tqdm.tqdm(
      total=sum(point.settings.rounds for point in missing),
      unit='round',
      disable=not progress,
    ) as bar,
  ):
    one_process = sweep.Sweep(context)
    for point in missing:
      bar.set_postfix_str(point.curve)
      for measurement in one_process.run(point.settings, every_round):
        rows.append(
          {
            **dict(zip(_KEY, point.key, strict=True)),
            **dataclasses.asdict(measurement),
          }
        )
      _write_points(path, rows)
      bar.update(point.settings.rounds)
  draw(experiment, output_dir)
  _summarize(experiment, output_dir, time.monotonic() - started, missing)


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


def _by_curve(
  experiment: catalogue.Experiment, rows: Sequence[Mapping[str, str]]
) -> dict[str, list[Mapping[str, str]]]:
  return {
    curve: [row for row in rows if row['curve'] == curve]
    for curve in experiment.curves
  }


def draw(experiment: catalogue.Experiment, output_dir: pathlib.Path) -> None:
  """Draws mean and band over the seeds of all points in the folder."""
  rows = read_points(output_dir / POINTS)
  count = len(experiment.columns)
  figure, axes = plt.subplots(
    1, count, figsize=(6.5 * count, 4.5), squeeze=False
  )
  palette = plt.get_cmap('tab10' if len(experiment.curves) <= 10 else 'tab20')
  colors = [palette(index) for index in range(len(experiment.curves))]
  for axis, column in zip(axes[0], experiment.columns, strict=True):
    for (curve, own), color in zip(
      _by_curve(experiment, rows).items(), colors, strict=True
    ):
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
      losses = [line.get_ydata() for line in axis.get_lines()]
      axis.set_yscale('log')
      # One curve that goes through the roof must not flatten the others.
      axis.set_ylim(
        0.95 * min(map(np.nanmin, losses)),
        1.3 * np.nanmedian(list(map(np.nanmax, losses))),
      )
      axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%.2g'))
      axis.yaxis.set_minor_formatter(ticker.FormatStrFormatter('%.2g'))
  axes[0][-1].legend(fontsize='small')
  figure.suptitle(f'{experiment.name}: {experiment.title}')
  figure.tight_layout()
  plots.save_figure(figure, output_dir / PICTURE)


def _summarize(
  experiment: catalogue.Experiment,
  output_dir: pathlib.Path,
  seconds: float,
  ran: Sequence[Point],
) -> None:
  rows = read_points(output_dir / POINTS)
  curves = {}
  for curve, own in _by_curve(experiment, rows).items():
    if not own:
      continue
    x, loss, spread = _series(own, experiment.against, 'test_loss')
    _, accuracy, _ = _series(own, experiment.against, 'test_accuracy')
    # A run that diverged has no least loss.
    finite = np.where(np.isfinite(loss), loss, np.inf)
    best = int(np.argmin(finite))
    curves[curve] = {
      'best_at': int(x[best]),
      'test_loss': float(loss[best]) if np.isfinite(loss[best]) else None,
      'test_loss_std_over_seeds': (
        float(spread[best]) if np.isfinite(spread[best]) else None
      ),
      'test_accuracy': float(accuracy[best]),
      'seeds': len({row['seed'] for row in own}),
      'noise_stddev_of_its_first_row': float(own[0]['noise_stddev']),
    }
  run_folder.write_json(
    output_dir / SUMMARY,
    {
      'experiment': experiment.name,
      'title': experiment.title,
      'claim': experiment.claim,
      'settings': dict(experiment.base),
      'curves': curves,
      'machine': {
        'processor': platform.processor() or platform.machine(),
        'cores': len(os.sched_getaffinity(0)),
        'system': platform.platform(),
      },
      'last_call': {'points': len(ran), 'seconds': seconds},
    },
  )


def merge(
  experiment: catalogue.Experiment,
  shards: Sequence[pathlib.Path],
  output_dir: pathlib.Path,
) -> None:
  """Puts the points of several folders into one, and draws them.

  Raises:
    UsageError: If `output_dir` exists, or a shard is no folder of points.
  """
  run_folder.check_absent(output_dir)
  rows: dict[tuple, dict[str, str]] = {}
  for shard in shards:
    for row in read_points(shard / POINTS):
      rows[tuple(row[name] for name in (*_KEY, 'round'))] = row
  output_dir.mkdir(parents=True)
  _write_points(output_dir / POINTS, list(rows.values()))
  draw(experiment, output_dir)
  _summarize(experiment, output_dir, 0.0, [])
