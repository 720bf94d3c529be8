"""The game with real training: the attacks find what there is, and no more."""

import dataclasses
import json

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import errors, runtimes
from tvdp_tf.attacks import membership
from tvdp_tf.attacks.membership_game import game as membership_game
from tvdp_tf.attacks.membership_game import report as membership_report
from tvdp_tf.attacks.membership_game import settings as membership_settings
from tvdp_tf.training import settings as settings_lib

# 12 examples of 784 values, learnt by heart.
_OVERFITTED = settings_lib.TrainingSettings(
  dataset='generated_mnist',
  users=2,
  users_per_round=2,
  mechanism='none',
  rounds=2,
  local_steps=30,
  learning_rate=0.1,
  seed=0,
)


def play(*all_settings) -> list[membership_game.Game]:
  with runtimes.compiled_runtime('cpu') as context:
    games = membership_game.Games(context)
    return [games.play(settings) for settings in all_settings]


def small_game(**changes) -> membership_settings.GameSettings:
  training = dataclasses.replace(_OVERFITTED, calibration='', **changes)
  return membership_settings.GameSettings(
    training, examples=8, shadow_models=4, trials=4
  )


class OverfittedTest(absltest.TestCase):
  """One game for all tests: 12 shadow models and 12 targets, 144 pairs."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    (cls.game,) = play(
      membership_settings.GameSettings(
        _OVERFITTED, examples=12, shadow_models=12, trials=12
      )
    )
    cls.found = membership_report.attack(cls.game)

  def test_the_target_overfits(self):
    self.assertGreater(self.game.member_accuracy, 0.99)
    self.assertLess(self.game.test_accuracy, 0.8)
    self.assertEqual(self.game.delivered_epsilon, np.inf)
    self.assertFalse(self.game.statement.holds)

  def test_members_are_found(self):
    for name in membership.ATTACKS:
      self.assertGreater(self.found[name]['success'], 0.72, name)
      self.assertGreater(self.found[name]['auc'], 0.85, name)
      self.assertGreater(self.found[name]['epsilon_lower_bound'], 1, name)

  def test_nothing_is_found_when_membership_is_shuffled(self):
    """The same models and scores, and coins that they were not trained on."""
    coins = np.random.default_rng(0).integers(2, size=[12, 12])
    shuffled = coins[..., np.newaxis] == np.arange(2)
    scores = membership.scores(self.game.shadows, self.game.targets)
    for name, values in scores.items():
      split = membership.split_scores(values, shuffled)
      metrics = membership.measure(*split)
      self.assertLess(
        abs(metrics.success - 0.5), 4 * metrics.success_stderr, name
      )
      self.assertEqual(membership.epsilon_lower_bound(*split, 1e-3), 0, name)

  def test_coins(self):
    shadows, targets = self.game.shadows.members, self.game.targets.members
    # Each example is in half of the shadow models.
    np.testing.assert_array_equal(shadows.sum(axis=0), np.full([12, 2], 6))
    self.assertLen({tuple(coins.ravel()) for coins in targets}, 12)

  def test_report(self):
    report = membership_report.Report(
      self.game, membership_report.attack(self.game)
    )
    text = membership_report.describe(report)
    self.assertLessEqual(max(map(len, text.splitlines())), 80)
    self.assertIn('the global model after round 2', text)
    self.assertIn(
      '12 targets, of 2 users with 12 examples', ' '.join(text.split())
    )
    self.assertEndsWith(text, 'verdict: there is no guarantee to refute')
    values = json.loads(json.dumps(report.to_json_dict(), allow_nan=False))
    self.assertEqual(values['delivered_epsilon'], 'inf')
    self.assertEqual(
      values['epsilon_lower_bound'],
      max(a['epsilon_lower_bound'] for a in values['attacks'].values()),
    )
    self.assertFalse(values['refuted'])

  def test_verdicts(self):
    def verdict(**changes):
      statement = dataclasses.replace(
        self.game.statement,
        claimed_epsilon=changes.pop('claimed', 1.0),
        target_epsilon=1.0,
        holds=False,
      )
      object.__setattr__(statement, 'holds', changes.pop('holds', True))
      report = membership_report.Report(
        dataclasses.replace(self.game, statement=statement, **changes),
        {'lira': {'epsilon_lower_bound': 1.23456}},
      )
      return report.refuted, membership_report.verdict(report)

    self.assertEqual(
      verdict(delivered_epsilon=1.0),
      (True, 'REFUTED: epsilon is at least 1.234, not 1 as guaranteed'),
    )
    self.assertEqual(
      verdict(delivered_epsilon=1.0, holds=False),
      (
        False,
        (
          'REFUTED: epsilon is at least 1.234, not 1; but this was not'
          ' guaranteed'
        ),
      ),
    )
    self.assertEqual(
      verdict(delivered_epsilon=2.0, claimed=2.0),
      (False, 'consistent: the attacks show no more than is delivered'),
    )
    self.assertEqual(
      verdict(delivered_epsilon=9.0, claimed=9.0),
      (False, 'consistent, but so few trials could not have refuted it'),
    )
    self.assertEqual(
      verdict(delivered_epsilon=2.0, claimed=2.0, holds=False),
      (False, 'there is no guarantee to refute'),
    )


class GamesTest(parameterized.TestCase):
  def test_mechanisms(self):
    settings = {
      'none': small_game(),
      'gradient': small_game(mechanism='gradient', participation=''),
      'paper': small_game(mechanism='paper'),
      'laplace': small_game(mechanism='laplace'),
      'svm': small_game(dataset='generated_adult', model='svm'),
    }
    games = dict(zip(settings, play(*settings.values()), strict=True))
    for name, game in games.items():
      self.assertEqual(game.targets.members.shape, (4, 8, 2), name)
      self.assertEqual(game.shadows.outputs.shape[:4], (4, 2, 8, 2), name)
      self.assertLen(membership_report.attack(game), 3)
    # Only there the sensitivity is proven; the target is spent, not more.
    self.assertTrue(games['gradient'].statement.holds)
    self.assertAlmostEqual(games['gradient'].delivered_epsilon, 10, delta=0.1)
    self.assertLessEqual(games['gradient'].delivered_epsilon, 10)
    for name in ('none', 'paper', 'laplace'):
      self.assertFalse(games[name].statement.holds, name)

  def test_a_seed_is_a_game(self):
    first, second, other = play(small_game(), small_game(), small_game(seed=7))
    np.testing.assert_array_equal(first.targets.outputs, second.targets.outputs)
    np.testing.assert_array_equal(first.targets.members, second.targets.members)
    self.assertFalse(
      np.array_equal(first.targets.labels, other.targets.labels)
      and np.array_equal(first.targets.members, other.targets.members)
    )
    # No two models are the same, nor is a shadow model a target.
    outputs = np.concatenate(
      [part.outputs.reshape(4, -1) for part in (first.shadows, first.targets)]
    )
    self.assertLen({tuple(row) for row in outputs}, 8)

  def test_training_that_diverges(self):
    with self.assertRaisesRegex(errors.TrainingFailedError, 'learning_rate'):
      play(small_game(learning_rate=1e30))

  def test_more_pairs_than_the_data_has(self):
    with self.assertRaisesRegex(ValueError, 'examples must be .* 1 to 200'):
      play(membership_settings.GameSettings(_OVERFITTED, examples=201))

  @parameterized.parameters(
    ({'seed': None}, {}, 'seed must be given'),
    (
      {'mechanism': 'central', 'participation': '', 'adjacency': ''},
      {},
      'mechanism must be one of paper, gradient, distributed, laplace, '
      'algorithm1, none,'
      " got 'central'",
    ),
    ({'split': 'dirichlet'}, {}, 'split must be one of iid'),
    (
      {'mechanism': 'paper', 'refinement': 'budget'},
      {},
      'refinement must be one of none',
    ),
    ({}, {'examples': 1}, 'examples must be an integer >= 2'),
    ({}, {'shadow_models': 3}, 'shadow_models must be an integer >= 4'),
    ({}, {'trials': 3}, 'trials must be an integer >= 4'),
    ({}, {'confidence': 95}, 'confidence must be a number strictly between'),
  )
  def test_bad_settings(self, training, game, message):
    with self.assertRaisesRegex(ValueError, message):
      membership_settings.GameSettings(
        dataclasses.replace(_OVERFITTED, **training), **game
      )


if __name__ == '__main__':
  absltest.main()
