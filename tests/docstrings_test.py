"""The examples in docstrings print what they say."""

import doctest
import importlib
import pathlib

from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_NAMES = sorted(
  '.'.join(path.relative_to(_ROOT).with_suffix('').parts)
  for path in (_ROOT / 'tvdp_tf').rglob('*.py')
  if '>>>' in path.read_text(encoding='utf-8')
)


class DocstringsTest(parameterized.TestCase):
  def test_examples_are_found(self):
    self.assertIn('tvdp_tf.privacy.schedule', _NAMES)

  @parameterized.parameters(*_NAMES)
  def test_examples(self, name):
    report: list[str] = []
    runner = doctest.DocTestRunner()
    module = importlib.import_module(name)
    for example in doctest.DocTestFinder().find(module):
      runner.run(example, out=report.append)
    self.assertGreater(runner.tries, 0)
    self.assertEqual(runner.failures, 0, ''.join(report))


if __name__ == '__main__':
  absltest.main()
