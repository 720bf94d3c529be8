import csv
import json
import math
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.attacks import audit, audit_report, audit_settings, lower_bound


def _result(shift=1.0, trials=2000, **kwargs) -> audit.AuditResult:
  """As of an audit, but of scores that nobody had to train for."""
  settings = audit_settings.AuditSettings(trials=trials, **kwargs)
  rng = np.random.default_rng(1)
  scores, alternative = rng.normal(shift, 1, trials), rng.normal(0, 1, trials)
  evidence = (scores, alternative, settings.delta, settings.confidence)
  return audit.AuditResult(
    settings=settings,
    seed=5,
    pair_description='this or that',
    delivered=audit.delivered_epsilons(
      settings, audit.build_mechanism(settings)
    ),
    bound=lower_bound.empirical_lower_bound(*evidence),
    gaussian_bound=lower_bound.gaussian_lower_bound(*evidence),
    scores=scores,
    alternative_scores=alternative,
  )


class TextTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.0, '0'), (7.21199, '7.211'), (0.99999, '0.9999'), (2e-5, '0.00002')
  )
  def test_lower_bounds_are_rounded_down(self, value, expected):
    self.assertEqual(audit_report.format_lower_bound(value), expected)

  @parameterized.parameters(
    (0.0, {}, 'consistent: this attack shows no more than is claimed'),
    (5.0, {}, 'REFUTED: the claim is false'),
    (
      5.0,
      {'epsilon': 10.0},
      'consistent, but so few trials could not have refuted the claim',
    ),
  )
  def test_verdict(self, shift, kwargs, expected):
    result = _result(shift, **kwargs)
    self.assertEqual(result.refuted, expected.startswith('REFUTED'))
    self.assertEqual(audit_report.verdict(result), expected)
    lines = audit_report.describe(result).splitlines()
    self.assertEqual(lines[-1], f'verdict: {expected}')

  def test_says_what_an_epsilon_stands_on(self):
    text = ' '.join(audit_report.describe(_result(5.0)).split())
    for expected in (
      'claimed epsilon 1 at delta = 0.001',
      '0.646004, REFUTED by the lower bound; with sensitivity 2 C / n = 2 * 5.0'
      ' / 100 (NOT PROVEN)',
      '444.106 with sensitivity 2 C = 2 * 5.0 (proven)',
      'with 95 % confidence; assumes nothing about the mechanism',
      'with 95 % confidence, ASSUMING that the trade-off',
      '2000 with each of the two data sets; they can show at most 5.599',
    ):
      self.assertIn(expected, text)
    self.assertNotIn('broken', text)

  def test_too_few_trials(self):
    text = ' '.join(audit_report.describe(_result(epsilon=10.0)).split())
    self.assertIn('at least 162674 are needed to refute the claim', text)
    text = ' '.join(audit_report.describe(_result(epsilon=1000.0)).split())
    self.assertIn('no feasible number could refute the claim', text)

  @parameterized.parameters(
    (0.5, 'times 0.5: broken on purpose'), (2.0, 'times 2: more than')
  )
  def test_noise_scale(self, scale, expected):
    text = audit_report.describe(
      _result(mechanism='gradient', noise_scale=scale)
    )
    self.assertIn(expected, text)
    self.assertIn('delivered as calibrated', text)

  def test_fits_a_terminal(self):
    for kwargs in ({}, {'mechanism': 'gradient', 'client': 'outlier'}):
      lines = audit_report.describe(_result(**kwargs)).splitlines()
      self.assertLessEqual(max(map(len, lines)), 80)


class BoundaryTest(parameterized.TestCase):
  def test_closed_form(self):
    rates = np.array([0.0, 0.2, 0.9, 1.0])
    found = audit_report.largest_true_positive_rate(rates, 1.0, 0.01)
    e = math.e
    expected = [0.01, 0.2 * e + 0.01, 1 - (0.99 - 0.9) / e, 1.0]
    np.testing.assert_allclose(found, expected)

  def test_an_attack_that_is_allowed_everything(self):
    rates = np.array([0.0, 1e-9, 1.0])
    found = audit_report.largest_true_positive_rate(rates, 1e6, 0.01)
    np.testing.assert_allclose(found, [0.01, 1, 1])


class FilesTest(parameterized.TestCase):
  @parameterized.parameters(
    (1.0, {}),
    (5.0, {'mechanism': 'gradient', 'noise_scale': 0.5}),
    (1e6, {'epsilon': 1e4}),
    (0.0, {'trials': 4}),
  )
  def test_files(self, shift, kwargs):
    result = _result(shift, **kwargs)
    folder = pathlib.Path(self.create_tempdir().full_path)
    audit_report.write(result, folder)

    def refuse(word):
      raise ValueError(word)

    written = json.loads(
      (folder / 'audit.json').read_text(), parse_constant=refuse
    )
    self.assertEqual(written['seed'], 5)
    self.assertEqual(written['refuted'], result.refuted)
    self.assertEqual(written['settings']['trials'], result.settings.trials)
    self.assertEqual(written['lower_bound'], result.bound.to_json_dict())
    self.assertEqual(
      [row['epsilon'] for row in written['delivered']],
      [delivered.epsilon for delivered in result.delivered],
    )
    with open(folder / 'audit.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    half = result.settings.trials // 2
    for row in rows[:: max(1, len(rows) // 9)]:
      threshold = float(row['threshold'])
      for name, scores in (
        ('true_positive_rate', result.scores),
        ('false_positive_rate', result.alternative_scores),
      ):
        self.assertEqual(float(row[name]), np.mean(scores[half:] > threshold))
    picture = (folder / 'audit.png').read_bytes()
    self.assertStartsWith(picture, b'\x89PNG\r\n\x1a\n')
    self.assertLen(list(folder.iterdir()), 3)


if __name__ == '__main__':
  absltest.main()
