"""What a pilot run adds to a plan, in words."""

from tvdp_tf.output import terminal
from tvdp_tf.planner import report as planning_report

# From here on the measurement is called into question.
_MOST_AUTOCORRELATION = 0.5
_MOST_REMAINING = 0.2


def measurement(report: planning_report.PlanReport) -> list[str]:
  """The section about A and Theta, of a report with a pilot."""
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
    *terminal.wrap(f'measured from {pilot.path}'),
    *terminal.wrap(
      f'test loss(m) = L_inf + Theta A^m, {estimate.rounds} rounds from'
      f' {pilot.rounds[0]} to {pilot.rounds[-1]}, robust least squares'
    ),
    *terminal.table(rows),
    *terminal.wrap(
      f'fit: R^2 = {estimate.r_squared:.6g}, stddev of the residuals'
      f' {estimate.residual_stddev:.3g}, their autocorrelation'
      f' {estimate.autocorrelation:.2f}'
    ),
    *_warnings(report),
    *terminal.wrap(
      'a run without noise hides nothing: it must have been on public data;'
      ' its test loss stands for F'
    ),
  ]


def _warnings(report: planning_report.PlanReport) -> list[str]:
  pilot = report.pilot
  assert pilot is not None
  estimate = pilot.estimate
  warnings = []
  if estimate.autocorrelation > _MOST_AUTOCORRELATION:
    warnings.append(
      'residuals follow one another: the loss does not fall by one factor, and'
      ' A is a mean over the curve'
    )
  if estimate.remaining > _MOST_REMAINING:
    warnings.append(
      f'the pilot ended with {estimate.remaining:.0%} of the gap to go: L_inf'
      ' and Theta are extrapolated, and the interval trusts the model; a longer'
      ' pilot tells more'
    )
  differences = pilot.differences(report.settings)
  if differences:
    listed = ', '.join(
      f'--{name}={measured!r} (here {planned!r})'
      for name, (measured, planned) in differences.items()
    )
    warnings.append(f'A is that of rounds with {listed}')
  return [
    line for w in warnings for line in terminal.wrap(w, first='WARNING: ')
  ]


def proposal(report: planning_report.PlanReport) -> list[str]:
  """The section with the plan to train, of a report with a pilot."""
  settings, optimal = report.settings, report.optimal
  sigmas = f'sigma of round 1 = {optimal.sigma:.6g}'
  if optimal.rounds > 1:
    last = optimal.sigma * optimal.theta ** ((optimal.rounds - 1) / 2)
    sigmas += f', of round {optimal.rounds} = {last:.6g}'
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
    *terminal.wrap(
      f'for epsilon = {settings.epsilon:g} at delta = {settings.delta:g},'
      f' calibration {settings.calibration}: {sigmas}'
    ),
  ]
  if not report.statement.holds:
    lines += terminal.wrap(
      'no guarantee: the verdict above is that of any plan'
    )
  if optimal.bound >= settings.initial_gap:
    lines += terminal.wrap(
      f'its bound {optimal.bound:#.4g} is not below Theta ='
      f' {settings.initial_gap:#.4g}, where training starts: at this budget the'
      ' bound promises no progress',
      first='WARNING: ',
    )
  return [
    *lines,
    'What the uncertainty of A costs, with Theta fitted to each A',
    *terminal.table(rows, left=0),
  ]
