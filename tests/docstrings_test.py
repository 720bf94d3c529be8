"""Public methods are documented, and examples print what they say."""

import ast
import doctest
import importlib
import pathlib
import textwrap
from collections.abc import Iterable, Iterator

from absl.testing import absltest, parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = (
  *('benchmarks', 'binaries', 'examples', 'reproduction', 'tools'),
  'tvdp_tf',
)
_NAMES = sorted(
  '.'.join(path.relative_to(_ROOT).with_suffix('').parts)
  for path in (_ROOT / 'tvdp_tf').rglob('*.py')
  if '>>>' in path.read_text(encoding='utf-8')
)

_WITHOUT_METHODS = ('ABC', 'NamedTuple', 'Protocol', 'object')


def _classes(
  modules: Iterable[tuple[pathlib.PurePath, ast.Module]],
) -> Iterator[tuple[str, ast.ClassDef]]:
  """Every class, with its place; empty where it, or its module, is private."""
  for path, tree in modules:
    private = any(
      part.startswith('_') and not part.startswith('__') for part in path.parts
    )
    for node in ast.walk(tree):
      if isinstance(node, ast.ClassDef):
        hidden = private or node.name.startswith('_')
        yield '' if hidden else f'{path}: {node.name}', node


def _undocumented(
  modules: Iterable[tuple[pathlib.PurePath, ast.Module]],
) -> list[str]:
  """Public methods without a docstring that override no method with one.

  Bases are known by their names; what one from elsewhere has is not looked at.
  """
  classes = list(_classes(modules))
  by_name: dict[str, list[ast.ClassDef]] = {}
  for _, node in classes:
    by_name.setdefault(node.name, []).append(node)

  def documented(node: ast.ClassDef, method: str) -> bool:
    own = next(
      (m for m in node.body if getattr(m, 'name', None) == method), None
    )
    if isinstance(own, ast.FunctionDef | ast.AsyncFunctionDef) and (
      ast.get_docstring(own)
    ):
      return True
    for base in node.bases:
      name = ast.unparse(base).rpartition('.')[2]
      ours = [other for other in by_name.get(name, []) if other is not node]
      if ours and any(documented(other, method) for other in ours):
        return True
      if not ours and name not in _WITHOUT_METHODS:
        return True
    return False

  return [
    f'{place}.{method.name}'
    for place, node in classes
    for method in node.body
    if place
    and isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    and not method.name.startswith('_')
    and not documented(node, method.name)
  ]


class MethodsTest(absltest.TestCase):
  def test_public_ones_are_documented_here_or_in_a_base(self):
    self.assertEmpty(
      _undocumented(
        (path.relative_to(_ROOT), ast.parse(path.read_text(encoding='utf-8')))
        for folder in _FOLDERS
        for path in sorted((_ROOT / folder).rglob('*.py'))
      )
    )

  def test_checker_sees(self):
    tree = ast.parse(
      textwrap.dedent("""
        class Base(abc.ABC):
          def told(self):
            'In words.'
          def untold(self): ...
        class Mine(module.Base):
          def told(self): ...
          def untold(self): ...
          def new(self): ...
          def _own(self): ...
        class _Hidden(Base):
          def new(self): ...
        class Layer(keras.Layer):
          def call(self): ...
      """)
    )
    self.assertEqual(
      _undocumented([(pathlib.PurePath('a.py'), tree)]),
      ['a.py: Base.untold', 'a.py: Mine.untold', 'a.py: Mine.new'],
    )
    self.assertEmpty(_undocumented([(pathlib.PurePath('_a.py'), tree)]))


class ExamplesTest(parameterized.TestCase):
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
