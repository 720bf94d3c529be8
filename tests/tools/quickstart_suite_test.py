import csv
import pathlib
import sys
import time

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

  def test_what_a_program_leaves_behind_is_ended(self):
    code = (
      'import subprocess\n'
      "left = subprocess.Popen(['sleep', '600'])\n"
      'print(left.pid)\n'
    )
    started = time.monotonic()
    printed = quickstart_suite.run([sys.executable, '-c', code], _ROOT)
    self.assertLess(time.monotonic() - started, 60)
    status = pathlib.Path('/proc', printed.strip(), 'stat')
    for _ in range(100):
      if not status.exists() or ' Z ' in status.read_text():
        return
      time.sleep(0.1)
    self.fail('it still runs')


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
