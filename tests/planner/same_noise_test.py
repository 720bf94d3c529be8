"""What a plan says of the noise is what training does, to the last digit."""

import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import mechanisms
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import simulation
from tvdp_tf.privacy import _chained_file
from tvdp_tf.training import federation, population
from tvdp_tf.training import settings as training_settings
from tvdp_tf.training import train as training

_SMALL = {
  'users': 6,
  'users_per_round': 3,
  'rounds': 5,
  'local_steps': 2,
  'epsilon': 4.0,
  'delta': 1e-4,
  'theta': 0.9,
  'seed': 3,
}
_CASES = [
  (name, participation, split)
  for name, mechanism in mechanisms.MECHANISMS.items()
  for participation in mechanism.participations
  for split in ('iid', 'dirichlet')
]


def _planned(values):
  settings = planning_settings.PlanSettings(**values)
  return simulation.run(settings, population.expected(settings)).mechanism


class SameNoiseTest(parameterized.TestCase):
  @parameterized.parameters(*_CASES)
  def test_as_training_builds_it(self, mechanism, participation, split):
    values = {
      **_SMALL,
      'mechanism': mechanism,
      'participation': participation,
      'split': split,
      # Of `distributed` a round is one step.
      'local_steps': 1 if mechanism == 'distributed' else 2,
    }
    planned = _planned(values)
    settings = training_settings.TrainingSettings(**values)
    fed = federation.assemble(settings)
    trained = mechanisms.build(settings, fed)
    self.assertEqual(planned.noise, trained.noise)
    self.assertEqual(planned.delta, trained.delta)
    self.assertEqual(planned.schedule, trained.schedule)
    self.assertLen(planned.history, settings.rounds)
    schedule = trained.schedule
    for past in planned.history:
      m = past.number
      stddev = 0.0 if schedule is None else schedule.stddev(m)
      found = trained.round(m, fed.participation.cohort(m), stddev)
      trained.take(found)
      self.assertEqual(found.noise_stddev, past.noise_stddev)
      for name in ('clients', 'noise_multipliers', 'noise_scales'):
        np.testing.assert_array_equal(
          getattr(found, name), getattr(past, name), name
        )
    self.assertEqual(planned.statement(), trained.statement())

  @parameterized.parameters(
    ('gradient', 'uniform', 'dirichlet'), ('paper', 'balanced', 'iid')
  )
  def test_as_the_ledger_of_a_run_has_it(self, mechanism, participation, split):
    values = {
      **_SMALL,
      'mechanism': mechanism,
      'participation': participation,
      'split': split,
    }
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    with resume_cases.without_exports():
      result = training.train(
        training_settings.TrainingSettings(**values), folder, progress=False
      )
    planned = _planned(values)
    payloads = _chained_file.read(folder / 'ledger.jsonl').payloads
    records = [r for r in payloads if 'noise_multipliers' in r]
    self.assertLen(records, len(planned.history))
    for record, past in zip(records, planned.history, strict=True):
      self.assertEqual(record['clients'], past.clients.tolist())
      # The variance of a round is computed in the graph.
      np.testing.assert_allclose(
        # One number stands for all of a cohort.
        np.broadcast_to(record['noise_multipliers'], len(past.clients)),
        past.noise_multipliers,
        rtol=1e-14,
      )
    self.assertEqual(
      result.statement.describe(), planned.statement().describe()
    )


if __name__ == '__main__':
  absltest.main()
