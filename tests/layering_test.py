"""Arrows between packages point one way, and no modules import in a circle.

The order, lowest first: a module imports from its own layer and those below.
Imports inside of functions count too: they say what needs what.
"""

import graphlib
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from tools import import_graph

_ROOT = pathlib.Path(__file__).resolve().parents[1]

# The names for users, from all layers.
_DOOR = 'tvdp_tf/__init__.py'
# `tvdp_tf` are the modules directly in it. Two names in one layer are
# strangers to each other.
_LAYERS = (
  {'tvdp_tf'},
  {'tvdp_tf/experiments', 'tvdp_tf/privacy'},
  {'tvdp_tf/learning', 'tvdp_tf/output'},
  {'tvdp_tf/federated'},
  {'tvdp_tf/runtimes'},
  {'tvdp_tf/mechanisms'},
  {'tvdp_tf/training'},
  {'tvdp_tf/attacks', 'tvdp_tf/planner'},
  {'tvdp_tf/cli'},
  {_DOOR},
  {'benchmarks', 'reproduction'},
  {'binaries', 'tools'},
  {'tests'},
)
_RANKS = {name: rank for rank, names in enumerate(_LAYERS) for name in names}

# Top-level names of what takes seconds to import, or is not always there.
_TENSORFLOW = frozenset(
  {
    'jax',
    'keras',
    'tensorflow',
    'tensorflow_datasets',
    'tensorflow_federated',
    'tensorflow_privacy',
  }
)
_FORBIDDEN = {
  'tvdp_tf': _TENSORFLOW | {'matplotlib'},
  'tvdp_tf/privacy': _TENSORFLOW | {'matplotlib'},
  'tvdp_tf/learning': frozenset({'matplotlib', 'tensorflow_federated'}),
}


def _layer(module: import_graph.Module) -> str:
  """The folder that decides which layer a module is in."""
  if module.path == _DOOR:
    return _DOOR
  parts = module.folder.split('/')
  return '/'.join(parts[:2] if parts[0] == 'tvdp_tf' else parts[:1])


def _wrong_arrows(repository: import_graph.Repository) -> list[str]:
  return [
    f'{module.path} imports {other.path}'
    for module in repository.modules
    for other in repository.dependencies(module)
    if _layer(other) != _layer(module)
    and _RANKS[_layer(other)] >= _RANKS[_layer(module)]
  ]


def _forbidden_imports(repository: import_graph.Repository) -> list[str]:
  return [
    f'{module.path} imports {name}'
    for module in repository.modules
    for name in sorted(module.imports)
    if name.partition('.')[0] in _FORBIDDEN.get(_layer(module), ())
  ]


def _circle(repository: import_graph.Repository) -> list[str]:
  """The paths of modules that import one another in a circle, if any do."""
  graph = {
    module.path: {other.path for other in repository.dependencies(module)}
    for module in repository.modules
  }
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    return error.args[1]
  return []


class CheckoutTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.repository = import_graph.Repository(_ROOT)

  def test_every_folder_has_a_layer(self):
    layers = {_layer(module) for module in self.repository.modules}
    self.assertLessEqual({'tvdp_tf', 'tvdp_tf/privacy', 'tests'}, layers)
    self.assertLessEqual(layers, _RANKS.keys())

  def test_arrows_point_down(self):
    self.assertEmpty(_wrong_arrows(self.repository))

  def test_no_circles(self):
    self.assertEmpty(_circle(self.repository))

  def test_lower_layers_do_not_need_what_is_heavy(self):
    self.assertEmpty(_forbidden_imports(self.repository))

  @parameterized.parameters(
    'tvdp_tf', 'tvdp_tf.privacy', 'tvdp_tf.cli.shared_flags'
  )
  def test_loads_no_tensorflow(self, name):
    code = f'import sys, {name}; print(*sorted(sys.modules))'
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    loaded = set(done.stdout.split())
    self.assertIn(name, loaded)
    self.assertEmpty(loaded & _TENSORFLOW)


class CheckerTest(absltest.TestCase):
  """On small trees, so that the checks above are known to see."""

  def _repository(self, **files: str) -> import_graph.Repository:
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    for name, text in files.items():
      path = root / 'tvdp_tf' / f'{name.replace("__", "/")}.py'
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    return import_graph.Repository(root)

  def test_allowed(self):
    repository = self._repository(
      errors='',
      privacy__schedule='from tvdp_tf import errors',
      federated__aggregator='import tensorflow_federated as tff\n'
      'from tvdp_tf.privacy import schedule',
    )
    self.assertEmpty(_wrong_arrows(repository))
    self.assertEmpty(_forbidden_imports(repository))
    self.assertEmpty(_circle(repository))

  def test_arrow_up_is_seen(self):
    repository = self._repository(
      privacy__schedule='def f():\n  from tvdp_tf.learning.noise import g',
      learning__noise='',
    )
    self.assertEqual(
      _wrong_arrows(repository),
      ['tvdp_tf/privacy/schedule.py imports tvdp_tf/learning/noise.py'],
    )

  def test_arrow_to_a_stranger_is_seen(self):
    repository = self._repository(
      attacks__membership='from ..planner import report',
      planner__report='',
    )
    self.assertLen(_wrong_arrows(repository), 1)

  def test_circle_is_seen(self):
    repository = self._repository(
      privacy__a='from tvdp_tf.privacy import b',
      privacy__b='from tvdp_tf.privacy import c',
      privacy__c='from tvdp_tf.privacy.a import x',
    )
    self.assertLen(set(_circle(repository)), 3)

  def test_heavy_import_is_seen(self):
    repository = self._repository(
      privacy__schedule='import tensorflow.math',
      learning__noise='import tensorflow as tf',
    )
    self.assertEqual(
      _forbidden_imports(repository),
      ['tvdp_tf/privacy/schedule.py imports tensorflow.math'],
    )


if __name__ == '__main__':
  absltest.main()
