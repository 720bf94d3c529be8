"""Writes the BUILD files from the Python files and imports on disk.

Every folder with Python files is a Bazel package. Every module is a target of
its own: `*_test.py` a `py_test`, one with a main guard a `py_binary`, any other
a `py_library`. `deps` are its imports of this repository's modules, in whatever
block they stand. Third-party packages are not targets: they come from the
environment that requirements.lock describes.

  python tools/build_files.py
"""

import ast
import collections
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

_ROOTS = ('binaries', 'tests', 'tools', 'tvdp_tf')
_LIBRARY_ROOT = 'tvdp_tf'
_TESTS_ROOT = 'tests'

# Files at the top that tests read, and that others may want to package.
_EXPORTED = (
  'LICENSE',
  'Makefile',
  'README.md',
  'excludes-gpu.txt',
  'excludes.txt',
  'overrides.txt',
  'pyproject.toml',
  'requirements-gpu.in',
  'requirements-gpu.lock',
  'requirements.in',
  'requirements.lock',
  'setup.cfg',
)

_DATA_SUFFIXES = ('.csv', '.json', '.npz')

# These read the checkout itself, which a Bazel sandbox does not hold.
_MANUAL = frozenset(
  {
    'tests/tools/build_files_test.py',
    'tests/docstrings_test.py',
    'tests/examples/examples_test.py',
    'tests/tools/install_test.py',
    'tests/layering_test.py',
    'tests/tools/lock_test.py',
  }
)

_TOP_COMMENT = """\
# Which module depends on which: `make build-files` writes these files, and
# tests/tools/build_files_test.py holds them against the imports. Packages of
# others are not targets; requirements.lock describes the environment.

"""


@dataclasses.dataclass(frozen=True)
class Module:
  """One Python file.

  Attributes:
    path: The file, relative to the root, with forward slashes.
    imports: The dotted names that it imports, outermost package first; for
      `from a import b` both `a` and `a.b`.
    words: Its string constants, of a path the last part.
    is_program: Whether it has a main guard.
  """

  path: str
  imports: frozenset[str]
  words: frozenset[str]
  is_program: bool

  @property
  def folder(self) -> str:
    """Where the file lies: the Bazel package."""
    return self.path.rpartition('/')[0]

  @property
  def name(self) -> str:
    """The target's name; a package's `__init__.py` has its folder's."""
    stem = self.path.rpartition('/')[2].removesuffix('.py')
    return self.folder.rpartition('/')[2] if stem == '__init__' else stem

  @property
  def is_test(self) -> bool:
    """Whether pytest collects it."""
    return self.path.endswith('_test.py')

  def label(self, folder: str = '') -> str:
    """The target as written in a BUILD file of `folder`."""
    if folder == self.folder:
      return f':{self.name}'
    if self.folder.rpartition('/')[2] == self.name:
      return f'//{self.folder}'
    return f'//{self.folder}:{self.name}'


def _imports(tree: ast.AST, folder: str) -> Iterator[str]:
  """Yields dotted names; `from a import b` may mean the module `a.b`."""
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


def _has_main_guard(tree: ast.Module) -> bool:
  return any(
    isinstance(node, ast.If) and "__name__ == '__main__'" in ast.unparse(node)
    for node in tree.body
  )


def _parse(root: pathlib.Path, path: pathlib.Path) -> Module:
  relative = path.relative_to(root).as_posix()
  tree = ast.parse(path.read_text(encoding='utf-8'), relative)
  folder = relative.rpartition('/')[0]
  return Module(
    path=relative,
    imports=frozenset(_imports(tree, folder)),
    words=frozenset(
      node.value.rpartition('/')[2]
      for node in ast.walk(tree)
      if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ),
    is_program=_has_main_guard(tree),
  )


class Repository:
  """The modules on disk, and what follows from their imports."""

  def __init__(self, root: pathlib.Path):
    self._root = root
    files = sorted(f for name in _ROOTS for f in (root / name).rglob('*.py'))
    self.modules = [_parse(root, f) for f in files]
    self._by_name: Mapping[str, Module] = {
      m.path.removesuffix('.py').removesuffix('/__init__').replace('/', '.'): m
      for m in self.modules
    }

  def dependencies(self, module: Module) -> frozenset[Module]:
    """The repository's modules that `module` imports itself."""
    found = (self._find(name) for name in module.imports)
    return frozenset(m for m in found if m is not None and m is not module)

  def _find(self, name: str) -> Module | None:
    """`a.b.c` is that module, or a name defined in the package `a.b`."""
    return self._by_name.get(name) or self._by_name.get(name.rpartition('.')[0])

  def _third_party(self, module: Module) -> frozenset[str]:
    """Top-level names imported by the module or anything below it."""
    seen, waiting = {module}, [module]
    while waiting:
      new = self.dependencies(waiting.pop()) - seen
      seen |= new
      waiting.extend(new)
    return frozenset(name.partition('.')[0] for m in seen for name in m.imports)

  def programs(self, module: Module) -> frozenset[str]:
    """Labels of the programs that a test names, and therefore runs."""
    return frozenset(
      m.label(module.folder)
      for m in self.modules
      if module.is_test
      and m.is_program
      and not m.is_test
      and m.path.rpartition('/')[2] in module.words
    )

  def files(self, module: Module) -> frozenset[str]:
    """Files that a module names: beside it; for a test, also at the top."""
    beside = {file.name for file in (self._root / module.folder).iterdir()}
    data = {n for n in beside & module.words if n.endswith(_DATA_SUFFIXES)}
    exported = module.words.intersection(_EXPORTED) if module.is_test else ()
    return frozenset(data | {f'//:{name}' for name in exported})

  def size(self, module: Module) -> str:
    """What a test loads decides how long it may take."""
    third_party = self._third_party(module)
    if 'tensorflow_federated' in third_party or self.programs(module):
      return 'large'
    return 'medium' if 'tensorflow' in third_party else 'small'


def _sorted_labels(labels: Iterable[str]) -> list[str]:
  """Buildifier's order: this package's first, then a package's own."""
  return sorted(
    labels, key=lambda label: (label.startswith('//'), label.split(':'))
  )


def _attribute(name: str, value: str | bool | list[str]) -> str:
  if isinstance(value, bool):
    return f'    {name} = {value},\n'
  if isinstance(value, str):
    return f'    {name} = "{value}",\n'
  if len(value) == 1:
    return f'    {name} = ["{value[0]}"],\n'
  lines = ''.join(f'        "{item}",\n' for item in value)
  return f'    {name} = [\n{lines}    ],\n'


def _rule(repository: Repository, module: Module) -> tuple[str, str]:
  """The kind of a module's rule, and its text."""
  attributes: dict[str, str | bool | list[str]] = {'name': module.name}
  kind = 'py_library'
  if module.is_test:
    kind = 'py_test'
    attributes['size'] = repository.size(module)
  elif module.path.startswith(f'{_TESTS_ROOT}/'):
    attributes['testonly'] = True
  elif module.is_program:
    kind = 'py_binary'
  attributes['srcs'] = [module.path.rpartition('/')[2]]
  if data := repository.programs(module) | repository.files(module):
    attributes['data'] = _sorted_labels(data)
  if module.path in _MANUAL:
    attributes['tags'] = ['manual']
  labels = {m.label(module.folder) for m in repository.dependencies(module)}
  if labels:
    attributes['deps'] = _sorted_labels(labels)
  body = ''.join(_attribute(*item) for item in attributes.items())
  return kind, f'{kind}(\n{body})\n'


def _package(repository: Repository, folder: str) -> str:
  modules = sorted(
    (m for m in repository.modules if m.folder == folder), key=lambda m: m.name
  )
  names = collections.Counter(m.name for m in modules)
  if twice := [name for name, count in names.items() if count > 1]:
    raise ValueError(f'{folder} has two targets named {", ".join(twice)}')
  rules = [_rule(repository, m) for m in modules]
  kinds = ', '.join(f'"{kind}"' for kind in sorted({kind for kind, _ in rules}))
  shared = folder.partition('/')[0] == _LIBRARY_ROOT
  visibility = '//visibility:public' if shared else '//:__subpackages__'
  return '\n'.join(
    [
      f'load("@rules_python//python:defs.bzl", {kinds})\n',
      f'package(default_visibility = ["{visibility}"])\n',
      'licenses(["notice"])\n',
      *(text for _, text in rules),
    ]
  )


def _top(root: pathlib.Path) -> str:
  exported = [name for name in _EXPORTED if (root / name).exists()]
  lines = ''.join(f'    "{name}",\n' for name in exported)
  return (
    f'{_TOP_COMMENT}package(default_visibility = ["//visibility:public"])\n\n'
    f'licenses(["notice"])\n\nexports_files([\n{lines}])\n'
  )


def build_files(root: pathlib.Path) -> dict[str, str]:
  """The text of every BUILD file, by its path relative to `root`."""
  repository = Repository(root)
  folders = sorted({module.folder for module in repository.modules})
  packages = {f'{f}/BUILD': _package(repository, f) for f in folders}
  return {'BUILD': _top(root), **packages}


def _folder_files(root: pathlib.Path) -> list[pathlib.Path]:
  return sorted(f for name in _ROOTS for f in (root / name).rglob('BUILD'))


def stale_files(root: pathlib.Path) -> list[str]:
  """Paths of BUILD files to write anew or to remove, relative to `root`."""
  wanted = build_files(root)
  found = {
    path.relative_to(root).as_posix(): path.read_text(encoding='utf-8')
    for path in [root / 'BUILD', *_folder_files(root)]
    if path.exists()
  }
  return sorted(
    name
    for name in wanted.keys() | found.keys()
    if wanted.get(name) != found.get(name)
  )


def write(root: pathlib.Path) -> list[str]:
  """Writes the stale BUILD files and removes those without a package.

  Args:
    root: The checkout.

  Returns:
    The paths of what has changed, relative to `root`.

  Raises:
    ValueError: Two targets of one folder would have the same name.
    SyntaxError: A Python file cannot be parsed.
  """
  wanted = build_files(root)
  changed = stale_files(root)
  for name in changed:
    if name in wanted:
      (root / name).write_text(wanted[name], encoding='utf-8')
    else:
      os.remove(root / name)
  return changed


def main() -> None:
  """Brings the BUILD files of this checkout up to date and names them."""
  for name in write(pathlib.Path(__file__).resolve().parent.parent):
    print(name)


if __name__ == '__main__':
  main()
