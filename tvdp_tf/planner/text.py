"""Describes a plan for a terminal: aligned lines of at most 80 characters."""

import math

from tvdp_tf.output import layout
from tvdp_tf.planner import report as planning_report

# Above these values, a measurement gets a warning.
_MOST_AUTOCORRELATION = 0.5
_MOST_REMAINING = 0.2


def _setting(report: planning_report.PlanReport) -> list[str]:
  settings, mechanism = report.settings, report.mechanism
  if settings.schedule:
    change = 'not used: a schedule of your own'
  elif not report.theta_matters:
    change = 'not used by this mechanism'
  elif settings.theta == 1:
    change = '1, the same noise in every round'
  else:
    change = (
      f'{settings.theta:.6g}, sigma times {settings.theta**0.5:.6g} from round'
      ' to round'
    )
  rows = [
    ('data', f'{settings.dataset}, {settings.split}; model {settings.model}'),
    ('mechanism', f'{mechanism.name}: {mechanism.summary}'),
    (
      'participation',
      f'{settings.participation}, {settings.users_per_round} of'
      f' {settings.users} users per round (q = {settings.sampling_rate:.6g})',
    ),
    (
      'rounds',
      f'M = {settings.rounds}, tau = {settings.local_steps} local steps',
    ),
  ]
  if report.has_noise:
    rows += [
      (
        'target',
        f'epsilon = {settings.epsilon!r}, delta = {settings.delta!r}',
      ),
      ('theta', change),
      ('calibration', settings.calibration or "the mechanism's own"),
      (
        'noise',
        f'{mechanism.noise}; {mechanism.delta:.6g} of delta for the accountant',
      ),
    ]
  lines = ['Setting', *layout.table(rows)]
  if report.drawn_anew:
    lines += layout.wrap(
      f'{" and ".join(report.drawn_anew)}, and with it the noise of a single'
      ' user, is only an example, drawn with the public seed 0: training draws'
      ' anew'
    )
  return lines


def _inputs(report: planning_report.PlanReport) -> list[str]:
  settings, population = report.settings, report.population
  sizes = population.examples_per_user
  least, most = int(sizes.min()), int(sizes.max())
  rows = [
    (
      '--examples_per_user',
      str(least) if least == most else f'{least} to {most}',
      'data set' if settings.examples_per_user is None else 'given',
      'n = |D_k|',
    ),
    (
      '--dimension',
      str(population.num_parameters),
      'model' if settings.dimension is None else 'given',
      'd, number of parameters',
    ),
  ]
  rows += [
    (
      f'--{name}',
      f'{getattr(settings, name):g}',
      settings.origin(name),
      meaning,
    )
    for name, meaning in (
      ('contraction', 'A, of a round without noise'),
      ('initial_gap', 'Theta = F(w(0)) - F*'),
      ('smoothness', 'L'),
    )
  ]
  return ['Inputs of the prediction', *layout.table(rows)]


def _sensitivity(report: planning_report.PlanReport) -> list[str]:
  mechanism, rule = report.mechanism, report.statement.sensitivity
  formula, proven = mechanism.sensitivity_on_record
  if rule is not None:
    formula, proven = f'{rule.formula} = {rule.value:.6g}', rule.proven
  statement = report.statement
  lines = [
    f'Sensitivity ({statement.adjacency}, one {statement.unit})',
    *layout.wrap(f'{formula}: {"PROVEN" if proven else "NOT PROVEN"}'),
    *(layout.wrap(rule.reason, 4) if rule is not None else ()),
  ]
  other = mechanism.proven_rule
  if rule is not None and other is not None:
    lines += layout.wrap(
      f'proven for this upload: {other.formula} = {other.value:.6g},'
      f' {other.value / rule.value:.6g} times larger, and would need as much'
      ' more noise',
      4,
    )
  return lines


def _noise_rows(report: planning_report.PlanReport) -> list[tuple[str, ...]]:
  last = report.settings.rounds
  rows: list[tuple[str, ...]] = [
    ('', 'sigma', '', 'z', '', '', ''),
    ('', *('round 1', f'round {last}') * 2, 'delivers', ''),
  ]
  for noise in report.noise:
    cells: tuple[str, ...] = ('-',) * 4
    if noise.noise_stddevs is not None and noise.noise_multipliers is not None:
      ends = (*noise.noise_stddevs, *noise.noise_multipliers)
      cells = tuple(map(layout.noise, ends))
    chosen = noise.calibration == report.settings.calibration
    rows.append(
      (
        *(noise.calibration, *cells, layout.epsilon(noise.delivered)),
        '<- chosen' if chosen and len(report.noise) > 1 else '',
      )
    )
  return rows


def _noise(report: planning_report.PlanReport) -> list[str]:
  mechanism, sim = report.mechanism, report.simulation
  releases = mechanism.releases_per_client
  count = 'one release' if releases == 1 else f'{releases} releases'
  stddevs = sim.mean_noise_stddevs
  lines = [
    f'Noise stddev sigma on {mechanism.noise_on}, {count} per round',
    *layout.table(_noise_rows(report)),
    *layout.wrap(
      'sigma, and z = sigma / sensitivity: the smallest of any user in the'
      ' round; delivers: the epsilon of the user that spends most in these'
      ' rounds'
    ),
    *layout.wrap(
      'in each parameter of the next model, sigma of round 1 ='
      f' {layout.noise(stddevs[0])}, of round {len(stddevs)} ='
      f' {layout.noise(stddevs[-1])}'
    ),
  ]
  schedule = mechanism.schedule
  if schedule is not None and (warning := schedule.warning()):
    lines += layout.wrap(f'WARNING: {warning}')
  for noise in report.noise:
    verdict = 'sound' if noise.sound else 'UNSOUND'
    if noise.sound is not None:
      lines += layout.wrap(f'{noise.calibration}: {verdict}, {noise.note}')
  return lines


def _verdict(report: planning_report.PlanReport) -> list[str]:
  statement = report.statement
  verdict = statement.verdict if statement.holds else 'NO GUARANTEE'
  lines = [
    f'Verdict: {verdict}',
    '  If every round happens as planned, training will state:',
  ]
  for line in statement.describe().splitlines():
    text = line.lstrip()
    indent = len(line) - len(text) + 2
    bullet = '- ' if text.startswith('- ') else ''
    lines += layout.wrap(text.removeprefix('- '), indent, bullet)
  return lines


def _plan_rows(report: planning_report.PlanReport) -> list[tuple[str, ...]]:
  rows: list[tuple[str, ...]] = [
    ('', f'M = {report.settings.rounds}', '', '', 'best', '', '', '', ''),
    (
      *('theta', 'decay', 'noise', 'bound'),
      *('M', 'decay', 'noise', 'bound', ''),
    ),
  ]
  for plan in report.plans:
    asked, best = plan.asked, plan.best
    is_asked = math.isclose(report.settings.theta, asked.theta)
    marks = [
      name
      for name, is_so in (
        ('asked', is_asked),
        ('best', math.isclose(report.optimal.theta, asked.theta)),
      )
      if is_so
    ]
    # A custom schedule has a fixed length.
    is_own = is_asked and bool(report.settings.schedule)
    numbers = (best.decay, best.noise, best.bound)
    rows.append(
      (
        'yours' if is_own else f'{asked.theta:.4g}',
        *(f'{x:#.4g}' for x in (asked.decay, asked.noise, asked.bound)),
        '' if is_own else str(best.rounds),
        *('' if is_own else f'{x:#.4g}' for x in numbers),
        ', '.join(marks),
      )
    )
  return rows


def _plan(report: planning_report.PlanReport) -> list[str]:
  settings, optimal = report.settings, report.optimal
  asked = report.asked.asked
  if not report.has_noise:
    return [
      'Plan: there is no noise to plan',
      *layout.wrap(
        f'the bound after M = {asked.rounds} rounds is A^M Theta ='
        f' {asked.bound:#.4g}'
      ),
    ]
  lines = [
    'Plan: bound of F(w(M)) - F* = decay + noise, all for the same target',
    *layout.table(_plan_rows(report)),
    *layout.wrap(
      f'best: {report.plan_in_words(optimal)}, sigma of'
      f' round 1 = {layout.noise(optimal.sigma)} in the next model, bound'
      f' {optimal.bound:#.4g}, by search'
      + (
        f' in blocks of {settings.block_rounds} rounds'
        if settings.block_rounds > 1
        else ''
      )
    ),
    *layout.wrap(
      f'asked: {report.asked_plan}, sigma of'
      f' round 1 = {layout.noise(asked.sigma)}, bound {asked.bound:#.4g}'
    ),
  ]
  for warning in report.warnings:
    lines += layout.wrap(warning, first='WARNING: ')
  if not report.statement.holds:
    lines += layout.wrap(
      'all plans spend what the chosen calibration spends: no guarantee'
    )
  if settings.assumed:
    lines += layout.wrap(
      f'the bound rests on assumed values ({", ".join(settings.assumed)}): use'
      ' it to compare plans, not to predict a loss'
    )
  return lines


def _schedule(report: planning_report.PlanReport) -> list[str]:
  """The section on the noise that other schedules would leave in the model."""
  advice, settings = report.advice, report.settings
  if advice is None:
    return [
      'Schedule',
      *layout.wrap(
        'no advice if a record does not take part in every round: its rounds,'
        ' not the optimizer, determine the best noise'
      ),
    ]
  lines = [
    'Schedule: variance of the noise in the released model, at the same budget',
    *layout.table(
      [
        ('best of all Gaussian mechanisms', '1'),
        (f'geometric, theta = {advice.theta:.4g}', f'{advice.geometric:.4g}'),
        ('constant noise', f'{advice.constant:.4g}'),
        ('asked', f'{advice.asked:.4g}'),
      ]
    ),
    *layout.wrap(
      'what matters is the weight of each round in the released model, which'
      f' follows from --contraction={settings.contraction:g} and the server'
      ' optimizer: see docs/SCHEDULE.md'
    ),
  ]
  if not advice.pays:
    return [
      *lines,
      *layout.wrap('no schedule pays off here: use constant noise, --theta=1'),
    ]
  stddevs = ','.join(f'{stddev:.4g}' for stddev in advice.schedule)
  flag = f'  --schedule={stddevs}'
  if len(flag) > 80:
    flag = '  as "schedule" in plan.json, which --output_dir writes'
  return [*lines, '  the best one:', flag]


def _correlated(report: planning_report.PlanReport) -> list[str]:
  """The section on what correlated noise would leave, at the same epsilon."""
  best, _ = report.correlated[0]
  return [
    'Correlated noise: standard deviation in the released model, at the same'
    ' epsilon',
    *layout.table(
      [(name, f'{stddev:.4g}') for name, stddev in report.correlated]
    ),
    *layout.wrap(
      f'predicted best: {best}; all except the plan use balanced cohorts of'
      ' the same size, which need not be secret: see docs/SCHEDULE.md'
    ),
  ]


def _measurement(report: planning_report.PlanReport) -> list[str]:
  """The section on A and Theta, for a report with a pilot."""
  pilot = report.pilot
  assert pilot is not None
  estimate = pilot.estimate
  low, high = estimate.contraction_interval
  rows: list[tuple[str, ...]] = [('', 'estimate', 'stderr', '')]
  for name, value, stderr, note in (
    (
      'A',
      estimate.contraction,
      estimate.contraction_stderr,
      f'95 % interval {low:.6g} to {high:.6g}',
    ),
    (
      'Theta',
      estimate.initial_gap,
      estimate.initial_gap_stderr,
      'extrapolated to round 0',
    ),
    ('L_inf', estimate.final_loss, estimate.final_loss_stderr, ''),
  ):
    rows.append((name, f'{value:.6g}', f'{stderr:.2g}', note))
  return [
    'Contraction and initial gap: measured, not assumed',
    *layout.wrap(f'measured from {pilot.path}'),
    *layout.wrap(
      f'test loss(m) = L_inf + Theta A^m, {estimate.rounds} rounds from'
      f' {pilot.rounds[0]} to {pilot.rounds[-1]}, robust least squares'
    ),
    *layout.table(rows),
    *layout.wrap(
      f'fit: R^2 = {estimate.r_squared:.6g}, stddev of the residuals'
      f' {estimate.residual_stddev:.3g}, their autocorrelation'
      f' {estimate.autocorrelation:.2f}'
    ),
    *_doubts(report),
    *layout.wrap(
      'a run without noise protects nothing, so it must have used public data;'
      ' its test loss stands for F'
    ),
  ]


def _doubts(report: planning_report.PlanReport) -> list[str]:
  pilot = report.pilot
  assert pilot is not None
  estimate = pilot.estimate
  warnings = []
  if estimate.autocorrelation > _MOST_AUTOCORRELATION:
    warnings.append(
      'the residuals are correlated: the loss does not fall by a constant'
      ' factor, and A is an average over the curve'
    )
  if estimate.remaining > _MOST_REMAINING:
    warnings.append(
      f'the pilot ended with {estimate.remaining:.0%} of the gap left: L_inf'
      ' and Theta are extrapolated, and the interval relies on the model; a'
      ' longer pilot is more reliable'
    )
  differences = pilot.differences(report.settings)
  if differences:
    listed = ', '.join(
      f'--{name}={measured!r} (here {planned!r})'
      for name, (measured, planned) in differences.items()
    )
    warnings.append(f'A was measured in rounds with {listed}')
  return [line for w in warnings for line in layout.wrap(w, first='WARNING: ')]


def _proposal(report: planning_report.PlanReport) -> list[str]:
  """The section on the proposed plan, for a report with a pilot."""
  settings, optimal = report.settings, report.optimal
  assert settings.initial_gap is not None
  sigmas = f'sigma of round 1 = {layout.noise(optimal.sigma)}'
  if optimal.rounds > 1:
    sigmas += (
      f', of round {optimal.rounds} = {layout.noise(optimal.last_sigma)}'
    )
  rows: list[tuple[str, ...]] = [
    ('', '', 'best there', *('',) * 3, 'proposed', ''),
    ('A', 'Theta', 'theta', 'M', 'sigma', 'bound', 'bound', ''),
  ]
  low, high = report.alternatives
  for note, a, gap, best, bound in (
    ('low end of A', low.contraction, low.initial_gap, low.best, low.bound),
    (
      *('estimate', settings.contraction, settings.initial_gap),
      *(optimal, optimal.bound),
    ),
    ('high end', high.contraction, high.initial_gap, high.best, high.bound),
  ):
    rows.append(
      (
        *(f'{a:.5g}', f'{gap:#.4g}', f'{best.theta:.4g}', str(best.rounds)),
        *(f'{best.sigma:#.4g}', f'{best.bound:#.4g}', f'{bound:#.4g}', note),
      )
    )
  lines = [
    'Proposed',
    f'  --theta={optimal.theta:.6g} --rounds={optimal.rounds}',
    *layout.wrap(
      f'for epsilon = {settings.epsilon!r} at delta = {settings.delta!r}:'
      f' {sigmas} in the next model'
    ),
  ]
  if not report.statement.holds:
    lines += layout.wrap(
      'no guarantee: the verdict above applies to every plan'
    )
  if optimal.bound >= settings.initial_gap:
    lines += layout.wrap(
      f'its bound {optimal.bound:#.4g} is not below Theta ='
      f' {settings.initial_gap:#.4g}, where training starts: at this budget the'
      ' bound promises no progress',
      first='WARNING: ',
    )
  return [
    *lines,
    'What the uncertainty of A costs, with Theta fitted to each A',
    *layout.table(rows, left=0),
  ]


def describe(report: planning_report.PlanReport) -> str:
  """The whole report in words, several lines."""
  parts = [_setting, _inputs, _verdict, _plan, _schedule]
  if report.has_noise:
    parts[2:2] = [_sensitivity, _noise]
  if report.correlated:
    parts.append(_correlated)
  if report.pilot is not None:
    parts.insert(1, _measurement)
    parts.append(_proposal)
  return '\n\n'.join('\n'.join(part(report)) for part in parts)
