"""The locks are whole: hashed, in agreement with each other and the metadata.

Nothing here asks the network; that `make lock` gives the same files again is
checked by running it.
"""

import configparser
import functools
import pathlib
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata

from absl.testing import absltest, parameterized
from packaging import requirements, utils

from tools import import_graph

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LOCKS = ('requirements.lock', 'requirements-gpu.lock')
_AUDIT_LOCK = 'requirements-audit.lock'
_DOCS_LOCK = 'requirements-docs.lock'
_KERAS3_LOCK = 'requirements-keras3.lock'
_HASH = re.compile(r'^--hash=sha256:[0-9a-f]{64}$')

# Of modules that are not in this environment, but in that of the docs.
_OTHER_NAMES = {'griffe': 'griffelib'}
# Needed to build and install; nothing imports them.
_INSTALLERS = {'setuptools', 'wheel'}


def _lines(name: str) -> list[str]:
  """A requirements file without comments, continued lines joined."""
  text = (_ROOT / name).read_text().replace('\\\n', ' ')
  lines = (re.sub(r'(^|\s)#.*', '', line).strip() for line in text.splitlines())
  return [line for line in lines if line]


def _declared(name: str) -> dict[str, requirements.Requirement]:
  """What an *.in file or the like asks for, by normalized name."""
  return _by_name(line for line in _lines(name) if not line.startswith('-r'))


def _by_name(lines: Iterable[str]) -> dict[str, requirements.Requirement]:
  found = map(requirements.Requirement, lines)
  return {str(utils.canonicalize_name(item.name)): item for item in found}


def _pins(name: str) -> dict[str, str]:
  """The versions in a lock, by normalized name."""
  pins: dict[str, str] = {}
  for line in _lines(name):
    item = requirements.Requirement(line.partition('--hash')[0])
    (specifier,) = item.specifier
    assert specifier.operator == '==', line
    pins[utils.canonicalize_name(item.name)] = specifier.version
  return pins


def _metadata() -> configparser.ConfigParser:
  parser = configparser.ConfigParser(interpolation=None)
  parser.read(_ROOT / 'setup.cfg')
  return parser


def _install_requires() -> dict[str, requirements.Requirement]:
  """Of the whole package."""
  extras = _metadata()['options.extras_require']
  return _by_name(extras['tff'].strip().splitlines())


def _test_requires() -> dict[str, requirements.Requirement]:
  extras = _metadata()['options.extras_require']
  return _by_name(extras['test'].strip().splitlines())


_distributions = functools.cache(metadata.packages_distributions)


@functools.cache
def _modules() -> list[import_graph.Module]:
  return import_graph.Repository(_ROOT).modules


def _third_party(*roots: str) -> set[str]:
  """Distributions whose modules the Python files below `roots` import."""
  names = {
    name.partition('.')[0]
    for module in _modules()
    if module.path.partition('/')[0] in roots
    for name in module.imports
  }
  names -= sys.stdlib_module_names | {*import_graph.ROOTS, '_start'}
  distributions = _distributions()
  return {
    utils.canonicalize_name(distribution)
    for name in names
    # A module without a distribution is reported under its own name.
    for distribution in distributions.get(name, [_OTHER_NAMES.get(name, name)])
    # The two provide the same modules; the metadata name the first.
    if distribution != 'tensorflow'
  }


class LockTest(parameterized.TestCase):
  @parameterized.parameters(*_LOCKS, _AUDIT_LOCK, _DOCS_LOCK, _KERAS3_LOCK)
  def test_every_pin_has_hashes_and_nothing_else(self, lock):
    lines = _lines(lock)
    self.assertGreater(len(lines), 20)
    for line in lines:
      pin, *options = line.split()
      self.assertRegex(pin, r'^[a-z0-9-]+==[0-9][0-9a-z.]*$')
      self.assertNotEmpty(options, pin)
      for option in options:
        self.assertRegex(option, _HASH, pin)
    self.assertLen(_pins(lock), len(lines), 'a name is pinned twice')

  @parameterized.parameters(
    (_LOCKS[0], ('requirements.in',), 'excludes.txt'),
    (_LOCKS[1], ('requirements.in', 'requirements-gpu.in'), 'excludes-gpu.txt'),
    (_AUDIT_LOCK, ('requirements-audit.in',), 'excludes.txt'),
    (_DOCS_LOCK, ('requirements-docs.in',), 'excludes.txt'),
  )
  def test_holds_what_is_asked_for(self, lock, inputs, excludes):
    pins = _pins(lock)
    excluded = set(_declared(excludes))
    self.assertEmpty(excluded & pins.keys())
    for name in inputs:
      for wanted, item in _declared(name).items():
        if wanted not in excluded:
          self.assertIn(wanted, pins)
          self.assertIn(pins[wanted], item.specifier, wanted)

  @parameterized.parameters(*_LOCKS)
  def test_holds_the_overrides(self, lock):
    pins = _pins(lock)
    overrides = _declared('overrides.txt')
    self.assertNotEmpty(overrides)
    for name, item in overrides.items():
      self.assertEqual(str(item.specifier), f'=={pins[name]}', name)

  def test_gpu_lock_differs_in_tensorflow_and_cuda_only(self):
    cpu, gpu = map(_pins, _LOCKS)
    self.assertEqual(cpu.keys() - gpu.keys(), {'tensorflow-cpu'})
    self.assertEqual(gpu['tensorflow'], cpu['tensorflow-cpu'])
    more = gpu.keys() - cpu.keys() - {'tensorflow'}
    self.assertNotEmpty(more)
    self.assertEmpty(
      {name for name in more if not re.match(r'nvidia-.*-cu11$', name)}
    )
    self.assertEqual(
      {name: gpu[name] for name in gpu.keys() & cpu.keys()},
      {name: cpu[name] for name in gpu.keys() & cpu.keys()},
    )

  def test_docs_lock_agrees_where_both_have_a_package(self):
    """The environment of one is beside that of the other."""
    ours, docs = _pins(_LOCKS[0]), _pins(_DOCS_LOCK)
    both = ours.keys() & docs.keys()
    self.assertContainsSubset({'numpy', 'typing-extensions'}, both)
    for name in both:
      self.assertEqual(docs[name], ours[name], name)

  def test_keras3_lock_is_of_another_tensorflow_without_tff(self):
    pins = _pins(_KERAS3_LOCK)
    self.assertEqual(pins['keras'].partition('.')[0], '3')
    self.assertNotEqual(
      pins['tensorflow-cpu'], _pins(_LOCKS[0])['tensorflow-cpu']
    )
    self.assertNotIn('tensorflow-federated', pins)
    for wanted, item in _declared('requirements-keras3.in').items():
      self.assertIn(pins[wanted], item.specifier, wanted)


class MetadataTest(absltest.TestCase):
  def test_lock_satisfies_the_metadata(self):
    pins = _pins('requirements.lock')
    for name, item in {**_install_requires(), **_test_requires()}.items():
      self.assertIn(name, pins)
      self.assertIn(pins[name], item.specifier, name)

  def test_the_core_and_the_plans_are_parts_of_the_whole(self):
    metadata_ = _metadata()
    core = metadata_['options']['install_requires'].strip().splitlines()
    plans = metadata_['options.extras_require']['plan'].strip().splitlines()
    whole = _install_requires()
    pins = _pins('requirements.lock')
    for name, item in _by_name([*core, *plans]).items():
      self.assertIn(name, whole)
      self.assertIn(pins[name], item.specifier, name)

  def test_metadata_and_input_name_the_same(self):
    self.assertEqual(
      {*_install_requires(), *_test_requires(), *_INSTALLERS},
      set(_declared('requirements.in')),
    )

  def test_what_is_imported_is_declared(self):
    extras = _metadata()['options.extras_require']
    notebook = {
      name
      for extra in ('notebook', 'docs')
      for name in _by_name(extras[extra].strip().splitlines())
    }
    library = _third_party('tvdp_tf', 'binaries') - notebook
    self.assertIn('tensorflow-federated', library)
    self.assertEmpty(library - _install_requires().keys())
    everything = _third_party('tvdp_tf', 'binaries', 'tests', 'tools')
    # In an environment of its own.
    flower = _declared('tools/secagg_requirements.txt').keys() & {'flwr'}
    self.assertContainsSubset({'absl-py', 'packaging'}, everything)
    self.assertEmpty(
      everything
      - _install_requires().keys()
      - _test_requires().keys()
      - notebook
      - flower
    )

  def test_environment_is_the_locks(self):
    # Not the whole of sys.path: setuptools, once imported, adds to it what it
    # carries for itself.
    folders = [sysconfig.get_path('purelib'), sysconfig.get_path('platlib')]
    installed = {
      str(utils.canonicalize_name(distribution.name)): distribution.version
      for distribution in metadata.distributions(path=folders)
    }
    lock = _LOCKS['tensorflow' in installed]
    for name, version in _pins(lock).items():
      self.assertEqual(installed.get(name), version, name)

  def test_docs_lock_has_the_tools_of_the_extras(self):
    extras = _metadata()['options.extras_require']
    for extra in ('notebook', 'docs'):
      names = _by_name(extras[extra].strip().splitlines()).keys()
      self.assertContainsSubset(names, _declared('requirements-docs.in'))

  def test_python_is_the_one_that_is_declared(self):
    allowed = requirements.Requirement(
      'python' + _metadata()['options']['python_requires']
    )
    version = '.'.join(map(str, sys.version_info[:3]))
    self.assertIn(version, allowed.specifier)
    self.assertNotIn('3.9.18', allowed.specifier)


if __name__ == '__main__':
  absltest.main()
