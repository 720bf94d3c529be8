import math

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.attacks import audit, audit_settings


def _delivered(**kwargs):
  settings = audit_settings.AuditSettings(**kwargs)
  mechanism = audit.build_mechanism(settings)
  return mechanism, audit.delivered_epsilons(settings, mechanism)


class SettingsTest(parameterized.TestCase):
  def test_defaults_are_resolved(self):
    settings = audit_settings.AuditSettings()
    self.assertEqual(
      (settings.examples, settings.calibration), (100, 'printed')
    )
    settings = audit_settings.AuditSettings('gradient', 'outlier')
    self.assertEqual((settings.examples, settings.calibration), (600, 'exact'))

  @parameterized.parameters(
    {'mechanism': 'none'},
    {'client': 'mnist'},
    {'examples': 1},
    {'examples': 1.5},
    {'epsilon': 0},
    {'delta': 1},
    {'theta': math.nan},
    {'rounds': 0},
    {'local_steps': 0},
    {'l2_norm_clip': -1},
    {'example_l2_norm_clip': 0},
    {'learning_rate': math.inf},
    {'calibration': 'guess'},
    {'trials': 3},
    {'confidence': 1},
    {'noise_scale': 0},
    {'seed': -1},
  )
  def test_bad_settings(self, **kwargs):
    (name,) = kwargs
    with self.assertRaisesRegex(ValueError, f'^{name} must be .*got '):
      audit_settings.AuditSettings(**kwargs)

  def test_calibration_must_fit_the_mechanism(self):
    with self.assertRaisesRegex(ValueError, 'calibration .* with mechanism'):
      audit_settings.AuditSettings('gradient', calibration='tight')


class ClaimsTest(parameterized.TestCase):
  @parameterized.parameters((1.0, 0.9), (10.0, 1.0), (20.0, 1.1))
  def test_theorem_1(self, epsilon, theta):
    mechanism, delivered = _delivered(
      client='outlier', epsilon=epsilon, theta=theta, rounds=30
    )
    # The printed sigma is equivalent to one release with this multiplier.
    z = math.sqrt(2 * math.log(1000)) / epsilon
    granted, proven = delivered
    self.assertAlmostEqual(
      granted.epsilon, privacy.gaussian_epsilon(z, 1e-3), places=9
    )
    self.assertEqual(granted.sensitivity, privacy.paper_rule(5.0, 600))
    self.assertFalse(granted.sensitivity.proven)
    expected = privacy.gaussian_epsilon(z / 600, 1e-3)
    self.assertAlmostEqual(proven.epsilon / expected, 1, places=9)
    self.assertTrue(proven.sensitivity.proven)
    self.assertEqual(mechanism.schedule.theta, theta)

  def test_theorem_1_claims_too_little(self):
    # What the printed noise delivers at epsilon = 10 even if 2C/n is granted.
    _, (granted, _) = _delivered(client='outlier', epsilon=10.0)
    self.assertAlmostEqual(granted.epsilon, 11.27, delta=0.005)

  @parameterized.product(
    calibration=('exact', 'rdp', 'pld'), mechanism=('paper', 'gradient')
  )
  def test_accountants_keep_the_target(self, calibration, mechanism):
    _, delivered = _delivered(
      mechanism=mechanism, calibration=calibration, epsilon=2.0
    )
    self.assertBetween(delivered[0].epsilon, 1.7, 2.0)

  def test_gradient(self):
    mechanism, (delivered,) = _delivered(
      mechanism='gradient', epsilon=2.0, rounds=7, local_steps=4
    )
    self.assertTrue(delivered.sensitivity.proven)
    self.assertEqual(delivered.sensitivity, privacy.gradient_rule(1.0, 100))
    releases = np.repeat(mechanism.schedule.stddevs(), 4)
    self.assertLen(releases, 28)
    self.assertAlmostEqual(
      privacy.gaussian_epsilon(np.sum(releases**-2.0) ** -0.5, 1e-3),
      delivered.epsilon,
      places=9,
    )
    self.assertBetween(delivered.epsilon, 1.99, 2.0)

  @parameterized.parameters(
    (
      {'theta': 1e-30, 'rounds': 1000},
      'theta must leave the noise of',
    ),
    ({'theta': 1.0, 'epsilon': 1e-320}, 'epsilon must'),
    ({'theta': 1.0, 'l2_norm_clip': 1e300}, 'epsilon must leave the noise'),
  )
  def test_errors_name_a_setting(self, kwargs, message):
    for mechanism in ('paper', 'gradient'):
      if mechanism == 'gradient' and 'l2_norm_clip' in kwargs:
        continue
      with self.assertRaisesRegex(ValueError, f'^{message}'):
        _delivered(mechanism=mechanism, **kwargs)


if __name__ == '__main__':
  absltest.main()
