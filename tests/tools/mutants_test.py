import ast
import csv
import fnmatch
import functools
import pathlib

from absl.testing import absltest

from tests import conftest
from tools import mutant_cases

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def _program(text: str) -> str:
  return ast.dump(ast.parse(text))


class MutantsTest(absltest.TestCase):
  def test_each_is_another_program_that_can_be_run(self):
    for mutant in mutant_cases.MUTANTS:
      with self.subTest(mutant.path, before=mutant.before):
        text = (_ROOT / mutant.path).read_text()
        changed = mutant_cases.mutated(mutant, text)
        self.assertNotEqual(_program(changed), _program(text))

  def test_each_stands_in_its_file_once_and_has_tests(self):
    for mutant in mutant_cases.MUTANTS:
      with self.subTest(mutant.path, before=mutant.before):
        mutant_cases.mutated(mutant, (_ROOT / mutant.path).read_text())
        for test in mutant.tests:
          self.assertTrue((_ROOT / test.partition('::')[0]).is_file(), test)

  def test_what_noticed_them_is_quick(self):
    """Who makes a test long must look for another that notices the same."""
    with (_ROOT / 'results/mutants/mutants.csv').open(newline='') as file:
      by = {row['noticed_by'] for row in csv.DictReader(file)}
    self.assertGreater(len(by), 100)
    for pattern in conftest.long_patterns():
      self.assertEmpty(fnmatch.filter(by, pattern), 'run make mutants again')

  def test_every_file_that_carries_the_guarantee_has_some(self):
    paths = {pathlib.Path(m.path).stem for m in mutant_cases.MUTANTS}
    self.assertContainsSubset(
      {'clipping', 'ghost_clipping', 'noise', 'sensitivity', 'spending'},
      paths,
    )


if __name__ == '__main__':
  absltest.main()
