from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.privacy import calibration


def schedule(rule):
  return privacy.schedule_for_every_round(
    rule,
    epsilon=3.0,
    delta=1e-4,
    theta=0.9,
    rounds=12,
    sampling_rate=0.25,
    sensitivity=0.02,
  )


class ScheduleForEveryRoundTest(parameterized.TestCase):
  @parameterized.parameters(*calibration.ACCOUNTED)
  def test_accountants_calibrate_to_a_client_in_every_round(self, rule):
    epsilon = privacy.delivered_epsilon(
      schedule(rule).noise_multipliers(0.02), 1e-4, rule
    )
    self.assertBetween(epsilon, 0.99 * 3.0, 3.0)

  def test_formulas_of_the_paper(self):
    arguments = (0.9, 12, 3.0, 1e-4, 0.25, 0.02)
    for rule, formula in (
      ('printed', privacy.theorem1_stddev),
      ('tight', privacy.tight_moment_stddev),
    ):
      calibrated = schedule(rule)
      self.assertEqual(calibrated.initial_stddev, formula(*arguments))
      self.assertEqual((calibrated.theta, calibrated.rounds), (0.9, 12))

  def test_other_names(self):
    with self.assertRaisesRegex(ValueError, 'calibration must be one of print'):
      schedule('moments')


if __name__ == '__main__':
  absltest.main()
