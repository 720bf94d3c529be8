"""Reports an audit of a model as text and files."""

import math
import pathlib
from typing import Any

import numpy as np

from tvdp_tf import mechanisms
from tvdp_tf.attacks import audit_report, one_run
from tvdp_tf.attacks.model_audit import audit as audit_lib
from tvdp_tf.output import files, layout, machine, plots
from tvdp_tf.output.plots import plt, ticker
from tvdp_tf.privacy import statement
from tvdp_tf.training import settings as settings_lib

JSON = 'audit.json'
GUESSES = 'guesses.csv'
SCORES = 'scores.csv'
PAIRS = 'pairs.csv'
PICTURE = 'audit.png'

_POINTS = 120
_BINS = 50
# Where to draw a ratio that is not finite.
_TOP = 1e6


def _least_refuting(
  guesses: int, canaries: int, epsilon: float, delta: float, error: float
) -> int | None:
  """The fewest right guesses that refute an epsilon; None if all would not."""
  low, high = 0, guesses + 1
  while high - low > 1:
    middle = (low + high) // 2
    if one_run.refutes_epsilon(
      middle, guesses, canaries, error, epsilon, delta
    ):
      high = middle
    else:
      low = middle
  return high if high <= guesses else None


def _guess_rows(found: audit_lib.ModelAudit) -> list[list[Any]]:
  run = found.one_run
  m = len(run.scores)
  numbers = np.unique(
    np.append(np.geomspace(1, m, _POINTS).astype(int), run.bound.guesses)
  )
  _, right = one_run.count_right(run.scores, run.coins, m)
  total = np.cumsum(right)
  rows: list[list[Any]] = []
  for guesses in numbers.tolist():
    least = _least_refuting(
      guesses, m, run.claimed, run.bound.delta, 1 - run.bound.confidence
    )
    rows.append(
      [
        guesses,
        int(total[guesses - 1]),
        '' if least is None else least,
        int(guesses == run.bound.guesses),
      ]
    )
  return rows


def _score_rows(found: audit_lib.ModelAudit) -> list[list[Any]]:
  scores, coins = found.one_run.scores, found.one_run.coins
  largest = max(float(np.abs(scores).max()), 1e-3)
  edges = np.linspace(-largest, largest, _BINS + 1)
  first, _ = np.histogram(scores[coins], edges)
  second, _ = np.histogram(scores[~coins], edges)
  return [
    list(row)
    for row in zip(
      edges[:-1].tolist(),
      edges[1:].tolist(),
      first.tolist(),
      second.tolist(),
      strict=True,
    )
  ]


def write(found: audit_lib.ModelAudit, folder: pathlib.Path) -> None:
  """Writes a JSON file, three CSV files and a picture of them.

  Args:
    found: The audit.
    folder: An existing folder.
  """
  files.write_json(folder / JSON, found.to_json_dict())
  files.write_csv(
    folder / GUESSES,
    ('guesses', 'right', 'least_right_that_refutes', 'planned'),
    _guess_rows(found),
  )
  files.write_csv(
    folder / SCORES,
    ('from', 'to', 'first_example', 'second_example'),
    _score_rows(found),
  )
  files.write_csv(
    folder / PAIRS,
    ('subject', 'family', 'examples', 'ratio'),
    [
      [f.subject, f.family, f.examples, repr(f.ratio)]
      for f in found.search.findings
    ],
  )
  claimed = statement.format_epsilon(found.one_run.claimed)
  training = found.settings.training
  draw(
    folder,
    f'Audit of {training.model} on {training.dataset}, mechanism '
    f'{training.mechanism}: epsilon = {claimed} at delta = {training.delta!r}\n'
    f'{verdict(found)}',
    claimed,
    found.settings.moved,
  )


def draw(
  folder: pathlib.Path,
  title: str,
  claimed: str,
  moved: tuple[str, str] = ('mean', '2 C_g / n'),
) -> None:
  """Draws the picture from the CSV files of a folder.

  Args:
    folder: The folder of the CSV files.
    title: Lines above the picture.
    claimed: A description of the claimed epsilon.
    moved: As in `ModelAuditSettings`.
  """
  figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14.5, 4.8))
  _draw_scores(left, files.read_csv(folder / SCORES))
  _draw_guesses(middle, files.read_csv(folder / GUESSES), claimed)
  _draw_pairs(right, files.read_csv(folder / PAIRS), *moved)
  for axis in (left, middle, right):
    axis.grid(alpha=0.3)
  figure.suptitle(title, fontsize=11)
  figure.tight_layout()
  plots.save_figure(figure, folder / PICTURE)


def _draw_scores(axis, rows) -> None:
  edges = [float(rows[0]['from']), *(float(row['to']) for row in rows)]
  for name, color, label in (
    ('first_example', 'tab:blue', 'the first example was used'),
    ('second_example', 'tab:orange', 'the second one was'),
  ):
    axis.stairs(
      [int(row[name]) for row in rows],
      edges,
      fill=True,
      alpha=0.5,
      color=color,
      label=label,
    )
  axis.set_xlabel('score: logarithm of the likelihood ratio')
  axis.set_ylabel('canaries')
  axis.set_title('what the server sees of the canaries', fontsize=10)
  axis.legend(fontsize=8)


def _draw_guesses(axis, rows, claimed: str) -> None:
  guesses = np.array([int(row['guesses']) for row in rows])
  share = np.array([int(row['right']) for row in rows]) / guesses
  least = np.array(
    [float(row['least_right_that_refutes'] or 'nan') for row in rows]
  )
  allowed = least / guesses
  axis.semilogx(guesses, share, color='tab:blue', label='right guesses')
  axis.semilogx(
    guesses, allowed, color='black', label=f'would refute epsilon = {claimed}'
  )
  axis.fill_between(
    guesses, allowed, 1.005, color='tab:red', alpha=0.08, linewidth=0
  )
  planned = [i for i, row in enumerate(rows) if row['planned'] == '1']
  axis.plot(
    guesses[planned],
    share[planned],
    'o',
    color='tab:red',
    label='the number of guesses set before the run',
  )
  axis.set_ylim(min(0.5, float(share.min())), 1.005)
  axis.set_xlabel('guesses, the surest first')
  axis.set_ylabel('share that is right')
  axis.set_title('one run', fontsize=10)
  axis.legend(fontsize=8, loc='lower left')


def _draw_pairs(axis, rows, moved: str, most: str) -> None:
  ratios = np.array([float(row['ratio']) for row in rows] or [math.nan])
  sizes = np.array([int(row['examples']) for row in rows] or [1])
  drawn = np.clip(ratios, 1e-9, _TOP)
  axis.loglog(
    sizes, drawn, '.', color='tab:blue', label='the worst pair of a family'
  )
  axis.axhline(1, color='black', label=f'what is stated: {most}')
  top = max(2.0, float(np.nanmax(drawn, initial=0)) * 1.5)
  axis.axhspan(1, top, color='tab:red', alpha=0.08, linewidth=0)
  axis.set_ylim(min(0.1, float(np.nanmin(drawn, initial=1))), top)
  axis.set_xlabel('n, examples of the pair')
  axis.set_ylabel(f'movement of the clipped {moved} / ({most})')
  axis.yaxis.set_major_formatter(ticker.FormatStrFormatter('%g'))
  axis.yaxis.set_minor_formatter(ticker.NullFormatter())
  axis.set_title('hostile pairs', fontsize=10)
  axis.legend(fontsize=8, loc='lower right')


def verdict(found: audit_lib.ModelAudit) -> str:
  """Returns one line about the claim."""
  if found.refutations:
    return f'REFUTED: {found.refutations[0]}'
  shown = audit_report.format_lower_bound(
    found.one_run.bound.epsilon_lower_bound
  )
  claimed = statement.format_epsilon(found.one_run.claimed)
  pairs = (
    'no pair was tried'
    if found.search.worst is None
    else f'no pair moves the {found.settings.moved[0]} too far'
  )
  text = (
    f'consistent: epsilon >= {shown} is shown, {claimed} is promised, and'
    f' {pairs}'
  )
  if not found.could_refute:
    text += '; so few guesses and trials could not have refuted the noise'
  return text


def _seen(training: settings_lib.TrainingSettings) -> str:
  if not mechanisms.MECHANISMS[training.mechanism].sums_securely:
    return 'every upload'
  return (
    'the sum of all uploads except those of clients that drop out'
    f' ({training.dropouts} per round) or whose data and noise it knows'
    f' ({training.colluders})'
  )


def describe(found: audit_lib.ModelAudit) -> str:
  """Describes the audit.

  Args:
    found: The audit.

  Returns:
    Lines of at most 80 characters; the last one is the verdict.
  """
  settings, run = found.settings, found.one_run
  training = settings.training
  bound, gaussian_bound = run.bound, run.gaussian_bound
  percent = f'{100 * settings.confidence:g} %'
  low = audit_report.format_lower_bound

  def row(label: str, text: str) -> list[str]:
    return layout.wrap(text, first=f'{label:<23}')

  noise = (
    'as calibrated'
    if settings.noise_scale == 1
    else f'times {settings.noise_scale:g}, which delivers '
    f'{statement.format_epsilon(run.true_epsilon)}'
  )
  clip = f'C_g = {training.example_l2_norm_clip:g}'
  held = f'of {run.users} users'
  if settings.unit == 'user':
    clip = f'C_u = {training.l2_norm_clip:g}'
    held = 'users, all of whose examples are the same'
  lines = [
    f'Privacy audit: mechanism {training.mechanism}, model {training.model}, '
    f'data set {training.dataset}',
    *row(
      'attacker',
      f'the curious server: sees {_seen(training)} and all broadcasts, knows '
      'both examples of every pair and all others',
    ),
    *row(
      'the run',
      f'{training.users} users, {training.users_per_round} per round,'
      f' {training.rounds} rounds, local steps: {training.local_steps},'
      f' learning rate {training.learning_rate:g}, {clip}; noise {noise}',
    ),
    '',
    *row(
      'canaries',
      f'{bound.canaries} {held}: {run.family}; separated by'
      f' {run.planned_mu:.3g} standard deviations, as computed before the run;'
      f' at most {run.ideal_mu:.3g} are possible',
    ),
    *row(
      'guesses',
      f'{bound.right} of {bound.guesses} right; their number was set before '
      'the run',
    ),
    *row(
      'claimed epsilon',
      f'{statement.format_epsilon(run.claimed)} at delta = {training.delta!r}',
    ),
    *row(
      'shown epsilon',
      f'at least {low(bound.epsilon_lower_bound)}; assumes nothing about the '
      'mechanism',
    ),
    *row(
      'if Gaussian',
      f'at least {low(gaussian_bound.epsilon_lower_bound)}, ASSUMING that '
      f'{gaussian_bound.assumption}; not part of the verdict',
    ),
    '',
    *_describe_pairs(found, row),
    *row(
      'noise',
      'discrete: its distance from Gaussian noise is accounted for'
      if found.reach is None
      else f'reaches {found.reach.largest:.4g} standard deviations; '
      f'{low(found.reach.delta)} of delta is spent beyond them',
    ),
    '',
    *row(
      'confidence',
      f'{percent} in all that the verdict rests on, at once; it took '
      f'{found.seconds:.0f} s on {machine.in_words(machine.describe())}',
    ),
    '',
    *layout.wrap(verdict(found), indent=0, first='verdict: '),
  ]
  return '\n'.join(lines)


def _describe_pairs(found: audit_lib.ModelAudit, row) -> list[str]:
  search = found.search
  moved, most = found.settings.moved
  if search.worst is None:
    return row(
      'hostile pairs',
      'none: the model draws random numbers, so its means cannot be compared',
    )
  lines = row(
    'hostile pairs',
    f'{search.pairs} tried; the worst moves the clipped {moved} by'
    f' {search.ratio:.6g} times {most} ({search.subject.name}, n ='
    f' {search.worst.examples}; {search.worst.family})',
  )
  if found.pair_bound is not None:
    shown = audit_report.format_lower_bound(
      found.pair_bound.epsilon_lower_bound
    )
    lines += row(
      'its uploads',
      f'show epsilon >= {shown} in one release, with '
      f'{found.pair_bound.trials} trials each',
    )
  if search.gradient_error is not None:
    lines += row(
      'gradient',
      'the mean equals that of single clipped gradients up to'
      f' {search.gradient_error:.2g} C_g',
    )
  return lines
