"""`points.csv`, damaged or edited: one line, or points to draw and merge."""

import pathlib

import hypothesis
from absl.testing import absltest, parameterized

from reproduction import catalogue
from reproduction import curves as training_curves
from reproduction import runner as reproduction
from tests import mutations
from tvdp_tf import errors

_EXPERIMENT = catalogue.EXPERIMENTS['fig2']
_ROW = dict.fromkeys(training_curves.COLUMNS, '0.5') | {'rounds': '2'}
_HEADER = ','.join(['curve', 'seed', 'planned_rounds', *_ROW])
_POINTS = '\n'.join(
  [
    _HEADER,
    *(
      ','.join([curve, str(seed), '2', *(_ROW | {'round': str(m)}).values()])
      for curve in list(_EXPERIMENT.curves)[:2]
      for seed in (0, 1)
      for m in (1, 2)
    ),
    '',
  ]
)


class PointsFuzzTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path, 'points.csv')
    self.path.write_text(_POINTS)

  def read(self):
    try:
      return reproduction.read_points(self.path, _EXPERIMENT)
    except errors.UsageError as error:
      self.assertTrue(mutations.is_one_line(error), error)
      return None

  def test_whole(self):
    self.assertLen(self.read(), 8)

  @mutations.quick(400)
  @hypothesis.given(
    mutations.damaged(_POINTS.encode()) | mutations.edited_csv(_POINTS)
  )
  def test_one_line_or_points(self, content):
    self.path.write_bytes(content)
    rows = self.read()
    for curve, own in reproduction._by_curve(_EXPERIMENT, rows or []).items():
      if own:
        summary = training_curves.summarize(_EXPERIMENT, own)
        self.assertIn('best_at', summary, curve)

  @parameterized.parameters(*mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, kind):
    mutations.replace(self.path, kind)
    self.assertIsNone(self.read())


if __name__ == '__main__':
  absltest.main()
