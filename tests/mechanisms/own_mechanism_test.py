"""A mechanism of one's own, in one class, trained and audited like the others.

`Ball` is Algorithm 1 with the sensitivity that is proven: the diameter of the
ball that the parameters are projected to, whatever the data.
"""

import json
import pathlib

import numpy as np
from absl.testing import absltest

from tvdp_tf import mechanisms, privacy
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train


class Ball(mechanisms.Mechanism):
  name = 'ball'
  unit = 'user'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._rule = privacy.projection_rule(settings.l2_norm_clip)
    schedule = privacy.calibrate(
      settings.epsilon,
      self.delta,
      settings.theta,
      settings.rounds,
      self._rule.value,
    )
    self.mechanism = mechanisms.PaperMechanism(schedule, settings.l2_norm_clip)

  @property
  def sensitivity_on_record(self):
    return f'2 C, C = {self.settings.l2_norm_clip!r}', True

  def sensitivities(self):
    return np.full(self.settings.users, self._rule.value)

  def statement(self):
    return self.sound_statement(
      self.delivered_views('server', 'server, median client'),
      'server',
      why='two points of a ball are no further apart than its diameter',
      assumptions=('clients run this code and keep their noise secret',),
      rule=self._rule,
    )


class OwnMechanismTest(absltest.TestCase):
  def test_trains_under_a_guarantee_that_holds(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    settings = settings_lib.TrainingSettings(
      mechanism=Ball,
      epsilon=8.0,
      rounds=4,
      users=4,
      users_per_round=2,
      local_steps=2,
    )
    result = train.train(settings, folder)
    self.assertTrue(result.statement.holds, result.statement.reason)
    self.assertRegex(
      '\n'.join(result.statement.assumptions), 'mechanism ball is not one of'
    )
    audit = privacy.audit_ledger(folder / 'ledger.jsonl')
    self.assertTrue(audit.holds, audit.reason)
    # As far as is known: it is the author's claim, and the noise has a tail.
    self.assertIn('own_mechanism_test claims', audit.runs[0].run.sensitivity)
    self.assertGreater(audit.runs[0].run.noise_distance, 0)
    self.assertBetween(audit.worst_epsilon, 1.0, 8.0)
    config = json.loads((folder / 'config.json').read_text())
    self.assertEqual(config['settings']['mechanism'], 'ball')
    # It is known from now on, and another of its name is refused.
    settings_lib.TrainingSettings(mechanism='ball')
    with self.assertRaisesRegex(ValueError, 'a name of its own'):
      settings_lib.TrainingSettings(mechanism=type('Other', (Ball,), {}))


if __name__ == '__main__':
  absltest.main()
