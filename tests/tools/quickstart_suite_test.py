import csv
import pathlib

from absl.testing import absltest, parameterized

from tools import quickstart_suite

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / 'results/quickstart'


class QuickstartTest(absltest.TestCase):
  def test_lines_are_code(self):
    path = pathlib.Path(self.create_tempdir().full_path, 'program.py')
    path.write_text('"""A program\n\nof two lines."""\n\nimport a\n\n\na.b()\n')
    self.assertEqual(quickstart_suite.count_lines(path), 2)

  def test_parses_what_a_program_prints(self):
    printed = 'a log\nstatement: epsilon = 3\n  of one\naccuracy: 0.5\nbye\n'
    self.assertEqual(
      quickstart_suite.parse(printed), ('epsilon = 3\n  of one', 0.5)
    )
    for lacking in ('statement: 3\n', 'nothing'):
      with self.assertRaisesRegex(ValueError, '^no statement'):
        quickstart_suite.parse(lacking)


class ResultsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    with open(_RESULTS / 'quickstart.csv', newline='') as file:
      self.rows = {row['tool']: row for row in csv.DictReader(file)}

  def test_all_were_run(self):
    self.assertCountEqual(self.rows, quickstart_suite.PROTECTS)

  @parameterized.parameters(*quickstart_suite.PROTECTS)
  def test_row_is_of_the_program_and_on_the_page(self, tool):
    row = self.rows[tool]
    program = _ROOT / 'benchmarks/peers' / tool / 'quickstart.py'
    self.assertEqual(int(row['lines']), quickstart_suite.count_lines(program))
    self.assertBetween(float(row['accuracy']), 0.7, 1.0)
    page = (_RESULTS / 'README.md').read_text()
    self.assertIn(f'\n## {tool}\n\n```\n{row["statement"]}\n```\n', page)
    self.assertIn(f'| {tool} | {row["lines"]} | {row["packages"]} |', page)


if __name__ == '__main__':
  absltest.main()
