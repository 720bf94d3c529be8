"""Pilots that are damaged or edited: one line, or a finite measurement."""

import dataclasses
import json
import math
from unittest import mock

import hypothesis
from absl.testing import absltest, parameterized

from tests import mutations
from tests.planner import pilot_test as planning_pilot_test
from tvdp_tf.planner import pilot as planning_pilot
from tvdp_tf.planner import report as planning_report
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.planner import text as planning_text

_SETTINGS = planning_settings.PlanSettings()
_METRICS = planning_pilot_test.metrics_text()
_CONFIG = {
  'settings': {'users': 7, 'learning_rate': 0.5, 'local_steps': 3},
  'versions': {},
}


class PilotFuzzTest(planning_pilot_test.PilotTestCase):
  def read(self):
    """The pilot, or None where one line refuses it."""
    try:
      return planning_pilot.read(str(self.run_dir))
    except ValueError as error:
      self.assertTrue(mutations.is_one_line(error), error)
      return None

  def setUp(self):
    super().setUp()
    self.run_dir = self.folder()

  @mutations.quick(150)
  @hypothesis.given(
    mutations.damaged(_METRICS.encode()) | mutations.edited_csv(_METRICS)
  )
  def test_metrics(self, content):
    (self.run_dir / 'metrics.csv').write_bytes(content)
    pilot = self.read()
    if pilot is None:
      return
    self.assertEqual(list(pilot.rounds), sorted(set(pilot.rounds)))
    self.assertGreater(pilot.rounds[0], 0)
    self.assertTrue(all(map(math.isfinite, pilot.losses)))
    estimate = pilot.estimate
    self.assertBetween(estimate.contraction, 0, 1)
    self.assertTrue(math.isfinite(estimate.initial_gap))

  def test_configuration_is_a_hint(self):
    whole = planning_pilot.read(str(self.run_dir))
    expected = planning_report.plan(_SETTINGS, whole)

    @mutations.quick(150)
    @hypothesis.given(
      mutations.damaged(json.dumps(_CONFIG).encode())
      | mutations.edited_json(_CONFIG)
    )
    def check(content):
      (self.run_dir / 'config.json').write_bytes(content)
      pilot = self.read()
      self.assertIsNotNone(pilot)
      report = dataclasses.replace(expected, pilot=pilot)
      text = planning_text.describe(report)
      self.assertTrue(text.replace('\n', '').isprintable())
      json.dumps(report.to_json_dict(), allow_nan=False)

    # The measurement, and what follows from it, is the same every time.
    with mock.patch.object(
      planning_pilot, 'estimate_contraction', lambda *_: whole.estimate
    ):
      check()

  @parameterized.parameters(*mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, kind):
    mutations.replace(self.run_dir / 'config.json', kind)
    self.assertIsNone(self.read().settings)
    mutations.replace(self.run_dir / 'metrics.csv', kind)
    self.assertIsNone(self.read())


if __name__ == '__main__':
  absltest.main()
