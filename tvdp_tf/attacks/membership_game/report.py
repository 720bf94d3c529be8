"""Reports membership inference on the user's settings as text and JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvdp_tf import _json
from tvdp_tf.attacks import audit_report, membership
from tvdp_tf.attacks.membership_game import game as membership_game
from tvdp_tf.attacks.membership_game import settings as membership_settings
from tvdp_tf.output import layout


def confidence_of_one(settings: membership_settings.GameSettings) -> float:
  """The confidence of one attack's bound, so that all hold at once."""
  return 1 - (1 - settings.confidence) / len(membership.ATTACKS)


def attack(game: membership_game.Game) -> dict[str, dict[str, float]]:
  """Computes each attack's metrics and the epsilon that it shows.

  Args:
    game: The result of a game.

  Returns:
    Attack -> name -> number. The bounds of all attacks hold at once, with the
    confidence of the settings.
  """
  found = {}
  for name, scores in membership.scores(game.shadows, game.targets).items():
    split = membership.split_scores(scores, game.targets.members)
    bound = membership.epsilon_lower_bound(
      *split,
      game.settings.training.delta,
      confidence_of_one(game.settings),
    )
    metrics = membership.measure(*split)
    found[name] = {
      **dataclasses.asdict(metrics),
      'epsilon_lower_bound': bound,
    }
  return found


@dataclasses.dataclass(frozen=True)
class Report:
  """The results of all attacks on a game.

  Attributes:
    game: The game.
    attacks: The result of `attack`.
  """

  game: membership_game.Game
  attacks: Mapping[str, Mapping[str, float]]

  @property
  def shown(self) -> float:
    """The largest of the lower bounds of epsilon, which all hold at once."""
    return max(found['epsilon_lower_bound'] for found in self.attacks.values())

  @property
  def largest_shown(self) -> float:
    """The most that this many trials can show, if all guesses are right."""
    settings = self.game.settings
    right = np.ones([settings.trials, settings.examples])
    return membership.epsilon_lower_bound(
      right,
      -right,
      settings.training.delta,
      confidence_of_one(settings),
    )

  @property
  def claimed(self) -> float:
    """The epsilon that the noise was calibrated for; inf without noise."""
    return self.game.statement.claimed_epsilon

  @property
  def refuted(self) -> bool:
    """Whether a statement that claims to hold is shown to be false."""
    statement = self.game.statement
    return statement.holds and self.shown > self.game.delivered_epsilon

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the whole report, ready for `json.dumps`."""
    game = self.game
    delivered = game.delivered_epsilon
    return {
      'settings': dataclasses.asdict(game.settings),
      'test_accuracy': game.test_accuracy,
      'member_accuracy': game.member_accuracy,
      'attacks': {name: dict(found) for name, found in self.attacks.items()},
      'epsilon_lower_bound': self.shown,
      'largest_lower_bound_possible': self.largest_shown,
      'delivered_epsilon': _json.number(delivered),
      'holds': game.statement.holds,
      'reason': game.statement.reason,
      'refuted': self.refuted,
    }


def verdict(found: Report) -> str:
  """Returns one line about the delivered epsilon."""
  shown = audit_report.format_lower_bound(found.shown)
  delivered = found.game.delivered_epsilon
  if found.refuted:
    return (
      f'REFUTED: epsilon is at least {shown}, not '
      f'{layout.epsilon(delivered)} as guaranteed'
    )
  least = min(delivered, found.claimed)
  if found.shown > least:
    return (
      f'REFUTED: epsilon is at least {shown}, not {layout.epsilon(least)}; but'
      ' this was not guaranteed'
    )
  if not found.game.statement.holds:
    return 'there is no guarantee to refute'
  if found.largest_shown <= delivered:
    return 'consistent, but so few trials could not have refuted it'
  return 'consistent: the attacks show no more than is delivered'


def _percent(value: float, error: float) -> str:
  return f'{100 * value:.1f} +- {100 * error:.1f} %'


def _table(found: Report) -> list[str]:
  rows = [
    ('attack', 'success', 'AUC', 'TPR at 0.1 % FPR', 'epsilon >='),
    *(
      (
        name,
        _percent(values['success'], values['success_stderr']),
        f'{values["auc"]:.3f} +- {values["auc_stderr"]:.3f}',
        _percent(values['tpr'], values['tpr_stderr']),
        audit_report.format_lower_bound(values['epsilon_lower_bound']),
      )
      for name, values in found.attacks.items()
    ),
  ]
  return layout.table(rows)


def describe(found: Report) -> str:
  """Describes the report.

  Args:
    found: The report.

  Returns:
    Lines of at most 80 characters; the last one is the verdict.
  """
  game = found.game
  settings, training = game.settings, game.settings.training
  n, rounds = settings.examples, training.rounds
  confidence = f'{100 * settings.confidence:g} % confidence'
  epsilon = layout.epsilon

  def row(label: str, text: str) -> list[str]:
    return layout.wrap(text, first=f'{label:<21}')

  lines = [
    f'Membership inference: mechanism {training.mechanism}, model '
    f'{training.model}, data set {training.dataset}',
    *row(
      'attacker sees',
      f'the global model after round {rounds} (shadow, lira) or after every '
      f'round from 1 to {rounds} (lira_all_rounds); no single upload',
    ),
    *row(
      'and knows',
      f'all settings, the initial model, and {n} pairs of examples; it trains '
      f'{settings.shadow_models} shadow models',
    ),
    *row(
      'asked',
      f'which of each pair a target was trained on; {settings.trials} targets, '
      f'of {training.users} users with {n} examples in all',
    ),
    *row(
      'targets',
      f'accuracy {game.member_accuracy:.3f} on what they were trained on, '
      f'{game.test_accuracy:.3f} on test examples',
    ),
    '',
    *_table(found),
    '',
    *row(
      'claimed epsilon',
      f'{epsilon(found.claimed)} at delta = {training.delta!r}',
    ),
    *row(
      'delivered epsilon',
      f'{epsilon(game.delivered_epsilon)} to the worst client, against the '
      f'server, which sees more; '
      + ('it holds: ' if game.statement.holds else 'it does NOT hold: ')
      + game.statement.reason,
    ),
    *row(
      'shown epsilon',
      f'at least {audit_report.format_lower_bound(found.shown)}, with'
      f' {confidence} for all attacks at once; this many trials can show at'
      f' most {audit_report.format_lower_bound(found.largest_shown)}',
    ),
    '',
    f'verdict: {verdict(found)}',
  ]
  return '\n'.join(lines)
