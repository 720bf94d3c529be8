"""The repository's modules and what they import, read from the files."""

import ast
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping

ROOTS = ('benchmarks', 'binaries', 'reproduction', 'tests', 'tools', 'tvdp_tf')
# Programs that run in separate environments.
_STRANGERS = 'benchmarks/peers/'


@dataclasses.dataclass(frozen=True)
class Module:
  """One Python file.

  Attributes:
    path: The file, relative to the root, with forward slashes.
    imports: The dotted names that it imports, outermost package first; for
      `from a import b` it is `a.b`.
  """

  path: str
  imports: frozenset[str]

  @property
  def folder(self) -> str:
    """The folder of the file."""
    return self.path.rpartition('/')[0]


def _imports(tree: ast.AST, folder: str) -> Iterator[str]:
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        parts = folder.split('/')
        parents = parts[: len(parts) - node.level + 1]
        base = '.'.join([*parents, *filter(None, [base])])
      for alias in node.names:
        yield f'{base}.{alias.name}'


def _parse(root: pathlib.Path, path: pathlib.Path) -> Module:
  relative = path.relative_to(root).as_posix()
  tree = ast.parse(path.read_text(encoding='utf-8'), relative)
  folder = relative.rpartition('/')[0]
  return Module(relative, frozenset(_imports(tree, folder)))


class Repository:
  """The modules on disk.

  Attributes:
    modules: All of them.
  """

  def __init__(self, root: pathlib.Path):
    files = sorted(f for name in ROOTS for f in (root / name).rglob('*.py'))
    parsed = (_parse(root, f) for f in files)
    self.modules = [m for m in parsed if not m.path.startswith(_STRANGERS)]
    self._by_name: Mapping[str, Module] = {
      m.path.removesuffix('.py').removesuffix('/__init__').replace('/', '.'): m
      for m in self.modules
    }

  def dependencies(self, module: Module) -> frozenset[Module]:
    """The repository's modules that `module` imports directly."""
    found = (self._find(name) for name in module.imports)
    return frozenset(m for m in found if m is not None and m is not module)

  def _find(self, name: str) -> Module | None:
    """Finds a module; `a.b.c` may also be a name in the package `a.b`."""
    return self._by_name.get(name) or self._by_name.get(name.rpartition('.')[0])
