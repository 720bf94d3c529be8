"""Reports an audit as text and files: `audit.json`, `.csv` and `.png`."""

import decimal
import pathlib

import numpy as np

from tvdp_tf.attacks import audit, lower_bound
from tvdp_tf.output import files, layout, plots
from tvdp_tf.output.plots import plt, ticker
from tvdp_tf.privacy import statement


def format_lower_bound(value: float) -> str:
  """Rounds down to four significant digits, so it is still a lower bound.

  >>> format_lower_bound(7.21199), format_lower_bound(0.0)
  ('7.211', '0')

  Args:
    value: >= 0.
  """
  context = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)
  rounded = context.create_decimal(value).normalize(context)
  return f'{rounded:f}' if value == 0 or 1e-3 <= value < 1e6 else f'{rounded:g}'


def _row(label: str, text: str) -> list[str]:
  return layout.wrap(text, first=f'{label:<24}')


def _delivered(result: audit.AuditResult) -> list[str]:
  lines = []
  scaled = result.settings.noise_scale != 1
  label = 'delivered as calibrated' if scaled else 'delivered epsilon'
  for delivered in result.delivered:
    rule = delivered.sensitivity
    worth = 'proven' if rule.proven else 'NOT PROVEN'
    text = f'{statement.format_epsilon(delivered.epsilon)}'
    if result.bound.epsilon_lower_bound > delivered.epsilon:
      text += ', REFUTED by the lower bound;'
    text += f' with sensitivity {rule.formula} ({worth})'
    lines += _row(label, text)
    label = ''
  return lines


def _reach(result: audit.AuditResult) -> str:
  """Describes how much this many trials could have shown."""
  settings = result.settings
  text = (
    f'{settings.trials} with each of the two data sets; they can show at most '
    f'{format_lower_bound(result.largest_bound)}'
  )
  if result.largest_bound > settings.epsilon:
    return text
  try:
    needed = lower_bound.trials_to_show(
      settings.epsilon, settings.delta, settings.confidence
    )
  except ValueError:
    return f'{text}: no feasible number could refute the claim'
  return f'{text}: at least {needed} are needed to refute the claim'


def _noise(result: audit.AuditResult) -> str:
  settings = result.settings
  text = f'calibration {settings.calibration}'
  if settings.noise_scale == 1:
    return text
  text += f', times {settings.noise_scale:g}'
  if settings.noise_scale > 1:
    return f'{text}: more than the claim needs'
  return f'{text}: broken on purpose'


def verdict(result: audit.AuditResult) -> str:
  """Returns one line about the claim."""
  if result.refuted:
    return 'REFUTED: the claim is false'
  if result.largest_bound <= result.settings.epsilon:
    return 'consistent, but so few trials could not have refuted the claim'
  return 'consistent: this attack shows no more than is claimed'


def describe(result: audit.AuditResult) -> str:
  """Describes the audit.

  Args:
    result: The audit.

  Returns:
    Lines of text; the last one is the verdict.
  """
  settings = result.settings
  bound, gaussian_bound = result.bound, result.gaussian_bound
  confidence = f'with {100 * settings.confidence:g} % confidence'
  claimed = statement.format_epsilon(settings.epsilon)
  lines = [
    f'Empirical privacy audit: mechanism {settings.mechanism}, client '
    f'{settings.client}',
    *_row(
      'attacker',
      'the curious server: sees every upload of the client and all broadcasts',
    ),
    *_row(
      'releases',
      f'{settings.rounds} uploads, each after {settings.local_steps} local'
      f' steps with learning rate {settings.learning_rate:g}',
    ),
    *_row(
      'to be told apart',
      f'one of {settings.num_examples} examples: {result.pair_description}',
    ),
    *_row('noise', _noise(result)),
    *_row('trials', _reach(result)),
    '',
    *_row('claimed epsilon', f'{claimed} at delta = {settings.delta!r}'),
    *_delivered(result),
    *_row(
      'empirical lower bound',
      f'{format_lower_bound(bound.epsilon_lower_bound)} {confidence}; assumes'
      ' nothing about the mechanism',
    ),
    *_row(
      'if Gaussian',
      f'{format_lower_bound(gaussian_bound.epsilon_lower_bound)} {confidence},'
      f' ASSUMING that {gaussian_bound.assumption}; not part of the verdict',
    ),
    '',
    f'verdict: {verdict(result)}',
  ]
  return '\n'.join(lines)


JSON = 'audit.json'
CSV = 'audit.csv'
PICTURE = 'audit.png'
COLUMNS = ('threshold', 'false_positive_rate', 'true_positive_rate')


def largest_true_positive_rate(
  fpr: np.ndarray, epsilon: float, delta: float
) -> np.ndarray:
  """Returns the largest TPR that (epsilon, delta) allows, elementwise."""
  with np.errstate(over='ignore', invalid='ignore'):
    growing = np.where(fpr > 0, np.exp(epsilon) * fpr, 0.0) + delta
  ending = 1 - np.exp(-epsilon) * (1 - delta - fpr)
  return np.clip(np.minimum(growing, ending), 0.0, 1.0)


def write(result: audit.AuditResult, folder: pathlib.Path) -> None:
  """Writes the three files into a folder.

  Args:
    result: The audit.
    folder: An existing folder.
  """
  # The half that was not used to choose the threshold.
  half = len(result.scores) // 2
  curve = lower_bound.roc_curve(
    result.scores[half:], result.alternative_scores[half:]
  )
  files.write_json(folder / JSON, result.to_json_dict())
  files.write_csv(
    folder / CSV, COLUMNS, ([*map(repr, row)] for row in curve.tolist())
  )
  _draw(result, curve, folder / PICTURE)


def _boundaries(result) -> list[tuple[float, str, str, str]]:
  """Returns (epsilon, label, color, line style) of the regions to draw."""
  settings = result.settings
  claimed = statement.format_epsilon(settings.epsilon)
  found = [
    (settings.epsilon, f'claimed: epsilon = {claimed}', 'black', '-'),
  ]
  for delivered, style in zip(result.delivered, ('--', ':'), strict=False):
    rule = delivered.sensitivity
    epsilon = statement.format_epsilon(delivered.epsilon)
    worth = 'proven' if rule.proven else 'not proven'
    label = (
      f'delivered: epsilon = {epsilon}, sensitivity {rule.value:.3g} ({worth})'
    )
    found.append((delivered.epsilon, label, 'tab:green', style))
  return found


def _shown_by_misses(bound: lower_bound.LowerBound) -> bool:
  """Whether ln((1 - FPR - delta) / FNR) is the larger bound."""
  hits = (bound.tpr_lower_limit - bound.delta) / bound.fpr_upper_limit
  misses = 1 - bound.fpr_upper_limit - bound.delta
  return misses / (1 - bound.tpr_lower_limit) > hits


def _draw_panel(axis, result, curve, grid, mirrored: bool) -> None:
  """Draws one panel; if mirrored, the attack looks for D'."""
  settings, bound = result.settings, result.bound
  across, up = curve[:, 1], curve[:, 2]
  point = np.array([[bound.fpr, bound.tpr]])
  limits = np.array([[bound.fpr_upper_limit, bound.tpr_lower_limit]])
  if mirrored:
    across, up = 1 - up, 1 - across
    point, limits = 1 - point[:, ::-1], 1 - limits[:, ::-1]
  # A logarithmic axis cannot show 0.
  point[:, 0] = np.maximum(point[:, 0], grid[0])
  claimed = largest_true_positive_rate(grid, settings.epsilon, settings.delta)
  axis.fill_between(grid, claimed, 1, color='tab:red', alpha=0.08, linewidth=0)
  for epsilon, label, color, style in _boundaries(result):
    axis.plot(
      grid,
      largest_true_positive_rate(grid, epsilon, settings.delta),
      color=color,
      linestyle=style,
      linewidth=1.5,
      label=label,
    )
  axis.plot(across, up, color='tab:blue', linewidth=2, label='the attack')
  axis.errorbar(
    *(point[:, 0], point[:, 1]),
    xerr=[[0], limits[:, 0] - point[:, 0]],
    yerr=[point[:, 1] - limits[:, 1], [0]],
    color='tab:red',
    marker='o',
    markersize=5,
    capsize=3,
    zorder=5,
    label=(
      'lower bound: epsilon >= '
      f'{format_lower_bound(bound.epsilon_lower_bound)}, with '
      f'{100 * settings.confidence:g} % confidence'
    ),
  )
  positive, negative = ("D'", 'D') if mirrored else ('D', "D'")
  axis.set_xlabel(f'share of {negative} taken for {positive}')
  axis.set_ylabel(f'share of {positive} taken for {positive}')
  axis.grid(alpha=0.3, which='both')


def _set_log_axes(axis, result, smallest: float) -> None:
  axis.set_xscale('log')
  axis.set_yscale('log')
  axis.set_xlim(smallest, 1)
  # Points above the boundary at the left edge must be visible.
  axis.set_ylim(min(result.settings.delta, 1e-2) / 2, 1.3)
  for direction in (axis.xaxis, axis.yaxis):
    direction.set_major_formatter(ticker.FormatStrFormatter('%g'))
    direction.set_minor_formatter(ticker.NullFormatter())


def _draw(result, curve: np.ndarray, path: pathlib.Path) -> None:
  settings = result.settings
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6.4))
  _draw_panel(left, result, curve, np.linspace(0, 1, 1001), mirrored=False)
  left.set_xlim(-0.01, 1.01)
  left.set_ylim(-0.01, 1.03)
  left.set_title('all thresholds', fontsize=10)
  smallest = 0.5 / (settings.trials - settings.trials // 2)
  mirrored = _shown_by_misses(result.bound)
  _draw_panel(right, result, curve, np.geomspace(smallest, 1, 1001), mirrored)
  _set_log_axes(right, result, smallest)
  right.set_title('where the lower bound was found', fontsize=10)
  noise = (
    ''
    if settings.noise_scale == 1
    else (f', noise times {settings.noise_scale:g}')
  )
  figure.suptitle(
    f'Audit of mechanism {settings.mechanism}, client {settings.client}{noise},'
    f' delta = {settings.delta!r}\nverdict: {verdict(result)}',
    fontsize=12,
  )
  handles, labels = left.get_legend_handles_labels()
  handles.append(plt.Rectangle((0, 0), 1, 1, color='tab:red', alpha=0.08))
  labels.append('what the claim excludes')
  figure.legend(handles, labels, loc='lower center', ncol=2, fontsize=9)
  figure.tight_layout(rect=(0, 0.13, 1, 1))
  plots.save_figure(figure, path)
