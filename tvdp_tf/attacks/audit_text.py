"""An audit in words, for a terminal: lines of at most 80 characters."""

import decimal
import textwrap

from tvdp_tf.attacks import audit, lower_bound
from tvdp_tf.privacy import statement

_WIDTH = 80
_LABEL = 24


def format_lower_bound(value: float) -> str:
  """Four significant digits, rounded down: a printed lower bound is one too.

  >>> format_lower_bound(7.21199), format_lower_bound(0.0)
  ('7.211', '0')

  Args:
    value: >= 0.
  """
  context = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)
  rounded = context.create_decimal(value).normalize(context)
  return f'{rounded:f}' if value == 0 or 1e-3 <= value < 1e6 else f'{rounded:g}'


def _row(label: str, text: str) -> list[str]:
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=f'  {label:<{_LABEL}}',
    subsequent_indent=' ' * (_LABEL + 2),
    break_on_hyphens=False,
  )


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
  """How much so many trials could have shown."""
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
    return f'{text}: no number that can be run could refute the claim'
  return f'{text}: to refute the claim takes at least {needed}'


def _noise(result: audit.AuditResult) -> str:
  settings = result.settings
  text = f'calibration {settings.calibration}'
  if settings.noise_scale == 1:
    return text
  text += f', times {settings.noise_scale:g}'
  if settings.noise_scale > 1:
    return f'{text}: more than what is claimed needs'
  return f'{text}: broken on purpose'


def verdict(result: audit.AuditResult) -> str:
  """One line on the claim."""
  if result.refuted:
    return 'REFUTED: the claim is false'
  if result.largest_bound <= result.settings.epsilon:
    return 'consistent, but so few trials could not have refuted the claim'
  return 'consistent: this attack shows no more than is claimed'


def describe(result: audit.AuditResult) -> str:
  """The audit in words.

  Args:
    result: The audit.

  Returns:
    Lines, the last of them the verdict.
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
    *_row('claimed epsilon', f'{claimed} at delta = {settings.delta:g}'),
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
