"""Draws the measurements."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.harness import contenders as contenders_lib
from benchmarks.harness import scaling, startup, statistics, whole_training
from tvdp_tf.output import plots
from tvdp_tf.output.plots import plt, ticker

_OURS = 'tab:blue'
_PEERS = 'tab:gray'


def _color(name: str) -> str:
  is_ours = contenders_lib.CONTENDERS[name].library == 'tvdp_tf'
  return _OURS if is_ours else _PEERS


def draw_comparison(
  summaries: Mapping[str, Sequence[statistics.Summary]], path: pathlib.Path
) -> None:
  """Draws the median round with quartiles, with a panel for each work."""
  figure, axes = plt.subplots(
    1, len(summaries), figsize=(7 * len(summaries), 4.5), squeeze=False
  )
  for axis, (work, own) in zip(axes[0], summaries.items(), strict=True):
    names = [summary.contender for summary in own]
    medians = [summary.seconds.median for summary in own]
    spans = [
      [s.seconds.median - s.seconds.first for s in own],
      [s.seconds.third - s.seconds.median for s in own],
    ]
    for place, (summary, median) in enumerate(zip(own, medians, strict=True)):
      axis.errorbar(
        median,
        place,
        xerr=[[span[place]] for span in spans],
        fmt='o',
        capsize=3,
        color=_color(summary.contender),
      )
      axis.annotate(
        f'{median:.3g} s, {summary.times_ours.median:.2f} x ours',
        (median, place),
        (0, 6),
        textcoords='offset points',
        ha='center',
        fontsize='small',
      )
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.7)
    axis.set_xscale('log')
    axis.set_xlim(min(medians) / 2, 2 * max(medians))
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
    axis.xaxis.set_minor_formatter(ticker.NullFormatter())
    axis.set_xlabel('seconds a round: median and quartiles')
    axis.set_title(work)
    axis.grid(alpha=0.3, axis='x')
  figure.tight_layout()
  plots.save_figure(figure, path)


def draw_startup(
  starts: Sequence[startup.ColdStart], path: pathlib.Path
) -> None:
  """Draws the medians of the parts of a cold start, stacked."""
  names = list(dict.fromkeys(start.contender for start in starts))
  figure, axis = plt.subplots(figsize=(7, 4.5))
  left = np.zeros(len(names))
  for part, label in (
    ('import_seconds', 'imports'),
    ('build_seconds', 'build'),
    ('first_round_seconds', 'first round'),
  ):
    widths = np.array(
      [
        np.median([getattr(s, part) for s in starts if s.contender == name])
        for name in names
      ]
    )
    axis.barh(names, widths, left=left, label=label)
    left += widths
  axis.invert_yaxis()
  axis.set_xlabel('seconds from nothing to the end of the first round')
  axis.legend()
  axis.grid(alpha=0.3, axis='x')
  figure.tight_layout()
  plots.save_figure(figure, path)


def draw_trainings(
  trainings: Sequence[whole_training.WholeTraining], path: pathlib.Path
) -> None:
  """Draws each program's trainings as dots, and their median as a bar."""
  seconds: dict[str, list[float]] = {}
  for one in trainings:
    seconds.setdefault(one.contender, []).append(one.seconds)
  names = sorted(seconds, key=lambda name: np.median(seconds[name]))
  figure, axis = plt.subplots(figsize=(7, 1 + 0.7 * len(names)))
  axis.barh(
    names,
    [np.median(seconds[name]) for name in names],
    color=[_color(name) for name in names],
    alpha=0.5,
  )
  for place, name in enumerate(names):
    axis.plot(seconds[name], [place] * len(seconds[name]), 'k.')
  axis.invert_yaxis()
  axis.set_xlabel('seconds from the start of the process to its end')
  axis.grid(alpha=0.3, axis='x')
  figure.tight_layout()
  plots.save_figure(figure, path)


def draw_scaling(
  points: Sequence[scaling.Point],
  labels: Mapping[str, str],
  path: pathlib.Path,
) -> None:
  """Draws seconds per round above memory, with a column for each size."""
  figure, axes = plt.subplots(
    2, len(labels), figsize=(4.2 * len(labels), 7), squeeze=False, sharex='col'
  )
  for column, (name, label) in enumerate(labels.items()):
    own = [point for point in points if point.series == name]
    sizes = [point.size for point in own]
    spread = [statistics.Quartiles.of(point.seconds) for point in own]
    medians = np.array([s.median for s in spread])
    top, bottom = axes[:, column]
    top.plot(sizes, medians, '.-', color=_OURS, label='median, quartiles')
    top.fill_between(
      sizes,
      [s.first for s in spread],
      [s.third for s in spread],
      color=_OURS,
      alpha=0.2,
    )
    if name in ('users_per_round', 'hidden_units'):
      linear = medians[-1] * np.array(sizes) / sizes[-1]
      top.plot(sizes, linear, ':', color=_PEERS, label='linear')
    top.legend(fontsize='small')
    for values, what in (('peak_bytes', 'peak'), ('data_bytes', 'data')):
      bottom.plot(
        sizes, [getattr(p, values) / 2**20 for p in own], '.-', label=what
      )
    bottom.legend(fontsize='small')
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel(label)
    for axis in (top, bottom):
      axis.set_xscale('log')
      axis.set_xticks(sizes, [f'{size:,}' for size in sizes])
      axis.minorticks_off()
      axis.grid(alpha=0.3)
    top.set_yscale('log')
    top.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    top.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axes[0, 0].set_ylabel('seconds a round')
  axes[1, 0].set_ylabel('memory of the process, MiB')
  figure.tight_layout()
  plots.save_figure(figure, path)
