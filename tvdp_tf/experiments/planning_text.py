"""A plan in words, for a terminal: aligned lines of at most 80 characters."""

import textwrap
from collections.abc import Sequence

from tvdp_tf.experiments import planning_noise, planning_report
from tvdp_tf.privacy import statement as statement_lib

_WIDTH = 80


def _wrap(text: str, indent: int = 2, first: str = '') -> list[str]:
  start = ' ' * indent + first
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=start,
    subsequent_indent=' ' * len(start),
    break_on_hyphens=False,
  )


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
  """Aligned rows; the first `left` columns and the last to the left."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  last = len(widths) - 1
  return [
    '  '
    + '  '.join(
      cell.ljust(width) if i < left or i == last else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def _epsilon(value: float | None) -> str:
  return '-' if value is None else statement_lib.format_epsilon(value)


def _setting(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  where = {
    'paper': 'noise on the parameters before every upload',
    'gradient': 'noise on the mean clipped gradient of every local step',
  }[settings.mechanism]
  rows = [
    ('mechanism', f'{settings.mechanism}: {where}'),
    (
      'participation',
      f'{settings.participation}, {settings.users_per_round} of'
      f' {settings.users} users a round (q = {settings.sampling_rate:.6g})',
    ),
    (
      'target',
      f'epsilon = {settings.epsilon:g}, delta = {settings.delta:g}, noise by'
      f' calibration {settings.calibration}',
    ),
    (
      'rounds',
      f'M = {settings.rounds}, tau = {settings.local_steps} local steps each',
    ),
    ('theta', f'{settings.theta:.6g}, {_trend(report)}'),
  ]
  lines = ['Setting', *_table([(*row,) for row in rows])]
  for name in settings.assumed:
    lines.append(
      f'  assumed        --{name}={getattr(settings, name):g}'.rstrip()
    )
  if settings.unused:
    names = ', '.join(f'--{name}' for name in settings.unused)
    lines += _wrap(f'not used by mechanism {settings.mechanism}: {names}')
  return lines


def _trend(report: planning_report.PlanReport) -> str:
  settings = report.settings
  if settings.theta == 1:
    return 'the same noise in every round'
  return (
    f'the noise stddev is multiplied by {settings.theta**0.5:.6g} from round'
    ' to round'
  )


def _sensitivity(report: planning_report.PlanReport) -> list[str]:
  rule = report.rule
  status = 'PROVEN' if rule.proven else 'NOT PROVEN'
  lines = [
    f'Sensitivity ({rule.adjacency}, one {rule.unit})',
    f'  {rule.formula} = {rule.value:.6g}: {status}',
    *_wrap(rule.reason, 4),
  ]
  other = report.proven_rule
  if other is not None:
    lines += _wrap(
      f'proven for this upload: {other.formula} = {other.value:.6g},'
      f' {other.value / rule.value:.6g} times larger, and the noise with it',
      4,
    )
  return lines


def _noise(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  last = settings.rounds
  on = {
    'paper': 'the parameters, one release a round',
    'gradient': f'the mean gradient, {settings.local_steps} releases a round',
  }[settings.mechanism]
  rows = [
    (
      *('', 'sigma round 1', f'round {last}', 'z round 1', f'round {last}'),
      *('delivers', ''),
    )
  ]
  notes = []
  for noise in report.noise:
    mark = '<- chosen' if noise.calibration == settings.calibration else ''
    verdict = 'sound' if noise.sound else 'UNSOUND'
    notes.append((noise.calibration, f'{verdict}: {noise.note}'))
    if noise.schedule is None:
      rows.append((noise.calibration, *('-',) * 5, mark))
      continue
    ends = [noise.schedule.stddev(m) for m in (1, last)]
    rows.append(
      (
        noise.calibration,
        *(f'{end:.6g}' for end in ends),
        *(f'{end / report.rule.value:.6g}' for end in ends),
        _epsilon(noise.delivered),
        mark,
      )
    )
  who = 'a client in every round'
  taken = planning_noise.worst_rounds(
    settings.theta, last, settings.block_rounds
  )
  if settings.block_rounds > 1:
    who = (
      f'the worst user, who takes part in rounds {_listed(taken)}'
      f' ({len(taken) * settings.local_steps} releases)'
    )
  ends = sorted(report.schedule.stddev(m) for m in (1, last))
  lines = [f'Noise stddev sigma on {on}', *_table(rows)]
  lines += _wrap(
    f'range over the rounds: sigma {ends[0]:.6g} to {ends[1]:.6g}, a factor of'
    f' {ends[1] / ends[0]:.6g}; z = sigma / sensitivity'
  )
  lines += _wrap(f'delivers: the exact epsilon to {who}')
  if settings.mechanism == 'gradient':
    scale = settings.learning_rate * settings.local_steps**0.5
    lines += _wrap(
      'a round moves the uploaded parameters by up to eta sqrt(tau) ='
      f' {scale:.6g} times this'
    )
  lines += _table(notes)
  return lines


def _listed(rounds) -> str:
  if len(rounds) <= 6:
    return ', '.join(map(str, rounds))
  return f'{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}'


def _delivered(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  rows = [('view', *planning_noise.ACCOUNTANTS, 'worth')]
  for view in report.views:
    epsilons = (_epsilon(view.epsilons[n]) for n in planning_noise.ACCOUNTANTS)
    rows.append((view.title, *epsilons, view.promise))
  lines = [
    f'Delivered epsilon at delta = {settings.delta:g}, calibration'
    f' {settings.calibration}',
    *_table(rows),
  ]
  if any(None in view.epsilons.values() for view in report.views):
    lines.append('  -: no such accountant, or too many noise levels for it')
  if report.moment_claim is not None:
    claim = _epsilon(report.moment_claim)
    worth = (
      'false for q < 1: a claim, not a bound'
      if settings.sampling_rate < 1
      else 'which holds for q = 1'
    )
    lines += _wrap(f"the paper's moment bound, {worth}: {claim}")
  if len(report.views) > 1:
    lines += _wrap(planning_report.POISSON_CAVEAT, first='NOT GRANTED: ')
  return lines


def _verdict(report: planning_report.PlanReport) -> list[str]:
  statement = report.statement
  verdict = 'HOLDS' if statement.holds else 'NO GUARANTEE'
  lines = [
    f'Verdict: {verdict}, epsilon = {_epsilon(statement.target_epsilon)} at'
    f' delta = {statement.delta:g} for one {statement.unit}'
    f' ({statement.adjacency})',
    *_wrap(statement.reason),
  ]
  for assumption in statement.assumptions:
    lines += _wrap(assumption, first='- ')
  return lines


def _plan(report: planning_report.PlanReport) -> list[str]:
  settings, optimal = report.settings, report.optimal
  rows = [
    ('', f'M = {settings.rounds}', '', '', 'best M', '', '', '', '', ''),
    (
      *('theta', 'decay', 'noise', 'bound'),
      *('M*', 'M', 'decay', 'noise', 'bound', ''),
    ),
  ]
  for plan in report.plans:
    theta = plan.asked.theta
    marks = [
      *(['asked'] if theta == settings.theta else []),
      *(['best'] if theta == optimal.theta else []),
    ]
    asked, best = plan.asked, plan.best
    rows.append(
      (
        f'{theta:.6g}',
        *(f'{x:.4g}' for x in (asked.decay, asked.noise, asked.bound)),
        f'{plan.best_real:.2f}',
        str(best.rounds),
        *(f'{x:.4g}' for x in (best.decay, best.noise, best.bound)),
        f'<- {", ".join(marks)}' if marks else '',
      )
    )
  if report.objective.block_rounds == 1:
    why = 'theta = sqrt(A)'
  else:
    why = (
      f'in blocks of {report.objective.block_rounds} rounds, theta found'
      ' numerically in [sqrt(A), 1]'
    )
  lines = [
    'Plan: bound of F(w(M)) - F* = decay + noise, every plan at the same budget'
  ]
  lines += _table(rows)
  lines += _wrap(
    f'best of all: theta = {optimal.theta:.6g}, M = {optimal.rounds} (M* ='
    f' {report.optimal_real:.2f}), sigma of round 1 = {optimal.sigma:.6g},'
    f' bound {optimal.bound:.4g}; {why}'
  )
  lines += _wrap(
    f'asked: theta = {settings.theta:.6g}, M = {settings.rounds}, bound'
    f' {report.asked.asked.bound:.4g}'
  )
  if not report.statement.holds:
    lines += _wrap(
      'the budget is what the chosen calibration spends, not a guarantee'
    )
  names = [n for n in settings.assumed if n != 'examples_per_user']
  if names:
    lines += _wrap(
      f'it stands on what is assumed ({", ".join(names)}): use it to compare'
      ' plans, not to predict a loss'
    )
  return lines


def describe(report: planning_report.PlanReport) -> str:
  """The whole report in words, several lines."""
  parts = (_setting, _sensitivity, _noise, _delivered, _verdict, _plan)
  return '\n\n'.join('\n'.join(part(report)) for part in parts)
