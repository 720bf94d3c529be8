"""Formats the measurements as Markdown tables; no number is typed by hand."""

from collections.abc import Mapping, Sequence

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import scaling, startup, statistics, whole_training
from tvdp_tf.output import layout

_MEGABYTE = 2**20


def _number(value: float) -> str:
  return f'{value:.3g}'


def _quartiles(values: statistics.Quartiles) -> str:
  return (
    f'{_number(values.median)} ({_number(values.first)} to '
    f'{_number(values.third)})'
  )


def absent_note(contender: contenders_lib.Contender) -> str:
  """Returns why a contender has no numbers."""
  return (
    f'absent: no {contenders_lib.ENVIRONMENTS}/{contender.environment}, which '
    '`make peers` makes'
  )


def comparison_table(
  summaries: Sequence[statistics.Summary],
  absent: Sequence[contenders_lib.Contender],
) -> str:
  """Lists the programs on one work, the fastest first, then absent ones."""
  rows = [
    [
      summary.contender,
      contenders_lib.CONTENDERS[summary.contender].description,
      _quartiles(summary.seconds),
      _quartiles(summary.times_ours),
      f'{summary.flops_per_second / 1e9:.0f}',
      f'{100 * summary.share_of_peak:.0f} %',
      f'{summary.peak_bytes / _MEGABYTE:.0f}',
    ]
    for summary in summaries
  ]
  rows += [
    [contender.name, contender.description, absent_note(contender), *[''] * 4]
    for contender in absent
  ]
  header = [
    'program',
    'form',
    'seconds a round',
    'times ours',
    'GFLOP/s',
    'of the peak',
    'peak memory, MiB',
  ]
  return layout.markdown_table(header, rows)


def best_table(summaries: Sequence[statistics.Summary]) -> str:
  """Lists each library's fastest form: how many times as long as ours."""
  best: dict[str, statistics.Summary] = {}
  for summary in summaries:
    library = summary.contender.partition('/')[0]
    known = best.get(library)
    if not known or summary.seconds.median < known.seconds.median:
      best[library] = summary
  rows = [
    [
      library,
      summary.contender.partition('/')[2],
      _quartiles(summary.times_ours),
    ]
    for library, summary in best.items()
  ]
  return layout.markdown_table(
    ['library', 'its fastest form', 'times ours'], rows
  )


def startup_table(
  starts: Sequence[startup.ColdStart],
  absent: Sequence[contenders_lib.Contender],
) -> str:
  """Lists medians of the parts of a cold start, and of the whole start."""
  by_name: dict[str, list[startup.ColdStart]] = {}
  for start in starts:
    by_name.setdefault(start.contender, []).append(start)
  rows = [
    [
      name,
      *(
        _number(statistics.Quartiles.of([getattr(s, part) for s in own]).median)
        for part in ('import_seconds', 'build_seconds', 'first_round_seconds')
      ),
      _quartiles(statistics.Quartiles.of([s.seconds for s in own])),
    ]
    for name, own in by_name.items()
  ]
  rows += [[c.name, absent_note(c), '', '', ''] for c in absent]
  return layout.markdown_table(
    ['program', 'imports, s', 'build, s', 'first round, s', 'cold start, s'],
    rows,
  )


def training_table(
  trainings: Sequence[whole_training.WholeTraining],
  absent: Sequence[contenders_lib.Contender],
) -> str:
  """Lists seconds from the start of the process to its end, fastest first."""
  by_name: dict[str, dict[int, whole_training.WholeTraining]] = {}
  for one in trainings:
    by_name.setdefault(one.contender, {})[one.number] = one
  ours = by_name[contenders_lib.OURS.name]
  rows = []
  for name, own in by_name.items():
    seconds = statistics.Quartiles.of([one.seconds for one in own.values()])
    ratios = [one.seconds / ours[number].seconds for number, one in own.items()]
    accuracies = [one.accuracy for one in own.values()]
    row = [
      name,
      _quartiles(seconds),
      _quartiles(statistics.Quartiles.of(ratios)),
      f'{100 * statistics.Quartiles.of(accuracies).median:.1f} %',
    ]
    rows.append((seconds.median, row))
  header = ['program', 'seconds in all', 'times ours', 'test accuracy']
  return layout.markdown_table(
    header,
    [row for _, row in sorted(rows)]
    + [[c.name, absent_note(c), '', ''] for c in absent],
  )


def scaling_table(
  points: Sequence[scaling.Point], labels: Mapping[str, str]
) -> str:
  """Lists seconds and memory for each size."""
  # The run's fastest product: single ones may be slowed down.
  peak = max(point.peak_flops_per_second for point in points)
  seconds = [statistics.Quartiles.of(point.seconds) for point in points]
  rows = [
    [
      labels[point.series],
      f'{point.size:,}',
      _quartiles(own),
      f'{100 * point.flops / own.median / peak:.0f} %',
      f'{point.data_bytes / _MEGABYTE:.0f}',
      f'{point.peak_bytes / _MEGABYTE:.0f}',
    ]
    for point, own in zip(points, seconds, strict=True)
  ]
  header = [
    'size',
    'value',
    'seconds a round',
    'of the peak',
    'data, MiB',
    'peak memory, MiB',
  ]
  return layout.markdown_table(header, rows)
