"""A plan in words, for a terminal: aligned lines of at most 80 characters."""

import math
from collections.abc import Sequence

from tvdp_tf.output import terminal
from tvdp_tf.planner import noise as planning_noise
from tvdp_tf.planner import pilot_text as planning_pilot_text
from tvdp_tf.planner import report as planning_report

_MEANINGS = {
  'examples_per_user': 'n = |D_k|, of the smallest user',
  'example_l2_norm_clip': 'C_g, norm of one gradient',
  'learning_rate': 'eta',
  'contraction': 'A, of a round without noise',
  'initial_gap': 'Theta = F(w(0)) - F*',
  'smoothness': 'L',
  'dimension': 'd, number of parameters',
}


def _setting(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  where = {
    'paper': 'noise on the parameters before every upload',
    'gradient': 'noise on the clipped gradient of every local step',
  }[settings.mechanism]
  change = (
    'the same noise in every round'
    if settings.theta == 1
    else f'sigma times {settings.theta**0.5:.6g} from round to round'
  )
  lines = [
    'Setting',
    *terminal.table(
      [
        ('mechanism', f'{settings.mechanism}: {where}'),
        (
          'participation',
          f'{settings.participation}, {settings.users_per_round} of'
          f' {settings.users} users a round (q = {settings.sampling_rate:.6g})',
        ),
        (
          'target',
          f'epsilon = {settings.epsilon:g}, delta = {settings.delta:g}',
        ),
        (
          'rounds',
          f'M = {settings.rounds}, tau = {settings.local_steps} local steps',
        ),
        ('theta', f'{settings.theta:.6g}, {change}'),
        ('calibration', str(settings.calibration)),
      ]
    ),
  ]
  if settings.unused:
    names = ', '.join(f'--{name}' for name in settings.unused)
    lines += terminal.wrap(
      f'not used by mechanism {settings.mechanism}: {names}'
    )
  rows = [
    (
      f'--{name}',
      f'{getattr(settings, name):g}',
      settings.origin(name),
      _MEANINGS[name],
    )
    for name in settings.open_inputs
  ]
  return [
    *lines,
    '',
    'Inputs that the paper does not state',
    *terminal.table(rows),
  ]


def _sensitivity(report: planning_report.PlanReport) -> list[str]:
  rule = report.rule
  status = 'PROVEN' if rule.proven else 'NOT PROVEN'
  lines = [
    f'Sensitivity ({rule.adjacency}, one {rule.unit})',
    f'  {rule.formula} = {rule.value:.6g}: {status}',
    *terminal.wrap(rule.reason, 4),
  ]
  other = report.proven_rule
  if other is not None:
    lines += terminal.wrap(
      f'proven for this upload: {other.formula} = {other.value:.6g},'
      f' {other.value / rule.value:.6g} times larger, and the noise with it',
      4,
    )
  return lines


def _listed(rounds: Sequence[int]) -> str:
  if len(rounds) <= 6:
    return ', '.join(map(str, rounds))
  return f'{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}'


def _calibrated_to(report: planning_report.PlanReport) -> str:
  settings = report.settings
  if settings.block_rounds == 1:
    return 'a client in every round'
  taken = planning_noise.worst_rounds(
    settings.theta, settings.rounds, settings.block_rounds
  )
  return (
    'the worst user, who takes part where the noise is least: in'
    f' {"rounds" if len(taken) > 1 else "round"} {_listed(taken.tolist())}'
    f' ({len(taken) * settings.local_steps} releases)'
  )


def _noise_rows(report: planning_report.PlanReport) -> list[tuple[str, ...]]:
  last = report.settings.rounds
  rows: list[tuple[str, ...]] = [
    ('', 'sigma', '', 'z', '', '', ''),
    ('', *('round 1', f'round {last}') * 2, 'delivers', ''),
  ]
  for noise in report.noise:
    chosen = noise.calibration == report.settings.calibration
    cells: tuple[str, ...] = ('-',) * 4
    if noise.schedule is not None:
      ends = [noise.schedule.stddev(m) for m in (1, last)]
      ends += [end / report.rule.value for end in ends]
      cells = tuple(f'{end:.6g}' for end in ends)
    rows.append(
      (
        *(noise.calibration, *cells, terminal.epsilon(noise.delivered)),
        '<- chosen' if chosen else '',
      )
    )
  return rows


def _noise(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  on = {
    'paper': 'the parameters, one release a round',
    'gradient': f'the mean gradient, {settings.local_steps} releases a round',
  }[settings.mechanism]
  ends = sorted(report.schedule.stddev(m) for m in (1, settings.rounds))
  lines = [f'Noise stddev sigma on {on}', *terminal.table(_noise_rows(report))]
  lines += terminal.wrap(
    f'sigma ranges from {ends[0]:.6g} to {ends[1]:.6g}, a factor of'
    f' {ends[1] / ends[0]:.6g}; z = sigma / sensitivity'
  )
  lines += terminal.wrap(
    f'delivers: the exact epsilon to {_calibrated_to(report)}'
  )
  if settings.mechanism == 'gradient':
    scale = settings.learning_rate * settings.local_steps**0.5
    lines += terminal.wrap(
      f'the plan below takes it to the upload times eta sqrt(tau) = {scale:.6g}'
    )
  for noise in report.noise:
    verdict = 'sound' if noise.sound else 'UNSOUND'
    lines += terminal.wrap(f'{noise.calibration}: {verdict}, {noise.note}')
  return lines


def _delivered_notes(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  lines = []
  if not report.rule.proven:
    lines += terminal.wrap(
      'conditional: only if the sensitivity held, which is not proven'
    )
  if len(report.views) > 1:
    block = settings.users / settings.users_per_round
    lines += terminal.wrap(
      f'balanced: each user once in a block of U/K = {block:g} rounds; visible:'
      ' K of U at random, and the server sees whom; averaged: over that'
      ' selection, before it is drawn'
    )
  if any(None in view.epsilons.values() for view in report.views):
    lines += terminal.wrap(
      '-: no such accountant, or too many noise levels for it'
    )
  if report.moment_claim is not None:
    worth = (
      'a CLAIM, not a bound (false for q < 1)'
      if settings.sampling_rate < 1
      else 'a bound, since q = 1'
    )
    claim = terminal.epsilon(report.moment_claim)
    lines += terminal.wrap(f"the paper's moment bound: {claim}, {worth}")
  if len(report.views) > 1:
    lines += terminal.wrap(
      planning_report.POISSON_CAVEAT, first='NOT GRANTED: '
    )
  return lines


def _delivered(report: planning_report.PlanReport) -> list[str]:
  settings = report.settings
  rows: list[tuple[str, ...]] = [('', *planning_noise.ACCOUNTANTS, '')]
  for view in report.views:
    epsilons = (
      terminal.epsilon(view.epsilons[n]) for n in planning_noise.ACCOUNTANTS
    )
    rows.append((view.title, *epsilons, view.promise))
  return [
    f'Delivered epsilon at delta = {settings.delta:g}, calibration'
    f' {settings.calibration}',
    *terminal.table(rows),
    *_delivered_notes(report),
  ]


def _verdict(report: planning_report.PlanReport) -> list[str]:
  statement = report.statement
  verdict = 'HOLDS' if statement.holds else 'NO GUARANTEE'
  lines = [
    f'Verdict: {verdict}',
    *terminal.wrap(
      f'epsilon = {statement.target_epsilon:g} at delta ='
      f' {statement.delta:g} for one {statement.unit} ({statement.adjacency}):'
      f' {statement.reason}'
    ),
  ]
  for assumption in statement.assumptions:
    lines += terminal.wrap(assumption, first='- ')
  return lines


def _plan_rows(report: planning_report.PlanReport) -> list[tuple[str, ...]]:
  rows: list[tuple[str, ...]] = [
    ('', f'M = {report.settings.rounds}', *('',) * 3, 'best M', *('',) * 4),
    (
      *('theta', 'decay', 'noise', 'bound'),
      *('M*', 'M', 'decay', 'noise', 'bound', ''),
    ),
  ]
  for plan in report.plans:
    asked, best = plan.asked, plan.best
    marks = [
      name
      for name, theta in (
        ('asked', report.settings.theta),
        ('best', report.optimal.theta),
      )
      if math.isclose(theta, asked.theta)
    ]
    rows.append(
      (
        f'{asked.theta:.4g}',
        *(f'{x:#.4g}' for x in (asked.decay, asked.noise, asked.bound)),
        *(f'{plan.best_real:.1f}', str(best.rounds)),
        *(f'{x:#.4g}' for x in (best.decay, best.noise, best.bound)),
        ', '.join(marks),
      )
    )
  return rows


def _plan(report: planning_report.PlanReport) -> list[str]:
  settings, optimal = report.settings, report.optimal
  block = report.objective.block_rounds
  why = (
    'theta = sqrt(A)'
    if block == 1
    else f'in blocks of {block} rounds, theta by search in [sqrt(A), 1]'
  )
  lines = [
    'Plan: bound of F(w(M)) - F* = decay + noise, all at the same budget',
    *terminal.table(_plan_rows(report)),
    *terminal.wrap(
      f'best: theta = {optimal.theta:.6g}, M = {optimal.rounds} (M* ='
      f' {report.optimal_real:.2f}), sigma of round 1 = {optimal.sigma:.6g},'
      f' bound {optimal.bound:#.4g} ({why})'
    ),
    *terminal.wrap(
      f'asked: theta = {settings.theta:.6g}, M = {settings.rounds}, sigma of'
      f' round 1 = {report.asked.asked.sigma:.6g}, bound'
      f' {report.asked.asked.bound:#.4g}'
    ),
  ]
  if not report.statement.holds:
    lines += terminal.wrap(
      'the budget is what the chosen calibration spends: no guarantee'
    )
  names = [n for n in settings.assumed if n != 'examples_per_user']
  if names:
    lines += terminal.wrap(
      f'it rests on what is assumed ({", ".join(names)}): use it to compare'
      ' plans, not to predict a loss'
    )
  return lines


def describe(report: planning_report.PlanReport) -> str:
  """The whole report in words, several lines."""
  parts = [_setting, _sensitivity, _noise, _delivered, _verdict, _plan]
  if report.pilot is not None:
    parts.insert(1, planning_pilot_text.measurement)
    parts.append(planning_pilot_text.proposal)
  return '\n\n'.join('\n'.join(part(report)) for part in parts)
