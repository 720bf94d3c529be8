"""Training with views: refused where they have no meaning, and stated."""

import json
import pathlib
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import mechanisms
from tvdp_tf.attacks.model_audit import settings as audit_settings
from tvdp_tf.federated import client_work
from tvdp_tf.training import federation, population, run_folder, train
from tvdp_tf.training import settings as settings_lib

_SMALL = {
  'users': 4,
  'users_per_round': 4,
  'rounds': 2,
  'local_steps': 1,
  'views': 'mirror',
  'seed': 1,
}


def _settings(mechanism='gradient', **changes):
  return settings_lib.TrainingSettings(
    **{**_SMALL, 'mechanism': mechanism, **changes}
  )


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'views': 'rotated'}, "views must be one of none, mirror, got 'rotated'"),
    (
      {'features': 'scattering'},
      "views must be none with features scattering, got 'mirror'",
    ),
    ({'mechanism': 'distributed_users'}, 'mechanism distributed_users, which'),
    ({'mechanism': 'central'}, 'views must be none with mechanism central'),
    ({'mechanism': 'paper'}, 'views must be none with mechanism paper'),
    ({'mechanism': 'none'}, 'views must be none with mechanism none'),
  )
  def test_refused(self, changes, message):
    with self.assertRaisesRegex(ValueError, message):
      _settings(**changes)

  def test_left_out_of_a_comparison(self):
    of = settings_lib.TrainingSettings.of_mechanism
    self.assertEqual(of('paper', _SMALL).views, 'none')
    self.assertEqual(of('gradient', _SMALL).views, 'mirror')
    with self.assertRaisesRegex(ValueError, 'views must be one of'):
      of('paper', {**_SMALL, 'views': 'rotated'})

  def test_data_without_images(self):
    refusing: tuple[Any, ...] = (federation.assemble, population.expected)
    for refuse in refusing:
      with self.assertRaisesRegex(
        ValueError, 'views must be none for examples that are not images'
      ):
        refuse(_settings(dataset='generated_adult', model='svm'))

  def test_an_audit_knows_none(self):
    with self.assertRaisesRegex(ValueError, 'views must be one of none'):
      audit_settings.ModelAuditSettings(_settings())


class TrainingTest(parameterized.TestCase):
  @parameterized.parameters('gradient', 'distributed')
  def test_trains_on_views_and_says_why_they_cost_nothing(self, mechanism):
    folder = pathlib.Path(self.create_tempdir().full_path) / 'run'
    seen = []
    clipped_sum = client_work.clipped_sum

    def noted(model, clip, views_name):
      seen.append(views_name)
      return clipped_sum(model, clip, views_name)

    settings = _settings(mechanism)
    with (
      mock.patch.object(client_work, 'clipped_sum', noted),
      resume_cases.without_exports(),
    ):
      train.train(settings, folder)
    self.assertEqual(seen, ['mirror'])
    config = json.loads((folder / run_folder.CONFIG).read_text())
    self.assertEqual(config['settings']['views'], 'mirror')
    statement = mechanisms.build(
      settings, federation.assemble(settings)
    ).statement()
    (words,) = [w for w in statement.assumptions if w.startswith('views')]
    self.assertIn('averaged before the clip', words)
    without = _settings(mechanism, views='none')
    plans: list[Any] = [
      mechanisms.build(one, federation.assemble(one))
      for one in (settings, without)
    ]
    # The noise is the same; the graph is not.
    one, other = (plan.schedule.stddevs() for plan in plans)
    np.testing.assert_array_equal(one, other)
    self.assertNotEqual(plans[0].graph_key(), plans[1].graph_key())
    self.assertNotIn('views (', ' '.join(plans[1].statement().assumptions))


if __name__ == '__main__':
  absltest.main()
