"""A schedule of one's own: calibrated, trained and ledgered as the others."""

import json
import math
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.training import federation, train
from tvdp_tf.training import settings as settings_lib

_SMALL = {'users': 4, 'users_per_round': 2, 'rounds': 4, 'local_steps': 2}


def cosine(m, rounds):
  return 1.5 + math.cos(math.pi * m / rounds)


def built(asked):
  plan = mechanisms.build(asked, federation.assemble(asked))
  assert plan.schedule is not None
  return plan, plan.schedule


def settings(mechanism='gradient', **changes):
  return settings_lib.TrainingSettings(
    **{**_SMALL, 'mechanism': mechanism, 'epsilon': 8.0, **changes}
  )


class SettingsTest(parameterized.TestCase):
  def test_a_function_is_its_list(self):
    resolved = settings(schedule=cosine)
    self.assertEqual(
      resolved.schedule, tuple(cosine(m, 4) for m in range(1, 5))
    )
    again = settings_lib.TrainingSettings(
      **json.loads(json.dumps(resolved.__dict__))
    )
    self.assertEqual(again, resolved)

  @parameterized.parameters(
    ((1.0, 2.0), 'schedule must have a number for each of the 4 rounds, got 2'),
    ((1.0, 1.0, 0.0, 1.0), 'schedule must be a finite number > 0, got 0.0'),
    (('a',) * 4, "schedule must be a finite number > 0, got 'a'"),
    ('1234', 'schedule must be a number for each round'),
    (
      lambda m, rounds: 1 / (m - 3),
      'schedule must return .*, got an error for round 3: ZeroDivisionError: ',
    ),
    (lambda m, rounds: math.nan, 'schedule must be a finite number > 0'),
  )
  def test_refuses(self, schedule, message):
    with self.assertRaisesRegex(ValueError, message):
      settings(schedule=schedule)

  @parameterized.parameters('laplace', 'none')
  def test_is_refused_where_it_has_no_meaning(self, mechanism):
    with self.assertRaisesRegex(ValueError, 'schedule must not be given'):
      settings(mechanism, schedule=cosine)
    values = {'schedule': cosine, **_SMALL}
    left = settings_lib.TrainingSettings.of_mechanism(mechanism, values)
    self.assertEqual(left.schedule, ())

  def test_the_papers_formulas_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'calibration must be one of exact'):
      settings('paper', schedule=cosine)


class CalibrationTest(parameterized.TestCase):
  @parameterized.parameters(
    ('gradient', 'balanced', ''),
    ('gradient', 'uniform', ''),
    ('central', 'poisson', ''),
    ('central', 'balanced', ''),
    ('paper', 'uniform', 'exact'),
  )
  def test_same_numbers_as_the_geometric_one(
    self, mechanism, participation, calibration
  ):
    """A list of a geometric series is the geometric schedule."""
    common = {
      'participation': participation,
      'calibration': calibration,
      'seed': 3,
      'theta': 0.8,
    }
    geometric = settings(mechanism, **common)
    listed = settings(
      mechanism, schedule=lambda m, _: 7.0 * 0.8 ** ((m - 1) / 2), **common
    )
    (first, expected), (second, schedule) = map(built, (geometric, listed))
    np.testing.assert_allclose(
      schedule.stddevs(), expected.stddevs(), rtol=1e-9
    )
    self.assertNotEqual(first.graph_key(), second.graph_key())

  def test_follows_the_shape_and_spends_the_budget(self):
    asked = settings('central', participation='balanced', schedule=cosine)
    plan, schedule = built(asked)
    shape = np.array([cosine(m, 4) for m in range(1, 5)])
    stddevs = schedule.stddevs()
    np.testing.assert_allclose(stddevs / stddevs[0], shape / shape[0])
    for m in range(1, 5):
      cohort = plan.fed.participation.cohort(m)
      plan.take(plan.round(m, cohort, schedule.stddev(m)))
    self.assertBetween(plan.worst_epsilon(), 0.99 * 8, 8.0)


class TrainingTest(parameterized.TestCase):
  @parameterized.parameters('compiled', 'tff')
  def test_trains_under_a_guarantee(self, runtime):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    asked = settings(schedule=cosine, runtime=runtime)
    with resume_cases.without_exports():
      result = train.train(asked, folder)
    self.assertTrue(result.statement.holds, result.statement.reason)
    audit = privacy.audit_ledger(folder / 'ledger.jsonl')
    self.assertTrue(audit.holds, audit.reason)
    self.assertBetween(audit.worst_epsilon, 7.9, 8.0)
    with open(folder / 'ledger.jsonl', encoding='utf-8') as file:
      records = [json.loads(line) for line in file]
    by_client: dict[int, list[tuple[int, float]]] = {}
    for record in records:
      if not isinstance(record.get('clients'), list):
        continue  # The header, and the run.
      clients, multipliers = record['clients'], record['noise_multipliers']
      if len(multipliers) == 1:  # Equal ones are written once.
        multipliers = multipliers * len(clients)
      for client, z in zip(clients, multipliers, strict=True):
        by_client.setdefault(client, []).append((record['round'], z))
    self.assertLen(by_client, 4)
    for taken in by_client.values():
      (m1, z1), (m2, z2) = taken
      self.assertAlmostEqual(z2 / z1, cosine(m2, 4) / cosine(m1, 4), places=9)

  def test_refines_to_fewer_rounds(self):
    asked = settings(
      'central', participation='balanced', schedule=cosine, refinement='budget'
    )
    plan, schedule = built(asked)
    cohort = plan.fed.participation.cohort(1)
    plan.take(plan.round(1, cohort, schedule.stddev(1)))
    refined = plan.refine(1, 3)
    self.assertEqual(refined.rounds, 3)
    self.assertLess(refined.stddev(3), schedule.stddev(3))


if __name__ == '__main__':
  absltest.main()
