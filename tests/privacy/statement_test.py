import copy
import dataclasses
import decimal
import itertools
import json
import math
import pickle
import re
from typing import Any

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st
from scipy import stats

from tvdp_tf import privacy
from tvdp_tf.privacy import statement

GOOD: dict[str, Any] = {
  'target_epsilon': 10.0,
  'delta': 1e-5,
  'claimed_epsilon': 10.0,
  'delivered': {
    'none': {'exact': 9.5, 'rdp': 10.5, 'moments': 1.0},
    'visible': {'pld': 4.0},
  },
  'unit': 'example',
  'adjacency': 'replace-one',
  'assumptions': ('the server follows the protocol',),
  'holds': True,
  'reason': 'an exact accountant delivers it',
  'sensitivity': privacy.gradient_rule(1.0, 600),
}
USER = {
  **GOOD,
  'unit': 'user',
  'adjacency': 'add-or-remove-one',
  'sensitivity': privacy.update_rule(1.0, 'add-or-remove-one'),
  'view': 'poisson',
  'delivered': {'poisson': {'pld': 2.0, 'rdp': 3.0}},
}


def state(**changes):
  return privacy.PrivacyStatement(**{**GOOD, **changes})


class HoldsTest(parameterized.TestCase):
  def test_a_sound_one(self):
    sound = state()
    self.assertTrue(sound.holds)
    self.assertEqual((sound.epsilon, sound.accountant), (9.5, 'exact'))

  def test_secret_sampling_of_users(self):
    sound = privacy.PrivacyStatement(**USER)
    self.assertEqual((sound.epsilon, sound.accountant), (2.0, 'pld'))

  @parameterized.named_parameters(
    (
      'sensitivity_not_proven',
      {'sensitivity': privacy.paper_rule(5.0, 600)},
      'holds must be False if the sensitivity is not proven',
    ),
    (
      'sensitivity_unknown',
      {'sensitivity': None},
      'holds must be False without a proven sensitivity',
    ),
    (
      'sensitivity_of_a_user',
      {'sensitivity': privacy.projection_rule(5.0)},
      'sensitivity must be for replace-one of one example',
    ),
    (
      'sensitivity_of_another_adjacency',
      {'sensitivity': privacy.gradient_rule(1.0, 600, 'add-or-remove-one')},
      'sensitivity must be for replace-one of one example',
    ),
    (
      'more_delivered_than_the_target',
      {'target_epsilon': 9.4},
      'holds must be False if no sound accountant delivers a finite',
    ),
    (
      'claim_below_what_is_delivered',
      {'claimed_epsilon': 9.4},
      'claimed_epsilon must be at least what is delivered',
    ),
    (
      'unsound_accountant_alone',
      {'delivered': {'none': {'moments': 1.0}}},
      'holds must be False if no sound accountant',
    ),
    (
      'nothing_delivered',
      {'delivered': {}},
      'holds must be False if no sound accountant',
    ),
    (
      'no_accountant_in_the_view',
      {'view': 'outsider'},
      'holds must be False if no sound accountant',
    ),
    (
      'infinite_target',
      {'target_epsilon': math.inf, 'claimed_epsilon': math.inf},
      'holds must be False if no sound accountant',
    ),
    (
      'infinite_epsilon',
      {'delivered': {'none': {'exact': math.inf}}},
      'holds must be False if no sound accountant',
    ),
  )
  def test_cannot_be_built_unsoundly(self, changes, message):
    with self.assertRaises(ValueError) as caught:
      state(**changes)
    self.assertStartsWith(str(caught.exception), message)

  @parameterized.named_parameters(
    (
      'of_examples',
      {
        'unit': 'example',
        'sensitivity': privacy.gradient_rule(1.0, 9, 'add-or-remove-one'),
      },
      "unit must be 'user' if holds is True in view 'poisson'",
    ),
    (
      'of_replacement',
      {
        'adjacency': 'replace-one',
        'sensitivity': privacy.update_rule(1.0),
      },
      'adjacency must be add-or-remove-one if holds is True in view',
    ),
    (
      'by_an_accountant_there_is_not',
      {'delivered': {'poisson': {'exact': 1.0}}},
      'holds must be False if no sound accountant',
    ),
  )
  def test_secret_sampling_cannot_be_promised(self, changes, message):
    with self.assertRaises(ValueError) as caught:
      privacy.PrivacyStatement(**{**USER, **changes})
    self.assertStartsWith(str(caught.exception), message)

  def test_changing_a_sound_one_is_checked_again(self):
    with self.assertRaisesRegex(ValueError, '^holds must be False'):
      dataclasses.replace(state(), target_epsilon=1.0)
    with self.assertRaises(dataclasses.FrozenInstanceError):
      state().target_epsilon = 1.0

  def test_pickles_and_copies_are_checked_again(self):
    sound = state()
    for copied in (pickle.loads(pickle.dumps(sound)), copy.deepcopy(sound)):
      self.assertEqual(copied, sound)
      self.assertEqual(str(copied), str(sound))
      with self.assertRaises(TypeError):
        copied.delivered['none']['exact'] = 0.1
    object.__setattr__(sound, 'target_epsilon', 1.0)
    with self.assertRaisesRegex(ValueError, '^holds must be False'):
      copy.deepcopy(sound)

  def test_what_was_delivered_cannot_be_changed(self):
    delivered = {'none': {'exact': 9.5}}
    sound = state(delivered=delivered)
    delivered['none']['exact'] = 0.1
    self.assertEqual(sound.epsilon, 9.5)
    with self.assertRaises(TypeError):
      sound.delivered['none']['exact'] = 0.1

  @parameterized.parameters(
    *itertools.product((0.5, 3.0, 30.0), (1e-9, 1e-3), (0.9, 1.0, 1.1))
  )
  def test_theorem_1_never_holds_with_the_paper_sensitivity(
    self, epsilon, delta, theta
  ):
    sigma = privacy.theorem1_stddev(theta, 30, epsilon, delta, 0.1, 1 / 60)
    noise = privacy.GeometricSchedule(theta, 30, sigma).noise_multipliers(
      1 / 60
    )
    delivered = {
      'none': {
        name: privacy.delivered_epsilon(noise, delta, name, sampling_rate=0.1)
        for name in ('exact', 'rdp', 'moments')
      }
    }
    changes = {
      'target_epsilon': epsilon,
      'claimed_epsilon': epsilon,
      'delta': delta,
      'delivered': delivered,
      'sensitivity': privacy.paper_rule(5.0, 600),
    }
    self.assertFalse(state(**changes, holds=False).holds)
    with self.assertRaisesRegex(ValueError, '^holds must be False'):
      state(**changes)
    # Not even if the sensitivity were granted.
    changes['sensitivity'] = GOOD['sensitivity']
    with self.assertRaisesRegex(ValueError, '^holds must be False'):
      state(**changes)


class NotHoldingTest(absltest.TestCase):
  def test_nothing_needs_to_be_delivered(self):
    weak = state(
      holds=False,
      target_epsilon=math.inf,
      claimed_epsilon=math.inf,
      delivered={'none': {'moments': math.inf}},
      sensitivity=None,
    )
    self.assertEqual((weak.epsilon, weak.accountant), (math.inf, None))


class DoorTest(parameterized.TestCase):
  @parameterized.parameters(
    ('target_epsilon', 0, 'target_epsilon must be > 0, got 0'),
    ('target_epsilon', math.nan, 'target_epsilon must be a finite number >= 0'),
    ('target_epsilon', -1.0, 'target_epsilon must be a finite number >= 0'),
    ('claimed_epsilon', math.nan, 'claimed_epsilon must be a finite number'),
    ('delta', 1.0, 'delta must be a number strictly between 0 and 1, got 1.0'),
    ('unit', 'person', 'unit must be one of example, user'),
    ('adjacency', 'swap', 'adjacency must be one of replace-one'),
    ('holds', 1, 'holds must be True or False, got 1'),
    ('reason', '', "reason must be non-empty text, got ''"),
    ('assumptions', ('', 'x'), "assumptions must be non-empty text, got ''"),
    ('assumptions', (3,), 'assumptions must be non-empty text, got 3'),
    ('delivered', {'none': {'magic': 1.0}}, 'accountant must be one of exact'),
    (
      'delivered',
      {'none': {'rdp': math.nan}},
      'delivered epsilon (none, rdp) must be a finite number >= 0, got nan',
    ),
    (
      'delivered',
      {'none': {'rdp': -1.0}},
      'delivered epsilon (none, rdp) must be a finite number >= 0, got -1.0',
    ),
  )
  def test_bad_attribute(self, name, value, message):
    for holds in (True, False):
      with self.assertRaises(ValueError) as caught:
        state(**{'holds': holds, name: value})
      self.assertStartsWith(str(caught.exception), message)


class OutputTest(absltest.TestCase):
  def test_json_has_everything(self):
    values = json.loads(json.dumps(state().to_json_dict(), allow_nan=False))
    names = {field.name for field in dataclasses.fields(state())}
    self.assertContainsSubset(names, values)
    self.assertEqual(values['delivered']['none']['exact'], 9.5)
    self.assertEqual(values['sensitivity']['value'], 2 / 600)
    self.assertIs(values['holds'], True)

  def test_json_has_no_infinity(self):
    weak = state(
      holds=False,
      target_epsilon=math.inf,
      claimed_epsilon=math.inf,
      delivered={'none': {'exact': math.inf}},
      sensitivity=None,
    )
    values = json.loads(json.dumps(weak.to_json_dict(), allow_nan=False))
    self.assertEqual(values['target_epsilon'], 'inf')
    self.assertEqual(values['claimed_epsilon'], 'inf')
    self.assertEqual(values['delivered'], {'none': {'exact': 'inf'}})
    self.assertIsNone(values['sensitivity'])

  def test_words(self):
    text = state().describe()
    for part in (
      'epsilon = 10 at delta = 1e-05 HOLDS.',
      'an exact accountant delivers it',
      'one example (replace-one: exchanged for any other',
      'none, exact: 9.5',
      'none, moments: 1 (a claim, not a bound)',
      'visible, pld: 4',
      '(proven: ',
      '- the server follows the protocol',
    ):
      self.assertIn(part, text)

  def test_words_of_what_does_not_hold(self):
    text = state(
      holds=False, sensitivity=privacy.paper_rule(5.0, 600)
    ).describe()
    self.assertIn('DOES NOT HOLD', text)
    self.assertIn('(NOT PROVEN: ', text)


class FormatTest(absltest.TestCase):
  @hypothesis.given(st.floats(0, allow_infinity=False, allow_nan=False))
  def test_never_rounds_down(self, value):
    printed = decimal.Decimal(statement.format_epsilon(value))
    exact = decimal.Decimal(repr(value))  # As it is written.
    self.assertGreaterEqual(printed, exact)
    self.assertGreaterEqual(float(printed), value)
    self.assertLessEqual(printed, exact * decimal.Decimal('1.00001'))

  def test_infinity(self):
    self.assertEqual(statement.format_epsilon(math.inf), 'inf')


class WorthTest(parameterized.TestCase):
  def test_an_attacker_is_right_so_often(self):
    for epsilon, delta in ((0.1, 0.0), (1.0, 1e-5), (5.0, 0.01)):
      # The two distributions that meet (epsilon, delta) with equality.
      kept = 1 - delta
      right = delta + kept * math.exp(epsilon) / (1 + math.exp(epsilon))
      self.assertAlmostEqual(statement.guess_probability(epsilon, delta), right)
    self.assertEqual(statement.guess_probability(math.inf, 0.5), 1)
    self.assertEqual(statement.guess_probability(0.0, 0.0), 0.5)

  @parameterized.parameters('add-or-remove-one', 'zero-out')
  def test_whether_one_was_there(self, adjacency):
    """Two that are exchanged are told apart more often: two steps apart."""
    epsilon, delta = 0.1, 0.01
    z = privacy.gaussian_noise_multiplier(epsilon, delta)
    # One moves the sum by a clip one way, the other the other way.
    exchanged = stats.norm.cdf(1 / z)
    words, _ = statement.worth(epsilon, delta, 'user', 50)
    self.assertIn(
      'which of two users was in the data is right at most 53', words
    )
    self.assertGreater(exchanged, 0.54)
    words, _ = statement.worth(epsilon, delta, 'user', 50, adjacency)
    self.assertIn('whether one user was in the data is right at most 53', words)
    # Never 100 %, which would not be true, and never less than the bound.
    words, _ = statement.worth(8.0, 1e-5, 'user', None, 'replace-one')
    right = float(words.partition('at most ')[2].partition(' %')[0]) / 100
    self.assertBetween(right - statement.guess_probability(8.0, 1e-5), 0, 1e-6)
    self.assertLess(right, 0.9997)
    large, _ = statement.worth(11.0, 1e-6, 'user', 50, adjacency)
    self.assertIn('whether one user was in the data may be right up to', large)
    rule = privacy.update_rule(1.0, adjacency)
    said = statement.PrivacyStatement(
      **{**GOOD, 'unit': 'user', 'adjacency': adjacency, 'sensitivity': rule}
    )
    self.assertIn('whether one user was in the data', said.worth)
    self.assertIn('whether one user was in the data', said.describe())

  def test_as_text(self):
    said = statement.PrivacyStatement(**GOOD)
    self.assertEqual(str(said), said.describe())
    self.assertRegex(
      repr([said]),
      r'^\[<PrivacyStatement: epsilon = .* at delta = .* HOLDS>\]$',
    )

  @parameterized.parameters(10.5, 11.0, 12.3, 40.0)
  def test_percentages_are_rounded_up(self, epsilon):
    words, _ = statement.worth(epsilon, 1e-5, 'user')
    (percent,) = map(float, re.findall(r'up to (\S+) %', words))
    right = 100 * statement.guess_probability(epsilon, 1e-5)
    self.assertBetween(percent, right, min(100, right + 2e-4))

  def test_it_is_called_out_if_it_is_little(self):
    good = state(units=1000)
    self.assertEqual(good.verdict, 'HOLDS')
    self.assertIn('HOLDS.', good.describe())
    large = state(target_epsilon=1e9, claimed_epsilon=1e9)
    self.assertTrue(large.holds)
    for little in (large, state(units=100_000), state(units=10**6)):
      self.assertEqual(little.verdict, 'HOLDS, BUT PROTECTS LITTLE')
      self.assertIn('HOLDS, BUT PROTECTS LITTLE.', little.describe())
      self.assertIn('  Worth: little: ', little.describe())
      self.assertStartsWith(str(little.to_json_dict()['worth']), 'little: ')
    self.assertEqual(state(holds=False).verdict, 'DOES NOT HOLD')

  def test_rounding_is_a_number(self):
    self.assertIn('rounding error of up to 0.0013', state().describe())


if __name__ == '__main__':
  absltest.main()
