import json
import math
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.privacy import sensitivity

RULES = {
  'paper': privacy.paper_rule(5.0, 600),
  'projection': privacy.projection_rule(5.0),
  'gradient': privacy.gradient_rule(1.5, 600),
  'sum': privacy.gradient_sum_rule(1.5),
  'gradient_zero': privacy.gradient_rule(1.5, 600, 'zero-out'),
  'gradient_add': privacy.gradient_rule(1.5, 600, 'add-or-remove-one'),
  'update': privacy.update_rule(2.0),
  'update_add': privacy.update_rule(2.0, 'add-or-remove-one'),
}
FIELDS: dict[str, Any] = {
  'name': 'own',
  'value': 1.0,
  'formula': '1',
  'release': 'a number',
  'unit': 'user',
  'adjacency': 'replace-one',
  'proven': True,
  'reason': 'by definition',
}


class RulesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('paper', 10 / 600, 'example', 'replace-one', False),
    ('projection', 10.0, 'user', 'replace-one', True),
    ('gradient', 3 / 600, 'example', 'replace-one', True),
    ('sum', 3.0, 'example', 'replace-one', True),
    ('gradient_zero', 1.5 / 600, 'example', 'zero-out', True),
    ('gradient_add', 1.5 / 600, 'example', 'add-or-remove-one', True),
    ('update', 4.0, 'user', 'replace-one', True),
    ('update_add', 2.0, 'user', 'add-or-remove-one', True),
  )
  def test_values(self, name, value, unit, adjacency, proven):
    rule = RULES[name]
    self.assertEqual(rule.value, value)
    self.assertEqual((rule.unit, rule.adjacency), (unit, adjacency))
    self.assertIs(rule.proven, proven)

  @parameterized.parameters(*RULES)
  def test_formula_has_the_numbers(self, name):
    rule = RULES[name]
    value = rule.formula.rpartition('= ')[2]
    numbers = value.replace('/', '*1/').split('*')
    result = math.prod(
      1 / float(n[2:]) if n.startswith('1/') else float(n) for n in numbers
    )
    self.assertAlmostEqual(result, rule.value, places=15)

  @parameterized.parameters(*RULES)
  def test_is_json(self, name):
    rule = RULES[name]
    values = json.loads(json.dumps(rule.to_json_dict(), allow_nan=False))
    self.assertEqual(privacy.SensitivityRule(**values), rule)


class TruthTest(absltest.TestCase):
  """Five projected full-batch steps on 600 points, two of which differ."""

  def _train(self, points, clip=5.0):
    model = 0.0
    for _ in range(5):
      model = float(np.clip(model - (model - points.mean()), -clip, clip))
    return model

  def test_paper_rule_is_exceeded_and_projection_rule_attained(self):
    points, neighbour = np.zeros(600), np.zeros(600)
    points[0], neighbour[0] = 6000, -6000
    difference = abs(self._train(points) - self._train(neighbour))
    self.assertEqual(difference, RULES['projection'].value)
    self.assertAlmostEqual(difference / RULES['paper'].value, 600, places=9)

  def test_gradient_rule_holds_for_every_pair(self):
    rng = np.random.default_rng(3)
    clip, n = 1.5, 40
    rule = privacy.gradient_rule(clip, n)
    largest = 0.0
    for scale in (0.1, 1.0, 1e3):
      gradients = rng.normal(scale=scale, size=(200, n + 1, 3))
      norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
      clipped = gradients * np.minimum(1, clip / norms)
      # The last one takes the place of the first.
      change = (clipped[:, n] - clipped[:, 0]) / n
      largest = max(largest, np.linalg.norm(change, axis=-1).max())
    self.assertLessEqual(largest, rule.value * (1 + 1e-12))
    self.assertGreater(largest, 0.99 * rule.value)


class DoorTest(parameterized.TestCase):
  @parameterized.parameters(
    ('value', 0.0, 'value must be a finite number > 0, got 0.0'),
    ('value', math.nan, 'value must be a finite number > 0, got nan'),
    ('unit', 'person', 'unit must be one of example, user'),
    ('adjacency', 'swap', 'adjacency must be one of replace-one, add-or'),
    ('proven', 1, 'proven must be True or False, got 1'),
    ('name', '', "name must be a non-empty text, got ''"),
    ('formula', None, 'formula must be a non-empty text, got None'),
    ('release', 3, 'release must be a non-empty text, got 3'),
    ('reason', '', "reason must be a non-empty text, got ''"),
  )
  def test_bad_rule(self, name, value, message):
    self.assertEqual(privacy.SensitivityRule(**FIELDS).unit, 'user')
    with self.assertRaises(ValueError) as caught:
      privacy.SensitivityRule(**{**FIELDS, name: value})
    self.assertStartsWith(str(caught.exception), message)

  def test_words(self):
    self.assertEqual(sensitivity.UNITS, ('example', 'user'))
    self.assertEqual(
      sensitivity.ADJACENCIES, ('replace-one', 'add-or-remove-one', 'zero-out')
    )
    self.assertEqual(
      {*sensitivity.ADJACENCIES}, {*sensitivity.ADJACENCY_MEANINGS}
    )


if __name__ == '__main__':
  absltest.main()
