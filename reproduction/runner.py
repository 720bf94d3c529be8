"""Runs an experiment of the paper, point by point, and draws it."""

import csv
import dataclasses
import io
import math
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from reproduction import catalogue, frontier, membership_table, verdicts
from reproduction import curves as training_curves
from tvdp_tf import errors, runtimes
from tvdp_tf.output import files, machine
from tvdp_tf.training import run_folder
from tvdp_tf.training import settings as settings_lib

POINTS = 'points.csv'
PICTURE = 'figure.png'
SUMMARY = 'summary.json'
REPORT = 'report.md'

_KEY = ('curve', 'seed', 'planned_rounds')
# The round distinguishes several rows of a point.
_ROW_KEY = (*_KEY, 'round')
_COUNT = re.compile('[0-9]{1,9}')
# Takes seconds and needs no download; the shapes are those of the data.
_SMOKE = {'users': 4, 'users_per_round': 2, 'local_steps': 2, 'rounds': 3}
_SMOKE_ROUND_NUMBERS = (1, 3)
_SMOKE_CURVES = 3  # At most, spread over all: each learning rate is compiled.
_SMOKE_GAME = {'examples': 8, 'shadow_models': 4, 'trials': 4}

# The modules that run, draw and summarize the kinds of experiments.
_KINDS = (training_curves, membership_table, frontier)


def _kind(experiment: catalogue.Experiment):
  if experiment.against == catalogue.POINT:
    return frontier
  return training_curves if experiment.game is None else membership_table


def _header(kind) -> tuple[str, ...]:
  return (*_KEY, *kind.COLUMNS)


@dataclasses.dataclass(frozen=True)
class Point:
  """One run, or one membership game of many.

  Attributes:
    curve: The label of its curve.
    settings: Settings of the run, or of all runs of the game.
    game: The other settings of the game.
  """

  curve: str
  settings: settings_lib.TrainingSettings
  game: Mapping[str, int] | None = None

  @property
  def key(self) -> tuple[str, str, str]:
    """What distinguishes it from the other points, as in the CSV."""
    return (
      self.curve,
      str(self.settings.seed),
      str(self.settings.rounds),
    )

  @property
  def rounds_to_run(self) -> int:
    """Total number of training rounds of all its models."""
    if self.game is None:
      return self.settings.rounds
    models = self.game['shadow_models'] + self.game['trials']
    return models * self.settings.rounds


def points(
  experiment: catalogue.Experiment,
  seeds: int,
  smoke: bool = False,
  data_dir: str | None = None,
) -> list[Point]:
  """Returns an experiment's runs; those on the same data are consecutive.

  Args:
    experiment: The experiment.
    seeds: The number of seeds, starting at 0.
    smoke: Whether to run a few curves on few generated examples for a few
      rounds.
    data_dir: TFDS's folder.

  Returns:
    The points.
  """
  numbers: Sequence[int | None] = [None]
  if experiment.against == catalogue.ROUNDS:
    numbers = _SMOKE_ROUND_NUMBERS if smoke else experiment.round_numbers
  game = experiment.game
  if smoke and game is not None:
    game = _SMOKE_GAME
  curves = list(experiment.curves.items())
  if smoke:
    curves = curves[:: math.ceil(len(curves) / _SMOKE_CURVES)]
  found = []
  for seed in range(seeds):
    for label, change in curves:
      for number in numbers:
        values: dict[str, Any] = {
          **experiment.base,
          **change,
          'seed': seed,
          'data_dir': data_dir,
        }
        if smoke:
          values |= {**_SMOKE, **experiment.smoke}
          # The digits need no download.
          if values['dataset'] != 'digits':
            values['dataset'] = f'generated_{values["dataset"]}'
        if number is not None:
          values['rounds'] = number
        settings = settings_lib.TrainingSettings(**values)
        found.append(Point(label, settings, game))
  return sorted(found, key=lambda p: (p.settings.dataset, p.settings.seed))


def _is_row(row: Mapping[str | None, Any]) -> bool:
  try:
    numbers = [float(row[name]) for name in row if name != _KEY[0]]
  except (TypeError, ValueError):  # A field is missing, extra, or not a number.
    return False
  counts = (row.get(name, '') for name in _ROW_KEY[1:])
  return bool(numbers) and all(map(_COUNT.fullmatch, counts))


def read_points(
  path: pathlib.Path,
  experiment: catalogue.Experiment | None = None,
  flag: str = 'output_dir',
) -> list[dict[str, str]]:
  """Reads the rows of a `points.csv`.

  Args:
    path: The file.
    experiment: The experiment that the points must fit; None for any.
    flag: The flag that named the file, for errors.

  Returns:
    The rows, as text.

  Raises:
    UsageError: If it is not such a file.
  """
  try:
    text = path.read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise errors.UsageError(
      f'{flag} must hold a readable {POINTS}, got {str(path)!r}'
    ) from error
  try:
    rows = list(csv.DictReader(io.StringIO(text)))
  except csv.Error:
    rows = [{}]
  kinds = _KINDS if experiment is None else (_kind(experiment),)
  headers = {','.join(_header(kind)) for kind in kinds}
  if text.partition('\n')[0] not in headers or not all(map(_is_row, rows)):
    raise errors.UsageError(
      f'{flag} must hold a {POINTS} of this program, got {str(path)!r}'
    )
  return rows


def _identity(experiment: catalogue.Experiment) -> dict[str, Any]:
  """Returns what identifies the experiment, and whether the data are real."""
  return {'experiment': experiment.name, 'title': experiment.title}


def _check_whose(
  experiment: catalogue.Experiment, folder: pathlib.Path, flag: str
) -> None:
  """Checks that a folder's points are those of an experiment.

  Raises:
    UsageError: If they belong to another experiment.
  """
  summary = files.read_json(folder / SUMMARY)
  expected = _identity(experiment)
  found = {name: summary.get(name) for name in expected}
  if found != expected:
    raise errors.UsageError(
      f'{flag} must hold points of {experiment.name}, {experiment.title}, got'
      f' {str(folder)!r} of {found["experiment"]}, {found["title"]}'
    )


def _write_points(
  path: pathlib.Path, experiment: catalogue.Experiment, rows: Sequence[Mapping]
) -> None:
  header = _header(_kind(experiment))
  cells = ([row[name] for name in header] for row in rows)
  files.write_csv(path, header, cells)


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
    device: As for `runtimes.compiled_runtime`.
    progress: Whether to draw a progress bar, in rounds.

  Raises:
    UsageError: If the folder holds something else.
    DatasetUnavailableError: If a data set cannot be loaded.
  """
  path = output_dir / POINTS
  rows: list[Mapping] = []
  if path.exists():
    rows += read_points(path, experiment)
  if path.exists() or (output_dir / SUMMARY).exists():
    _check_whose(experiment, output_dir, 'output_dir')
  done = {tuple(row[name] for name in _KEY) for row in rows}
  missing = [point for point in to_run if point.key not in done]
  with (
    runtimes.compiled_runtime(device) as context,
    tqdm.tqdm(
      total=sum(point.rounds_to_run for point in missing),
      unit='round',
      disable=not progress,
    ) as bar,
  ):
    runner = _kind(experiment).Runner(experiment, context)
    for point in missing:
      started = time.monotonic()
      bar.set_postfix_str(point.curve)
      key = dict(zip(_KEY, point.key, strict=True))
      rows += [{**key, **row} for row in runner.run(point.settings, point.game)]
      output_dir.mkdir(parents=True, exist_ok=True)
      if not (output_dir / SUMMARY).exists():
        files.write_json(output_dir / SUMMARY, _identity(experiment))
      _write_points(path, experiment, rows)
      _summarize(experiment, output_dir, time.monotonic() - started, 1)
      bar.update(point.rounds_to_run)
  draw(experiment, output_dir)
  _summarize(experiment, output_dir, 0.0, 0)


def _by_curve(
  experiment: catalogue.Experiment, rows: Sequence[Mapping[str, str]]
) -> dict[str, list[Mapping[str, str]]]:
  return {
    curve: [row for row in rows if row['curve'] == curve]
    for curve in experiment.curves
  }


def draw(experiment: catalogue.Experiment, output_dir: pathlib.Path) -> None:
  """Draws all points in the folder."""
  rows = read_points(output_dir / POINTS, experiment)
  _kind(experiment).draw(
    experiment, _by_curve(experiment, rows), output_dir / PICTURE
  )


def _ran(summary: Mapping[str, Any]) -> tuple[int, float]:
  """Returns (points, seconds) of a summary; zeros if it is not valid."""
  ran = summary.get('ran', {})
  try:
    return int(ran['points']), float(ran['seconds'])
  except (TypeError, KeyError, ValueError, OverflowError):
    return 0, 0.0


def _summarize(
  experiment: catalogue.Experiment,
  output_dir: pathlib.Path,
  seconds: float,
  points_run: int,
) -> None:
  rows = read_points(output_dir / POINTS, experiment)
  before = files.read_json(output_dir / SUMMARY)
  points_before, seconds_before = _ran(before)
  decisions = verdicts.decide(experiment, rows)
  summarize = _kind(experiment).summarize
  curves = {
    curve: summarize(experiment, own)
    for curve, own in _by_curve(experiment, rows).items()
    if own
  }
  files.write_json(
    output_dir / SUMMARY,
    {
      **_identity(experiment),
      'claims': verdicts.to_json(decisions),
      'settings': dict(experiment.base),
      **({} if experiment.game is None else {'game': dict(experiment.game)}),
      'curves': curves,
      # That of the last run: drawing or merging measures nothing.
      'machine': machine.describe() if points_run else before.get('machine'),
      # For all calls, including interrupted ones.
      'ran': {
        'points': points_before + points_run,
        'seconds': seconds_before + seconds,
      },
    },
  )
  files.write_text(
    output_dir / REPORT,
    verdicts.report(
      experiment,
      decisions,
      f'python binaries/reproduce.py --experiment={experiment.name}'
      f'{" --scale=smoke" if experiment.generated else ""}',
    ),
  )


def _sum_of_shards(shards: Sequence[pathlib.Path]) -> dict[str, Any]:
  """Returns what the shards ran, and the machine if it is the same for all."""
  summaries = [files.read_json(shard / SUMMARY) for shard in shards]
  counts, seconds = zip(*map(_ran, summaries), strict=True)
  machines = [summary.get('machine') for summary in summaries]
  for found in machines:
    if isinstance(found, dict):
      found.pop('load_average', None)  # Varies on the same machine.
  same = machines.count(machines[0]) == len(machines)
  return {
    'machine': machines[0] if same else None,
    'ran': {'points': sum(counts), 'seconds': sum(seconds)},
  }


def merge(
  experiment: catalogue.Experiment,
  wanted: Sequence[Point],
  shards: Sequence[pathlib.Path],
  output_dir: pathlib.Path,
) -> None:
  """Merges the points of several folders into one, and draws them.

  Args:
    experiment: The experiment.
    wanted: Its points.
    shards: The folders.
    output_dir: The folder to create.

  Raises:
    UsageError: If `output_dir` exists, or if the shards do not contain every
      point of the experiment exactly once.
  """
  run_folder.check_absent(output_dir)
  rows: dict[tuple, dict[str, str]] = {}
  for shard in shards:
    found = read_points(shard / POINTS, experiment, 'merge')
    _check_whose(experiment, shard, 'merge')
    of_shard = {tuple(row[name] for name in _ROW_KEY): row for row in found}
    if rows.keys() & of_shard.keys():
      raise errors.UsageError(
        f'merge must name folders of other points each, got {str(shard)!r} with'
        ' some of those before'
      )
    rows |= of_shard
  done = {tuple(row[name] for name in _KEY) for row in rows.values()}
  if missing := sum(point.key not in done for point in wanted):
    raise errors.UsageError(
      f'merge must name the folders of all {len(wanted)} points, got'
      f' {missing} fewer'
    )
  output_dir.mkdir(parents=True, exist_ok=True)
  _write_points(output_dir / POINTS, experiment, list(rows.values()))
  files.write_json(output_dir / SUMMARY, _sum_of_shards(shards))
  draw(experiment, output_dir)
  _summarize(experiment, output_dir, 0.0, 0)
