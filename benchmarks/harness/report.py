"""Runs a whole benchmark, and writes tables, raw numbers and pictures."""

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from benchmarks.harness import (
  comparison,
  pictures,
  scaling,
  startup,
  statistics,
  tables,
  whole_training,
)
from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import work as work_lib
from tvdp_tf.output import files, machine

README = 'README.md'
SUMMARY = 'summary.json'


@dataclasses.dataclass(frozen=True)
class Settings:
  """What to measure.

  Attributes:
    measures: Some of `peers`, `startup`, `program` and `scaling`.
    works: The works, by name.
    contenders: Names of the contenders; ours always takes part.
    turns: Number of turns of each program in `peers`.
    rounds: Number of rounds of a turn; a point of `scaling` has `turns` times
      as many.
    starts: Number of starts of each program in `startup` and `program`.
    smoke: Whether `scaling` and `program` are to be small, too.
    data_dir: TFDS's folder, for `program`.
  """

  measures: Sequence[str]
  works: Mapping[str, work_lib.Work]
  contenders: Sequence[str]
  turns: int
  rounds: int
  starts: int
  smoke: bool = False
  data_dir: str | None = None


@dataclasses.dataclass
class Results:
  """What was measured, and on what machine; empty where nothing was measured.

  Attributes:
    settings: The settings of the benchmark.
    environment: The machine, the commit, the time.
    absent: Contenders without an environment.
    blocks: Work -> blocks.
    programs: Work -> programs.
    starts: Work -> cold starts.
    trainings: Work -> whole trainings.
    points: The points of all series.
  """

  settings: Settings
  environment: dict[str, Any]
  absent: Sequence[contenders_lib.Contender]
  blocks: dict[str, list[comparison.Block]] = dataclasses.field(
    default_factory=dict
  )
  programs: dict[str, list[comparison.Program]] = dataclasses.field(
    default_factory=dict
  )
  starts: dict[str, list[startup.ColdStart]] = dataclasses.field(
    default_factory=dict
  )
  trainings: dict[str, list[whole_training.WholeTraining]] = dataclasses.field(
    default_factory=dict
  )
  points: list[scaling.Point] = dataclasses.field(default_factory=list)

  def absent_of(self, name: str) -> list[contenders_lib.Contender]:
    """Returns the absent contenders that would do a work."""
    work = self.settings.works[name]
    return [contender for contender in self.absent if contender.does(work)]

  def summaries(self) -> dict[str, list[statistics.Summary]]:
    """Returns the summaries by work."""
    return {
      name: statistics.summarize(
        self.settings.works[name], blocks, self.programs[name]
      )
      for name, blocks in self.blocks.items()
    }

  def labels(self) -> dict[str, str]:
    """Returns the labels of the series of `scaling`, by name."""
    named = scaling.series(self.settings.smoke).items()
    labels = {name: one.label for name, one in named}
    return {**labels, scaling.ROUNDS: 'round of one run'}

  def _products(self, name: str) -> list[str]:
    """Returns a line about the products of a round, if they were measured."""
    seconds = statistics.products_seconds(self.blocks[name])
    if seconds is None:
      return []
    peak = statistics.peak_flops_per_second(self.blocks[name])
    speed = self.settings.works[name].flops_per_round / seconds.median
    return [
      f'The products of a round alone: {seconds.median:.3g} s, '
      f'{100 * speed / peak:.0f} % of the peak.'
    ]

  def markdown(self) -> str:
    """Returns all tables, with headings."""
    where = self.environment
    parts = [
      f'{machine.in_words(where)}; commit {where["commit"]}; '
      f'load average before: {where["load_average"]:.2f}.'
    ]
    for name, own in self.summaries().items():
      peak = statistics.peak_flops_per_second(self.blocks[name])
      parts += [
        f'## {name}',
        tables.comparison_table(own, self.absent_of(name)),
        f'The peak is that of a matrix product: {peak / 1e9:.0f} GFLOP/s.',
        *self._products(name),
        tables.best_table(own),
      ]
    for name, starts in self.starts.items():
      parts += [
        f'## Cold start, {name}',
        tables.startup_table(starts, self.absent_of(name)),
      ]
    for name, trainings in self.trainings.items():
      work = self.settings.works[name]
      parts += [
        f'## A whole training, {name}',
        tables.training_table(
          trainings,
          [c for c in self.absent if whole_training.trains(c, work)],
        ),
      ]
    if self.points:
      parts += ['## Growth', tables.scaling_table(self.points, self.labels())]
    return '\n\n'.join(parts) + '\n'


def _turns(
  settings: Settings, present: Sequence[contenders_lib.Contender]
) -> int:
  """Returns how often `run` reports its progress."""
  count = 0
  for work in settings.works.values():
    programs = sum(contender.does(work) for contender in present)
    if 'peers' in settings.measures:
      # Each is started once, and so are the references.
      programs_and_references = programs + len(contenders_lib.references(work))
      count += programs_and_references * (1 + settings.turns)
    if 'startup' in settings.measures:
      count += programs * settings.starts
    if 'program' in settings.measures:
      trained = [c for c in present if whole_training.trains(c, work)]
      count += len(trained) * settings.starts
  if 'scaling' in settings.measures:
    named = scaling.series(settings.smoke).values()
    count += 1 + sum(len(one.works) for one in named)
  return count


def run(
  settings: Settings,
  root: pathlib.Path,
  output_dir: pathlib.Path,
  progress: bool = False,
) -> Results:
  """Measures, and writes the results so far after each part.

  Args:
    settings: What to measure.
    root: The checkout.
    output_dir: The folder to create.
    progress: Whether to draw a progress bar.

  Returns:
    The results.

  Raises:
    ProgramError: If a program fails, or does different work than ours.
  """
  names = dict.fromkeys([contenders_lib.OURS.name, *settings.contenders])
  chosen = [contenders_lib.CONTENDERS[name] for name in names]
  present = [c for c in chosen if c.is_present(root)]
  environment = {
    **machine.describe(),
    'commit': machine.commit(root),
    'date': time.strftime('%Y-%m-%d'),
  }
  absent = [c for c in chosen if c not in present]
  results = Results(settings, environment, absent)
  output_dir.mkdir(parents=True, exist_ok=True)
  count = _turns(settings, present)
  with tqdm.tqdm(total=count, disable=not progress, unit='turn') as bar:

    def on_turn(name: str) -> None:
      bar.update()
      bar.set_postfix_str(name)

    def save() -> None:
      environment['load_average_after'] = machine.describe()['load_average']
      _write(results, output_dir)

    for name, work in settings.works.items():
      able = [contender for contender in present if contender.does(work)]
      if 'peers' in settings.measures:
        results.blocks[name], results.programs[name] = comparison.compare(
          work, able, root, settings.turns, settings.rounds, on_turn
        )
        save()
      if 'startup' in settings.measures:
        results.starts[name] = startup.measure(
          work, able, root, settings.starts, on_turn
        )
        save()
      trained = [c for c in able if whole_training.trains(c, work)]
      if 'program' in settings.measures and trained:
        results.trainings[name] = whole_training.measure(
          work,
          trained,
          root,
          settings.starts,
          settings.data_dir,
          settings.smoke,
          on_turn,
        )
        save()
    if 'scaling' in settings.measures:
      results.points = scaling.measure(
        root, settings.turns * settings.rounds, settings.smoke, on_turn
      )
      save()
  return results


def _json(results: Results) -> dict[str, Any]:
  """Returns settings, machine, versions and summaries."""
  settings = dataclasses.asdict(results.settings)
  del settings['data_dir']  # Specific to the machine.
  programs = {
    work: {
      program.contender.name: {
        'form': program.contender.description,
        'versions': program.start.versions,
        'peak_bytes': program.peak_bytes,
        'distance_from_our_model': program.distance,
        **(
          {
            'loss_of_check': program.check.loss,
            'parameter_norm_of_check': program.check.parameter_norm,
          }
          if program.check
          else {}
        ),
      }
      for program in own
    }
    for work, own in results.programs.items()
  }
  return {
    'settings': settings,
    'environment': results.environment,
    'absent': [contender.name for contender in results.absent],
    'programs': programs,
    'summaries': {
      work: [dataclasses.asdict(summary) for summary in own]
      for work, own in results.summaries().items()
    },
    'flops_per_round': {
      name: work.flops_per_round
      for name, work in results.settings.works.items()
    },
    'peak_flops_per_second': {
      name: statistics.peak_flops_per_second(blocks)
      for name, blocks in results.blocks.items()
    },
    'products_seconds': {
      name: dataclasses.asdict(seconds)
      for name, blocks in results.blocks.items()
      if (seconds := statistics.products_seconds(blocks))
    },
  }


def _write_rows(path: pathlib.Path, rows: Sequence[Any]) -> None:
  """Writes dataclasses of one kind as CSV."""
  fields = [field.name for field in dataclasses.fields(rows[0])]
  files.write_csv(path, fields, [dataclasses.astuple(row) for row in rows])


def _write(results: Results, output_dir: pathlib.Path) -> None:
  """Writes README.md, summary.json, and a CSV and PNG for each measure."""
  files.write_json(output_dir / SUMMARY, _json(results))
  files.write_text(output_dir / README, f'# Benchmark\n\n{results.markdown()}')
  if results.blocks:
    files.write_csv(
      output_dir / 'peers.csv',
      ['work', 'program', 'turn', 'seconds'],
      [
        [name, block.contender, block.number, seconds]
        for name, blocks in results.blocks.items()
        for block in blocks
        for seconds in block.seconds
      ],
    )
    pictures.draw_comparison(results.summaries(), output_dir / 'peers.png')
  for name, trainings in results.trainings.items():
    _write_rows(output_dir / f'program-{name}.csv', trainings)
    pictures.draw_trainings(trainings, output_dir / f'program-{name}.png')
  for name, starts in results.starts.items():
    _write_rows(output_dir / f'startup-{name}.csv', starts)
    pictures.draw_startup(starts, output_dir / f'startup-{name}.png')
  if results.points:
    columns = [f.name for f in dataclasses.fields(scaling.Point)]
    files.write_csv(
      output_dir / 'scaling.csv',
      columns,
      [
        [*(seconds if c == 'seconds' else getattr(point, c) for c in columns)]
        for point in results.points
        for seconds in point.seconds
      ],
    )
    pictures.draw_scaling(
      results.points, results.labels(), output_dir / 'scaling.png'
    )
